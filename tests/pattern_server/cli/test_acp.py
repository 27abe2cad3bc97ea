"""`pattern acp`, as an editor uses it: a client made from the protocol's schema, and the official one."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from pattern_core.messages import Text, ToolResult
from pattern_core.models.errors import ModelRejected
from pattern_core.models.model import ModelReply
from pattern_core.testing.model import NO_USAGE, Paced, ScriptedProvider, calls, says
from pattern_server.cli.acp import Editor
from pattern_server.cli.client import Api, client_for, connection, running_server
from pattern_server.cli.command import Home
from pattern_server.cli.output import Output
from tests.pattern_server.cli.conftest import serving
from tests.pattern_server.place import Place

EDIT = {"op": "append", "label": "human", "content": "Likes tea."}
PATIENCE_S = 60
# What may be in an update, and what must be (schema version 1: SessionUpdate).
CHUNK = {"sessionUpdate", "content"}
UPDATES = {
    **dict.fromkeys(("user_message_chunk", "agent_message_chunk", "agent_thought_chunk"), (CHUNK, CHUNK)),
    "tool_call": ({"sessionUpdate", "toolCallId", "title"}, {"kind", "status", "rawInput"}),
    "tool_call_update": ({"sessionUpdate", "toolCallId"}, {"status", "content", "title", "rawInput"}),
}
STOPS = {"end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"}


class Pipe:
    """One direction: what is written can be read in lines."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[bytes](math.inf)

    async def write(self, data: bytes) -> None:
        assert data.endswith(b"\n") and data.count(b"\n") == 1
        await self._send.send(data)

    async def flush(self) -> None:
        """Nothing is kept back."""

    async def readline(self, _bytes_max: int = -1) -> bytes:
        try:
            return await self._receive.receive()
        except trio.EndOfChannel:
            return b""

    def close(self) -> None:
        self._send.close()


class Client:
    """An editor. `permit` answers requests for permission: with an option's id, or None for a cancelled prompt."""

    def __init__(self, to: Pipe, of: Pipe, nursery: trio.Nursery) -> None:
        self.to, self.of = to, of
        self.updates: list[dict[str, Any]] = []
        self.permissions: list[dict[str, Any]] = []
        self.permit: Callable[[dict[str, Any]], str | None] | None = None
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.answers: dict[str, dict[str, Any] | None] = {}  # to other requests; None: not yet
        self._answers: dict[int, Any] = {}
        self._heard = trio.Condition()
        nursery.start_soon(self._listen)

    async def _listen(self) -> None:
        while line := await self.of.readline():
            message = json.loads(line)
            assert message["jsonrpc"] == "2.0"
            if message.get("method") == "session/update":
                self._check(message["params"])
            elif message.get("method") == "session/request_permission":
                await self._permit(message)
            elif "method" in message:
                self.requests.append((message["method"], message["params"]))
                answer = self.answers[message["method"]]
                if answer is not None:
                    await self.tell(id=message["id"], **answer)
            else:
                async with self._heard:
                    self._answers[message["id"]] = message
                    self._heard.notify_all()

    def _check(self, params: dict[str, Any]) -> None:
        assert set(params) == {"sessionId", "update"}
        needed, others = UPDATES[params["update"]["sessionUpdate"]]
        assert needed <= set(params["update"]) <= needed | others
        self.updates.append(params["update"])

    async def _permit(self, message: dict[str, Any]) -> None:
        params = message["params"]
        assert {"sessionId", "toolCall", "options"} == set(params)
        for option in params["options"]:
            assert set(option) == {"optionId", "name", "kind"}
            assert option["kind"] in ("allow_once", "allow_always", "reject_once", "reject_always")
        self.permissions.append(params)
        if self.permit is not None:
            chosen = self.permit(params)
            outcome = {"outcome": "cancelled"} if chosen is None else {"outcome": "selected", "optionId": chosen}
            await self.tell(id=message["id"], result={"outcome": outcome})

    async def tell(self, **message: Any) -> None:
        await self.to.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def begin(self, method: str, number: int, **params: Any) -> None:
        await self.tell(id=number, method=method, params=params)

    async def end(self, number: int | None) -> Any:
        with trio.fail_after(PATIENCE_S):
            async with self._heard:
                while number not in self._answers:
                    await self._heard.wait()
        return self._answers.pop(number)

    async def ask(self, method: str, **params: Any) -> Any:
        await self.begin(method, 1, **params)
        return await self.end(1)

    async def session(self) -> str:
        answer = await self.ask("session/new", cwd="/work", mcpServers=[])
        return str(answer["result"]["sessionId"])

    async def say(self, session_id: str, *blocks: dict[str, Any] | str) -> Any:
        prompt = [{"type": "text", "text": one} if isinstance(one, str) else one for one in blocks]
        answer = await self.ask("session/prompt", sessionId=session_id, prompt=prompt)
        assert "error" in answer or answer["result"]["stopReason"] in STOPS
        return answer

    def said(self, kind: str = "agent_message_chunk") -> str:
        return "".join(one["content"]["text"] for one in self.updates if one["sessionUpdate"] == kind)


