"""Bringing back a block whose stored document is damaged, at a person's request and never by itself."""

from __future__ import annotations

from dataclasses import replace

from pattern_core.clock import Clock, now_text
from pattern_core.ids import Randomness
from pattern_core.memory.block import Operation
from pattern_core.memory.document import new_peer
from pattern_core.memory.opened import OpenBlocks, told
from pattern_core.memory.past.damage import Repaired, mend, prepare
from pattern_core.unit_of_work import Commit, given_or_alone
from pattern_db.database import Database
from pattern_db.tables.memory_blocks import Attribution


class Repairs:
    """Repair, over the blocks that a `MemoryStore` works on."""

    def __init__(
        self, *, database: Database, clock: Clock, randomness: Randomness, blocks: OpenBlocks, commit: Commit
    ) -> None:
        self._database = database
        self._clock = clock
        self._randomness = randomness
        self._blocks = blocks
        self._commit = commit

    async def repair(self, agent_id: str, label: str, by: Attribution) -> Repaired:
        """Make a damaged block one that opens, from what is known of it, as a new version; what cannot be read is put
        aside in the same transaction.

        Raises:
            NotFound: there is no such block.
            PermissionDenied: the permission does not let an agent overwrite.
            Conflict: the block can be opened; there is nothing to repair.
        """
        async with given_or_alone(None, self._commit) as unit:
            visible, hot = await self._blocks.hold(agent_id, label, by, Operation.OVERWRITE, unit)
            mending = await prepare(self._database, visible.block.id)
            hot.is_changed, hot.author = True, by.author
            now, peer = now_text(self._clock), new_peer(self._randomness)
            done: list[Repaired] = []
            unit.store(lambda connection: done.append(mend(connection, mending, now, peer)))
            row = replace(visible.block, last_seq=visible.block.last_seq + 1)
            unit.event("memory.changed", {**told(row, by), "repaired": True})
        return done[-1]
