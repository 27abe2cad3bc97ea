from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pattern_db.database import Database
from tests.pattern_core.memory.rig import Rig, constellation
from tests.pattern_core.tools.rig import ToolRig


@pytest.fixture
async def tools() -> AsyncIterator[ToolRig]:
    """Ada's tools on a constellation in memory."""
    async with Database.in_memory(constellation()) as database:
        yield ToolRig(Rig(database))
