from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio

from pattern_core.messages import user
from pattern_core.models.errors import ModelError, ModelGarbage, ModelOverloaded, ModelTimeout, ModelUnreachable
from pattern_core.models.model import Delta, ModelReply, ModelRequest, TextDelta
from pattern_core.models.providers.exchange import HttpResponse, OpenClient, VendorConnection
from pattern_core.models.providers.openai_chat import ChatDecoder
from pattern_core.models.providers.settings import Secret
from pattern_core.testing import StoppedClock, says
from pattern_core.testing.wire import Play
from pattern_core.testing.wire_openai import replies

REQUEST = ModelRequest(model="m", system=(), messages=[user("hello")])
HELLO = replies(says("hello"), slice_chars=2)


class Broken(Exception):
    """An error of the client's own."""


class Slow(Broken):
    """A timeout of the client's own."""


class Refused(Broken):
    """A status of the client's own."""

    def __init__(self, response: Answer, body: object) -> None:
        super().__init__("refused")
        self.response = response
        self.body = body


@dataclass
class Answer:
    """A response of a client without a network."""

    play: Play
    headers: Mapping[str, str] = field(default_factory=dict)
    status_code: int = 200
    breaks: Exception | None = None
    unwound: bool = False

    async def aiter_raw(self) -> AsyncGenerator[bytes, None]:
        try:
            for chunk in self.play.chunks:
                await trio.lowlevel.checkpoint()
                yield chunk
            if self.play.never_ends:
                await trio.sleep_forever()
            if self.breaks is not None:
                raise self.breaks
        finally:
            self.unwound = True

    aiter_bytes = aiter_raw


@dataclass
class Client:
    """A vendor's client that answers with `answer`, or fails with it."""

    answer: Answer | Exception
    loaded: int = 0
    closed: int = 0

    def connection(self) -> VendorConnection:
        return VendorConnection("vendor", "http://me:pw@host:1/v1", Secret("sk-1"), StoppedClock(), self.load)

    def load(self) -> OpenClient:
        self.loaded += 1
        return OpenClient(
            post=self.post,
            errors=(Broken, ValueError),
            timeouts=(Slow,),
            undecodable=(ValueError,),
            statuses=(Refused,),
            close=self.close,
        )

    @asynccontextmanager
    async def post(self, body: dict[str, object]) -> AsyncIterator[HttpResponse]:
        await trio.lowlevel.checkpoint()
        if isinstance(self.answer, Exception):
            raise self.answer
        yield self.answer

    async def close(self) -> None:
        self.closed += 1


async def converse(client: Client, seen: list[Delta] | None = None) -> ModelReply:
    async def on_delta(delta: Delta) -> None:
        if seen is not None:
            seen.append(delta)

    return await client.connection().converse({}, ChatDecoder(REQUEST, "vendor"), on_delta)


async def test_loads_once_and_again_after_closing() -> None:
    client = Client(Answer(HELLO))
    connection = client.connection()

    async def on_delta(delta: Delta) -> None:
        pass

    async def ask() -> None:
        await connection.converse({}, ChatDecoder(REQUEST, "vendor"), on_delta)

    await connection.aclose()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        nursery.start_soon(ask)
    assert (client.loaded, client.closed) == (1, 0)
    await connection.aclose()
    await connection.aclose()
    await ask()
    assert (client.loaded, client.closed) == (2, 1)


async def test_chunks_without_words_are_signs_of_life() -> None:
    chunks = (b": keep-alive\n\n", *HELLO.chunks)
    seen: list[Delta] = []
    reply = await converse(Client(Answer(Play(chunks=chunks), {"x-request-id": "r-1"})), seen)
    assert reply.request_id == "r-1"
    assert seen[0] == TextDelta(text="")
    assert [delta.text for delta in seen if delta.text] == ["he", "ll", "o"]


async def test_a_body_that_does_not_end_after_the_reply_is_not_waited_for() -> None:
    answer = Answer(Play(chunks=HELLO.chunks, never_ends=True))
    with trio.fail_after(60):
        assert (await converse(Client(answer))).parts == says("hello").parts
    assert answer.unwound


async def test_giving_up_unwinds_the_clients_generators() -> None:
    for bad in (b"data: {\n\n", b"data: " + b"x" * 9_000_000):
        answer = Answer(Play(chunks=(bad, *HELLO.chunks), never_ends=True))
        with pytest.raises(ModelGarbage):
            await converse(Client(answer))
        assert answer.unwound


async def test_a_document_without_an_end_is_refused() -> None:
    answer = Answer(Play(chunks=(b" " * 5_000_000, b" " * 5_000_000)), {"content-type": "application/json"})
    with pytest.raises(ModelGarbage, match="more than"):
        await converse(Client(answer))
    assert answer.unwound


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (Slow(), ModelTimeout, r"No connection to vendor \(host:1\) within 10 s"),
        (Broken("no route for sk-1"), ModelUnreachable, r"vendor \(host:1\) failed: no route for \*\*\*"),
        (Broken(), ModelUnreachable, "Broken"),
        (ValueError("bad bytes"), ModelGarbage, "bad bytes"),
        (Refused(Answer(HELLO, {"Retry-After": "9"}, 429), {"message": "key sk-1"}), ModelOverloaded, r"key \*\*\*"),
    ],
)
async def test_the_clients_errors_are_translated(error: Exception, kind: type[ModelError], words: str) -> None:
    for client in (Client(error), Client(Answer(Play(), breaks=error))):
        with pytest.raises(kind, match=words) as caught:
            await converse(client)
        for secret in ("sk-1", "me:pw"):
            assert secret not in str(caught.value)
        if kind is ModelOverloaded:
            assert caught.value.retry_after_s == 9


async def test_bugs_come_out_as_they_are() -> None:
    def fails() -> OpenClient:
        raise KeyError("a bug")

    connection = VendorConnection("vendor", "http://host", None, StoppedClock(), fails)
    with pytest.raises(KeyError):
        await connection.converse({}, ChatDecoder(REQUEST, "vendor"), _ignore)
    with pytest.raises(TypeError, match="ours"):
        await Client(Answer(HELLO)).connection().converse({}, ChatDecoder(REQUEST, "vendor"), _raise(TypeError("ours")))


async def _ignore(delta: Delta) -> None:
    """Show nothing."""


def _raise(error: Exception) -> Callable[[Delta], Awaitable[None]]:
    async def on_delta(delta: Delta) -> None:
        raise error

    return on_delta
