"""The API as the command line calls it: over the network if a server is named or runs on the data directory, in-process
if not.

A running server is found by `server.json`, which it keeps in its data directory. Without a server the same
application is opened in this process, under the directory's lock, and spoken to without a socket; only streaming is
different there: an answer arrives whole.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote

import httpx2
import trio

from pattern_core.errors import InvalidInput, PatternError
from pattern_db import files
from pattern_db.errors import OwnedElsewhere
from pattern_server.config import Config, is_loopback, remote_token, require_data, user_state_dir, write_private

API = "/api/v1"
CONNECT_TIMEOUT_S = 5.0
LOCK_PATIENCE_S = 5.0  # another command may hold the directory for a moment, or a server be about to listen
LOCK_RETRY_S = 0.1
PAGE = 200  # rows asked for at once
CHANGE_TRIES = 5  # of a change that others come before
RECONNECT_S = 60.0  # for so long a lost connection is made again …
RECONNECT_EVERY_S = 0.5  # … with such pauses
UNAVAILABLE = 503

Json: TypeAlias = dict[str, Any]
T = TypeVar("T")


class ServerFailed(PatternError):
    """The server refused or failed; `problem` is its problem document, which the message is from."""

    def __init__(self, message: str, *, status: int, problem_code: str, problem: Json | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.problem_code = problem_code
        self.problem = problem or {}


class ServerUnreachable(PatternError):
    """A server is said to run, and does not answer."""

    code = "unreachable"
    remedy = "Run `pattern status`; start the server again if it has stopped."


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """What `server.json` says. `token` is good for this machine and this run only."""

    pid: int
    url: str
    started_at: str
    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEvent:
    """One event of a stream: its number, its name and its data."""

    seq: int
    name: str
    data: Json


def running_server(data_dir: Path) -> RunningServer | None:
    """Return the server that runs on this directory; None if there is none, or only what a killed one left behind."""
    try:
        found = RunningServer(**json.loads((data_dir / "server.json").read_text(encoding="utf-8")))
        os.kill(found.pid, 0)
        # The number may be another process's by now; the lock is what counts. It is asked about last, because asking
        # takes it for a moment if it is free.
        is_held = files.holder_of(data_dir) is not None
    except PermissionError:
        raise ServerUnreachable(
            f"{data_dir / 'server.json'} or its server belongs to another user; run this command as that user"
        ) from None
    except (OSError, ValueError, TypeError):
        return None
    return found if is_held else None


def json_or_words(text: str) -> Any:
    """Return what a person typed: JSON where it is that, else just words."""
    try:
        return json.loads(text)
    except ValueError:
        return text


class Api:
    """The server's API, or what lies below a path of it: `api.get("constellations", "home")`.

    Methods return the decoded JSON, and raise what the server says went wrong.

    Raises (all methods):
        ServerFailed: the server answered with a problem document.
        ServerUnreachable: it did not answer.
    """

    def __init__(
        self, http: httpx2.AsyncClient, *, streams: bool, data_dir: Path | None = None, base: str = API
    ) -> None:
        self.http = http
        self._base = base
        self.streams = streams  # False in-process, where an answer can only be had whole
        self.data_dir = data_dir  # of the server or the application; None for one that was named

    def find_again(self) -> None:
        """Use the server that runs on the data directory now, if one does: each start makes another token."""
        if self.data_dir is not None and (server := running_server(self.data_dir)) is not None:
            self.http.base_url = server.url
            self.http.headers["Authorization"] = f"Bearer {_own_token(self.data_dir, server.token)}"

    def at(self, *below: str) -> str:
        """Return the path of what lies below, part by part, each escaped."""
        return self._base + "".join("/" + quote(part, safe=":@") for part in below)

    async def get(self, *below: str, **params: object) -> Json:
        """Return the thing at a path."""
        return await self.call("GET", *below, params=params)

    async def call(
        self,
        method: str,
        *below: str,
        body: object = None,
        data: bytes | None = None,
        params: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Json:
        """Send a request with JSON, or `data` as they are; the answer's JSON, which is empty where it has no body."""
        query = {name: str(value) for name, value in (params or {}).items() if value is not None}
        kind = {} if data is None else {"Content-Type": "application/octet-stream"}
        answer = await self._answered(
            method, below, json=body, content=data, params=query, headers={**kind, **(headers or {})}
        )
        decoded: Json = answer.json() if answer.content else {}
        return decoded

    async def text(self, *below: str) -> str:
        """Return the text at a path."""
        return (await self._answered("GET", below)).text

    async def download(self, target: Path, *below: str, **params: str) -> None:
        """Write what is at a path into the file `target`."""
        with _reaching_the_server():
            answering = self.http.stream("GET", self.at(*below), params=params)
        async with answering as answer:
            if answer.is_error:
                await answer.aread()
                raise failure(answer)
            async with trio.wrap_file(await trio.to_thread.run_sync(files.created, target)) as file:
                async for piece in answer.aiter_bytes():
                    await file.write(piece)

    async def find(self, *below: str) -> tuple[Json, str] | None:
        """Return the thing at a path with its version (the ETag), or None if there is none."""
        try:
            return await self.tagged(*below)
        except ServerFailed as error:
            if error.status == 404:
                return None
            raise

    async def tagged(self, *below: str) -> tuple[Json, str]:
        """Return the thing at a path with its version (the ETag)."""
        answer = await self._answered("GET", below)
        return answer.json(), answer.headers.get("etag", "")

    async def change(self, *below: str, by: Callable[[Json], Json], method: str = "PATCH") -> Json:
        """Change the thing at a path by what `by` makes of it; try again if others changed it since then.

        `by` returns the body of the request, and raises what is to end this.
        """
        tries = 0
        while True:
            found, tag = await self.tagged(*below)
            try:
                return await self.call(method, *below, body=by(found), headers={"If-Match": tag})
            except ServerFailed as error:
                tries += 1
                if error.problem_code != "version_mismatch" or tries == CHANGE_TRIES:
                    raise

    async def pages(self, *below: str, most: int | None = None, **params: object) -> list[Json]:
        """Return all rows of a list, or the first `most`, page by page."""
        rows: list[Json] = []
        cursor: object = None
        while True:
            limit = PAGE if most is None else min(PAGE, most - len(rows))
            page = await self.get(*below, limit=limit, cursor=cursor, **params)
            rows += page["items"]
            cursor = page.get("next_cursor")
            if not cursor or (most is not None and len(rows) >= most):
                return rows[:most]

    @asynccontextmanager
    async def events(
        self, *below: str, body: object = None, after: int | None = None, key: str | None = None
    ) -> AsyncIterator[Events]:
        """Yield a stream of events: of a message just sent if there is a `body`, else of what is at the path."""
        given = {"Last-Event-ID": None if after is None else str(after), "Idempotency-Key": key}
        headers = {"Accept": "text/event-stream", **{name: value for name, value in given.items() if value is not None}}
        method = "GET" if body is None else "POST"
        async with AsyncExitStack() as stack:
            with _reaching_the_server():
                streaming = self.http.stream(method, self.at(*below), json=body, headers=headers)
                answer = await stack.enter_async_context(streaming)
            if answer.is_error:
                await answer.aread()
                raise failure(answer)
            events = Events(answer)
            stack.push_async_callback(events.leave)
            yield events

    async def _answered(self, method: str, below: Sequence[str], **given: Any) -> httpx2.Response:
        with _reaching_the_server():
            answer = await self.http.request(method, self.at(*below), **given)
        if answer.is_error:
            raise failure(answer)
        return answer


