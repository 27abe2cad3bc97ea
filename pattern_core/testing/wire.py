"""A real HTTP/1.1 server on loopback that plays a script and reports what the client did, and what vendors share on it.

It stands in for a vendor, not for a web server: one process, plain HTTP, bodies with a content-length.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from email import message_from_bytes
from email.message import Message
from functools import partial
from itertools import pairwise
from typing import Any, Self

import trio

from pattern_core.messages import Part, Reasoning, Text, ToolCall
from pattern_core.models.model import ModelReply

HEAD_BYTES_MAX = 64 * 1024
BODY_BYTES_MAX = 64 * 1024 * 1024
PIECE_CHARS = 8  # of words and arguments that are streamed


@dataclass(frozen=True, slots=True, kw_only=True)
class WireRequest:
    """What came over the wire; header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> dict[str, object]:
        """Return the body as a JSON object.

        Raises:
            ValueError: it is none.
        """
        value = json.loads(self.body)
        if not isinstance(value, dict):
            raise ValueError("not a JSON object")
        return value

    def form(self) -> dict[str, Any]:
        """Return the body as a form: texts, and files as their names and bytes."""
        head = f"Content-Type: {self.headers['content-type']}\r\n\r\n".encode()
        found: dict[str, Any] = {}
        for part in message_from_bytes(head + self.body).get_payload():
            assert isinstance(part, Message)
            data, name = part.get_payload(decode=True), part.get_filename()
            key = str(part.get_param("name", header="content-disposition"))
            found[key] = data.decode() if name is None and isinstance(data, bytes) else (name, data)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """One answer; its `chunks` are sent one by one.

    `stops_after` closes the connection after that many bytes of the body, without the end that HTTP asks for.
    `never_answers` sends nothing at all, `never_ends` leaves the body open; both wait until the client disconnects.
    """

    chunks: tuple[bytes, ...] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    stops_after: int | None = None
    never_answers: bool = False
    never_ends: bool = False

    @property
    def body(self) -> bytes:
        """The whole body."""
        return b"".join(self.chunks)

    def cut(self, edges: Iterable[int]) -> Play:
        """Return the same answer with its body cut at these places (bytes from the start)."""
        body = self.body
        places = sorted({0, len(body), *(edge for edge in edges if 0 < edge < len(body))})
        return replace(self, chunks=tuple(body[a:b] for a, b in pairwise(places)))


def events(*datas: object, names: bool = False) -> Play:
    """Return a stream of server-sent events, a chunk each: objects as JSON, strings as they are.

    With `names`, each object's `type` is the event's name.
    """
    chunks = []
    for data in datas:
        name = f"event: {data['type']}\n" if names and isinstance(data, dict) and "type" in data else ""
        text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
        chunks.append(f"{name}data: {text}\n\n".encode())
    return Play(chunks=tuple(chunks), headers={"content-type": "text/event-stream"})


def document(body: object, *, status: int = 200, headers: dict[str, str] | None = None) -> Play:
    """Return a JSON document."""
    sent = {"content-type": "application/json", **(headers or {})}
    return Play(chunks=(json.dumps(body).encode(),), status=status, headers=sent)


NO_SCRIPT = document({"error": {"message": "the script is over", "type": "invalid_request_error"}}, status=400)


@dataclass(slots=True, eq=False)
class Exchange:
    """One question and how its answer went; exactly one of the two events is set in the end."""

    request: WireRequest
    finished: trio.Event = field(default_factory=trio.Event)  # the play is over
    client_gone: trio.Event = field(default_factory=trio.Event)  # the client closed its socket before that


Entry = Play | Callable[[WireRequest], Play]


class WireServer:
    """Plays the n-th entry of its script for the n-th request, whatever the connection; then `otherwise`.

    As a context, it serves a free port of loopback. What the body of the context raises comes out as it is; a generator
    around a nursery would wrap it in a group.
    """

    def __init__(self, script: Iterable[Entry] = (), otherwise: Entry = NO_SCRIPT) -> None:
        self.port = 0
        self.exchanges: list[Exchange] = []
        self.connections = 0
        self.open_connections = 0
        self._script = iter(script)
        self._otherwise = otherwise
        self._arrived = trio.Condition()
        self._nursery = trio.open_nursery()
        self._scope = trio.CancelScope()

    async def __aenter__(self) -> Self:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        nursery = await self._nursery.__aenter__()
        self._scope = nursery.cancel_scope
        nursery.start_soon(partial(trio.serve_listeners, self.serve_connection, listeners))
        return self

    async def __aexit__(self, *error: object) -> None:
        self._scope.cancel()
        await self._nursery.__aexit__(None, None, None)

    @property
    def url(self) -> str:
        """The address without a path: `http://127.0.0.1:PORT`."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def requests(self) -> list[WireRequest]:
        """What was asked, oldest first."""
        return [exchange.request for exchange in self.exchanges]

    async def arrived(self, count: int = 1) -> Exchange:
        """Wait until `count` requests have come in all; returns that one."""
        async with self._arrived:
            while len(self.exchanges) < count:
                await self._arrived.wait()
        return self.exchanges[count - 1]

    async def answer(self, request: WireRequest) -> Play:
        """Return the answer to a request: the next of the script."""
        entry = next(self._script, self._otherwise)
        return entry(request) if callable(entry) else entry

    async def serve_connection(self, stream: trio.SocketStream) -> None:
        """Answer one connection's requests until either side closes it."""
        self.connections += 1
        self.open_connections += 1
        try:
            async with stream:
                connection = _Connection(stream)
                while (request := await connection.request()) is not None:
                    exchange = Exchange(request=request)
                    self.exchanges.append(exchange)
                    async with self._arrived:
                        self._arrived.notify_all()
                    if not await connection.play(await self.answer(request), exchange):
                        break
        finally:
            self.open_connections -= 1