@asynccontextmanager
async def editing(place: Place) -> AsyncIterator[Client]:
    to, of = Pipe(), Pipe()
    async with client_for(place.url, place.parts.local_token) as http, trio.open_nursery() as nursery:
        async with trio.open_nursery() as inner:
            home = Home(Api(http, streams=True), "home")
            inner.start_soon(Editor(home, "ada", Output(), inner, of).serve, to)
            yield Client(to, of, nursery)
            to.close()
            inner.cancel_scope.cancel()
        of.close()
        nursery.cancel_scope.cancel()


async def test_a_prompt_is_answered_in_pieces(place: Place, scripted: ScriptedProvider) -> None:
    scripted._slice_chars = 4
    scripted._script = iter([says("All is well.", reasoning="Hm, well."), says("Again.")])
    await place.constellation()
    async with editing(place) as client:
        answer = await client.ask("initialize", protocolVersion=1, clientCapabilities={})
        assert answer["result"]["protocolVersion"] == 1
        assert answer["result"]["agentCapabilities"]["loadSession"] is True
        assert answer["result"]["authMethods"] == []
        session_id = await client.session()
        assert (await client.say(session_id, "Hello"))["result"] == {"stopReason": "end_turn"}
        assert (client.said(), client.said("agent_thought_chunk")) == ("All is well.", "Hm, well.")
        assert len(client.updates) >= 3
        await client.say(session_id, "Hello again")
        assert client.said() == "All is well.Again."
    [session] = (await place.admin.get("/constellations/home/agents/ada/sessions")).json()["items"]
    assert (session["id"], session["origin"]) == (session_id, "acp")
    assert scripted.requests[1].messages[0].text.startswith("Hello")


async def test_blocks_of_a_prompt(place: Place, scripted: ScriptedProvider) -> None:
    await place.constellation()
    async with editing(place) as client:
        session_id = await client.session()
        link = {"type": "resource_link", "name": "a.py", "uri": "file:///a.py"}
        resource = {"type": "resource", "resource": {"uri": "file:///b.py", "text": "print(1)"}}
        pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
        image = {"type": "image", "data": pixel, "mimeType": "image/png"}
        assert "result" in await client.say(session_id, "Look at", link, resource, image)
        parts = scripted.requests[0].messages[-1].parts
        words = "".join(part.text for part in parts if isinstance(part, Text))
        assert "Look at\n[a.py](file:///a.py)\nfile:///b.py:\n\nprint(1)" in words
        assert len([part for part in parts if not isinstance(part, Text)]) <= 1
        refused = await client.say(session_id, {"type": "audio", "data": "", "mimeType": "audio/wav"})
        assert refused["error"]["code"] == -32602


@pytest.mark.parametrize(("choice", "status"), [("once", "completed"), ("always", "completed"), ("deny", "failed")])
async def test_a_question_is_put_to_the_person(
    place: Place,
    scripted: ScriptedProvider,
    choice: str,
    status: str,
) -> None:
    scripted._script = iter([calls("block_edit", EDIT), says("Done."), calls("block_edit", EDIT), says("Done.")])
    rules = [{"tool": "block_edit", "type": "requires_consent"}]
    await place.constellation(tool_rules=rules, memory=[{"label": "human", "content": ""}])
    async with editing(place) as client:
        session_id = await client.session()
        client.permit = lambda _params: choice
        answer = await client.say(session_id, "I like tea.")
        assert answer["result"] == {"stopReason": "end_turn"}
        [asked] = client.permissions
        begun, ended = (one for one in client.updates if one["sessionUpdate"].startswith("tool_call"))
        assert begun["toolCallId"] == ended["toolCallId"] == asked["toolCall"]["toolCallId"]
        assert (begun["title"], begun["rawInput"], ended["status"]) == ("block_edit", EDIT, status)
        assert "ada wants to run block_edit" in asked["toolCall"]["title"]
        await client.say(session_id, "I like tea.")
        assert len(client.permissions) == (1 if choice == "always" else 2)


