"""The border of HTTP: bad input, bugs, bounds, and that one constellation's trouble stays there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from inspect import isasyncgenfunction, iscoroutinefunction
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from fastapi.dependencies.models import Dependant

from pattern_core.errors import InvalidInput
from pattern_core.limits import IMAGE_BYTES_MAX
from pattern_core.testing.model import Paced, ScriptedProvider, says
from pattern_server.http import border
from pattern_server.http.app import api_routes
from pattern_server.http.border import Misdirected, check_host
from pattern_server.http.routes import health
from pattern_server.http.routes.messages import ImagePartRequest, parts_of
from pattern_server.serve import configure_logs
from tests.pattern_server.place import API, Place, client_of, config_for, serving
from tests.support import until

AGENTS = "/constellations/home/agents"


def is_problem(answer: httpx2.Response, status: int, code: str) -> bool:
    """Whether the answer is a proper problem document."""
    problem = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["status"] == answer.status_code
    assert problem["detail"]
    assert problem["title"]
    return (answer.status_code, problem["code"]) == (status, code)


NO_JSON = (
    b"{",
    b'{"name": }',
    b"{'name': 'x'}",
    b"\xff\xfe{",
    b'{"name": "x"} trailing',
    b'{"config": NaN, "name": "x"}',
    b'{"config": {"a": -Infinity}, "name": "x"}',
    b'{"config": {"a": "\\ud800"}, "name": "x"}',
    b'{"name": "\\ud800"}',
    b'{"config": {"a": ' + b"9" * 5_000 + b'}, "name": "x"}',
    b'{"config": ' + b'{"a":' * 100_000,
    b'{"config": ' + b'{"a":' * 3_000 + b"1" + b"}" * 3_000 + b', "name": "x"}',
)


async def test_what_is_no_json_is_refused_and_changes_nothing(place: Place) -> None:
    await place.constellation(agent=None)
    for body in NO_JSON:
        answer = await place.admin.post(AGENTS, content=body, headers={"content-type": "application/json"})
        assert is_problem(answer, 400, "malformed_json"), body[:100]
    empty = await place.admin.post(AGENTS, content=b"", headers={"content-type": "application/json"})
    assert is_problem(empty, 422, "invalid_input")
    assert (await place.admin.get(AGENTS)).json()["items"] == []


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonx"])
async def test_a_body_of_another_type_than_json_is_refused_with_the_header_to_send(
    home: Place, kind: str | None
) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    answer = await home.admin.post(AGENTS, content=b'{"name": "bob"}', headers=headers)
    assert is_problem(answer, 415, "unsupported_media_type")
    assert "`Content-Type: application/json`" in answer.json()["detail"]


async def test_json_has_more_than_one_content_type_and_an_optional_body_needs_none(home: Place) -> None:
    for kind in ("application/json; charset=utf-8", "APPLICATION/JSON", "application/merge-patch+json"):
        answer = await home.admin.patch(
            f"{AGENTS}/ada", content=b'{"description": "x"}', headers={"Content-Type": kind}
        )
        assert answer.status_code == 200, answer.text
    assert (await home.admin.post(f"{AGENTS}/ada/memory/human/undo")).status_code != 415


async def test_an_unknown_query_parameter_is_refused_with_those_that_are_known(home: Place) -> None:
    answer = await home.admin.get(AGENTS, params={"limt": "3"})
    assert is_problem(answer, 422, "invalid_input")
    assert "'limt'" in answer.json()["detail"] and "cursor, limit" in answer.json()["detail"]
    assert answer.json()["errors"][0]["field"] == "query.limt"
    within = await home.admin.get("/constellations/home/usage", params={"group": "day"})
    assert is_problem(within, 422, "invalid_input")
    assert "agent, by, cursor, limit, since, turn, until" in within.json()["detail"]
    for where in ("/me", f"{AGENTS}/ada"):
        none = await home.admin.get(where, params={"verbose": "1"})
        assert is_problem(none, 422, "invalid_input")
        assert "no query parameters" in none.json()["detail"]


async def test_a_405_names_all_methods_of_the_path(home: Place) -> None:
    answer = await home.admin.put(AGENTS)
    assert is_problem(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "GET, POST"
    inner = await home.admin.post(f"{AGENTS}/ada/memory/human")
    assert inner.headers["allow"] == "DELETE, GET, PATCH, PUT"
    # Not those of a constellation with this name.
    assert (await home.admin.put("/constellations/restore", json={})).headers["allow"] == "POST"


@pytest.mark.parametrize("is_declared", [True, False])
@pytest.mark.parametrize("has_token", [True, False])
async def test_a_huge_body_is_refused_while_it_arrives(place: Place, is_declared: bool, has_token: bool) -> None:
    await place.constellation(agent=None)
    size = 12 * 1024 * 1024

    async def pieces() -> Any:
        for _ in range(size // 65_536):
            yield b"x" * 65_536

    headers = {"content-type": "application/json"}
    content: Any = b"x" * size if is_declared else pieces()
    async with client_of(place.url, place.parts.local_token if has_token else "unknown") as client:
        answer = await client.post(AGENTS, content=content, headers=headers)
    if has_token:
        assert is_problem(answer, 413, "too_large")
    else:
        assert is_problem(answer, 401, "unauthorized")


async def test_an_import_may_be_longer_than_other_bodies(home: Place) -> None:
    where = f"{AGENTS}/ada/history"
    message = {"role": "user", "content": "word", "metadata": {"text": "x" * 2_000}}
    body = {"messages": [message] * 2_000}
    made = await home.admin.post(where, json=body)
    assert made.status_code == 201, made.text
    assert len(set(made.json()["ids"])) == 2_000
    too_many = await home.admin.post(where, json={"messages": [{"role": "user", "content": "word"}] * 10_001})
    assert is_problem(too_many, 422, "invalid_input")
    assert "messages" in too_many.json()["detail"]
    assert is_problem(await home.admin.post(where, content=b"x" * (border.HISTORY_BYTES_MAX + 1)), 413, "too_large")
    assert is_problem(await home.admin.post(f"{where}/more", json=body), 413, "too_large")  # for this path only


async def test_a_file_of_another_program_may_be_longer_than_other_bodies(home: Place) -> None:
    where = "/constellations/home/programs"
    line = b'{"id":"%d","title":"' + b"x" * 40_000 + b'"}\n'
    data = b"".join(line % number for number in range(100))
    done = await home.admin.post(f"{where}/decisions", content=data, params={"workspace": "shop"})
    assert (done.status_code, done.json()["added"]) == (200, {"decisions": 100}), done.text
    too_long = await home.admin.post(f"{where}/delta", content=b"x" * (border.HISTORY_BYTES_MAX + 1))
    assert is_problem(too_long, 413, "too_large")


async def test_messages_and_calendars_may_be_longer_than_other_bodies(home: Place) -> None:
    junk = b"x" * (home.parts.state.config.body_bytes_max + 1)
    assert (await home.admin.post(AGENTS, content=junk)).status_code == 413
    of_api = (f"{AGENTS}/ada/messages", "/constellations/home/calendar/import")
    for path in (*(API + path for path in of_api), "/v1/chat/completions", "/v1/responses"):
        assert (await home.admin.post(home.url + path, content=junk)).status_code in (415, 422), path


async def test_what_a_resource_must_have_is_not_set_to_null(home: Place) -> None:
    ada = (await home.admin.get(f"{AGENTS}/ada")).json()["id"]
    at = "/constellations/home"
    event = {"title": "Bell", "starts_at": "2030-01-01T10:00"}
    cases: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
        ("/users", {"username": "ann"}, ("username", "is_admin", "disabled")),
        (f"{at}/groups", {"name": "desk", "pattern_type": "parallel", "members": [{"agent_id": ada}]},
         ("name", "pattern_type")),
        (f"{at}/schedules", {"name": "daily", "agent": "ada", "message": "Look.", "every": 3600}, ("name", "message")),
        (f"{at}/tasks", {"title": "Tidy up"}, ("title", "status", "priority")),
        (f"{at}/calendar/events", event, ("title", "starts_at")),
    ]  # fmt: skip
    for path, body, names in cases:
        made = await home.admin.post(path, json=body)
        assert made.status_code == 201, made.text
        for name in names:
            refused = await home.admin.patch(f"{path}/{made.json()['id']}", json={name: None})
            assert is_problem(refused, 422, "invalid_input"), (path, name)
            assert f"`{name}` cannot be null" in refused.json()["detail"]


def test_an_image_that_is_too_large_is_not_decoded() -> None:
    image = ImagePartRequest.model_validate({"type": "image", "data": "A" * (2 * IMAGE_BYTES_MAX + 1)})
    with pytest.raises(InvalidInput, match="send a smaller one"):
        parts_of([image])


async def test_a_body_without_end_costs_the_connection(place: Place) -> None:
    port = int(place.url.rsplit(":", 1)[1])
    head = f"POST {API}/constellations HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {place.parts.local_token}\r\n"
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        piece = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
        with trio.fail_after(60), pytest.raises(trio.BrokenResourceError):
            while True:
                await stream.send_all(piece)
    assert (await place.admin.get("/constellations")).status_code == 200


async def test_requests_have_an_id(place: Place) -> None:
    first = (await place.admin.get("/me")).headers["x-request-id"]
    second = (await place.admin.get("/me")).headers["x-request-id"]
    assert first.startswith("req_")
    assert first != second
    own = await place.admin.get("/me", headers={"X-Request-Id": "mine-7"})
    assert own.headers["x-request-id"] == "mine-7"
    bad = await place.admin.get("/me", headers={"X-Request-Id": "a b"})
    assert bad.headers["x-request-id"].startswith("req_")


async def test_the_log_has_a_line_for_each_request(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("info", "json")
    await place.admin.get("/me", headers={"X-Request-Id": "mine-7"})
    configure_logs("warning", "json")
    (line,) = [json.loads(text) for text in capsys.readouterr().err.splitlines() if "mine-7" in text]
    shown = [line[name] for name in ("method", "path", "status", "client", "user")]
    assert shown == ["GET", f"{API}/me", 200, "127.0.0.1", "admin"]


async def test_a_bug_is_a_500_that_tells_nothing(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    class Broken:
        """A database with a bug."""

        def __getattr__(self, name: str) -> Any:
            raise ZeroDivisionError("secret words")

    broken: Any = Broken()
    place.parts.state.accounts.database = broken
    answer = await place.admin.get("/constellations", headers={"X-Request-Id": "find-me"})
    assert is_problem(answer, 500, "internal")
    assert "secret" not in answer.text
    assert "find-me" in answer.text
    out, err = capsys.readouterr()
    assert "secret words" in out + err
    assert "find-me" in out + err
    assert (await place.admin.get("/me")).status_code == 200


def test_no_request_needs_a_thread_to_begin() -> None:
    """FastAPI runs a plain function in a thread, also one that only looks at an attribute: 0.1 ms each."""

    def called(dependant: Dependant) -> Iterator[Any]:
        yield dependant.call
        for inner in dependant.dependencies:
            yield from called(inner)

    for route in api_routes():
        for call in called(route.dependant):
            assert iscoroutinefunction(call) or isasyncgenfunction(call), (route.path, call)


async def test_too_many_requests_at_once_are_refused(alone: Path) -> None:
    """Those of one token leave room for others', and those without a token for all with one."""
    bounds = {"requests_max": 2, "requests_per_token_max": 1, "public_requests_per_address_max": 1}
    async with serving(config_for(alone, http=bounds)) as place, AsyncExitStack() as held:
        await place.constellation(agent=None)
        events = "/constellations/home/events"
        ann, bob = await place.client("ann", "read"), await place.client("bob", "read")

        await held.enter_async_context(place.admin.stream("GET", events))
        answer = await place.admin.get("/me")
        assert is_problem(answer, 429, "overloaded")
        assert int(answer.headers["retry-after"]) >= 1
        assert (await ann.get("/me")).status_code == 200

        port = int(place.url.rsplit(":", 1)[1])
        slow = await held.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port))
        async with httpx2.AsyncClient(trust_env=False, timeout=60) as stranger:
            for path in ("/healthz", f"{API}/me"):  # a body that does not come, without a token
                await slow.send_all(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n".encode())
                while (answer := await stranger.get(place.url + "/healthz")).status_code == 200:
                    pass
                assert is_problem(answer, 429, "overloaded")
                assert is_problem(await stranger.get(f"{place.url}{API}/me"), 429, "overloaded")
                assert (await ann.get("/me")).status_code == 200
                await slow.aclose()
                slow = await held.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port))
                while (await stranger.get(place.url + "/healthz")).status_code == 429:
                    pass

        await slow.send_all(
            f"POST {API}/constellations HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n"
            f"Authorization: {ann.headers['authorization']}\r\n\r\n".encode()
        )
        while (answer := await bob.get("/me")).status_code == 200:
            pass
        assert is_problem(answer, 429, "overloaded")


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        ("127.0.0.1:8470", True),
        ("192.168.1.5", True),
        ("[::1]:8470", True),
        ("[::ffff:10.0.0.1]", True),
        ("localhost", True),
        ("a.localhost:1", True),
        ("homeserver:8470", True),  # not in the public DNS
        ("", True),
        ("Pattern.Example.org:443", True),
        ("a.pattern.example.org.", True),
        ("example.org", False),
        ("notpattern.example.org", False),
        ("rebound.example.com:8470", False),
        ("127.0.0.1.example.com", False),
        ("localhost.example.com", False),
    ],
)
def test_only_requests_for_this_server_are_answered(host: str, is_ours: bool) -> None:
    own = ("0.0.0.0", "pattern.example.org")
    if is_ours:
        check_host(host.encode(), own)
    else:
        with pytest.raises(Misdirected, match="allowed_hosts"):
            check_host(host.encode(), own)


