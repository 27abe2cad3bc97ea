"""What each agent sees of the stored blocks, kept until something is stored: every prompt asks for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pattern_core.memory.stored import with_owners
from pattern_db.database import Database
from pattern_db.tables.memory_blocks import VisibleBlock

SEEN_MAX = 1_024  # agents whose visible blocks are kept in memory


class SeenBlocks:
    """The visible blocks per agent, as stored. `generation` rises with every change, so whoever read before it can
    tell that there is something new to read.
    """

    def __init__(self, database: Database) -> None:
        self.generation = 0
        self._database = database
        self._known: dict[str, tuple[int, Sequence[VisibleBlock], Mapping[str, str]]] = {}

    def changed(self, _committed: bool = True) -> None:
        """Something was stored, or may have been."""
        self.generation += 1

    async def by(self, agent_id: str) -> tuple[Sequence[VisibleBlock], Mapping[str, str]]:
        """What the agent sees, and the names of its lenders by id; read again only after a change."""
        known = self._known.get(agent_id)
        if known is not None and known[0] == self.generation:
            return known[1], known[2]
        generation = self.generation
        visible, names = await self._database.read(with_owners, agent_id)
        if len(self._known) >= SEEN_MAX:
            self._known.clear()  # rare, and filled again by those who are at work
        self._known[agent_id] = (generation, visible, names)
        return visible, names
