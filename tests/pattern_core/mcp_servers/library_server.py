"""A server made with the official library, as most are: over HTTP in this process, or over stdio as a program."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import trio
from mcp.server.mcpserver import MCPServer

from pattern_server.listener import listen


@dataclass
class Library:
    """`begun` and `cancelled` are set when `wait` is called, and cancelled; `keys` are headers that came."""

    begun: trio.Event = field(default_factory=trio.Event)
    cancelled: trio.Event = field(default_factory=trio.Event)
    keys: set[str] = field(default_factory=set)

    def make(self) -> MCPServer:
        """The server."""
        server = MCPServer("library", log_level="ERROR")

        async def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        async def wait() -> str:
            """Wait for something that does not come."""
            self.begun.set()
            try:
                await trio.sleep_forever()
            finally:
                self.cancelled.set()

        for tool in (add, wait):
            server.add_tool(tool)
        return server


@asynccontextmanager
async def served(library: Library) -> AsyncIterator[str]:
    """The library's server over streamable HTTP; its address."""
    server = library.make()
    app = server.streamable_http_app(host="127.0.0.1")

    async def noting(scope: dict[str, object], receive: Callable[..., object], send: Callable[..., object]) -> None:
        headers = scope.get("headers")
        if isinstance(headers, list):
            library.keys |= {value.decode() for name, value in headers if name == b"authorization"}
        await app(scope, receive, send)  # type: ignore[arg-type]  # ASGI

    stop = trio.Event()
    async with server.session_manager.run(), trio.open_nursery() as nursery:
        url = await nursery.start(partial(listen, noting, host="127.0.0.1", port=0, stop=stop, grace_s=0.1))
        yield f"{url}/mcp"
        stop.set()


if __name__ == "__main__":
    trio.run(Library().make().run_stdio_async)
