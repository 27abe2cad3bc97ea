"""A constellation for clients of the Model Context Protocol: the official client, of both generations, over HTTP."""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
import trio
import trio.testing
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS

from pattern_core.errors import leaves
from pattern_core.models.errors import ModelRefused
from pattern_core.testing.model import Paced, ScriptedProvider, calls, says
from pattern_db.connection import open_connection
from pattern_server import accounts
from pattern_server.http import mcp
from pattern_server.http.mcp import _translated
from pattern_server.http.routing import Access
from pattern_server.http.toolsets import SERVED
from pattern_server.http.toolsets.resources import FILE_BYTES_MAX
from pattern_server.http.toolsets.toolset import run_tool
from tests.pattern_server.place import Place, config_for, serving
from tests.support import until

MODES = ("legacy", "2026-07-28")
both = pytest.mark.parametrize("mode", MODES)
ASKS = [{"tool": "block_edit", "type": "requires_consent"}]
EDIT = {"op": "append", "label": "human", "content": "Likes tea."}
# Every tool with arguments that suit a new constellation, in an order that suits them.
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("agents_list", {}),
    ("memory_list", {}),
    ("memory_write", {"label": "facts", "content": "Ruth likes tea.\n", "description": "Facts."}),
    ("memory_edit", {"label": "facts", "old": "tea", "new": "coffee", "agent": "ada"}),
    ("memory_edit", {"label": "facts", "new": "She lives in Lisbon.\n"}),
    ("memory_read", {"label": "facts"}),
    ("archive_add", {"content": "The code of the door is 4711.", "tags": ["home"]}),
    ("search", {"query": "code of the door", "kind": "archival", "limit": "1"}),
    ("agent_message", {"content": "Hello", "agent": "ada"}),
    ("group_message", {"group": "desk", "content": "Hello"}),
]


def http_of(place: Place, token: str) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=60, trust_env=False)


async def token_of(place: Place, *scopes: str, constellation_id: str | None = None) -> str:
    client = await place.client("ann", *scopes, constellation_id=constellation_id)
    return str(client.headers["authorization"].removeprefix("Bearer "))


@asynccontextmanager
async def connected(place: Place, mode: str, *, token: str = "", where: str = "home") -> AsyncIterator[Client]:
    """The official client; its own errors come out as they are."""
    try:
        async with http_of(place, token or place.parts.local_token) as http:
            transport = streamable_http_client(f"{place.url}/mcp/{where}", http_client=http)
            async with Client(transport, mode=mode, cache=None) as client:
                yield client
    except BaseExceptionGroup as group:
        raise next(leaves(group)) from None


async def called(client: Client, tool: str, is_error: bool = False, **arguments: Any) -> Any:
    """The JSON of a tool's answer."""
    result = await client.call_tool(tool, arguments)
    text = getattr(result.content[0], "text", "")
    assert result.is_error is is_error, text
    return json.loads(text)


@both
async def test_an_agent_answers_and_the_client_sees_what_it_does(
    home: Place, scripted: ScriptedProvider, mode: str
) -> None:
    scripted._script = iter([calls("block_edit", EDIT), says("I will remember that.")])
    seen: list[tuple[float, str]] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, str(message)))

    async with connected(home, mode) as client:
        result = await client.call_tool("agent_message", {"content": "I like tea."}, progress_callback=report)
        answer = json.loads(getattr(result.content[0], "text", ""))
        assert (answer["status"], answer["text"]) == ("completed", "I will remember that.")
        assert [number for number, _ in seen] == [*range(1, len(seen) + 1)]
        words = [message for _, message in seen]
        assert {"turn.started", "step.started 1", "tool.call block_edit", "step.started 2"} < {*words}
        assert words[-1] == "turn.completed I will remember that."
        assert (await called(client, "memory_read", label="human"))["content"] == "Likes tea."
    turn = (await home.admin.get(f"/constellations/home/turns/{answer['turn_id']}")).json()
    assert turn["messages"][0]["source"] == "mcp"
    assert turn["messages"][0]["content"] == "I like tea."


