"""Reading bodies: whole, bounded, in time; and answering whoever still sends one."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from ipaddress import ip_network
from typing import Any

import pytest
import trio
import trio.testing

from pattern_server.http import ABORT, border
from pattern_server.http.border import ClientGone, HttpExchange, client_of
from pattern_server.http.errors import RequestTimeout, TooLarge, problem

MORE = {"type": "http.request", "body": b"12345", "more_body": True}
LAST = {"type": "http.request", "body": b"6", "more_body": False}
GONE = {"type": "http.disconnect"}


def scope(**headers: str) -> dict[str, Any]:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "headers": raw}


def messages(*given: dict[str, Any]) -> Callable[[], Any]:
    """A `receive` that gives these, then waits for ever."""
    left = list(given)

    async def receive() -> dict[str, Any]:
        if not left:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        return left.pop(0)

    return receive


async def read(asked: dict[str, Any], receive: Callable[[], Any], bytes_max: int) -> bytes | None:
    """The body of a request, read whole."""
    exchange = HttpExchange(asked, receive, nowhere, "req")
    await exchange.read_body(bytes_max)
    return exchange.body


async def nowhere(_message: object) -> None:
    """A `send` for requests that are not answered."""


async def test_a_body_arrives_in_pieces() -> None:
    assert await read(scope(), messages(MORE, MORE, LAST), 11) == b"12345123456"


async def test_one_byte_too_many_is_too_large() -> None:
    with pytest.raises(TooLarge, match="10 bytes"):
        await read(scope(), messages(MORE, MORE, LAST), 10)


async def test_a_declared_length_is_believed_at_once() -> None:
    with pytest.raises(TooLarge):
        await read(scope(content_length="11"), messages(), 10)


async def test_a_client_that_leaves_or_is_too_slow(autojump_clock: trio.testing.MockClock) -> None:
    with pytest.raises(ClientGone):
        await read(scope(), messages(MORE, GONE), 100)
    with pytest.raises(RequestTimeout):
        await read(scope(), messages(MORE), 100)


async def test_the_rest_is_dropped(autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    aborted: list[bool] = []

    async def drop(receive: Callable[[], Any], **state: object) -> None:
        await HttpExchange({**scope(), "state": state}, receive, nowhere, "req").drop_rest()

    abort = {ABORT: lambda: aborted.append(True)}
    await drop(messages(MORE, LAST), **abort)
    await drop(messages(GONE), **abort)
    assert not aborted
    await drop(messages(MORE), **abort)  # never goes on
    monkeypatch.setattr(border, "DROPPED_BYTES_MAX", 9)
    await drop(messages(MORE, MORE, MORE), **abort)  # never ends
    assert len(aborted) == 2
    await drop(messages(MORE, MORE, MORE))  # nobody offers to close


async def test_the_application_gets_the_body_once() -> None:
    exchange = HttpExchange(scope(), messages(LAST, GONE), nowhere, "req")
    await exchange.read_body(10)
    assert await exchange.receive() == {"type": "http.request", "body": b"6", "more_body": False}
    assert await exchange.receive() == GONE


@pytest.mark.parametrize(
    ("headers", "is_read_first"),
    [
        ({}, False),
        ({"content_length": "0"}, False),
        ({"content_length": "6"}, True),
        ({"transfer_encoding": "x"}, True),
    ],
)
async def test_a_refusal_ends_after_the_body_that_was_announced(headers: dict[str, str], is_read_first: bool) -> None:
    order: list[Any] = []
    last = messages(LAST)

    async def receive() -> Any:
        order.append("read")
        return await last()

    async def send(message: MutableMapping[str, Any]) -> None:
        order.append(message.get("body", message.get("status")))

    exchange = HttpExchange(scope(**headers), receive, send, "req")
    response = problem("overloaded", "try again")
    await exchange.refuse(response)
    whole = [429, response.body]
    assert order == ([*whole, "read", b""] if is_read_first else whole)
    assert (response.headers.get("connection") == "close") == is_read_first
    assert (exchange.status, exchange.size) == (429, len(response.body))
    await exchange.refuse(response)
    assert order[-1] != 429, "an answer that has begun is not answered again"


@pytest.mark.parametrize(
    ("peer", "forwarded", "expected"),
    [
        ("127.0.0.1", [], "127.0.0.1"),
        ("127.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("127.0.0.1", ["198.51.100.1, 203.0.113.9"], "203.0.113.9"),  # the first may be forged
        ("127.0.0.1", ["198.51.100.1", "203.0.113.9, 10.1.2.3"], "203.0.113.9"),  # a proxy behind a proxy
        ("127.0.0.1", ["10.1.2.3"], "10.1.2.3"),
        ("127.0.0.1", ["not an address"], "127.0.0.1"),
        ("127.0.0.1", ["2001:db8::1"], "2001:db8::1"),
        ("203.0.113.9", ["198.51.100.1"], "203.0.113.9"),  # not from a proxy
        ("", ["198.51.100.1"], ""),
    ],
)
def test_only_trusted_proxies_name_the_client(peer: str, forwarded: list[str], expected: str) -> None:
    headers = [(b"x-forwarded-for", value.encode()) for value in forwarded]
    scope = {"client": (peer, 1), "headers": headers}
    assert client_of(scope, [ip_network("127.0.0.1"), ip_network("10.0.0.0/8")]) == expected
    assert client_of(scope, []) == peer
