"""A tour whose server is the test's own."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pattern_server.cli.child import Child
from pattern_server.cli.client import Api, RunningServer, connection
from tests.pattern_server.place import Place


class Here(Child):
    """A child that is the test's own server."""

    def __init__(self, place: Place) -> None:
        self._server = RunningServer(pid=os.getpid(), url=place.url, started_at="", token=place.parts.local_token)

    @asynccontextmanager
    async def api(self) -> AsyncIterator[Api]:
        """The API of the test's server."""
        async with connection(self._server) as http:
            yield Api(http, streams=True)
