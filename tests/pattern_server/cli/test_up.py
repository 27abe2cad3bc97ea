"""`pattern up`, `down` and `status`, and commands that start a server: real servers in processes of their own, and a
model server on loopback.
"""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
import trio

from pattern_core.errors import InvalidInput, Unavailable
from pattern_core.models.errors import ModelError
from pattern_core.testing.model import says
from pattern_core.testing.wire import Play, WireRequest, WireServer, document
from pattern_core.testing.wire_openai import replies
from pattern_db.files import holder_of
from pattern_server.cli.child import ensure_server
from pattern_server.cli.client import RunningServer, running_server
from pattern_server.cli.output import Output
from pattern_server.cli.up import (
    LOCAL_SERVERS,
    Candidate,
    _ask,
    _choose,
    _move_from_rules,
    _named,
    _reload,
    find_models,
)
from pattern_server.config import load
from tests.pattern_server.cli.conftest import Answer, Pattern, api_of, as_json

# A command ends when it has started a server; a test goes on.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

ANSWER = "A lighthouse is a tower with a light."
PATIENCE_S = 60.0


def ollama(request: WireRequest) -> Play:
    """What Ollama answers, as far as we ask."""
    if request.method == "GET" and request.path.endswith("/models"):
        return document({"object": "list", "data": [{"id": "nomic-embed-text:latest"}, {"id": "qwen3:8b"}]})
    if request.path == "/api/show":
        return document({"model_info": {"qwen3.context_length": 32_768}})
    return replies(says(ANSWER)) if request.method == "POST" else document({}, status=404)


@pytest.fixture
def models() -> Iterator[str]:
    """The address of a model server, which runs in a thread of its own."""
    started, scope = threading.Event(), trio.CancelScope()
    found: list[tuple[str, trio.lowlevel.TrioToken]] = []

    async def serve() -> None:
        async with WireServer(otherwise=ollama) as server:
            found.append((server.url, trio.lowlevel.current_trio_token()))
            started.set()
            with scope:
                await trio.sleep_forever()

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    assert started.wait(PATIENCE_S)
    url, token = found[0]
    yield f"{url}/v1"
    trio.from_thread.run_sync(scope.cancel, trio_token=token)
    thread.join()


@pytest.fixture
def background(pattern: Pattern, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pattern]:
    """`pattern`, which may start a server at a free port; none is left behind."""
    monkeypatch.setenv("PATTERN_PORT", "0")
    yield pattern
    holder = holder_of(data_dir) if data_dir.exists() else None
    if holder is not None and holder.pid is not None:
        os.kill(holder.pid, signal.SIGKILL)
        until(lambda: holder_of(data_dir) is None)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


def server_of(data_dir: Path) -> RunningServer:
    server = running_server(data_dir)
    assert server is not None
    return server


@pytest.mark.slow
def test_from_nothing_to_an_answer_and_back(background: Pattern, data_dir: Path, models: str) -> None:
    pattern = background
    assert pattern("status").code == 1
    assert not data_dir.exists()

    ran = pattern("up", "--yes", "--model", "ollama/qwen3:8b", "--base-url", models)
    assert ran.code == 0, ran.err
    assert f"> {ANSWER}" in ran.out and "first word after" in ran.out
    assert "Created the constellation home with the agent ada." in ran.out
    assert ran.out.splitlines()[-3:] == [
        "  pattern chat      talk to ada",
        "  pattern status    the server and its model",
        "  pattern down      stop it",
    ]
    server = server_of(data_dir)
    assert server.url in ran.out
    assert {path.name for path in data_dir.glob("*") if path.stat().st_mode & 0o077} == set()
    assert pattern("chat", "-c", "home", "Hello").out.strip() == ANSWER

    again = pattern("up", "--json")
    assert again.code == 0, again.err
    assert (again.json["pid"], again.json["started"], again.json["created"]) == (server.pid, False, False)
    assert (again.json["model"], again.json["answer"], again.json["file"]) == ("ollama/qwen3:8b", ANSWER, None)

    shown = pattern("status", "--json")
    assert shown.code == 0
    where = {name: shown.json[name] for name in ("url", "pid", "started_at")}
    assert where == {"url": server.url, "pid": server.pid, "started_at": server.started_at}
    assert (shown.json["default_model"], shown.json["model_answers"]) == ("ollama/qwen3:8b", True)
    assert shown.json["constellations"] == ["home"]
    assert shown.json["log"] == str(data_dir / "server.log")

    stopped = pattern("down", "--json")
    assert (stopped.code, stopped.json["stopped"]) == (0, server.pid)
    assert holder_of(data_dir) is None
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)
        os.waitpid(server.pid, 0)  # it was this process that started it
        os.kill(server.pid, 0)
    assert "No server runs" in pattern("down").out
    assert pattern("status").code == 1