async def test_what_a_program_changes_is_in_the_audit_log(home: Place) -> None:
    async with connected(home, MODES[1]) as client:
        await called(client, "memory_read", label="human")
        await called(client, "memory_write", label="human", content="a very private matter")
        await called(client, "memory_edit", is_error=True, label="nothing", new="x")
        await called(client, "agent_message", content="Hello")
    page = await home.admin.get("/audit")
    rows = [row for row in reversed(page.json()["items"]) if row["action"].startswith("mcp.")]
    assert [(row["action"], row["object"], row["status"]) for row in rows] == [
        ("mcp.memory_write", "/mcp/home", 102),
        ("mcp.memory_write", "/mcp/home", 200),
        ("mcp.memory_edit", "/mcp/home", 102),
        ("mcp.memory_edit", "/mcp/home", 404),
    ]
    assert "private" not in page.text


@both
async def test_every_tool_is_listed_and_can_be_called(home: Place, mode: str) -> None:
    group = {"name": "desk", "pattern_type": "round_robin", "members": [{"agent_id": "ada"}]}
    assert (await home.admin.post("/constellations/home/groups", json=group)).status_code == 201
    answers: dict[str, Any] = {}
    async with connected(home, mode) as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        for name, arguments in CALLS:
            answers[name] = await called(client, name, **arguments)
        (hit,) = answers["search"]["hits"]
        entry = await called(client, "archive_read", entry=hit["id"])
        again = await called(client, "turn_wait", turn_id=answers["agent_message"]["turn_id"])
    assert set(listed) == {*(name for name, _ in CALLS), "archive_read", "turn_wait"} == set(SERVED)
    for tool in listed.values():
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", tool.name) and tool.description
        assert tool.input_schema["type"] == "object"
        assert all(one["type"] != "object" for one in tool.input_schema.get("properties", {}).values())
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint is (SERVED[tool.name][0] == "read")
    assert answers["memory_read"]["content"] == "Ruth likes coffee.\nShe lives in Lisbon.\n"
    assert [block["label"] for block in answers["memory_list"]["blocks"]] == ["human", "persona"]
    assert (hit["agent"], hit["content"]) == ("ada", "The code of the door is 4711.")
    assert entry["tags"] == ["home"] and answers["archive_add"]["is_new"]
    assert again == answers["agent_message"]
    assert answers["group_message"]["status"] == "completed"
    assert answers["agents_list"]["groups"] == [{"name": "desk", "description": None, "members": ["ada"]}]
    # The changes are the caller's.
    blame = (await home.admin.get("/constellations/home/agents/ada/memory/facts/blame")).json()["lines"]
    me = (await home.admin.get("/me")).json()["user_id"]
    assert {line["author"] for line in blame} == {f"user:{me}"}


@both
async def test_the_scopes_of_the_token_decide_what_there_is(place: Place, mode: str) -> None:
    ann = await place.client("ann", "write", "chat")
    assert (await ann.post("/constellations", json={"name": "home"})).status_code == 201
    assert (await ann.post("/constellations/home/agents", json={"name": "ada"})).status_code == 201
    by_scope = {
        scopes: {name for name, (scope, _tool) in SERVED.items() if scope in {"read", *scopes}}
        for scopes in (("read",), ("chat",), ("write",), ("write", "chat"))
    }
    assert len({len(names) for names in by_scope.values()}) > 2
    for scopes, names in by_scope.items():
        async with connected(place, mode, token=await token_of(place, *scopes)) as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == names
            for missing, arguments in (("memory_write", {"label": "x", "content": "y"}), ("agent_message", {})):
                if missing not in names:
                    refused = await called(client, missing, is_error=True, **arguments)
                    assert refused["error"]["code"] == "permission_denied"
    blocks = (await ann.get("/constellations/home/agents/ada/memory")).json()["items"]
    assert [block["label"] for block in blocks] == ["human", "persona"]


@both
async def test_a_token_sees_only_its_own(place: Place, mode: str) -> None:
    await place.constellation("home")
    ann = await place.client("ann", "write", "chat")
    own = (await ann.post("/constellations", json={"name": "own"})).json()["id"]
    await ann.post("/constellations", json={"name": "other"})
    bound = await token_of(place, "read", constellation_id=own)
    async with connected(place, mode, token=bound, where="own") as client:
        assert await called(client, "agents_list") == {"agents": [], "groups": []}
    for token, where in ((bound, "other"), (bound, "home"), (await token_of(place, "write"), "home"), ("nope", "own")):
        with pytest.raises(MCPError):
            async with connected(place, mode, token=token, where=where) as client:
                await client.list_tools()


