"""The API as the command line calls it: over the network, or in-process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
import trio

from pattern_core.errors import InvalidInput
from pattern_db.errors import OwnedElsewhere
from pattern_db.files import DataDirLock
from pattern_server.cli import client, run
from pattern_server.cli.client import Api, ServerFailed, ServerUnreachable, open_api, remote, running_server
from pattern_server.cli.command import Home
from pattern_server.config import load
from tests.pattern_server.cli.conftest import Answer, api_of, as_json
from tests.pattern_server.place import Place


def test_paths_are_escaped() -> None:
    api = api_of(lambda _: as_json({}))
    assert api.at("constellations", "my home", "a/b?c") == "/api/v1/constellations/my%20home/a%2Fb%3Fc"
    assert Home(api, "my home", "agents").at("ada") == "/api/v1/constellations/my%20home/agents/ada"


async def test_a_list_is_read_page_by_page() -> None:
    asked: list[str] = []

    def answer(request: httpx2.Request) -> Answer:
        asked.append(request.url.query.decode())
        start = int(request.url.params.get("cursor", "0"))
        items = [{"n": number} for number in range(start, min(start + 3, 7))]
        return as_json({"items": items, "next_cursor": str(start + 3) if start + 3 < 7 else None})

    api = api_of(answer)
    assert [row["n"] for row in await api.pages("list")] == list(range(7))
    assert len(asked) == 3
    assert len(await api.pages("list", most=4, kind=None)) == 4
    assert asked[-1] == "limit=1&cursor=3"


async def test_a_problem_document_becomes_its_sentence() -> None:
    problem = {"title": "Conflict", "detail": "The name home is taken; choose another.", "code": "conflict"}
    api = api_of(lambda _: as_json(problem, 409))
    with pytest.raises(ServerFailed, match="The name home is taken; choose another") as caught:
        await api.call("POST", "x", body={})
    assert (caught.value.status, caught.value.problem_code) == (409, "conflict")


async def test_an_error_without_a_problem_document() -> None:
    api = api_of(lambda _: (502, {"content-type": "text/html"}, b"<h1>Bad gateway</h1>"))
    with pytest.raises(ServerFailed, match="status 502"):
        await api.get("x")


async def test_find_gives_the_version_or_nothing() -> None:
    api = api_of(
        lambda request: as_json({"a": 1}, etag='"3"') if request.url.path == "/api/v1/there" else as_json({}, 404)
    )
    assert await api.find("there") == ({"a": 1}, '"3"')
    assert await api.find("gone") is None


@pytest.mark.parametrize("others", [0, 2, 9])
async def test_a_change_starts_from_what_others_left(others: int) -> None:
    stored = {"n": 0}
    left = others

    def answer(request: httpx2.Request) -> Answer:
        nonlocal left
        if request.method == "GET":
            told = as_json(stored, etag=f'"{stored["n"]}"')
            if left:  # somebody else changes it between the reading and the writing
                left -= 1
                stored["n"] += 10
            return told
        if request.headers["if-match"] != f'"{stored["n"]}"':
            return as_json({"detail": "read it again", "code": "version_mismatch"}, 412)
        stored.update(json.loads(request.content))
        return as_json(stored)

    changing = api_of(answer).change("x", by=lambda found: {"n": found["n"] + 1})
    if others < client.CHANGE_TRIES:
        assert await changing == {"n": 10 * others + 1} == stored
    else:
        with pytest.raises(ServerFailed, match="read it again"):
            await changing
        assert others - left == client.CHANGE_TRIES


async def test_a_change_that_is_refused_for_another_reason_is_not_tried_again() -> None:
    asked: list[str] = []

    def answer(request: httpx2.Request) -> Answer:
        asked.append(request.method)
        problem = {"detail": "taken", "code": "conflict"}
        return as_json({}, etag='"1"') if request.method == "GET" else as_json(problem, 409)

    with pytest.raises(ServerFailed, match="taken"):
        await api_of(answer).change("x", by=lambda _: {})
    assert asked == ["GET", "PATCH"]


async def test_an_answer_without_a_body_is_empty() -> None:
    assert await api_of(lambda _: (204, {}, b"")).call("DELETE", "x") == {}


async def test_events_are_decoded() -> None:
    stream = (
        b"retry: 1000\n\n: keep-alive\n\n"
        b'id: 7\nevent: text.delta\ndata: {"text": "a\\nb"}\n\n'
        b'id: 8\nevent: turn.completed\ndata: {"status":\ndata: "completed"}\n\n'
        b"id: 9\nevent: half"
    )
    sent: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> Answer:
        sent.append(request)
        return 200, {"content-type": "text/event-stream"}, stream

    async with api_of(answer).events("events", after=6, key="k") as events:
        seen = [(event.seq, event.name, event.data) async for event in events]
    assert seen == [(7, "text.delta", {"text": "a\nb"}), (8, "turn.completed", {"status": "completed"})]
    assert sent[0].method == "GET"
    assert sent[0].headers["last-event-id"] == "6"
    assert sent[0].headers["idempotency-key"] == "k"


async def test_a_refused_stream_raises_its_problem() -> None:
    api = api_of(lambda _: as_json({"detail": "No such turn.", "code": "not_found"}, 404))
    with pytest.raises(ServerFailed, match="No such turn"):
        async with api.events("events"):
            pass


async def test_a_server_that_does_not_answer() -> None:
    with trio.socket.socket() as listener:
        await listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"  # bound, but nobody listens
        server = client.RunningServer(pid=os.getpid(), url=url, started_at="", token="t")
        async with client.connection(server) as http:
            with pytest.raises(ServerUnreachable, match="pattern serve"):
                await Api(http, streams=True).get("x")


def write_server_json(folder: Path, pid: int) -> None:
    content = {"pid": pid, "url": "http://127.0.0.1:1", "started_at": "2026-11-21T22:24:40.123Z", "token": "secret"}
    (folder / "server.json").write_text(json.dumps(content))


def test_a_running_server_is_found(tmp_path: Path) -> None:
    write_server_json(tmp_path, os.getpid())
    with DataDirLock.acquire(tmp_path):
        found = running_server(tmp_path)
    assert found is not None
    assert (found.pid, found.token) == (os.getpid(), "secret")


def test_a_living_process_that_does_not_hold_the_folder_is_no_server(tmp_path: Path) -> None:
    write_server_json(tmp_path, os.getpid())  # as after a kill, when the number was given to somebody else
    assert running_server(tmp_path) is None
    with DataDirLock.acquire(tmp_path):
        pass
    assert running_server(tmp_path) is None


def test_what_a_killed_server_left_is_no_server(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    write_server_json(tmp_path, ended.pid)
    assert running_server(tmp_path) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": "x"}', '{"pid": 1}'])
def test_a_broken_file_or_none_is_no_server(tmp_path: Path, content: str) -> None:
    assert running_server(tmp_path) is None
    (tmp_path / "server.json").write_text(content)
    assert running_server(tmp_path) is None


def test_the_server_of_another_user_is_named(tmp_path: Path) -> None:
    write_server_json(tmp_path, os.getpid())
    (tmp_path / "server.json").chmod(0)
    before = os.geteuid()
    if before == 0:  # root reads everything
        os.seteuid(65_534)
    try:
        with pytest.raises(ServerUnreachable, match="belongs to another user"):
            running_server(tmp_path)
    finally:
        os.seteuid(before)


async def test_without_a_server_the_application_is_opened_here(tmp_path: Path) -> None:
    async with open_api(load(data_dir=tmp_path), creates=True) as api:
        assert not api.streams
        assert (await api.get("me"))["username"] == "admin"
        assert not (tmp_path / "server.json").exists(), "no other process can call it"
        made = await api.call("POST", "constellations", body={"name": "home"})
    async with open_api(load(data_dir=tmp_path)) as api:
        assert (await api.get("constellations", "home"))["id"] == made["id"]


async def test_a_folder_in_use_is_waited_for_and_then_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LOCK_PATIENCE_S", 0.3)
    with DataDirLock.acquire(tmp_path):
        with pytest.raises(OwnedElsewhere, match=str(os.getpid())):
            async with open_api(load(data_dir=tmp_path)):
                pass
        monkeypatch.setattr(client, "LOCK_PATIENCE_S", 60.0)
        async with trio.open_nursery() as nursery:
            held = DataDirLock.acquire(tmp_path / "other")

            async def let_go() -> None:
                await trio.sleep(0.15)
                held.release()

            nursery.start_soon(let_go)
            async with open_api(load(data_dir=tmp_path / "other"), creates=True) as api:
                assert await api.pages("constellations") == []


@pytest.mark.parametrize("with_file", [True, False])
async def test_a_command_speaks_to_a_server_elsewhere_and_needs_no_data_directory(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], with_file: bool
) -> None:
    await place.constellation()
    if with_file:
        (tmp_path / "token").write_text(f"{place.parts.local_token}\n")
        options = ["--server", place.url, "--token-file", str(tmp_path / "token")]
    else:
        monkeypatch.setenv("PATTERN_SERVER", place.url)
        monkeypatch.setenv("PATTERN_TOKEN", place.parts.local_token)
        options = []
    command = ["agent", "list", "-c", "home", "--data-dir", str(tmp_path / "none"), *options]
    assert await trio.to_thread.run_sync(run, command) == 0
    assert "ada" in capsys.readouterr().out
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("url", "token", "words"),
    [
        ("http://nas:8470", "t", "unencrypted. Use https, or a tunnel: ssh -L 8470:127.0.0.1:8470 nas"),
        ("http://192.168.1.5", "t", "unencrypted"),
        ("http://[2001:db8::1]:1", "t", "unencrypted"),
        ("nas:8470", "t", "is not the address of a server"),
        ("ftp://nas", "t", "is not the address of a server"),
        ("https://nas", "", "There is no token for https://nas. Sign in"),
        ("https://nas", "t", None),
        ("http://localhost:1", "t", None),
        ("http://127.0.0.2:1", "t", None),
        ("http://[::1]:1", "t", None),
    ],
)
async def test_a_token_only_travels_encrypted_or_inside_this_machine(
    url: str, token: str, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATTERN_TOKEN", token)
    if words is not None:
        with pytest.raises(InvalidInput) as refused:
            remote(url, None)
        assert words in refused.value.message
        return
    async with remote(url, None) as http:
        assert http.headers["authorization"] == "Bearer t"


async def test_after_a_restart_the_server_is_found_with_its_new_token(tmp_path: Path) -> None:
    def started(port: int) -> None:
        says = {"pid": os.getpid(), "url": f"http://127.0.0.1:{port}", "started_at": "", "token": f"t{port}"}
        (tmp_path / "server.json").write_text(json.dumps(says))

    with DataDirLock.acquire(tmp_path):
        started(1)
        async with open_api(load(data_dir=tmp_path)) as api:
            started(2)
            api.find_again()
            assert str(api.http.base_url).startswith("http://127.0.0.1:2")
            assert api.http.headers["authorization"] == "Bearer t2"
            (tmp_path / "server.json").unlink()
            api.find_again()  # none runs now; one may again
            assert api.http.headers["authorization"] == "Bearer t2"