@pytest.mark.slow
def test_a_person_chooses_and_the_server_survives_the_terminal(
    background: Pattern, data_dir: Path, models: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", models.removesuffix("/v1"))
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("OPENAI_BASE_URL", models)
    refused = background("up")
    assert (refused.code, "--yes" in refused.err) == (2, True), "there is no terminal to ask at"
    assert not data_dir.exists()

    with at_terminal("up", "--data-dir", str(data_dir)) as terminal:
        seen = read_until(terminal, "Which one [1]: ")
        assert "1  anthropic/" in seen and "2  openai/" in seen
        os.write(terminal, b"2\n")
        assert ANSWER in read_until(terminal, "pattern down")
    server = server_of(data_dir)
    assert os.getsid(server.pid) == server.pid
    assert 'api_key_env = "OPENAI_API_KEY"' in (data_dir / "pattern.toml").read_text()
    assert background("status", "--json").json["default_model"].startswith("openai/")

    monkeypatch.delenv("OPENAI_API_KEY")
    assert background("constellation", "list").code == 0, "a shell without the key can use the command line"
    assert background("down").code == 0


@contextmanager
def at_terminal(*arguments: str) -> Iterator[int]:
    """A command at a terminal, which hangs up at the end of the block."""
    terminal, inside = pty.openpty()
    command = [sys.executable, "-m", "pattern_server", *arguments]
    with subprocess.Popen(command, stdin=inside, stdout=inside, stderr=inside, start_new_session=True) as process:
        os.close(inside)
        try:
            yield terminal
            os.close(terminal)
            process.wait(PATIENCE_S)
        finally:
            process.kill()


def read_until(terminal: int, words: str) -> str:
    seen = ""
    while words not in seen:
        assert select.select([terminal], [], [], PATIENCE_S)[0], f"{words!r} never came in {seen!r}"
        seen += os.read(terminal, 4096).decode()
    return seen


@pytest.mark.slow
def test_chat_on_an_empty_machine_starts_what_it_needs(background: Pattern, data_dir: Path, models: str) -> None:
    pattern = background
    ran = pattern("chat", "-c", "home", "Remember that Ruth lives in Lisbon.")
    assert ran.code == 0, ran.err
    assert "Started the server at http://127.0.0.1:" in ran.err
    assert "Created the constellation home with the agent ada." in ran.err
    assert pattern("status", "--json").json["default_model"] == "embedded/rules-1"
    assert "Started" not in pattern("chat", "-c", "home", stdin="And she likes figs.").err
    assert pattern("down").code == 0

    # Where there is something already, a script starts no server that stays behind.
    assert pattern("chat", "-c", "home", "What do you know about Ruth?").code == 0
    assert running_server(data_dir) is None

    with at_terminal("chat", "-c", "home", "--data-dir", str(data_dir)) as terminal:
        read_until(terminal, "Started the server at http://127.0.0.1:")
        until(lambda: running_server(data_dir) is not None)

    moved = pattern("up", "--model", "mine/qwen3:8b", "--base-url", models)
    assert "Switched home/ada from the embedded rules to mine/qwen3:8b." in moved.out
    assert pattern("chat", "-c", "home", "Hello").out.strip() == ANSWER


@pytest.mark.slow
def test_a_running_server_reads_its_models_again(background: Pattern, data_dir: Path, models: str) -> None:
    pattern = background
    assert pattern("up", "--model", "embedded/rules-1").code == 0
    server = server_of(data_dir)
    assert pattern("up", "--model", "mine/qwen3:8b", "--base-url", models).code == 0
    assert server_of(data_dir) == server
    listed = pattern("model", "list")
    rows = [line.split() for line in listed.out.splitlines()]
    assert ["mine/qwen3:8b", "32,768", "-", "yes", "default,", "home/ada"] in rows, listed.out

    taken = pattern("up", "--model", "mine/other", "--base-url", "http://127.0.0.1:9/v1")
    assert taken.code and "at another address" in taken.err

    file = data_dir / "pattern.toml"
    elsewhere = data_dir.parent / "other.toml"
    elsewhere.write_text(file.read_text().replace("qwen3:8b", "other"))
    other = pattern("up", "--config", str(elsewhere))
    assert (other.code, "has another default model, mine/qwen3:8b" in other.err) == (1, True)

    file.write_text(file.read_text().replace("mine", "other"))
    assert pattern("up").code == 0
    assert pattern("status", "--json").json["default_model"] == "other/qwen3:8b"


@pytest.mark.slow
def test_what_does_not_answer_changes_nothing(background: Pattern, data_dir: Path, models: str) -> None:
    ran = background("up", "--model", "mine/m", "--base-url", "http://127.0.0.1:9/v1")
    assert ran.code == 1
    assert "mine (127.0.0.1:9)" in ran.err
    assert not data_dir.exists()
    assert background("up", "--base-url", models).code == 2
    assert "PROVIDER/MODEL" in background("up", "--model", "m").err
    assert "--base-url" in background("up", "--model", "nobody/m").err


@pytest.mark.slow
async def test_two_that_start_a_server_at_once_get_the_same(background: Pattern, data_dir: Path) -> None:
    found: list[tuple[RunningServer, bool]] = []

    async def start() -> None:
        found.append(await ensure_server(load(data_dir=data_dir)))

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(start)
    assert found[0][0] == found[1][0]
    assert sorted(is_started for _, is_started in found) == [False, True]


@pytest.mark.slow
async def test_a_port_in_use_is_replaced_only_where_none_was_named(
    background: Pattern, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PATTERN_PORT")
    usual = load(data_dir=data_dir)
    with socket.create_server((usual.host, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=f"Cannot listen on {usual.host}:{port}"):
            await ensure_server(load(data_dir=data_dir, port=port))
    try:
        taken = socket.create_server((usual.host, usual.port))
    except OSError:  # another program has it: as good
        taken = socket.socket()
    with taken:
        server, is_started = await ensure_server(usual)
    assert is_started and not server.url.endswith(f":{usual.port}")


def test_a_model_is_named_with_its_provider_and_its_address(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    config = load(data_dir=data_dir)
    assert _named(config, "openai/gpt", None) == Candidate("openai", "gpt", {"api_key_env": "OPENAI_API_KEY"})
    assert _named(config, "scripted-none/m", "http://h/v1").section == {"kind": "openai", "base_url": "http://h/v1"}
    assert _named(config, "ollama/qwen3:8b", None).section == {
        "kind": "openai", "base_url": f"http://127.0.0.1:{LOCAL_SERVERS['ollama']}/v1",
    }  # fmt: skip
    known = Candidate("mine", "a/b", {"kind": "openai", "base_url": "http://h/v1"}).added_to(config)
    assert _named(known, "mine/a/b", "http://h/v1") == Candidate(
        "mine", "a/b", _named(config, "x/y", "http://h/v1").section
    )
    assert _named(known, "mine/other", None) == Candidate("mine", "other", None)
    for wanted, address, says_what in (
        ("mine/m", "http://other/v1", "configured already, at another address"),
        ("nowhere/m", None, "name its --base-url"),
        ("mine", None, "written PROVIDER/MODEL"),
        ("/m", None, "written PROVIDER/MODEL"),
    ):
        with pytest.raises(InvalidInput, match=says_what):
            _named(known, wanted, address)


async def test_a_model_is_asked_and_what_does_not_answer_is_said(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load(data_dir=data_dir)
    async with WireServer(otherwise=ollama) as server:
        candidate = Candidate("mine", "qwen3:8b", {"kind": "openai", "base_url": f"{server.url}/v1"})
        trial = await _ask(config, Output(), candidate, must_answer=True)
    assert trial is not None and trial.answer == ANSWER
    shown = capsys.readouterr()
    assert f"  > {ANSWER}\n" in shown.out and trial.question in shown.out and "Asking mine/qwen3:8b" in shown.err
    async with WireServer(otherwise=document({"error": {"message": "no such model"}}, status=404)) as server:
        candidate = Candidate("mine", "m", {"kind": "openai", "base_url": f"{server.url}/v1"})
        assert await _ask(config, Output(), candidate, must_answer=False) is None
        assert "It does not answer: " in capsys.readouterr().err
        with pytest.raises(ModelError):
            await _ask(config, Output(), candidate, must_answer=True)
        assert "nothing was changed" in capsys.readouterr().err


async def test_a_default_that_is_configured_is_used_as_it_is(data_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "pattern.toml"
    file.write_text('default_provider = "mine"\ndefault_model = "m"\n[providers.mine]\nkind = "openai"\n'
                    'base_url = "http://127.0.0.1:9/v1"\n')  # fmt: skip
    config = load(file, data_dir=data_dir)
    assert await _choose(config, Output(), None, None, yes=True) == (Candidate("mine", "m"), False)
    chosen, is_new = await _choose(config, Output(), "mine/other", None, yes=True)
    assert (chosen, is_new) == (Candidate("mine", "other"), True)
    assert chosen is not None and chosen.added_to(config) is config


def test_without_a_server_there_is_none_to_stop_or_show(pattern: Pattern, data_dir: Path) -> None:
    stopped = pattern("down", "--json")
    assert (stopped.code, stopped.json) == (0, {"stopped": None})
    shown = pattern("status", "--json")
    assert (shown.code, shown.json["running"], shown.json["log"]) == (1, False, None)
    assert shown.json["data_directory"] == str(data_dir) and "pattern up" in shown.err
    assert pattern("up", "--base-url", "http://127.0.0.1:9/v1").code == 2


@pytest.mark.parametrize(
    ("default", "unusable", "code", "words"),
    [
        ("mine/m", {}, 0, ""),
        ("other/m", {}, 1, "another default model, other/m"),
        ("mine/m", {"mine": "no key"}, 1, "cannot ask mine: no key"),
        ("mine/m", {"other": "no key"}, 0, ""),
    ],
)
async def test_a_running_server_that_reads_something_else_says_so(
    capsys: pytest.CaptureFixture[str], default: str, unusable: dict[str, str], code: int, words: str
) -> None:
    provider, _, model = default.partition("/")
    said = {"default_provider": provider, "default_model": model, "unusable": unusable}
    api = api_of(lambda _: as_json(said))
    assert await _reload(api, Output(), Candidate("mine", "m")) == code
    err = capsys.readouterr().err
    assert words in err and ("pattern down, then pattern up" in err) == (code == 1)
    assert await _reload(api, Output(), None) == 0


async def test_agents_of_the_embedded_rules_get_the_model_that_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    changed: list[tuple[str, object]] = []

    def answer(request: httpx2.Request) -> Answer:
        if request.method == "PATCH":
            changed.append((request.url.path, json.loads(request.content)))
        if request.url.path.endswith("/agents"):
            agents = [{"id": "agt_1", "name": "ada", "model_provider": "embedded"}]
            return as_json({"items": [*agents, {"id": "agt_2", "name": "bob", "model_provider": "openai"}],
                            "next_cursor": None})  # fmt: skip
        return as_json({"items": [{"id": "con_1", "name": "home"}], "next_cursor": None})

    assert await _move_from_rules(api_of(answer), Output(), Candidate("embedded", "rules")) == []
    assert await _move_from_rules(api_of(answer), Output(), Candidate("mine", "m")) == ["home/ada"]
    [(path, body)] = changed
    assert path.endswith("/constellations/con_1/agents/agt_1")
    assert body == {"model_provider": "mine", "model_name": "m"}
    assert capsys.readouterr().out == "Switched home/ada from the embedded rules to mine/m.\n"


async def test_models_are_found_on_loopback_alone(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Play(chunks=(b"<html>",), headers={"content-type": "text/html"})
    async with WireServer(otherwise=ollama) as one, WireServer(otherwise=page) as other:
        for name, address in (("GEMINI", one.url), ("OPENAI", other.url)):
            monkeypatch.setenv(f"{name}_API_KEY", "k")
            monkeypatch.setenv(f"{name}_BASE_URL", address)
        ports = {"ollama": one.port, "lmstudio": other.port, "vllm": 9}
        found, troubles = await find_models(load(data_dir=data_dir), ports)
        assert [each.name for each in found] == ["google/gemini-3.8-flash", "ollama/qwen3:8b"]
        assert [each.section for each in found] == [
            {"api_key_env": "GEMINI_API_KEY"},
            {"kind": "openai", "base_url": f"http://127.0.0.1:{one.port}/v1"},
        ]
        assert list(troubles) == ["openai"], "what is not there is no trouble, unless it is configured"
        hosts = {request.headers["host"] for request in (*one.requests, *other.requests)}
        assert hosts == {f"127.0.0.1:{one.port}", f"127.0.0.1:{other.port}"}