async def test_a_session_is_its_tokens_own(home: Place) -> None:
    """Whoever learns its id gets nothing, and each request has the rights of its own token."""
    begin = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    }
    accept = {"Accept": "application/json, text/event-stream"}
    admin = (await home.admin.get("/me")).json()["username"]
    secret = (await home.admin.post("/tokens", json={"scopes": ["read"], "user": admin})).json()["token"]
    async with http_of(home, home.parts.local_token) as one, http_of(home, secret) as other:
        answer = await one.post(f"{home.url}/mcp/home", json=begin, headers=accept)
        session = {**accept, "mcp-session-id": answer.headers["mcp-session-id"]}
        ask = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        assert (await other.post(f"{home.url}/mcp/home", json=ask, headers=session)).status_code == 404
        assert (await other.delete(f"{home.url}/mcp/home", headers=session)).status_code == 404
        assert (await one.post(f"{home.url}/mcp/home", json=ask, headers=session)).status_code == 200
        assert (await one.delete(f"{home.url}/mcp/home", headers=session)).status_code == 200
        assert (await one.post(f"{home.url}/mcp/home", json=ask, headers=session)).status_code == 404


@both
async def test_a_cancelled_call_cancels_its_turn(home: Place, scripted: ScriptedProvider, mode: str) -> None:
    scripted._script = iter([Paced(answer=says("Never."), gate=trio.Event())])
    with trio.fail_after(30):
        async with connected(home, mode) as client:
            with trio.CancelScope() as scope:

                async def cancel(progress: float, total: float | None, message: str | None) -> None:
                    if message == "step.started 1":
                        scope.cancel()

                await client.call_tool("agent_message", {"content": "Hello"}, progress_callback=cancel)
            assert scope.cancelled_caught
            while (turn := (await home.admin.get("/constellations/home/turns")).json()["items"][0])["ended_at"] is None:
                await trio.sleep(0.01)
            assert (turn["status"], scripted.running) == ("cancelled", 0)
            # The connection is still good, and waiting for it says that it failed.
            gone = await called(client, "turn_wait", is_error=True, turn_id=turn["turn_id"])
            assert gone["status"] == "cancelled"


@pytest.mark.parametrize("is_stopping", [False, True])
async def test_only_a_client_cancels_turns(home: Place, scripted: ScriptedProvider, is_stopping: bool) -> None:
    """A server that stops cancels calls, too; their turns continue after its next start."""
    scripted._script = iter([Paced(answer=says("Later."), gate=trio.Event())])
    caller = await home.parts.state.accounts.authenticate(home.parts.local_token)

    async def report(_words: str) -> None:
        await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        access = Access(home.parts.state, caller, "home")
        nursery.start_soon(run_tool, access, SERVED["agent_message"][1], {"content": "Hello"}, report)
        await until(lambda: scripted.running)
        if is_stopping:
            home.parts.state.draining.set()
        nursery.cancel_scope.cancel()
    if is_stopping:
        await trio.testing.wait_all_tasks_blocked(0.1)
        assert scripted.cancelled == 0
    else:
        await until(lambda: scripted.cancelled)


async def test_a_client_without_sessions_cancels_by_leaving(home: Place, scripted: ScriptedProvider) -> None:
    scripted._script = iter([Paced(answer=says("Never."), gate=trio.Event())])
    headers = {
        "Accept": "application/json, text/event-stream",
        "Mcp-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call",
        "Mcp-Name": "agent_message",
    }
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "progressToken": 1,
    }
    params = {"name": "agent_message", "arguments": {"content": "Hello"}, "_meta": meta}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    with trio.fail_after(30):
        async with (
            http_of(home, home.parts.local_token) as http,
            http.stream("POST", f"{home.url}/mcp/home", json=body, headers=headers) as answer,
        ):
            assert answer.headers["content-type"] == "text/event-stream"
            while scripted.running == 0:
                await trio.sleep(0.01)
        while scripted.cancelled == 0:
            await trio.sleep(0.01)
        while (turn := (await home.admin.get("/constellations/home/turns")).json()["items"][0])["ended_at"] is None:
            await trio.sleep(0.01)
    assert turn["status"] == "cancelled"


