from __future__ import annotations

import pytest

from pattern_core.errors import NotFound
from pattern_db.enums import CONSTELLATION_OWNER
from pattern_server.http.owners import owner_of
from tests.support import running


async def test_an_owner_is_an_agent_or_everybody() -> None:
    async with running() as home:
        agent = await home.agent("ada")
        assert await owner_of(home.constellation, "ada") == agent.id
        assert await owner_of(home.constellation, agent.id) == agent.id
        assert await owner_of(home.constellation, "_constellation_") == CONSTELLATION_OWNER
        with pytest.raises(NotFound):
            await owner_of(home.constellation, "nobody")