class Events:
    """Decodes server-sent events, one per iteration.

    Source: WHATWG HTML, section 9.2.6; the fields that our server writes.

    Raises (while iterating):
        ServerUnreachable: the connection broke before the stream's end.
    """

    def __init__(self, answer: httpx2.Response) -> None:
        self._lines = answer.aiter_lines()

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> ServerEvent:
        fields: dict[str, str] = {}
        with _reaching_the_server():
            async for line in self._lines:
                if not line and "data" in fields and fields.get("id", "").isdigit():
                    name = fields.get("event", "message")
                    return ServerEvent(seq=int(fields["id"]), name=name, data=json.loads(fields["data"]))
                fields = _with_line(fields, line)
        raise StopAsyncIteration

    async def leave(self) -> None:
        """End the iteration where it is.

        The client's generators lie inside each other, and closing the outer one would leave the inner ones to the
        garbage collector; being cancelled where they wait ends them all, in order.
        """
        with trio.CancelScope() as scope, suppress(httpx2.TransportError):
            scope.cancel()
            async for _line in self._lines:
                pass


@dataclass(slots=True, eq=False)
class Followed:
    """A message on its way: its turn and the last event that was taken of it, once they are known."""

    where: Sequence[str]
    body: Json
    key: str  # so that a repeated request does not become a second message
    turn_id: str = ""
    seq: int | None = None

    async def follow(
        self,
        api: Api,
        take: Callable[[ServerEvent], Awaitable[T | None]],
        *,
        ended: str,
        is_patient: bool = True,
        on_lost: Callable[[], None] = lambda: None,
    ) -> T:
        """Send it, and give the events of its turn to `take` until that returns something; return that.

        `take` sets `turn_id`. A connection that is lost is made again, and nothing is repeated; without `is_patient`
        only after the first event. `ended` says what a stream means that ends before the turn.

        Raises:
            ServerFailed, ServerUnreachable: the server refuses the message, or stays away.
        """
        lost_at = math.inf
        while True:
            lost: PatternError = ServerUnreachable(ended)
            where = ("turns", self.turn_id, "events") if self.turn_id else self.where
            body, key = (None, None) if self.turn_id else (self.body, self.key)
            try:
                async with api.events(*where, body=body, after=self.seq, key=key) as events:
                    async for event in events:
                        if (end := await take(event)) is not None:
                            return end
                        # Only now: what could not be dealt with, since the server went away, comes again.
                        self.seq, lost_at = event.seq, math.inf
            except ServerUnreachable as error:
                lost = error
            except ServerFailed as error:
                if error.status != UNAVAILABLE or self.seq is None:
                    raise
                lost = error
            lost_at = min(lost_at, trio.current_time())
            is_absent = self.seq is None and not is_patient  # there may be no server there at all
            if is_absent or trio.current_time() > lost_at + RECONNECT_S:
                raise lost
            on_lost()
            await trio.sleep(RECONNECT_EVERY_S)
            api.find_again()


