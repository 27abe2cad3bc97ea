"""One connection to an MCP server, by the official library: the one file that knows it.

It is entered and left by the task that owns the server. Its transports are the library's. A program is started by
`guard.py`, which bounds its messages and ends what it leaves behind. Answers of an address are bounded here. The
operator configured the address, so it may be a private one; the library follows a redirect only within it. No proxy, no
cookies: the headers hold keys, and go nowhere else.

Source: the transports of the Model Context Protocol, 2025-11-25 and 2026-07-28.
"""

from __future__ import annotations

import json
import logging
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast

import trio

from pattern_core.children import isolated
from pattern_core.errors import InvalidInput, Unavailable
from pattern_core.mcp_servers.tools import ERROR_CHARS_MAX, OfferedTool, sound_tools, text_of
from pattern_core.mcp_settings import McpSettings, Stdio, Streamable

if TYPE_CHECKING:
    import httpx2
    from mcp.client.client import Client

PAGES_MAX = 20  # of a list of tools
TOOLS_MAX = 200  # of one server: more would fill a prompt by themselves
RESOURCES_MAX = 1_000  # of one server that are listed
URI_CHARS_MAX = 500  # of a resource; those with more are passed over
ANSWER_BYTES_MAX = 8 * 1024 * 1024  # of a document over HTTP
CONNECT_TIMEOUT_S = 10.0
SILENCE_S = 300.0  # of a stream that is open; longer than any call may take, unless configured otherwise
MESSAGE_BYTES_MAX = 4 * 1024 * 1024  # of a program, or within a stream of events: a picture as text
GRACE_S = 1.0  # for a program, between SIGTERM and SIGKILL
REASON_S = 1.0  # to learn why a connection ended
TAIL_BYTES = 4096  # of a program's standard error, where its last words are looked for
WORDS_CHARS_MAX = 300
ERRORS_PAUSE_S = 0.002  # between two reads of standard error, so that a flood waits
PRODUCT = "pattern-server"
# It logs each line that is not a message, with a trace: a program could fill the log.
logging.getLogger("mcp.client.stdio").setLevel(logging.CRITICAL)
_ENDED = ("Session terminated", "Connection closed")  # the library's words for a session that is over, and for a pipe


