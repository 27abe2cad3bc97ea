"""Whose memory a path means: an agent's, or what belongs to everybody."""

from __future__ import annotations

from pattern_core.constellation import Constellation
from pattern_db.enums import CONSTELLATION_OWNER


async def owner_of(constellation: Constellation, a: str) -> str:
    """The owner in the place of `{a}` in a path: an agent's id, or `_constellation_` for all agents together.

    Raises:
        NotFound: there is no such agent.
    """
    return CONSTELLATION_OWNER if a == CONSTELLATION_OWNER else (await constellation.roster.get(a)).id
