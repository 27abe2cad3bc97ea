from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pattern_db.database import Database
from tests.pattern_core.files.samples import Shelf
from tests.pattern_core.memory.rig import constellation


@pytest.fixture
async def shelf() -> AsyncIterator[Shelf]:
    """No folder yet; the agents ada and bob."""
    async with Database.in_memory(constellation()) as database:
        yield Shelf(database)