class McpConnection:
    """A connection; `lost` is set by the first that notices its end, with the `reason`, and `over` when it was left.

    While `opened`, any task may call; cancelling a call notifies the server.
    """

    def __init__(self, settings: McpSettings, moved: trio.lowlevel.ParkingLot) -> None:
        self.lost = trio.Event()
        self.over = trio.Event()
        self.reason = ""
        self._settings = settings
        self._moved = moved
        self._client: Client

    def lose(self, reason: str) -> None:
        """Record that the connection is lost; the first reason counts."""
        if not self.lost.is_set():
            self.reason = reason
            self.lost.set()
            self._moved.unpark_all()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Start or reach the server and agree on a version.

        Raises:
            Unavailable: it cannot be started.
            Exception: anything that the library or the server raises; `reason` may say more.
        """
        await trio.to_thread.run_sync(import_module, "mcp.client.client")  # a second of computing, once
        from mcp.client.client import Client
        from mcp_types import Implementation

        reach = self._settings.reach
        self._client = Client(
            self._program(reach) if isinstance(reach, Stdio) else _streamable(reach, self._settings.call_timeout_s),
            mode=self._settings.protocol,
            client_info=Implementation(name=PRODUCT, version=version(PRODUCT)),
            cache=None,  # a list is asked for to learn what the server offers now
        )
        async with self._client:
            yield

    @asynccontextmanager
    async def _program(self, reach: Stdio) -> AsyncIterator[Any]:  # Any: the library's streams
        """Start the program under its guard; its standard error ends with it and may have the reason."""
        from mcp.client.stdio import DEFAULT_INHERITED_ENV_VARS, StdioServerParameters, stdio_client

        environment = {name: value.get_secret_value() for name, value in reach.environment.items()}
        hidden = [name for name in DEFAULT_INHERITED_ENV_VARS if name not in environment]
        limits = {"line_bytes_max": MESSAGE_BYTES_MAX, "grace_s": GRACE_S}
        plan = json.dumps({"command": [reach.command, *reach.args], "hidden": hidden, **limits})
        command, *arguments = isolated("pattern_core.mcp_servers.guard", plan)
        parameters = StdioServerParameters(
            command=command, args=arguments, env=environment, cwd=reach.cwd, encoding_error_handler="replace"
        )
        tail = bytearray()

        async def read_errors() -> None:
            async for piece in errors:
                tail.extend(piece)
                del tail[:-TAIL_BYTES]
                await trio.sleep(ERRORS_PAUSE_S)
            words = [line.strip() for line in tail.decode(errors="replace").splitlines() if line.strip()][-1:]
            self.lose("; stderr: ".join(["its program ended", *words])[:WORDS_CHARS_MAX])

        source, sink = os.pipe()
        with os.fdopen(sink, "w") as errlog:
            async with trio.lowlevel.FdStream(source) as errors:
                try:
                    async with stdio_client(parameters, errlog=errlog) as streams, trio.open_nursery() as nursery:
                        errlog.close()  # only the guard and the program have it now
                        nursery.start_soon(read_errors)
                        yield _Readable(streams[0], self.lose), streams[1]
                        nursery.cancel_scope.cancel()
                finally:
                    errlog.close()
                    with trio.move_on_after(REASON_S, shield=True):
                        await read_errors()

    async def tools(self) -> list[OfferedTool]:
        """Return what it offers now, at most `TOOLS_MAX`.

        Raises:
            Unavailable: the list cannot be read.
        """
        if self._client.server_capabilities.tools is None:
            return []
        found: list[OfferedTool] = []
        cursor: str | None = None
        for _ in range(PAGES_MAX):
            page = await self._asked(self._client.list_tools(cursor=cursor))
            found += [tool.model_dump(by_alias=True) for tool in page.tools]
            cursor = page.next_cursor
            if cursor is None or len(found) >= TOOLS_MAX:
                break
        return found[:TOOLS_MAX]

    async def resources(self) -> list[str]:
        """Return the addresses of the resources that it lists now, at most `RESOURCES_MAX` and some.

        Raises:
            InvalidInput: it has none.
            Unavailable: the list cannot be read.
        """
        if self._client.server_capabilities.resources is None:
            raise InvalidInput("it offers no resources")
        found: list[str] = []
        cursor: str | None = None
        for _ in range(PAGES_MAX):
            page = await self._asked(self._client.list_resources(cursor=cursor))
            found += [one.uri for one in page.resources if len(one.uri) <= URI_CHARS_MAX]
            cursor = page.next_cursor
            if cursor is None or len(found) > RESOURCES_MAX:
                break
        return found

    async def read(self, uri: str) -> tuple[str, bool]:
        """Return what a resource contains, and whether that is text, not bytes in base64.

        Raises:
            InvalidInput: the server refused it.
            Unavailable: the connection was lost, or the answer is invalid.
        """
        contents = (await self._asked(self._client.read_resource(uri))).contents
        texts = [getattr(one, "text", None) for one in contents]
        return "\n".join(getattr(one, "blob", None) or one.text for one in contents), None not in texts

    async def call(self, tool: str, arguments: Mapping[str, object], meta: Mapping[str, object]) -> tuple[str, bool]:
        """Call a tool; return its result's text, and whether it failed. Cancel this to cancel the call.

        Raises:
            InvalidInput: the server refused the call.
            Unavailable: the connection was lost, or the answer is invalid.
        """
        from mcp_types import CallToolRequest, CallToolRequestParams, CallToolResult, InputRequiredResult
        from pydantic import TypeAdapter

        # Not by the client's own `call_tool`, which checks answers by patterns that the server wrote: one of them could
        # compute for hours.
        params = CallToolRequestParams(name=tool, arguments=dict(arguments), _meta=cast("Any", dict(meta) or None))
        results: TypeAdapter[Any] = TypeAdapter(CallToolResult | InputRequiredResult)
        result = await self._asked(self._client.session.send_request(CallToolRequest(params=params), results))
        if isinstance(result, InputRequiredResult):
            raise InvalidInput("it asks for more input, which cannot be given here")
        parts = [part.model_dump(mode="json", by_alias=True, exclude_none=True) for part in result.content]
        return text_of(parts, result.structured_content, is_error=result.is_error), result.is_error

    async def _asked(self, answer: Awaitable[Any]) -> Any:  # Any: the library's answers
        """Wait for an answer, and translate what the library raises: some of its errors are not documented."""
        from mcp.shared.exceptions import MCPError
        from mcp_types import CONNECTION_CLOSED

        try:
            return await answer
        except MCPError as error:
            words = error.error.message[:ERROR_CHARS_MAX]
            if words in _ENDED:
                with trio.move_on_after(REASON_S):
                    await self.lost.wait()
                self.lose("it ended the connection")
                raise Unavailable(self.reason) from error
            if error.error.code == CONNECTION_CLOSED:  # of this call alone, as over HTTP
                raise Unavailable(words) from error
            raise InvalidInput(words or f"error {error.error.code}") from error
        except Exception as error:
            raise Unavailable(f"its answer is invalid ({type(error).__name__})") from error


@asynccontextmanager
async def _streamable(reach: Streamable, call_timeout_s: float) -> AsyncIterator[Any]:  # Any: the library's streams
    """Reach an address by a client that asks this server and no other."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    context = await trio.to_thread.run_sync(ssl.create_default_context)  # reading the system's certificates is slow
    keys = {name: value.get_secret_value() for name, value in reach.headers.items()}
    async with (
        httpx2.AsyncClient(
            headers={"accept-encoding": "identity", **keys},  # what is packed could unpack to any length
            timeout=httpx2.Timeout(CONNECT_TIMEOUT_S, read=max(SILENCE_S, 2 * call_timeout_s)),
            event_hooks={"response": [_bound]},
            verify=context,
            trust_env=False,
        ) as client,
        streamable_http_client(reach.url, http_client=client, max_sse_event_size=MESSAGE_BYTES_MAX) as streams,
    ):
        yield _Readable(streams[0]), streams[1]


