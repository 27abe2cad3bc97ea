"""Plays a recording's steps against a real server with a stopped clock and seeded randomness.

A second passes before each step that changes something, and randomness is seeded again, so that one draw more does
not change the ids of all later steps. A step that only reads is asked at the same moment: where a turn continues behind
an answer, the script reads its events to the end, or waits for it (`ends`), before it changes anything. Texts get their
vectors between steps: whether a search finds by meaning what its own step stored must not depend on the machine.
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import shlex
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from trio.testing import MockClock

from pattern_core.embeddings.embedder import Embedder
from pattern_core.embeddings.settings import Purpose
from pattern_core.models.errors import ModelRejected
from pattern_core.models.model import ModelReply
from pattern_core.testing import Paced, ScriptedProvider, StoppedClock, calls, says, together
from pattern_server.cli import run
from pattern_server.serve import configure_logs
from tests.pattern_core.mcp_servers.rig import PROGRAM
from tests.pattern_server.place import Place, client_of, config_for, serving
from tests.recorded.script import BAR, Step, barred, filled, found

NO_HEADERS: Mapping[str, str] = {}
STEP_MS = 1_000
SETTLED_S = 60.0
POLL_S = 0.002
MISSING = "there is no"  # … of what a step wants to keep: the script is wrong, or the server
COLUMNS = "100"  # of the terminal that help texts are set for
# Not compared: `date` is the machine's clock; a request's id is the player's own, unless the step has one; a length
# follows from its body.
LEFT_OUT = frozenset({"date", "x-request-id", "content-length", "vary"})
# A process has another number in every run, a token's secret comes from the system, and a database's bytes depend on
# the version of SQLite, which writes its number into them.
MACHINE = {
    r'("sha256": )"[0-9a-f]{64}"': r'\1"$sha256"',
    r'("size": )\d+': r"\1$size",
    r"by process \d+": "by process $pid",
    # Members' turns get their ids while the command's own requests do.
    r"(─ \w+: .*\()turn_\w{26}": r"\1$member_turn",
    r"\d+ KiB freed": "$size freed",
    r'("freed_bytes": )-?\d+': r"\1$size",
    r"\b127\.0\.0\.1\b": "$loopback",
    r"pat_[0-9a-f]{64}": "$token",
    r"ref_[0-9a-f]{128}": "$refresh_token",
    r"(\"head\": \"|the hash )[0-9a-f]{64}": r"\1$head",
    r"eyJ[\w-]+\.[\w-]+\.[\w-]{43}": "$access_token",
    r"\([\d.]+ [KM]iB, sha256 \w+…\)": "($size, sha256 $sha256…)",
}
# The last digits of a score depend on the processor: distances are summed by its vector instructions.
LONG_NUMBER = re.compile(r"\b\d+\.\d{7,}\b")
MODEL = {"window": 8_000, "input_price": 1_000_000, "output_price": 5_000_000}
PROVIDER = {"kind": "openai", "base_url": "http://127.0.0.1:9/v1", "models": {"m": MODEL}}
SETTINGS: dict[str, Any] = {
    "providers": {"scripted": PROVIDER},
    # Pieces of an answer are stored by their length, not by the time that the machine takes.
    "limits": {"delta_flush_s": 3_600.0, "delta_flush_chars": 24, "question_timeout_s": 60.0},
}
# The queue of texts to embed waits for a moment, in the hope of more.
IMPATIENT = (
    "pattern_core.embeddings.embedding_queue.START_AFTER_S",
    "pattern_core.embeddings.embedding_queue.GATHER_S",
)


class PatientEmbedder:
    """An embedder that embeds texts only where it `may`, and questions at once."""

    def __init__(self, embedder: Embedder) -> None:
        self.may = False
        self._embedder = embedder
        self.info, self.aclose = embedder.info, embedder.aclose

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> list[bytes]:
        """Return one vector per text."""
        while purpose == "passage" and not self.may:
            await trio.sleep(POLL_S)
        return await self._embedder.embed(texts, purpose=purpose)


def patient_clock() -> MockClock:
    """Return a clock for trio on which time-outs last ten times as long: a busy machine must not change answers."""
    return MockClock(rate=0.1)


class Player:
    """A server, the values that were kept of its answers, and the answers that its model will give."""

    def __init__(self, place: Place, folder: Path, clock: StoppedClock, models: deque[Any]) -> None:
        self._place = place
        self._clock = clock
        chance = place.parts.state.runtime.randomness
        assert isinstance(chance, random.Random)
        self._chance = chance
        embedders = place.parts.state.runtime.embedders
        self._embedder = embedders.configured = PatientEmbedder(embedders.configured)
        self._models = models
        self._steps = 0
        self._clients: dict[str, httpx2.AsyncClient] = {"admin": place.admin}
        self._values = {"dir": str(folder), "url": place.url}
        # A folder and a port are new in every run: recorded by their names.
        self._names = {str(folder.resolve()): "$dir", str(folder): "$dir", place.url: "$url"}
        self._names |= {str(PROGRAM): "$program", sys.executable: "$python"}

    async def play(self, step: Step) -> list[str]:
        """Take one step; its answer, as recorded."""
        if not step.reads_only:
            self._clock.advance(STEP_MS + round(step.clock_s * 1_000))
            self._steps += 1
            self._chance.seed(self._steps)
        self._models.extend(step.models)
        for name, text in step.files.items():
            path = Path(self._values["dir"], name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        answer = await (self._commanded(step) if step.command else self._asked(step))
        if step.ends is not None:
            await self._until(self._has_ended, filled(step.ends, self._values))
        if not step.reads_only:
            self._embedder.may = True
            await self._until(self._is_settled)
            self._embedder.may = False
        return [self._steady(line) for line in answer]

    def _steady(self, line: str) -> str:
        """The line without what differs between runs or machines though nothing was changed."""
        for name, value in self._names.items():
            line = line.replace(name, value)
        for name, value in self._values.items():
            if value.startswith("apr_"):  # `chat --json` asks for the answer while the turn draws the id
                line = line.replace(value, f"${name}")
        for pattern, value in MACHINE.items():
            line = re.sub(pattern, value, line)
        return LONG_NUMBER.sub(lambda found: f"{float(found[0]):.6f}", line)

    async def _asked(self, step: Step) -> list[str]:
        client = await self._client(step.who)
        path = filled(step.path, self._values)
        url = path.removeprefix("/") if path.startswith("//") else f"/api/v1{path}"
        headers = {"X-Request-Id": "r", **{name: filled(value, self._values) for name, value in step.headers.items()}}
        body = filled("\n".join(step.body), self._values).encode() or None
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        request = client.build_request(step.method, self._place.url + url, content=body, headers=headers)
        response = await client.send(request, stream=True)
        try:
            content = await _body(response, step.until)
        finally:
            await response.aclose()
        left_out = LEFT_OUT - {name.lower() for name in step.headers}
        shown = [f"{name}: {value}" for name, value in response.headers.items() if name not in left_out]
        head = [f"| {response.status_code}", *(f"| {line}" for line in shown)]
        return [*head, *barred(_readable(content)), *self._keep(step, content, response.headers)]

    async def _commanded(self, step: Step) -> list[str]:
        arguments = [filled(word, self._values) for word in shlex.split(step.command)]
        out, err = io.StringIO(), io.StringIO()

        def call() -> int:
            with redirect_stdout(out), redirect_stderr(err), _piped(step.stdin):
                return run(arguments)

        code = await trio.to_thread.run_sync(call)
        kept = self._keep(step, out.getvalue())
        return [f"| exit {code}", *barred(out.getvalue()), *barred(err.getvalue(), "!"), *kept]

    def _keep(self, step: Step, answer: str | bytes, headers: Mapping[str, str] = NO_HEADERS) -> list[str]:
        """Take what the step wants to keep of its answer; a line for each thing that is not there."""
        missing = []
        for name, where in step.kept.items():
            try:
                self._values[name] = headers[where] if where in headers else found(json.loads(answer), where)
            except (ValueError, LookupError, TypeError):
                missing.append(f"{BAR} {MISSING} {where}")
        return missing

    async def _client(self, who: str) -> httpx2.AsyncClient:
        """The client of `nobody`, or of `NAME:SCOPE,SCOPE`, for one constellation if `@ID` follows."""
        if who not in self._clients:
            user, _, rights = filled(who, self._values).partition(":")
            scopes, _, bound = rights.partition("@")
            if user == "nobody":
                made = await self._place.stack.enter_async_context(client_of(self._place.url, ""))
                del made.headers["Authorization"]
            else:
                made = await self._place.client(user, *scopes.split(","), constellation_id=bound or None)
            self._clients[who] = made
        return self._clients[who]

    async def _until(self, holds: Callable[..., Awaitable[bool]], *arguments: str) -> None:
        """Wait until the work behind an answer is done."""
        with trio.fail_after(SETTLED_S):
            while not await holds(*arguments):
                await trio.sleep(POLL_S)

    async def _has_ended(self, turn_id: str) -> bool:
        return (await self._quietly(f"/constellations/home/turns/{turn_id}"))["ended_at"] is not None

    async def _is_settled(self) -> bool:
        """Whether all texts of all constellations have their vectors."""
        for one in (await self._quietly("/constellations"))["items"]:
            if one["state"] == "awake":
                state = await self._quietly(f"/constellations/{one['id']}/embeddings")
                has_vectors = state["active"] is not None and state["active"]["completed_at"] is not None
                is_behind = state["done"] < state["total"] or (state["total"] and not has_vectors)
                if is_behind or state["state"] == "working":
                    return False
        return True

    async def _quietly(self, where: str) -> Any:
        """An answer that is not recorded. With an id of its own, the request draws none."""
        return (await self._place.admin.get(where, headers={"x-request-id": "player"})).json()


@asynccontextmanager
async def playing(folder: Path) -> AsyncIterator[Player]:
    """A player with an empty server, in an empty folder."""
    clock, models = StoppedClock(), deque[Any]()
    provider = ScriptedProvider(otherwise=lambda _: _answer(models), slice_chars=10)
    with pytest.MonkeyPatch.context() as patch:
        _alone(patch, folder)
        patch.setattr(time, "time_ns", lambda: clock.now_ms() * 1_000_000)
        patch.setattr(random, "SystemRandom", lambda: random.Random(0))
        patch.setattr("pattern_server.http.routes.health.DISK_BYTES_EASY", 0)  # whatever this machine has
        for constant in IMPATIENT:
            patch.setattr(constant, 0.0)
        (folder / "key").write_text("a secret", encoding="utf-8")
        webhooks = {"secrets": {"pager": {"file": str(folder / "key")}}}
        sources = {**webhooks, "services": ["http://10.0.0.1"]}
        settings = {**SETTINGS, "mcp": _mcp_servers(folder), "webhooks": webhooks, "sources": sources}
        async with serving(config_for(folder, **settings), {"scripted": provider}) as place:
            configure_logs("error", "json")  # the MCP server that does not start is no news
            about = {"pid": os.getpid(), "url": place.url, "started_at": "", "token": place.parts.local_token}
            (folder / "data" / "server.json").write_text(json.dumps(about), encoding="utf-8")
            place.admin.headers["accept-encoding"] = "identity"  # how long an answer is decides nothing here
            yield Player(place, folder, clock, models)


def _mcp_servers(folder: Path) -> dict[str, Any]:
    """One that offers tools and one that does not start."""
    args = ["-I", "-S", str(PROGRAM), str(folder / "mcp.log")]
    program = {"command": sys.executable, "args": args, "protocol": "legacy"}
    return {"notes": program, "bad": {**program, "args": [*args, "broken"]}}


def _alone(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """No setting comes from the machine; commands find the server."""
    for name in list(os.environ):
        if name.startswith(("PATTERN_", "ANTHROPIC_", "OPENAI_", "GEMINI_")):
            patch.delenv(name)
    patch.setenv("PATTERN_DATA_DIR", str(folder / "data"))
    patch.setenv("PATTERN_EMBEDDINGS__PROVIDER", "deterministic")
    patch.setenv("COLUMNS", COLUMNS)
    patch.setenv("TZ", "UTC")
    patch.chdir(folder)


def _answer(models: deque[Any]) -> ModelReply | Paced | Exception:
    """What the model says next, from the lines `model` of the script."""
    said: Any = models.popleft() if models else {"says": "All right."}
    if isinstance(said, list):
        return together(*(_reply(one) for one in said))
    if "fails" in said:
        return ModelRejected(said["fails"], provider="scripted")
    return Paced(answer=_reply(said), gate=trio.Event()) if said.get("waits") else _reply(said)


def _reply(said: Any) -> ModelReply:
    words = said.get("says", "")
    if "calls" in said:
        return calls(said["calls"], said.get("arguments"), text=words)
    return says(words, reasoning=said.get("thinks"))


async def _body(response: httpx2.Response, until: str | None) -> bytes:
    """The whole body, or that of a stream up to the end of an event."""
    if until is None:
        return await response.aread()
    lines: list[str] = []
    with trio.CancelScope() as scope:
        async for line in response.aiter_lines():
            if scope.cancel_called:
                continue  # what has arrived already
            lines.append(line + "\n")
            if not line and f"event: {until}\n" in lines:
                scope.cancel()  # ends the generators that lie inside each other where they wait, in order
    return "".join(lines).encode()


def _readable(content: bytes) -> str:
    """A body to read: JSON in lines if these say exactly the same bytes, text as it is, other bytes in hex."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return content.hex() + "\n"
    try:
        answer = json.loads(text)
    except ValueError:
        return text
    is_plain = json.dumps(answer, ensure_ascii=False, separators=(",", ":")) == text
    return (json.dumps(answer, ensure_ascii=False, indent=1) if is_plain else text) + "\n"


@contextmanager
def _piped(text: str) -> Iterator[None]:
    before = sys.stdin
    sys.stdin = io.StringIO(text)
    try:
        yield
    finally:
        sys.stdin = before