async def test_a_page_whose_name_leads_here_reads_nothing(place: Place) -> None:
    for path in ("/metrics", "/openapi.json", "/readyz", f"{API}/me"):
        answer = await place.admin.get(place.url + path, headers={"Host": "rebound.example.com"})
        assert is_problem(answer, 421, "misdirected")
        assert "allowed_hosts" in answer.json()["detail"]


async def test_a_client_that_leaves_ends_its_request_and_not_its_turn(home: Place, scripted: ScriptedProvider) -> None:
    gate = trio.Event()
    scripted._script = iter([Paced(answer=says("Yes."), gate=gate)])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(home.say, "Are you there?")
        await until(lambda: scripted.running)
        refused = home.parts.state.metrics._answers[("4xx",)]
        nursery.cancel_scope.cancel()
    with trio.fail_after(60):
        while home.parts.state.metrics._answers[("4xx",)] == refused:  # noted as 499: nobody was left to answer
            await trio.sleep(0.01)
        gate.set()
        begun = await home.events("/constellations/home/events?after=0", most=5)
        turn = next(event["data"]["turn_id"] for event in begun if event["event"] == "turn.started")
        assert (await home.events(f"/constellations/home/turns/{turn}/events"))[-1]["event"] == "turn.completed"


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_a_client_may_ask_that_its_turn_ends_when_it_leaves(
    home: Place, scripted: ScriptedProvider, accept: str
) -> None:
    scripted._script = iter([Paced(answer=says("Never."), gate=trio.Event()), says("Yes.")])
    prefer = {"Accept": accept, "Prefer": "on-disconnect=cancel"}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(home.say, "Are you there?", **prefer))
        await until(lambda: scripted.running)
        nursery.cancel_scope.cancel()
    (turn,) = (await home.admin.get("/constellations/home/turns")).json()["items"]
    with trio.fail_after(60):
        events = await home.events(f"/constellations/home/turns/{turn['turn_id']}/events")
    assert events[-1]["event"] == "turn.cancelled"
    assert events[-1]["data"]["error"]["message"] == "cancelled: disconnected"
    prefer["Prefer"] += ", respond-async"  # with its whole answer, a client may leave
    await home.say("And now?", **prefer)
    turn, _ = (await home.admin.get("/constellations/home/turns")).json()["items"]
    assert (await home.events(f"/constellations/home/turns/{turn['turn_id']}/events"))[-1]["event"] == "turn.completed"