@both
async def test_a_turn_that_waits_for_a_person_says_so_and_is_answered_later(
    place: Place, scripted: ScriptedProvider, mode: str
) -> None:
    await place.constellation(tool_rules=ASKS)
    scripted._script = iter([calls("block_edit", EDIT), says("Done.")])
    with trio.fail_after(30):
        async with connected(place, mode) as client:
            waiting = await called(client, "agent_message", content="I like tea.")
            assert (waiting["status"], len(waiting["approvals"])) == ("waiting", 1)
            assert "turn_wait" in waiting["message"]
            assert await called(client, "turn_wait", turn_id=waiting["turn_id"]) == waiting
            where = f"/constellations/home/approvals/{waiting['approvals'][0]}"
            assert (await place.admin.post(where, json={"decision": "approve"})).status_code == 200
            assert (await called(client, "turn_wait", turn_id=waiting["turn_id"]))["text"] == "Done."


@both
async def test_work_that_fails_is_an_error_that_the_model_reads(
    home: Place, scripted: ScriptedProvider, mode: str
) -> None:
    scripted._script = iter([ModelRefused("the key is wrong", provider="scripted", status=401)])
    async with connected(home, mode) as client:
        failed = await called(client, "agent_message", is_error=True, content="Hello")
        assert (failed["status"], failed["error"]["message"]) == ("failed", failed["error"]["message"])
        assert "the key is wrong" in failed["error"]["message"]
        cases: list[tuple[str, dict[str, Any], str, str]] = [
            ("memory_read", {"label": "nothing"}, "not_found", "nothing"),
            ("memory_write", {"label": "human", "content": "x", "version": 7}, "conflict", "version"),
            ("memory_write", {"label": "new", "content": "x", "version": 7}, "not_found", "new"),
            ("agent_message", {"content": ""}, "invalid_input", "message"),
            ("agent_message", {"content": "Hello", "agent": "bob"}, "not_found", "bob"),
            ("turn_wait", {"turn_id": "turn_x"}, "not_found", "turn_x"),
            ("search", {"query": "x", "limit": 0}, "invalid_input", "limit"),
            ("search", {"query": "x", "kind": "dream"}, "invalid_input", "kind"),
            ("memory_list", {"colour": "blue"}, "invalid_input", "colour"),
        ]
        for tool, arguments, code, words in cases:
            error = (await called(client, tool, is_error=True, **arguments))["error"]
            assert error["code"] == code and words in error["message"], (tool, error)
        with pytest.raises(MCPError, match="no tool 'dream'") as unknown:
            await client.call_tool("dream", {})
        assert unknown.value.error.code == INVALID_PARAMS
        # Of several agents one has to be named.
        await home.admin.post("/constellations/home/agents", json={"name": "bea"})
        error = (await called(client, "memory_list", is_error=True))["error"]
        assert "ada, bea" in error["message"]
        blocks = await called(client, "memory_list", agent="bea")
        assert [block["label"] for block in blocks["blocks"]] == ["human", "persona"]


@both
async def test_blocks_and_files_are_resources(home: Place, mode: str) -> None:
    shared = {"content": "We are four."}
    assert (await home.admin.put("/constellations/home/agents/_constellation_/memory/team", json=shared)).is_success
    assert (await home.admin.post("/constellations/home/folders", json={"name": "my papers"})).is_success
    files = {"notes/tea & milk.md": b"Tea first.", "latin.txt": b"\xff\xe9", "long.txt": b"x" * (FILE_BYTES_MAX + 1)}
    octets = {"content-type": "application/octet-stream"}
    for name, data in files.items():
        where = f"/constellations/home/folders/my papers/files/{name}"
        put = await home.admin.put(where, content=data, headers=octets)
        assert put.is_success, put.text
    async with connected(home, mode) as client:
        found = {resource.name: resource.uri for resource in (await client.list_resources()).resources}
        assert set(found) == {"_constellation_/team", "ada/human", "ada/persona"}
        templates = (await client.list_resource_templates()).resource_templates
        assert {template.uri_template for template in templates} == {
            "pattern://memory/{agent}/{label}",
            "pattern://files/{folder}/{+path}",
            "pattern://delta/{workspace}",
        }

        async def content(uri: str) -> Any:
            (one,) = (await client.read_resource(uri)).contents
            return getattr(one, "text", None) or getattr(one, "blob", None)

        assert await content(found["_constellation_/team"]) == "We are four."
        assert await content("pattern://memory/ada/team") == "We are four."
        assert await content("pattern://files/my%20papers/notes/tea%20%26%20milk.md") == "Tea first."
        assert await content("pattern://files/my%20papers/latin.txt") == "/+k="
        missing = ("pattern://memory/ada/x", "pattern://memory/ada", "file:///etc/passwd", "pattern://files/x/../y")
        for uri in (*missing, "pattern://files/my%20papers/long.txt"):
            with pytest.raises(MCPError) as refused:
                await client.read_resource(uri)
            assert refused.value.error.code == INVALID_PARAMS


