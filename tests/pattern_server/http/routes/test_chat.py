"""Chat sessions at the paths of seed 004. The numbers are those of its cases, C1 to C46.

Not taken over, so without a test here: the queue in memory (C13 to C16, a stream is a position in the log; that readers
share nothing is C39) and pieces of calls (C17, in the tests of providers). C42 is in
tests/scenarios/test_chat_sessions.py, C44 in tests/pattern_core/test_chat_files.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio

from pattern_core.chat_files import message_of, result_of
from pattern_core.messages import Text
from pattern_core.models.errors import ModelRefused
from pattern_core.models.model import ModelReply, Usage
from pattern_core.testing.model import Paced, ScriptedProvider, calls, says, together
from pattern_core.testing.wire import Play, WireServer, events
from pattern_db.enums import Role
from pattern_db.tables import sessions
from pattern_db.tables.messages import MessageRow
from pattern_db.tables.sessions import SessionRow
from pattern_server.http.chat import preview_of
from tests.pattern_server.place import Place, client_of, config_for, serving

# Digests of the original's bytes: a stream without numbers, the messages of a session, a list.
STREAM_BYTES = "7d3b8d3c0833eceabfc68b97b693ce747b08e58bf918c3f3410a6e6e4d8256d3"
MESSAGES_BYTES = "43294a2e1b8b062503632e48f771d9403fbf4158e7d183642951d831f0c82528"
LIST_BYTES = "c8042d4b8fe391d48bdfc9cc9ea37a7f09c130cf6658122865b1b981bf75281b"
KNOWN = "session_00000000-0000-4000-8000-000000000001"
USAGE = Usage(input_tokens=7, output_tokens=2)
RECALL = ("recall", {"op": "search", "query": "tea"})
SEEN: dict[str, Any] = {"id": "m", "agent_id": "a", "position": "1" * 19, "created_at": ""}


@asynccontextmanager
async def front_end(place: Place, token: str = "") -> AsyncIterator[httpx2.AsyncClient]:
    """What a front end does, with a token."""
    headers = {"Authorization": f"Bearer {token or place.parts.local_token}"}
    async with httpx2.AsyncClient(base_url=place.url, headers=headers, trust_env=False, timeout=60) as client:
        yield client


@pytest.fixture
async def client(home: Place) -> AsyncIterator[httpx2.AsyncClient]:
    """A front end of the constellation home."""
    async with front_end(home) as found:
        yield found


async def begin(client: httpx2.AsyncClient, message: str = "hello") -> str:
    """A new session with a message; its id."""
    answer = await client.post("/api/chat", json={"message": message})
    assert answer.status_code == 200 and [*answer.json()] == ["sessionId", "workingDir"], answer.text
    return str(answer.json()["sessionId"])


async def followed(
    client: httpx2.AsyncClient, session: str, last: str | None = None, begun: trio.Event | None = None
) -> list[dict[str, Any]]:
    """The data of a stream's events up to its end, each with its `id`."""
    found: list[dict[str, Any]] = []
    number = ""
    async with client.stream("GET", f"/api/stream/{session}", headers={"Last-Event-ID": last or ""}) as answer:
        if answer.status_code == 204:
            return []
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            name, _, value = line.partition(": ")
            if name == "id":
                number = value
            elif name == "data":
                found.append({"id": number, **json.loads(value)})
                if begun is not None:
                    begun.set()
    return found


def kinds(found: Sequence[dict[str, Any]]) -> str:
    return " ".join(one["type"] for one in found)


async def told(client: httpx2.AsyncClient, session: str) -> list[tuple[str, str | None]]:
    """The messages of a session: roles and texts."""
    answer = (await client.get(f"/api/session/{session}/messages")).json()
    assert answer["sessionId"] == session and answer["count"] == len(answer["messages"])
    return [(one["role"], one.get("content")) for one in answer["messages"]]


async def about(client: httpx2.AsyncClient, session: str) -> dict[str, Any]:
    return dict((await client.get(f"/api/session/{session}")).json())


async def known_session(place: Place) -> None:
    """The session of the golden bytes."""
    async with place.parts.state.constellations.use(
        await place.parts.state.accounts.authenticate(place.parts.local_token), "home"
    ) as constellation:
        agent = await constellation.roster.get("ada")
        at = "2025-12-05T10:00:00.000Z"
        row = SessionRow(id=KNOWN, created_at=at, updated_at=at, working_dir="/w")
        await constellation.database.write(sessions.create, agent.id, row)