def _with_line(fields: dict[str, str], line: str) -> dict[str, str]:
    """Return the fields of an event after one more line of it; an empty line begins a new event."""
    if not line:
        return {}
    name, _, value = line.partition(":")
    value = value.removeprefix(" ")
    joined = f"{fields['data']}\n{value}" if name == "data" and "data" in fields else value
    return {**fields, name: joined} if name else fields


@contextmanager
def _reaching_the_server() -> Iterator[None]:
    try:
        yield
    except httpx2.TransportError as error:
        raise ServerUnreachable(
            f"the server stopped answering ({type(error).__name__}); see its log, or start it again with"
            " `pattern serve`. What it had accepted is stored and continues then"
        ) from error


def failure(answer: httpx2.Response) -> ServerFailed:
    """Return the error in an answer: the `detail` of its problem document (RFC 9457), or what is known of it."""
    try:
        problem = answer.json()
        message = str(problem.get("detail") or problem.get("title"))
        code = str(problem.get("code", "failed"))
    except (ValueError, AttributeError):
        problem, code = {}, "failed"
        message = f"the server answered with status {answer.status_code} and no explanation"
    return ServerFailed(message, status=answer.status_code, problem_code=code, problem=problem)


def remote(url: str, token_file: Path | None) -> httpx2.AsyncClient:
    """Return an HTTP client for a server anywhere, with the token in the file, in PATTERN_TOKEN, or of `pattern login`.

    Raises:
        InvalidInput: the address is none, would send the token in clear text, or there is no token.
    """
    address = address_of(url)
    token = remote_token() if token_file is None else token_file.read_text(encoding="utf-8").strip()
    token = token or logins().get(address, "")
    if not token:
        raise InvalidInput(
            f"There is no token for {url}. Sign in: pattern login NAME --server {url}\nOr create a token there with"
            " `pattern token create`, and set PATTERN_TOKEN to it or name its file with --token-file."
        )
    return client_for(address, token)