@both
async def test_prompts_show_what_is_remembered(home: Place, mode: str) -> None:
    async with connected(home, mode) as client:
        await called(client, "memory_edit", label="human", new="Ruth drinks tea.")
        assert {prompt.name for prompt in (await client.list_prompts()).prompts} == {"recall", "memory", "delta"}

        async def text(name: str, **arguments: str) -> str:
            (message,) = (await client.get_prompt(name, arguments)).messages
            return str(getattr(message.content, "text", ""))

        assert "Ruth drinks tea." in await text("recall", topic="tea")
        assert "## human\n\nRuth drinks tea." in await text("memory", agent="ada")
        for name, arguments in (("dream", {}), ("memory", {}), ("memory", {"agent": "bob"})):
            with pytest.raises(MCPError):
                await client.get_prompt(name, arguments)


MODERN = {
    "Accept": "application/json, text/event-stream",
    "Mcp-Protocol-Version": "2026-07-28",
    "Mcp-Method": "tools/call",
    "Mcp-Name": "memory_write",
}
META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}


def write_of(arguments: object) -> str:
    params = {"name": "memory_write", "arguments": arguments, "_meta": META}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("", 400),
        ("not JSON", 400),
        ("[]", 400),
        ('{"jsonrpc": "2.0", "id": 1}', 400),
        ('{"jsonrpc": "1.0", "id": 1, "method": "tools/call"}', 400),
        ("[" * 100_000, 400),
        (write_of("text"), 400),
        (write_of({"label": "x", "content": "\ud800"}), 200),
        (write_of({"label": "x", "content": "x", "version": float("nan")}), 200),
        (write_of({"label": "x", "content": "x", "version": 10**400}), 200),
        (write_of({"label": "x", "content": {"deep": json.loads("[" * 400 + "]" * 400)}}), 200),
        (write_of({"label": "x" * 100_000, "content": "x"}), 200),
        (write_of({"label": "x", "content": "x" * 900_000}), 200),
        (write_of({"label": "x", "content": "x" * 40_000_000}), 413),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, str) else str(value),
)
async def test_malformed_requests_change_nothing(
    home: Place, body: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with http_of(home, home.parts.local_token) as http:
        headers = {**MODERN, "Content-Type": "application/json"}
        answer = await http.post(f"{home.url}/mcp/home", content=body.encode("utf-8", "surrogatepass"), headers=headers)
        assert answer.status_code == status, answer.text
        assert status != 200 or answer.json()["result"]["isError"], answer.text
        assert "Traceback" not in answer.text
        blocks = (await home.admin.get("/constellations/home/agents/ada/memory")).json()["items"]
        assert [block["label"] for block in blocks] == ["human", "persona"]
    assert not [
        record for record in caplog.records if record.name.startswith("pattern") and record.levelname == "ERROR"
    ]


async def test_only_our_own_pages_may_call(home: Place) -> None:
    async with http_of(home, home.parts.local_token) as http:
        for origin, status in {
            "https://example.com": 403,
            "http://127.0.0.1.example.com": 403,
            "null": 403,
            "http://[": 403,
            "nonsense": 403,
            home.url: 400,
            "http://localhost:6274": 400,
        }.items():
            answer = await http.post(f"{home.url}/mcp/home", json={}, headers={"Origin": origin})
            assert answer.status_code == status, origin
            assert (await http.delete(f"{home.url}/mcp/home", headers={"Origin": origin})).status_code == status


@both
async def test_a_revoked_token_ends_its_calls(
    place: Place, scripted: ScriptedProvider, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts, "RECHECK_S", 0.05)
    scripted._script = iter([Paced(answer=says("Never."), gate=trio.Event())])
    ann = await place.client("ann", "write", "chat")
    await ann.post("/constellations", json={"name": "home"})
    await ann.post("/constellations/home/agents", json={"name": "ada"})
    made = (await ann.post("/tokens", json={"scopes": ["chat"]})).json()

    async def revoke() -> None:
        while scripted.running == 0:
            await trio.sleep(0.01)
        assert (await ann.delete(f"/tokens/{made['id']}")).status_code == 204

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(revoke)
            with pytest.raises((MCPError, httpx2.RemoteProtocolError)):
                async with connected(place, mode, token=made["token"]) as client:
                    await client.call_tool("agent_message", {"content": "Hello"})


@both
async def test_a_stopping_server_ends_calls_and_not_their_turns(alone: Path, mode: str) -> None:
    scripted = ScriptedProvider([Paced(answer=says("Later."), gate=trio.Event())])
    config = config_for(alone, supervisor={"drain_s": 0.1})
    with trio.fail_after(30):
        async with serving(config, {"scripted": scripted}) as place:
            await place.constellation()
            async with connected(place, mode) as client, trio.open_nursery() as nursery:

                @nursery.start_soon
                async def stop() -> None:
                    await until(lambda: scripted.running)
                    place.parts.state.draining.set()
                    await place.parts.state.supervisor.drain()

                refused = await called(client, "agent_message", is_error=True, content="Hello")
            assert refused["error"]["code"] == "unavailable"
            (file,) = (config.data_dir / "constellations").glob("*/pattern.db")
            with closing(open_connection(file)) as connection:
                assert [row[0] for row in connection.execute("SELECT status FROM turn")] == ["running"]


async def test_a_bug_reveals_nothing(caplog: pytest.LogCaptureFixture) -> None:
    context: Any = SimpleNamespace(method="tools/list")

    async def fail(_context: object) -> None:
        raise ZeroDivisionError("a secret")

    with pytest.raises(MCPError) as shown:
        await _translated(context, fail)
    assert shown.value.error.code == INTERNAL_ERROR
    assert "secret" not in str(shown.value)
    assert "a secret" in caplog.text


async def test_sessions_end_with_a_bug_of_the_library_and_new_ones_begin(
    home: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp, "RESTART_S", 0.0)
    sessions = mcp.McpSessions()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sessions.run)
        await sessions._ready.wait()
        broken = sessions._manager

        async def fail() -> None:
            raise ZeroDivisionError

        sessions._requests.start_soon(fail)
        with trio.fail_after(5):
            while sessions._manager is broken:
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()