async def test_c1_c3_c35_a_session_without_a_message_is_idle_and_is_deleted_once(home: Place, client: Any) -> None:
    made = (await home.admin.post("/constellations/home/agents/ada/sessions", json={})).json()
    found = await about(client, made["id"])
    assert (found["status"], found["totalTokens"], found["messageCount"]) == ("idle", 0, 0)
    assert found["createdAt"] == found["updatedAt"] and found["title"] is None
    assert (await client.get(f"/api/stream/{made['id']}")).status_code == 204
    session = await begin(client)
    await followed(client, session)
    assert (await client.delete(f"/api/session/{session}")).json() == {"success": True}
    assert (await client.get(f"/api/session/{session}/messages")).status_code == 404
    hits = await home.admin.post("/constellations/home/search", json={"query": "hello", "kinds": ["message"]})
    assert hits.json()["hits"] == []
    again = await client.delete(f"/api/session/{session}")
    assert (again.status_code, again.json()) == (404, {"success": False, "error": f"Session not found: {session}"})
    original = await client.delete(f"/api/session/{session}?strict=0")
    assert (original.status_code, original.json()) == (200, again.json())


async def test_c2_c5_tokens_are_the_sum_of_usage_and_messages_are_in_order(client: Any, scripted: Any) -> None:
    spent = [Usage(input_tokens=tokens - 5, output_tokens=5) for tokens in (100, 50, 25)]
    scripted._script = iter([says(f"Answer {number}", usage=one) for number, one in enumerate(spent)])
    session = await begin(client, "0")
    await followed(client, session)
    for message in ("1", "2"):
        assert (await client.post(f"/api/chat/{session}", json={"message": message})).status_code == 200
        await followed(client, session)
    assert (await about(client, session))["totalTokens"] == 175
    said = [("user", str(number)) for number in range(3)], [("assistant", f"Answer {number}") for number in range(3)]
    assert await told(client, session) == [one for pair in zip(*said, strict=True) for one in pair]


async def test_c4_c38_the_list_has_pages(client: Any) -> None:
    made = [await begin(client, f"message {number}") for number in range(25)]
    first = (await client.get("/api/sessions")).json()
    assert [one["id"] for one in first["sessions"]] == made[:4:-1], "the newest first"
    assert {key: first[key] for key in ("total", "limit", "offset", "hasMore")} == {
        "total": 25, "limit": 20, "offset": 0, "hasMore": True
    }  # fmt: skip
    last = (await client.get("/api/sessions?limit=10&offset=20")).json()
    assert [one["preview"] for one in last["sessions"]] == [f"message {number}" for number in range(4, -1, -1)]
    assert (last["hasMore"], last["total"]) == (False, 25)
    for given, expected in {
        "limit=0": (1, 0),
        "limit=1000": (100, 0),
        "limit=-5": (1, 0),
        "offset=-1": (20, 0),
    }.items():
        page = (await client.get(f"/api/sessions?{given}")).json()
        assert (page["limit"], page["offset"]) == expected, given
    assert (await client.get("/api/sessions?limit=abc")).status_code == 422


def said(role: Role, content: str | None, **more: Any) -> dict[str, object]:
    return message_of(MessageRow(role=role, content=content, **SEEN, **more))


