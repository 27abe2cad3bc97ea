"""Running the command line as a user does, on a data directory of its own; servers; and APIs that answer by rote."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import click
import httpx2
import pytest

from pattern_server.cli import run
from pattern_server.cli.client import Api, running_server


@dataclass(frozen=True, slots=True)
class Ran:
    """What one command line came to."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its output as JSON."""
        return json.loads(self.out)


READY_S = 60.0

Pattern: TypeAlias = Callable[..., Ran]


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory that is not there yet; no setting comes from the environment or the folder of the tests."""
    for name in list(os.environ):
        if name.startswith(("PATTERN_", "ANTHROPIC_", "OPENAI_", "GEMINI_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATTERN_EMBEDDINGS__PROVIDER", "deterministic")  # no model is loaded for a test
    monkeypatch.chdir(tmp_path)
    return tmp_path / "data"


@pytest.fixture
def pattern(data_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Pattern:
    """Runs `pattern …` with `--data-dir` added; `stdin` is what is piped in."""

    def call(*arguments: str, stdin: str = "") -> Ran:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        capsys.readouterr()
        code = run([*arguments, "--data-dir", str(data_dir)])
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return call


@pytest.fixture
def home(pattern: Pattern) -> Pattern:
    """The same, where the constellation `home` has the agent `ada` with an empty block `human`."""
    assert pattern("constellation", "create", "home").code == 0
    made = pattern("agent", "create", "ada", "-c", "home", "--provider", "embedded", "--memory", "human=")
    assert made.code == 0, made.err
    return pattern


Message: TypeAlias = MutableMapping[str, Any]
Answer: TypeAlias = tuple[int, dict[str, str], bytes]


def api_of(answer: Callable[[httpx2.Request], Answer]) -> Api:
    """An `Api` whose requests are answered by a function."""

    async def app(
        scope: Any, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        url = f"http://t{scope['raw_path'].decode()}?{scope['query_string'].decode()}"
        status, headers, content = answer(httpx2.Request(scope["method"], url, headers=scope["headers"], content=body))
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": raw})
        await send({"type": "http.response.body", "body": content})

    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://t")
    return Api(http, streams=False)


class Terminal(io.StringIO):
    """A stream that says that a person looks at it."""

    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> Terminal:
    """Let the standard output be a terminal of this width; what is written to it."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", str(columns))
    return screen


def below(command: click.Command, parameter: str = "api") -> Any:
    """The function of a command below its options: the first that is called with this parameter."""
    inner: Any = command.callback
    while parameter not in inner.__code__.co_varnames[: inner.__code__.co_argcount]:
        inner = inner.__wrapped__
    return inner


def as_json(value: object, status: int = 200, **headers: str) -> Answer:
    """An answer with a JSON body."""
    return status, {"content-type": "application/json", **headers}, json.dumps(value).encode()


@contextmanager
def serving(data_dir: Path, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """A server that is ready; killed at the end if it still runs."""
    command = [sys.executable, "-m", "pattern_server", "serve", "--port", "0", "--data-dir", str(data_dir)]
    with subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            deadline = time.monotonic() + READY_S
            while running_server(data_dir) is None and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.02)
            yield process
        finally:
            process.kill()
