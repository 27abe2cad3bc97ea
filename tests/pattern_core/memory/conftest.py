"""A memory store in memory, one on a file, and a block straight on the tables."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from pattern_db import template
from pattern_db.database import Database, DatabaseThreads
from pattern_db.migrate import migrations_of
from tests.pattern_core.memory.life import Life, create
from tests.pattern_core.memory.rig import NOW, Rig, add_agents, constellation


@pytest.fixture
async def database() -> AsyncIterator[Database]:
    """A database in memory, with the agents ada and bob."""
    async with Database.in_memory(constellation()) as opened:
        yield opened


@pytest.fixture
def rig(database: Database) -> Rig:
    """A store on it."""
    return Rig(database)


@pytest.fixture
async def file_rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """A store on a file, with queries on threads."""
    path = tmp_path / "pattern.db"
    template.create(path, migrations_of("constellation"), now=NOW)
    with DatabaseThreads() as threads:
        database = await Database.open(path, threads)
        await database.write(add_agents)
        yield Rig(database)
        await database.aclose()


@pytest.fixture
def life() -> Iterator[Life]:
    """A block with the text `initial`."""
    connection = constellation()
    yield Life(connection, create(connection, "initial"))
    connection.close()
