"""A constellation's life, from its file's opening to its closing. `serve` imports this when the first one wakes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress

import trio

from pattern_core.constellation import Constellation
from pattern_core.ids import now_text
from pattern_core.limits import Limits
from pattern_core.models.client import ModelClient
from pattern_core.runtime import Runtime
from pattern_core.tools.builtin import BUILTIN
from pattern_core.tools.registry import ToolRegistry
from pattern_db.database import Database
from pattern_db.errors import DatabaseError
from pattern_db.tables import constellations
from pattern_server.global_database import GlobalDatabase


async def run(
    constellation_id: str,
    started: Callable[[Constellation], None],
    *,
    registry: GlobalDatabase,
    open_database: Callable[[str], AbstractAsyncContextManager[Database]],
    models: ModelClient,
    runtime: Runtime,
    limits: Limits,
) -> None:
    """Open the constellation, call `started` once it is recovered, and run it until it is cancelled.

    Raises:
        DatabaseError: its file cannot be opened.
    """
    row = await registry.read(constellations.find, constellation_id)
    async with open_database(row.id) as database:
        constellation = Constellation(
            id=row.id,
            name=row.name,
            database=database,
            models=models,
            tools=ToolRegistry(BUILTIN, runtime.tools),
            runtime=runtime,
            limits=limits,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(constellation.run)
            started(constellation)
            # Later than that, because no request waits for it, and a full disk here is no reason to stop.
            with suppress(DatabaseError):
                await registry.write(constellations.touch, row.id, now_text(runtime.clock))