CONFORMANCE = os.environ.get("PATTERN_MCP_CONFORMANCE", "")
# Of the official suite, what needs no tool of its own at the server, and nothing that we do not offer.
SCENARIOS = (
    "server-initialize",
    "ping",
    "tools-list",
    "resources-list",
    "prompts-list",
    "dns-rebinding-protection",
    "server-sse-multiple-streams",
)


@pytest.mark.skipif(not CONFORMANCE, reason="PATTERN_MCP_CONFORMANCE names no folder with the official suite")
async def test_the_official_suite_finds_nothing(home: Place) -> None:
    """The suite knows no tokens: something between it and the server adds one to each request."""
    host, _, port = home.url.removeprefix("http://").partition(":")
    token = b"\r\nAuthorization: Bearer " + home.parts.local_token.encode()

    async def forward(source: trio.abc.ReceiveStream, target: trio.abc.SendStream, added: bytes) -> None:
        with suppress(trio.BrokenResourceError):
            async for piece in source:
                first, rest, behind = piece.partition(b"\r\n")
                await target.send_all(first + added + rest + behind if first.endswith(b" HTTP/1.1") else piece)

    async def between(client: trio.SocketStream) -> None:
        async with client, await trio.open_tcp_stream(host, int(port)) as server, trio.open_nursery() as nursery:
            nursery.start_soon(forward, server, client, b"")
            await forward(client, server, token)
            nursery.cancel_scope.cancel()

    modules = Path(CONFORMANCE) / "node_modules"
    suite = modules / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, between, 0, host="127.0.0.1"))
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/mcp/home"
        for name in SCENARIOS:
            command = [str(modules / ".bin" / "node"), str(suite), "server", "--url", url, "--scenario", name]
            ran = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
            assert (ran.returncode, b"0 failed, 0 warnings" in ran.stdout) == (0, True), (ran.stdout + ran.stderr)[
                -500:
            ]
        nursery.cancel_scope.cancel()