def test_c6_to_c11_messages_are_those_of_chat_completions() -> None:
    call = {"type": "tool_call", "call_id": "call_1", "tool": "read_file", "arguments": {"path": "ä.txt"}}
    wire = {"id": "call_1", "type": "function", "function": {"name": "read_file", "arguments": '{"path":"ä.txt"}'}}
    words = {"type": "text", "text": "Reading."}
    assert said(Role.ASSISTANT, "Reading.", parts=[words, call]) == {
        "role": "assistant", "content": "Reading.", "tool_calls": [wire]
    }  # fmt: skip
    assert said(Role.ASSISTANT, None, parts=[call])["content"] is None  # C9: not the word null
    broken = said(Role.ASSISTANT, None, parts=[{**call, "arguments": {}, "invalid": "{pa"}])
    assert "'arguments': '{pa'" in str(broken)
    assert said(Role.USER, "[1,2,3]") == {"role": "user", "content": "[1,2,3]"}  # C8: not an array
    for content, shown in {  # C7, C10
        '{"path":"a.txt","content":"A\\n"}': '{\n  "path": "a.txt",\n  "content": "A\\n"\n}',
        "[1]": "[\n  1\n]",
        "words": "words",
        "7": "7",
        "": "",
    }.items():
        assert said(Role.TOOL, content, tool_call_id="c") == {"role": "tool", "content": shown, "tool_call_id": "c"}
    assert said(Role.TOOL, "boom", tool_call_id="c", tool_result={"is_error": True})["content"] == "Error: boom"  # C11
    assert result_of("[" * 100_000) == "[" * 100_000 and result_of(None) == ""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (None, None),
        ("a" * 100, "a" * 100),
        ("a" * 101, "a" * 97 + "..."),
        ("😀" * 50, "😀" * 50),
        ("😀" * 51, "😀" * 48 + "..."),  # 97 units end in the middle of one
    ],
)
def test_c12_a_preview_has_a_hundred_units(text: str | None, shown: str | None) -> None:
    assert preview_of(text) == shown


async def test_c18_c20_c21_a_plain_answer_has_the_originals_bytes(home: Place, client: Any, scripted: Any) -> None:
    await known_session(home)
    gate = trio.Event()
    words = ModelReply(parts=(Text(text="Hi "), Text(text="there")), finish_reason="stop", usage=USAGE)
    scripted._script = iter([Paced(answer=words, gate=gate)])
    assert (await client.post(f"/api/chat/{KNOWN}", json={"message": "hello"})).json()["workingDir"] == "/w"
    assert (await about(client, KNOWN))["status"] == "running"
    async with client.stream("GET", f"/api/stream/{KNOWN}") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        gate.set()
        text = (await answer.aread()).decode()
    stream = re.sub(r"^id: \d+\n", "", text.removeprefix("retry: 1000\n\n"), flags=re.MULTILINE)
    assert sha256(stream.encode()).hexdigest() == STREAM_BYTES, stream
    for path, digest in {f"/api/session/{KNOWN}/messages": MESSAGES_BYTES, "/api/sessions": LIST_BYTES}.items():
        answer = await client.get(path)
        assert sha256(answer.content).hexdigest() == digest, answer.text
    assert (await about(client, KNOWN))["totalTokens"] == 9


async def test_c19_what_is_no_message_is_refused(client: Any) -> None:
    for path in ("/api/chat", "/api/chat/x"):
        for body, status in {"{}": 422, '{"message":""}': 422, '{"message":1}': 422, "not json": 400}.items():
            answer = await client.post(path, content=body, headers={"content-type": "application/json"})
            assert (answer.status_code, [*answer.json()]) == (status, ["success", "error", "code"]), body
    unknown = await client.post("/api/chat", json={"message": "hello", "command": "chat"})
    assert unknown.status_code == 200, "as in the original, unknown keys are ignored"


async def test_c22_c23_c24_c25_tools_are_called_between_answers(client: Any, scripted: Any) -> None:
    bad = calls("recall", {"op": "nonsense"}, call_id="call_3")
    both = together(calls(*RECALL, text="Looking.", call_id="call_1"), calls("nothing", call_id="call_2"))
    scripted._script = iter([both, bad, says("Done.")])
    session = await begin(client)
    found = await followed(client, session)
    assert kinds(found) == (
        "text_delta usage tool_call tool_call tool_result tool_result usage tool_call tool_result text_delta usage done"
    )
    results = {one["toolCall"]["id"]: one["toolCall"] for one in found if one["type"] == "tool_result"}
    assert results["call_1"]["status"] == "completed" and results["call_1"]["result"]["success"] is True
    assert results["call_1"]["input"] == RECALL[1] and [*results["call_1"]] == [
        "id",
        "name",
        "input",
        "status",
        "result",
    ]
    assert results["call_2"]["status"] == "error" and "nothing" in results["call_2"]["error"]  # C24
    assert results["call_3"]["status"] == "error" and "op" in results["call_3"]["error"]  # C25
    answer = (await client.get(f"/api/session/{session}/messages")).json()["messages"]
    assert [one["role"] for one in answer] == ["user", "assistant", "tool", "tool", "assistant", "tool", "assistant"]
    assert [call["id"] for call in answer[1]["tool_calls"]] == ["call_1", "call_2"]  # C23: one message with both
    assert answer[3]["content"].startswith("Error: ")


