"""Reading a request's body whole, with a bound and a deadline, and refusing politely what is too long."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

import trio
from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.types import Message, Receive, Scope

from pattern_db.columns import check_depth
from pattern_server.http import ABORT
from pattern_server.http.errors import RequestTimeout, TooLarge

BODY_TIMEOUT_S = 60.0
# A client that sends too much seldom looks for an answer before it has sent all: so much more is read and dropped.
DROPPED_BYTES_MAX = 64 * 1024 * 1024
DROPPED_TIMEOUT_S = 10.0


class ClientGone(Exception):
    """The client closed the connection before its request was complete."""


def announces_body(scope: Scope) -> bool:
    """Whether the request's headers say that a body follows."""
    headers = dict(scope["headers"])
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"


async def read_body(scope: Scope, receive: Receive, bytes_max: int) -> bytes:
    """The whole body.

    Raises:
        TooLarge: it is longer than `bytes_max`, by its header or by what arrives.
        RequestTimeout: it did not arrive in time.
        ClientGone: it never will.
    """
    declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    if declared.isdigit() and int(declared) > bytes_max:
        raise _too_large(bytes_max)
    pieces: list[bytes] = []
    size = 0
    with trio.move_on_after(BODY_TIMEOUT_S):
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            if size > bytes_max:
                raise _too_large(bytes_max)
            if not message.get("more_body", False):
                return b"".join(pieces)
    raise RequestTimeout(f"the request's body did not arrive within {BODY_TIMEOUT_S:.0f} s")


def _too_large(bytes_max: int) -> TooLarge:
    return TooLarge(
        f"the body is longer than {bytes_max} bytes; send less at once, or raise body_bytes_max", bytes_max=bytes_max
    )


async def drop_rest(scope: Scope, receive: Receive) -> None:
    """Read and drop what remains of a body, so that a client in the middle of sending can read its answer.

    A client that sends without end loses the connection.
    """
    dropped = 0
    with trio.move_on_after(DROPPED_TIMEOUT_S):
        while dropped < DROPPED_BYTES_MAX:
            message = await receive()
            dropped += len(message.get("body", b""))
            if message["type"] == "http.disconnect" or not message.get("more_body", False):
                return
    abort = scope.get("state", {}).get(ABORT)
    if abort is not None:
        abort()


def replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` for the application: the whole body in one message, then whatever comes."""
    is_first = True

    async def received() -> Message:
        nonlocal is_first
        if is_first:
            is_first = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return received


class StrictRequest(Request):
    """A request whose JSON is what RFC 8259 allows and SQLite can hold: no NaN, no half characters, bounded depth."""

    async def json(self) -> Any:
        """The body.

        Raises:
            json.JSONDecodeError: it is not valid JSON.
        """
        body = await self.body()
        try:
            value = json.loads(body, parse_constant=_refuse_constant)
            check_depth(value)
            json.dumps(value, ensure_ascii=False).encode()  # fails for half of a surrogate pair, wherever it hides
        except json.JSONDecodeError:
            raise
        except RecursionError:
            raise json.JSONDecodeError("it is nested too deeply", "", 0) from None
        except UnicodeError:
            raise json.JSONDecodeError("it is not UTF-8 throughout", "", 0) from None
        except ValueError as error:  # NaN, too deep, or an integer of thousands of digits
            raise json.JSONDecodeError(str(error), "", 0) from None
        return value


class StrictRoute(APIRoute):
    """A route that reads its body by `StrictRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The framework's handler, given our kind of request."""
        handle = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive))

        return strictly


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")