Scripted = Entry | ModelReply


def vendor(
    replies: Callable[[ModelReply], Play],
    refuses: Callable[[int, str], Play],
    problem: Callable[[WireRequest], str | None],
    *,
    path: str,
    keys: Sequence[str],
) -> Callable[..., WireServer]:
    """Return what serves a vendor's format: as `WireServer`, with a script that may hold a `ModelReply` for the stream
    that makes it.

    What the vendor would refuse is refused, so that a test does not pass by an answer to nonsense: another path than
    the pattern `path`, a request without one of the headers `keys`, and one with a `problem`.
    """

    def play(entry: Scripted, request: WireRequest) -> Play:
        if request.method != "POST" or not re.fullmatch(path, request.path):
            return refuses(404, f"there is no {request.method} {request.path}")
        if not any(key in request.headers for key in keys):
            return refuses(401, "no key was given")
        if (found := problem(request)) is not None:
            return refuses(400, found)
        if isinstance(entry, ModelReply):
            return replies(entry)
        return entry(request) if callable(entry) else entry

    def serve(script: Iterable[Scripted] = (), otherwise: Scripted = NO_SCRIPT) -> WireServer:
        return WireServer((partial(play, entry) for entry in script), partial(play, otherwise))

    return serve


def pieces(part: Part) -> list[str]:
    """Return the words of a part, or the arguments of a call as the model wrote them, in the pieces in which they come.

    Raises:
        ValueError: no model answers with such a part.
    """
    match part:
        case Text() | Reasoning():
            text = part.text
        case ToolCall():
            text = json.dumps(dict(part.arguments), ensure_ascii=False) if part.invalid is None else part.invalid
        case _:
            raise ValueError(f"a model does not answer with {part}")
    return [text[at : at + PIECE_CHARS] for at in range(0, len(text), PIECE_CHARS)]


def disorder(turns: Iterable[tuple[str, Sequence[str], Sequence[str]]], assistant: str) -> str | None:
    """Return what is wrong with turns of alternating roles, each its role, the ids that it answers and those that it
    calls: the user's comes first, and each call is answered in the next turn.
    """
    open_ids: Sequence[str] = ()
    for index, (role, answers, calls) in enumerate(turns):
        if role != (assistant if index % 2 else "user"):
            return f"turn {index}: roles must alternate and begin with the user's"
        if sorted(answers) != sorted(open_ids):
            return f"turn {index}: each call is answered in the next turn, and nothing else is"
        open_ids = calls
    return f"calls without results: {open_ids}" if open_ids else None


class _Connection:
    """HTTP/1.1 on one socket: reads requests and plays answers, watching for the client's disconnection."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._buffer = bytearray()

    async def request(self) -> WireRequest | None:
        """Return the next request, None once the client has closed."""
        while b"\r\n\r\n" not in self._buffer:
            if len(self._buffer) > HEAD_BYTES_MAX or not await self._more():
                return None
        head, _, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = (*first.split(" "), "", "", "")[:3]
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        length = min(int(headers.get("content-length", "0")), BODY_BYTES_MAX)
        self._buffer = bytearray(rest)
        while len(self._buffer) < length:
            if not await self._more():
                return None
        body = bytes(self._buffer[:length])
        del self._buffer[:length]
        return WireRequest(method=method, path=path, headers=headers, body=body)

    async def play(self, play: Play, exchange: Exchange) -> bool:
        """Send the answer; False if the connection cannot be used again."""
        is_over = is_reusable = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, nursery.cancel_scope)
            with suppress(trio.BrokenResourceError):
                is_reusable = await self._send(play)
                is_over = True
            nursery.cancel_scope.cancel()
        (exchange.finished if is_over else exchange.client_gone).set()
        return is_reusable

    async def _send(self, play: Play) -> bool:
        if play.never_answers:
            await trio.sleep_forever()
        lines = [f"HTTP/1.1 {play.status} Scripted", "transfer-encoding: chunked"]
        lines += [f"{name}: {value}" for name, value in play.headers.items()]
        await self._stream.send_all("\r\n".join([*lines, "", ""]).encode("latin-1"))
        left = len(play.body) if play.stops_after is None else play.stops_after
        for chunk in play.chunks:
            sent = chunk[:left]
            left -= len(sent)
            if sent:
                await self._stream.send_all(b"%x\r\n%b\r\n" % (len(sent), sent))
        if play.stops_after is not None:
            return False
        if play.never_ends:
            await trio.sleep_forever()
        await self._stream.send_all(b"0\r\n\r\n")
        return True

    async def _watch(self, scope: trio.CancelScope) -> None:
        """Stop the answer when the client disconnects."""
        while await self._more():
            pass
        scope.cancel()

    async def _more(self) -> bool:
        try:
            data = await self._stream.receive_some(65_536)
        except trio.BrokenResourceError:
            return False
        self._buffer += data
        return bool(data)