CAN = {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": True}
COMMAND = {"command": "make", "args": ["test"]}
TERMINAL: dict[str, dict[str, Any] | None] = {
    "terminal/create": {"result": {"terminalId": "t1"}},
    "terminal/wait_for_exit": {"result": {"exitCode": 2, "signal": None}},
    "terminal/output": {"result": {"output": "1 failed", "truncated": False}},
    "terminal/release": {"result": None},
}


def results_of(scripted: ScriptedProvider) -> list[str]:
    """The results of tools that the last prompt shows."""
    shown = [part for one in scripted.requests[-1].messages for part in one.parts]
    return [part.content for part in shown if isinstance(part, ToolResult)]


async def test_the_editor_reads_and_writes_files_and_runs_programs(place: Place, scripted: ScriptedProvider) -> None:
    write = {"path": "a.py", "content": "print(2)\n"}
    scripted._script = iter([
        calls("editor_read_file", {"path": "src/a.py", "line": 3}), calls("editor_write_file", write),
        calls("editor_write_file", write), calls("editor_run", COMMAND), says("Done."),
    ])  # fmt: skip
    await place.constellation()
    async with editing(place) as client:
        await client.ask("initialize", protocolVersion=1, clientCapabilities=CAN)
        session_id = await client.session()
        content = {"content": "print(1)\n"}
        client.answers = {
            "fs/read_text_file": {"result": content},
            "fs/write_text_file": {"result": None},
            **TERMINAL,
        }
        client.permit = lambda params: "always" if "write" in params["toolCall"]["title"] else "once"
        assert (await client.say(session_id, "Repair it."))["result"] == {"stopReason": "end_turn"}
    here = {"sessionId": session_id}
    terminal = {**here, "terminalId": "t1"}
    assert client.requests == [
        ("fs/read_text_file", {**here, "path": "/work/src/a.py", "line": 3}),
        *[("fs/write_text_file", {**here, "path": "/work/a.py", "content": "print(2)\n"})] * 2,
        ("terminal/create", {**here, **COMMAND, "cwd": "/work", "outputByteLimit": 50_000}),
        *[(f"terminal/{name}", terminal) for name in ("wait_for_exit", "output", "release")],
    ]
    assert len(client.permissions) == 2  # to write, always; to run
    results = results_of(scripted)
    assert ["print(1)" in results[0], "Wrote" in results[1], "1 failed\n(exit code 2)" in results[3]] == [True] * 3
    begun = [one["kind"] for one in client.updates if one["sessionUpdate"] == "tool_call"]
    assert begun == ["read", "edit", "edit", "execute"]


async def test_what_the_person_or_the_editor_refuses_is_said_to_the_agent(
    place: Place, scripted: ScriptedProvider
) -> None:
    scripted._script = iter([calls("editor_run", COMMAND), calls("editor_read_file", {"path": "x"}), says("I see.")])
    await place.constellation()
    async with editing(place) as client:
        await client.ask("initialize", protocolVersion=1, clientCapabilities=CAN)
        session_id = await client.session()
        client.answers = {"fs/read_text_file": {"error": {"code": -32002, "message": "no such file"}}}
        client.permit = lambda _params: "deny"
        await client.say(session_id, "Run the tests.")
    assert [name for name, _params in client.requests] == ["fs/read_text_file"]
    denied, failed = results_of(scripted)
    assert "did not allow it" in denied and "Error: no such file" in failed


async def test_a_cancelled_prompt_ends_the_program_that_the_editor_runs(
    place: Place, scripted: ScriptedProvider
) -> None:
    scripted._script = iter([calls("editor_run", COMMAND), says("Never said.")])
    await place.constellation()
    async with editing(place) as client:
        await client.ask("initialize", protocolVersion=1, clientCapabilities={"terminal": True})
        session_id = await client.session()
        client.answers, client.permit = {**TERMINAL, "terminal/wait_for_exit": None}, lambda _params: "once"
        await client.begin("session/prompt", 7, sessionId=session_id, prompt=[{"type": "text", "text": "x"}])
        with trio.fail_after(PATIENCE_S):
            while len(client.requests) < 2:
                await trio.sleep(0.01)
            await client.tell(method="session/cancel", params={"sessionId": session_id})
            assert (await client.end(7))["result"] == {"stopReason": "cancelled"}
            while client.requests[-1][0] != "terminal/release":
                await trio.sleep(0.01)
    assert [tool.name for tool in scripted.requests[0].tools if tool.name.startswith("editor")] == ["editor_run"]


async def test_a_session_belongs_to_the_workspace_of_its_folder(place: Place) -> None:
    await place.constellation()
    there = (await place.admin.post("/constellations/home/workspaces", json={"workspace": "shop"})).json()["id"]
    await place.admin.post(f"/constellations/home/workspaces/{there}/roots", json={"path": "/work"})
    async with editing(place) as client:
        session_id = await client.session()
        elsewhere = await client.ask("session/new", cwd="/elsewhere", mcpServers=[])
    sessions = (await place.admin.get("/constellations/home/agents/ada/sessions")).json()["items"]
    of = {one["id"]: one["workspace"] for one in sessions}
    assert of == {session_id: there, elsewhere["result"]["sessionId"]: None}


async def test_a_cancelled_prompt_says_so(place: Place, scripted: ScriptedProvider) -> None:
    gate = trio.Event()
    late = Paced(answer=says("too late"), gate=gate)
    scripted._script = iter([late, calls("block_edit", EDIT), late])
    await place.constellation(tool_rules=[{"tool": "block_edit", "type": "requires_consent"}])
    async with editing(place) as client:
        session_id = await client.session()
        for number in (7, 8):
            asked = len(client.permissions)
            await client.begin("session/prompt", number, sessionId=session_id, prompt=[{"type": "text", "text": "x"}])
            with trio.fail_after(PATIENCE_S):
                while not (scripted.running if number == 7 else len(client.permissions) > asked):
                    await trio.sleep(0.01)
            await client.tell(method="session/cancel", params={"sessionId": session_id})
            assert (await client.end(number))["result"] == {"stopReason": "cancelled"}
        # Before the server has answered which turn it is.
        await client.begin("session/prompt", 9, sessionId=session_id, prompt=[{"type": "text", "text": "x"}])
        await client.tell(method="session/cancel", params={"sessionId": session_id})
        assert (await client.end(9))["result"] == {"stopReason": "cancelled"}


async def test_a_session_is_loaded_with_what_was_said(place: Place, scripted: ScriptedProvider) -> None:
    scripted._script = iter([calls("block_edit", EDIT, text="One moment."), says("Done.")])
    await place.constellation(memory=[{"label": "human", "content": ""}])
    async with editing(place) as client:
        session_id = await client.session()
        await client.say(session_id, "I like tea.")
    async with editing(place) as client:
        answer = await client.ask("session/load", sessionId=session_id, cwd="/", mcpServers=[])
        assert answer["result"] == {}
        kinds = [one["sessionUpdate"] for one in client.updates]
        assert kinds == [
            *("user_message_chunk", "agent_message_chunk", "tool_call", "tool_call_update", "agent_message_chunk")
        ]
        assert (client.said("user_message_chunk"), client.said()) == ("I like tea.", "One moment.Done.")
        assert client.updates[2]["toolCallId"] == client.updates[3]["toolCallId"]
        missing = await client.ask("session/load", sessionId="ses_nothing", cwd="/", mcpServers=[])
        assert missing["error"]["code"] == -32002


async def test_how_a_turn_ends_is_the_reason(place: Place, scripted: ScriptedProvider) -> None:
    cut = ModelReply(parts=(Text(text="It was"),), finish_reason="length", usage=NO_USAGE)
    scripted._script = iter([cut, ModelRejected("no", provider="scripted"), calls("block_edit", EDIT)])
    await place.constellation(config={"limits": {"steps": 1}})
    async with editing(place) as client:
        session_id = await client.session()
        assert (await client.say(session_id, "1"))["result"]["stopReason"] == "max_tokens"
        failed = await client.say(session_id, "2")
        assert (failed["error"]["code"], failed["error"]["message"]) == (-32603, "no")
        assert (await client.say(session_id, "3"))["result"]["stopReason"] == "max_turn_requests"
        assert (await client.say("ses_nothing", "4"))["error"]["code"] == -32002


async def test_what_is_no_request_has_an_answer_and_ends_nothing(place: Place) -> None:
    await place.constellation()
    async with editing(place) as client:
        for line in (b"{\n", b"[1]\n", b'{"id": []}\n', b'{"jsonrpc": "2.0", "method": "$/unknown"}\n'):
            await client.to.write(line)
        for _ in range(2):
            assert (await client.end(None))["error"]["code"] in (-32700, -32600)
        assert (await client.ask("session/sing"))["error"]["code"] == -32601
        assert (await client.ask("session/prompt", prompt="?"))["error"]["code"] == -32602
        assert (await client.ask("session/prompt"))["error"]["code"] == -32602
        assert (await client.ask("initialize", protocolVersion="x"))["error"]["code"] == -32602
        await client.tell(method="session/cancel", params=[1])
        assert (await client.ask("initialize", protocolVersion=7))["result"]["protocolVersion"] == 1


async def test_a_lost_stream_is_continued_without_repetition(
    place: Place, scripted: ScriptedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pattern_server.cli.client.RECONNECT_EVERY_S", 0.01)
    scripted._slice_chars = 6
    gate = trio.Event()
    scripted._script = iter([calls("block_edit", EDIT), Paced(answer=says("never"), gate=gate), says("It goes on.")])
    c = await place.constellation(memory=[{"label": "human", "content": ""}])
    async with editing(place) as client:
        session_id = await client.session()
        await client.begin("session/prompt", 5, sessionId=session_id, prompt=[{"type": "text", "text": "x"}])
        with trio.fail_after(PATIENCE_S):
            while scripted.asked < 2:
                await trio.sleep(0.01)
        async with place.parts.state.supervisor.aside(c):
            await trio.sleep(0.05)
        assert (await client.end(5))["result"] == {"stopReason": "end_turn"}
        kinds = [one["sessionUpdate"] for one in client.updates]
        assert kinds[:2] == ["tool_call", "tool_call_update"] and kinds.count("tool_call") == 1
        assert client.said() == "It goes on."


def command_of(data_dir: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "pattern_server", *more, "--data-dir", str(data_dir)]


async def test_an_editor_starts_what_it_needs(data_dir: Path) -> None:
    """On an empty folder the command starts a server with an agent, which stays when the editor leaves."""
    lines = [
        {"id": 1, "method": "initialize", "params": {"protocolVersion": 1}},
        {"id": 2, "method": "session/new", "params": {"cwd": "/", "mcpServers": []}},
    ]
    sent = "".join(json.dumps({"jsonrpc": "2.0", **line}) + "\n" for line in lines)
    environment = {**os.environ, "PATTERN_PORT": "0"}
    with trio.fail_after(PATIENCE_S):
        process = await trio.lowlevel.open_process(
            command_of(data_dir, "acp"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        assert process.stdin is not None and process.stdout is not None
        await process.stdin.send_all(sent.encode())
        heard = b""
        while heard.count(b"\n") < 2:
            heard += await process.stdout.receive_some()
        await process.stdin.aclose()
        assert await process.wait() == 0
        answers = {one["id"]: one["result"] for one in map(json.loads, heard.splitlines())}
        assert answers[1]["agentInfo"]["name"] == "pattern"
        assert answers[2]["sessionId"].startswith("ses_")
        assert running_server(data_dir) is not None
        await trio.run_process(command_of(data_dir, "down"), capture_stdout=True, capture_stderr=True)


async def test_the_official_client_understands_it(home: Any, data_dir: Path, tmp_path: Path) -> None:
    pytest.importorskip("acp", reason="the official library, agent-client-protocol, is not installed")
    with serving(data_dir, tmp_path):
        server = running_server(data_dir)
        assert server is not None
        async with connection(server) as http:
            rules = [{"tool": "block_edit", "type": "requires_consent"}]
            await http.patch("/api/v1/constellations/home/agents/ada", json={"tool_rules": rules})
        run = partial(asyncio.run, officially(command_of(data_dir, "acp", "-a", "ada")))
        with trio.fail_after(PATIENCE_S):
            seen, permissions, reason = await trio.to_thread.run_sync(run, abandon_on_cancel=True)
    assert reason == "end_turn"
    assert permissions == [["allow_once", "allow_always", "reject_once"]]
    assert {"ToolCallStart", "ToolCallProgress", "AgentMessageChunk", "UserMessageChunk"} <= set(seen)


async def officially(command: list[str]) -> tuple[list[str], list[list[str]], str]:
    """Say something by the official client, agree to what is asked, and load the session; what it has understood."""
    import acp as library

    seen: list[str] = []
    permissions: list[list[str]] = []

    class Person(library.Client):  # type: ignore[misc]  # without the library it is Any
        async def session_update(self, session_id: str, update: Any, **_more: Any) -> None:
            seen.append(type(update).__name__)

        async def request_permission(self, options: Any, session_id: str, tool_call: Any, **_more: Any) -> Any:
            permissions.append([option.kind for option in options])
            outcome = library.schema.AllowedOutcome(outcome="selected", option_id=options[0].option_id)
            return library.RequestPermissionResponse(outcome=outcome)

    async with library.spawn_agent_process(Person(), *command) as (client, _process):
        assert (await client.initialize(protocol_version=1)).protocol_version == 1
        session_id = (await client.new_session(cwd="/", mcp_servers=[])).session_id
        words = library.text_block("Remember that Ruth lives in Lisbon.")
        answer = await client.prompt(session_id=session_id, prompt=[words])
        await client.load_session(cwd="/", session_id=session_id, mcp_servers=[])
    return seen, permissions, answer.stop_reason
