from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pattern_db.database import Database
from tests.pattern_core.embeddings.stage import World


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    async with Database.in_memory(world.db) as world.database:
        yield world