async def test_of_many_conditional_writers_one_wins(home: Place) -> None:
    where = f"{AGENTS}/ada/memory/human"
    etag = (await home.admin.get(where)).headers["etag"]
    statuses: list[int] = []

    async def write(number: int) -> None:
        body = {"content": f"Number {number}."}
        statuses.append((await home.admin.put(where, json=body, headers={"If-Match": etag})).status_code)

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(write, number)
    assert sorted(statuses) == [200, *[412] * 7]


async def test_what_is_accepted_can_be_shown(home: Place) -> None:
    """JSON as deep as is taken comes back; deeper JSON is refused before anything is stored."""

    def deep(depth: int) -> Any:
        return [deep(depth - 1)] if depth else 1

    async def store(depth: int) -> list[int]:
        within = deep(depth)
        message = {"content": "Hello", "source_metadata": {"a": within}}
        past = {
            "messages": [{"role": "user", "content": "Hi", "created_at": "2024-01-01T00:00:00Z", "metadata": message}]
        }
        answers = [
            await home.admin.post(f"{AGENTS}/ada/messages", json=message),
            await home.admin.post(AGENTS, json={"name": f"deep{depth}", "config": {"response_schema": {"a": within}}}),
            await home.admin.post(f"{AGENTS}/ada/archival", json={"content": f"{depth}", "metadata": {"a": within}}),
            await home.admin.post(f"{AGENTS}/ada/history", json=past),
        ]
        return [answer.status_code for answer in answers]

    assert await store(58) == [200, 201, 201, 201]
    assert await store(65) == await store(900) == [400] * 4
    for path in (AGENTS, f"{AGENTS}/ada/messages", f"{AGENTS}/ada/archival", f"{AGENTS}/ada/history"):
        assert (await home.admin.get(path)).status_code in (200, 405), path