def address_of(url: str) -> str:
    """Return the address of a server in one spelling.

    Raises:
        InvalidInput: it is none, or would send secrets in clear text.
    """
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL:
        parsed = httpx2.URL()
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise InvalidInput(f"{url!r} is not the address of a server. Write it as https://HOST or https://HOST:PORT.")
    if parsed.scheme == "http" and not is_loopback(parsed.host):
        port = parsed.port or 80
        raise InvalidInput(
            f"{url} would send your secrets unencrypted. Use https, or a tunnel: ssh -L {port}:127.0.0.1:{port}"
            f" {parsed.host}, then --server http://127.0.0.1:{port}"
        )
    return str(parsed).rstrip("/")


def _logins_file() -> Path:
    return user_state_dir() / "logins.json"


def logins() -> dict[str, str]:
    """Return the tokens of `pattern login`, by the server's address or, on this machine, its data directory."""
    try:
        return dict(json.loads(_logins_file().read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def keep_login(place: str, token: str | None) -> None:
    """Keep a token for later commands, for this user alone to read; None forgets it.

    Raises:
        StorageFailed: the disk is full or failed.
    """
    kept = {other: secret for other, secret in logins().items() if other != place}
    write_private(_logins_file(), json.dumps(kept if token is None else {**kept, place: token}))


@asynccontextmanager
async def open_api(
    config: Config, *, creates: bool = False, server: httpx2.AsyncClient | None = None
) -> AsyncIterator[Api]:
    """Yield the API of `server`, or of the one that runs on the data directory, or of the application opened here for
    the moment.

    Raises:
        NotFound: there is no data directory, and what is done does not create one.
        OwnedElsewhere: another process holds the directory and does not let go.
        ServerUnreachable: the running server is not ours to use.
    """
    async with AsyncExitStack() as stack:
        if server is not None:
            yield Api(await stack.enter_async_context(server), streams=True)
        else:
            yield await _connect(stack, config, creates)


async def _connect(stack: AsyncExitStack, config: Config, creates: bool) -> Api:
    deadline = trio.current_time() + LOCK_PATIENCE_S
    while True:
        server = running_server(config.data_dir)
        if server is not None:
            http = await stack.enter_async_context(client_for(server.url, _own_token(config.data_dir, server.token)))
            return Api(http, streams=True, data_dir=config.data_dir)
        if files.holder_of(config.data_dir) is None:  # else it may be about to be made
            require_data(config, creates=creates)
        try:
            # Imported now and not above: it takes a second, and a command that finds a server needs none of it.
            app, token = await stack.enter_async_context(import_module("pattern_server.serve").open_app(config))
        except OwnedElsewhere:
            if trio.current_time() > deadline:
                raise
            await trio.sleep(LOCK_RETRY_S)
            continue
        # The address is never looked up: the transport calls the application.
        token = _own_token(config.data_dir, token)
        http = client_for("http://localhost", token, httpx2.ASGITransport(app))
        return Api(await stack.enter_async_context(http), streams=False, data_dir=config.data_dir)


def connection(server: RunningServer) -> httpx2.AsyncClient:
    """Return an HTTP client for a running server, with its token."""
    return client_for(server.url, server.token)


def _own_token(data_dir: Path, token: str) -> str:
    """Return the token of who signed in on this data directory, else `token`, which has all rights."""
    return logins().get(str(data_dir), token)


def client_for(url: str, token: str, transport: httpx2.AsyncBaseTransport | None = None) -> httpx2.AsyncClient:
    """Return an HTTP client that sends a token."""
    return httpx2.AsyncClient(
        base_url=url,
        headers={"Authorization": f"Bearer {token}"},
        timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S),  # a turn may take its time
        transport=transport,
        trust_env=False,  # no proxy from the environment between us and our own machine
    )