class _Readable:
    """A transport's stream of messages, in which a list of tools has none that the library would refuse all for."""

    def __init__(self, stream: Any, lose: Callable[[str], None] = lambda _reason: None) -> None:  # Any: the library's
        self._stream = stream
        self._lose = lose

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> _Readable:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> _Readable:
        return self

    async def __anext__(self) -> Any:
        found = await self._stream.__anext__()
        if isinstance(found, ValueError) and "recursion limit" in str(found):  # else its call waits for its whole time
            self._lose("it sent a message that is nested too deep")
            raise StopAsyncIteration
        result = getattr(getattr(found, "message", None), "result", None)
        if isinstance(result, dict) and isinstance(result.get("tools"), list):
            result["tools"] = sound_tools(result["tools"])
        return found


async def _bound(response: httpx2.Response) -> None:
    """Read a document, at most `ANSWER_BYTES_MAX` of it. Streams of events have a bound for each event."""
    import httpx2

    if response.status_code in (401, 403):
        raise httpx2.ReadError(f"it does not accept the key that it was sent (HTTP status {response.status_code})")
    if response.headers.get("content-encoding", "identity") != "identity":
        raise httpx2.ReadError("the answer is packed, which was not asked for")
    stream = response.stream
    is_document = not response.headers.get("content-type", "").lower().startswith("text/event-stream")
    if is_document and isinstance(stream, httpx2.AsyncByteStream):
        body = bytearray()
        async for piece in stream:
            body += piece
            if len(body) > ANSWER_BYTES_MAX:
                raise httpx2.ReadError(f"the answer is longer than {ANSWER_BYTES_MAX} bytes")
        await stream.aclose()
        response.stream = httpx2.ByteStream(bytes(body))
