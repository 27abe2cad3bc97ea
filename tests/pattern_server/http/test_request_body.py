"""Reading bodies: whole, bounded, in time."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from pattern_server.http import ABORT, request_body
from pattern_server.http.errors import RequestTimeout, TooLarge
from pattern_server.http.request_body import (
    ClientGone,
    StrictRequest,
    announces_body,
    drop_rest,
    read_body,
    replay,
)

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


async def test_a_body_arrives_in_pieces() -> None:
    assert await read_body(scope(), messages(MORE, MORE, LAST), 11) == b"12345123456"


async def test_one_byte_too_many_is_too_large() -> None:
    with pytest.raises(TooLarge, match="10 bytes"):
        await read_body(scope(), messages(MORE, MORE, LAST), 10)


async def test_a_declared_length_is_believed_at_once() -> None:
    with pytest.raises(TooLarge):
        await read_body(scope(content_length="11"), messages(), 10)


async def test_a_client_that_leaves_or_dawdles(autojump_clock: trio.testing.MockClock) -> None:
    with pytest.raises(ClientGone):
        await read_body(scope(), messages(MORE, GONE), 100)
    with pytest.raises(RequestTimeout):
        await read_body(scope(), messages(MORE), 100)


async def test_the_rest_is_dropped(autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    aborted: list[bool] = []

    asked = {**scope(), "state": {ABORT: lambda: aborted.append(True)}}
    await drop_rest(asked, messages(MORE, LAST))
    await drop_rest(asked, messages(GONE))
    assert not aborted
    await drop_rest(asked, messages(MORE))  # never goes on
    monkeypatch.setattr(request_body, "DROPPED_BYTES_MAX", 9)
    await drop_rest(asked, messages(MORE, MORE, MORE))  # never ends
    assert len(aborted) == 2
    await drop_rest(scope(), messages(MORE, MORE, MORE))  # nobody offers to close


async def test_the_application_gets_the_body_once() -> None:
    receive = replay(b"abc", messages(GONE))
    assert await receive() == {"type": "http.request", "body": b"abc", "more_body": False}
    assert await receive() == GONE


def test_which_requests_have_a_body() -> None:
    assert not announces_body(scope())
    assert not announces_body(scope(content_length="0"))
    assert announces_body(scope(content_length="5"))
    assert announces_body(scope(transfer_encoding="chunked"))


@pytest.mark.parametrize("text", ['{"a": [1, 2.5, null, "é😀"]}', "[]", '"x"', "1e400"])
async def test_json_is_read(text: str) -> None:
    assert await parsed(text.encode()) == json.loads(text)


@pytest.mark.parametrize("body", [b"NaN", b"[Infinity]", b'"\\ud800"', b"\xff", b"[" * 90_000, b"1" * 5_000, b""])
async def test_what_no_database_could_hold_is_no_json(body: bytes) -> None:
    with pytest.raises(json.JSONDecodeError):
        await parsed(body)


async def parsed(body: bytes) -> Any:
    asked = scope()
    return await StrictRequest(asked, messages({"type": "http.request", "body": body, "more_body": False})).json()