async def test_c26_a_failed_answer_ends_with_an_error_and_keeps_the_message(client: Any, scripted: Any) -> None:
    scripted._script = iter([ModelRefused("the key is wrong", provider="scripted", status=401)])
    session = await begin(client)
    found = await followed(client, session)
    assert kinds(found) == "error done" and "the key is wrong" in found[0]["error"]
    assert (await about(client, session))["status"] == "failed" and await told(client, session) == [("user", "hello")]


async def test_c28_a_limit_of_rounds_is_an_error(home: Place, client: Any, scripted: Any) -> None:
    await home.admin.patch("/constellations/home/agents/ada", json={"config": {"limits": {"steps": 2}}})
    scripted._script = iter([calls("recall", {"op": "search", "query": f"{number}"}) for number in range(9)])
    session = await begin(client)
    found = await followed(client, session)
    assert kinds(found)[-10:] == "error done" and "2" in found[-2]["error"]
    assert (await about(client, session))["status"] == "failed"


async def test_c29_c30_c31_a_session_is_continued_when_it_rests(client: Any, scripted: Any) -> None:
    gate = trio.Event()
    scripted._script = iter([says("Hi."), Paced(answer=says("Sure."), gate=gate)])
    session = await begin(client, "one")
    await followed(client, session)
    await client.post(f"/api/chat/{session}", json={"message": "two"})
    busy = await client.post(f"/api/chat/{session}", json={"message": "three"})
    unknown = await client.post("/api/chat/session_x", json={"message": "three"})
    body = {"error": "Session not found or is currently running"}
    assert [(one.status_code, one.json()) for one in (busy, unknown)] == [(409, body), (404, body)]
    for name in (session, "session_x"):
        assert (await client.post(f"/api/chat/{name}?strict=0", json={"message": "three"})).status_code == 404
    gate.set()
    await followed(client, session)
    shown = [(one.role, one.text) for one in scripted.requests[-1].messages]
    assert shown == [("user", "one"), ("assistant", "Hi."), ("user", "two")], "each message once"
    assert (await client.post(f"/api/chat/{session}", json={"message": "three"})).status_code == 200


async def test_only_one_of_many_messages_at_once_is_accepted(client: Any, scripted: Any) -> None:
    scripted._otherwise = Paced(answer=says("Sure."), gate=(gate := trio.Event()))
    statuses: list[int] = []

    async def send() -> None:
        statuses.append((await client.post(f"/api/chat/{session}", json={"message": "again"})).status_code)

    scripted._script = iter([says("Hi.")])
    session = await begin(client)
    await followed(client, session)
    async with trio.open_nursery() as nursery:
        for _number in range(8):
            nursery.start_soon(send)
    assert sorted(statuses) == [200, *[409] * 7]
    gate.set()


async def test_a_repeated_request_with_a_key_starts_one_session(client: Any, scripted: Any) -> None:
    key = {"Idempotency-Key": "k1"}
    first, second = [await client.post("/api/chat", json={"message": "hello"}, headers=key) for _time in range(2)]
    assert first.json() == second.json() and first.headers["x-turn-id"] == second.headers["x-turn-id"]
    other = await client.post("/api/chat", json={"message": "other"}, headers=key)
    assert other.status_code == 422
    assert (await client.get("/api/sessions")).json()["total"] == 1


async def test_c32_c33_stopping_closes_the_providers_connection_and_keeps_what_was_said(
    client: Any, scripted: ScriptedProvider
) -> None:
    begun, found = trio.Event(), list[dict[str, Any]]()
    scripted._slice_chars = 4
    scripted._script = iter([Paced(answer=says("One. Two. Three. Four."), between_s=0.2), says("Yes.")])

    async def follow() -> None:
        found.extend(await followed(client, session, begun=begun))

    session = await begin(client)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        await begun.wait()
        with trio.fail_after(1):
            assert (await client.post(f"/api/stop/{session}")).json() == {"success": True}
        assert (scripted.cancelled, scripted.running) == (1, 0)
    assert kinds(found)[-10:] == "error done" and found[-2]["error"] == "Aborted by user"
    text = "".join(one.get("text", "") for one in found)
    assert text.startswith("One.") and await told(client, session) == [("user", "hello"), ("assistant", text)]
    assert (await about(client, session))["status"] == "cancelled"
    idle, unknown = [await client.post(f"/api/stop/{name}") for name in (session, "x")]
    assert (idle.status_code, idle.json()["error"]) == (409, "Session is not running: cancelled")
    assert (unknown.status_code, unknown.json()) == (404, {"success": False, "error": "Session not found: x"})
    assert (await client.post("/api/stop/x?strict=0")).status_code == 200
    assert (await client.post(f"/api/chat/{session}", json={"message": "Go on."})).status_code == 200
    assert "".join(one.get("text", "") for one in await followed(client, session)) == "Yes."


