"""The API without a server: the application opened in this process for the time of one command.

A module of its own because the application takes a second to import, which a command that finds a server running need
not wait for; `client` imports it when it is needed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2

from pattern_server.config import Config
from pattern_server.serve import open_app


@asynccontextmanager
async def open_in_process(config: Config) -> AsyncIterator[tuple[httpx2.AsyncBaseTransport, str]]:
    """A transport that calls the application instead of a server, and a token for it.

    Raises:
        OwnedElsewhere: another process works on the data directory.
        DatabaseError: the files cannot be opened.
    """
    async with open_app(config) as (app, token):
        yield httpx2.ASGITransport(app), token
