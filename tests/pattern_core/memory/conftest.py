"""A memory store in memory, and one on a file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pattern_db import template
from pattern_db.database import Database, DatabaseThreads
from pattern_db.migrate import migrations_of
from tests.pattern_core.memory.rig import NOW, Rig, add_agents, constellation


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """A store on a database in memory, with the agents ada and bob."""
    database = Database.in_memory(constellation())
    yield Rig(database)
    await database.aclose()


@pytest.fixture
async def file_rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """The same on a file, with queries on threads."""
    path = tmp_path / "pattern.db"
    template.create(path, migrations_of("constellation"), now=NOW)
    with DatabaseThreads() as threads:
        database = await Database.open(path, threads)
        await database.write(add_agents)
        yield Rig(database)
        await database.aclose()