async def test_c27_a_session_that_waits_for_its_agent_is_stopped_before_it_starts(client: Any, scripted: Any) -> None:
    gate = trio.Event()
    scripted._script = iter([Paced(answer=says("Hi."), gate=gate)])
    first, second = await begin(client), await begin(client)
    assert (await client.post(f"/api/stop/{second}")).status_code == 200
    found = await followed(client, second)
    assert (kinds(found), found[0]["error"]) == ("error done", "Aborted before starting")
    gate.set()
    assert kinds(await followed(client, first)) == "text_delta usage done" and scripted.asked == 1


async def test_c34_what_is_unknown_is_not_found(client: Any) -> None:
    words = "Session not found: x"
    for method, path, body, error in (
        ("GET", "/api/session/x", {"success": False}, words),
        ("GET", "/api/session/x/messages", {}, words),
        ("GET", "/api/stream/x", {"success": False}, words),
        ("PATCH", "/api/session/x", {"success": False}, words),
        ("PATCH", "/api/session/x/cwd", {}, "Session not found"),
    ):
        answer = await client.request(
            method, path, json={"title": "t", "workingDir": "/"} if method == "PATCH" else None
        )
        assert (answer.status_code, answer.json()) == (404, {**body, "error": error}), path
    original = await client.get("/api/session/x?strict=0")
    assert (original.status_code, original.json()) == (200, {"success": False, "error": words})
    shown = await client.get("/api/stream/x", headers={"accept": "text/event-stream"})
    assert (shown.status_code, shown.text) == (200, f'event: error\ndata: {{"error":"{words}"}}\n\n')


async def test_c36_deleting_what_runs_ends_its_stream(client: Any, scripted: Any) -> None:
    scripted._script = iter([Paced(answer=says("Hi."), gate=trio.Event())])
    session, found = await begin(client), list[dict[str, Any]]()

    async def follow() -> None:
        async with client.stream("GET", f"/api/stream/{session}") as answer:
            opened.set()
            found.extend([json.loads(line[6:]) async for line in answer.aiter_lines() if line.startswith("data: ")])

    opened = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        await opened.wait()
        assert (await client.delete(f"/api/session/{session}")).status_code == 200
    assert kinds(found)[-10:] == "error done" and scripted.cancelled == 1
    assert (await client.get(f"/api/stream/{session}")).status_code == 404


async def test_c37_the_working_directory_is_below_a_root(alone: Path, scripted: Any) -> None:
    root = alone / "work"
    (root / "project").mkdir(parents=True)
    (root / "out").symlink_to(alone)
    gate = trio.Event()
    scripted._script = iter([Paced(answer=says("Hi."), gate=gate)])
    async with serving(config_for(alone, shell={"roots": [root]}), {"scripted": scripted}) as place:
        await place.constellation()
        async with front_end(place) as client:
            made = (await client.post("/api/chat", json={"message": "hello"})).json()
            assert made["workingDir"] == str(root)
            path, body = f"/api/session/{made['sessionId']}/cwd", {"workingDir": str(root / "project")}
            assert (await client.patch(path, json=body)).status_code == 409, "it is running"
            gate.set()
            await followed(client, made["sessionId"])
            for wrong in ("", "/", str(alone), str(root / "missing"), str(root / "out"), "../..", "a\0b"):
                assert (await client.patch(path, json={"workingDir": wrong})).status_code == 422, wrong
            moved = await client.patch(path, json=body)
            assert moved.json() == {"sessionId": made["sessionId"], **body, "success": True}
            assert (await about(client, made["sessionId"]))["workingDir"] == body["workingDir"]