async def ask(place: Place, path: str) -> httpx2.Response:
    async with httpx2.AsyncClient(trust_env=False, timeout=60) as stranger:
        return await stranger.get(place.url + path)


async def test_alive_and_ready(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "DISK_BYTES_EASY", 0)
    assert (await ask(place, "/healthz")).json() == {"status": "alive"}
    assert (await ask(place, "/readyz")).json() == {"status": "ready", "reasons": [], "warnings": []}
    monkeypatch.setattr(health, "DISK_BYTES_EASY", 2**80)
    answer = await ask(place, "/readyz")
    assert answer.status_code == 200, "a full disk still serves reads"
    assert answer.json()["warnings"][0].startswith("low disk space: ")
    place.parts.state.pending.add("unfinished turns are being resumed")
    place.parts.state.draining.set()
    answer = await ask(place, "/readyz")
    assert answer.status_code == 503
    assert answer.json()["reasons"] == ["unfinished turns are being resumed", "the server is stopping"]
    assert (await ask(place, "/healthz")).status_code == 200


async def test_counts(home: Place) -> None:
    await home.admin.get("/constellations/nothing")
    text = (await ask(home, "/metrics")).text
    assert 'pattern_constellations{state="idle"} 1' in text
    assert 'pattern_constellations{state="queued"} 0' in text
    assert 'pattern_constellations{state="quarantined"} 0' in text
    assert 'pattern_http_responses_total{status="4xx"} 1' in text
    assert 'pattern_model_gate{provider="scripted",what="running"} 0' in text


async def test_the_description_names_every_route(place: Place) -> None:
    described = (await ask(place, "/openapi.json")).json()
    assert described["openapi"].startswith("3.")
    for route in api_routes():
        assert route.path.replace(":path}", "}") in described["paths"]
    assert "/docs" in (await ask(place, "/")).text