async def test_c45_the_name_of_a_plan_does_not_lead_out_of_its_folder(home: Place) -> None:
    assert (await home.admin.post("/constellations/home/folders", json={"name": "plans"})).status_code == 201
    for name in ("../../a.txt", "..%2F..%2Fa.txt", "plans/../../a.txt"):
        where = f"/constellations/home/folders/plans/files/{name}"
        octets = {"content-type": "application/octet-stream"}
        put = await home.admin.put(where, content=b"# Plan", headers=octets)
        assert put.status_code in (404, 405, 422), (name, put.text)
        assert (await home.admin.get(where)).status_code in (404, 422)
        assert (await home.admin.delete(where)).status_code in (404, 405, 422)
    assert (await home.admin.get("/constellations/home/folders/plans/files")).json()["items"] == []


async def test_a_title_is_shown_and_bounded(client: Any) -> None:
    session = await begin(client)
    answer = await client.patch(f"/api/session/{session}", json={"title": "Rome"})
    assert answer.json() == {"success": True, "title": "Rome"}
    assert (await about(client, session))["title"] == "Rome"
    assert (await client.get("/api/sessions")).json()["sessions"][0]["title"] == "Rome"
    for wrong in ("", "x" * 201):
        assert (await client.patch(f"/api/session/{session}", json={"title": wrong})).status_code == 422


async def test_c39_c41_two_readers_see_all_and_each_resumes_anywhere(client: Any, scripted: Any) -> None:
    scripted._slice_chars = 1
    scripted._script = iter([
        calls(*RECALL, text="Looking."), Paced(answer=says("Found nothing at all."), between_s=0.03)
    ])  # fmt: skip
    session, streams = await begin(client), list[list[dict[str, Any]]]()

    async def follow() -> None:
        streams.append(await followed(client, session))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        nursery.start_soon(follow)
    live, second = streams
    text = "".join(one.get("text", "") for one in live)
    assert text == "Looking.Found nothing at all." and len(live) > 7
    for other in (second, await followed(client, session)):  # the second may have come late: then in larger pieces
        assert "".join(each.get("text", "") for each in other) == text and kinds(other).endswith("usage done")
    numbers = [int(one["id"]) for one in live]
    assert numbers == sorted(set(numbers))
    for at, one in enumerate(live):  # the pieces are deleted by now: the rest of a message comes at once
        rest = await followed(client, session, last=one["id"])
        got = [*live[: at + 1], *rest]
        assert "".join(each.get("text", "") for each in got) == text, one
        assert [each for each in got if each["type"] != "text_delta"] == [
            each for each in live if each["type"] != "text_delta"
        ]
    assert (await client.get(f"/api/stream/{session}", headers={"Last-Event-ID": "7"})).status_code == 422


async def test_a_reader_that_was_away_gets_the_rest_of_its_turn_and_then_the_next(client: Any, scripted: Any) -> None:
    scripted._script = iter([says("One."), says("Two.")])
    session = await begin(client)
    first = await followed(client, session)
    await client.post(f"/api/chat/{session}", json={"message": "again"})
    second = await followed(client, session)
    assert await followed(client, session, last=first[0]["id"]) == first[1:]
    assert await followed(client, session, last=first[-1]["id"]) == second
    assert await followed(client, session, last=second[-1]["id"]) == []


async def test_c40_a_stream_is_replayed_after_a_restart(alone: Path, scripted: Any) -> None:
    async with serving(config_for(alone), {"scripted": scripted}) as place:
        await place.constellation()
        async with front_end(place) as client:
            session = await begin(client)
            live = await followed(client, session)
    async with serving(config_for(alone), {"scripted": scripted}) as place, front_end(place) as client:
        again = await followed(client, session)  # its ids are those of the record, not of the pieces that came live
        assert [{**one, "id": ""} for one in again] == [{**one, "id": ""} for one in live]
        assert (await about(client, session))["status"] == "completed"


@pytest.mark.parametrize(
    "play",
    [
        events("{not json"),
        events({"choices": [{"index": 0, "delta": {"content": "Hi "}}]}, "{not json"),
        Play(chunks=(b"data: \0\xff\n\n" * 50,), headers={"content-type": "text/event-stream"}),
    ],
)
async def test_c43_a_provider_that_sends_garbage_is_asked_at_most_twice(alone: Path, play: Play) -> None:
    async with WireServer(otherwise=play) as wire:
        providers = {"scripted": {"kind": "openai", "base_url": f"{wire.url}/v1"}}
        async with serving(config_for(alone, providers=providers)) as place:
            await place.constellation(config={"context_window": 8000})
            async with front_end(place) as client:
                session = await begin(client)
                found = await followed(client, session)
                asked = [one for one in wire.requests if one.path.endswith("/chat/completions")]
                assert kinds(found).endswith("error done") and 1 <= len(asked) <= 2, found
                assert kinds(found).count("error") == 1 and (await about(client, session))["status"] == "failed"


async def test_c46_a_browsers_page_may_patch(alone: Path) -> None:
    origin = "http://localhost:5173"
    async with serving(config_for(alone, http={"cors_origins": [origin]})) as place, front_end(place) as client:
        asked = {"origin": origin, "access-control-request-method": "PATCH"}
        answer = await client.options("/api/session/x/cwd", headers=asked)
        assert answer.status_code == 200 and "PATCH" in answer.headers["access-control-allow-methods"]


async def test_a_token_means_its_constellation_or_the_only_one(place: Place) -> None:
    ann = await place.client("ann", "read", "chat", "write")
    async with front_end(place, str(ann.headers["authorization"]).removeprefix("Bearer ")) as client:
        none = await client.post("/api/chat", json={"message": "hello"})
        assert none.status_code == 409 and "--constellation NAME" in none.json()["error"]
    ids = [await place.constellation(name) for name in ("home", "work")]
    async with front_end(place) as client:
        assert (await client.get("/api/sessions")).status_code == 409
    (admin,) = [user for user in await place.parts.state.accounts.users() if user.is_admin]
    for c in ids:
        _, secret = await place.parts.state.accounts.create_token(admin, name="t", scopes=["chat"], constellation_id=c)
        async with front_end(place, secret) as client:
            assert (await client.get("/api/sessions")).json()["total"] == 0
            session = await begin(client)
            assert (await client.get("/api/sessions")).json()["total"] == 1
            assert (await client.delete(f"/api/session/{session}")).status_code == 403, "it may only chat"


@pytest.mark.parametrize("is_open", [False, True])
async def test_an_open_server_needs_no_token_for_chat_sessions_alone(alone: Path, is_open: bool, scripted: Any) -> None:
    config = config_for(alone, open_loopback=is_open)
    async with (
        serving(config, {"scripted": scripted}) as place,
        httpx2.AsyncClient(base_url=place.url, trust_env=False, timeout=60) as stranger,
    ):
        await place.constellation()
        paths = "/api/sessions", "/api/v1/me", "/v1/models", "/api/v1/constellations/home/agents/ada/sessions"
        statuses = [(await stranger.get(path)).status_code for path in paths]
        assert statuses == [200 if is_open else 401, *[401] * 3]
        wrong = await stranger.get("/api/sessions", headers={"authorization": "Bearer pat_wrong"})
        page = await stranger.post("/api/chat", json={"message": "hi"}, headers={"origin": "https://evil.example"})
        assert (wrong.status_code, page.status_code) == (401, 403)
        if is_open:
            session = await begin(stranger)
            assert kinds(await followed(stranger, session)) == "text_delta usage done"
            assert (await stranger.delete(f"/api/session/{session}")).status_code == 200


async def test_an_agent_is_the_oldest_or_the_named_one(home: Place, client: Any) -> None:
    await home.admin.post("/constellations/home/agents", json={"name": "aaa"})
    for body, name in (({}, "ada"), ({"agent": "aaa"}, "aaa")):
        made = await client.post("/api/chat", json={"message": "hello", **body})
        listed = (await home.admin.get(f"/constellations/home/agents/{name}/sessions")).json()["items"]
        assert [one["id"] for one in listed] == [made.json()["sessionId"]] and listed[0]["origin"] == "codepilot"
    assert (await client.post("/api/chat", json={"message": "hello", "agent": "x"})).status_code == 404
    async with client_of(home.url, home.parts.local_token) as admin:
        for name in ("ada", "aaa"):
            await admin.patch(f"/constellations/home/agents/{name}", json={"status": "archived"})
    assert (await client.post("/api/chat", json={"message": "hello"})).status_code == 409
