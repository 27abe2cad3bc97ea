"""Merging updates into checkpoints, in the background: a document that is edited for years still opens at once."""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from pattern_core.clock import Clock, now_text
from pattern_core.memory.checkpoint import CHECKPOINTS_KEPT, open_document, pack
from pattern_core.memory.document import READER_PEER, DocumentDamaged
from pattern_db import errors as storage
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.tables import memory_blocks
from pattern_db.tables.memory_blocks import Checkpoint, Update

_log = logging.getLogger(__name__)
OnMerged = Callable[[str, int, int], None]


class Consolidator:
    """Merges the blocks that `ask` names, one after the other, while `run` runs.

    `on_merged(block_id, count, size)` is told how many updates, of how many bytes, are in a checkpoint now.
    """

    def __init__(self, database: Database, clock: Clock, on_merged: OnMerged) -> None:
        self._database = database
        self._clock = clock
        self._on_merged = on_merged
        self._due: dict[str, None] = {}  # a set in order; at most one entry per block
        self._merging = ""  # the block that `run` works on
        self._asked = trio.Event()

    def ask(self, block_id: str) -> None:
        """Have the block merged soon, unless that is under way. Never waits."""
        if block_id != self._merging:
            self._due[block_id] = None
            self._asked.set()

    async def run(self) -> None:
        """Merge what is asked for, until cancelled.

        Raises:
            StorageFailed: the disk failed; the file must be opened anew.
        """
        while True:
            while self._due:
                self._merging = next(iter(self._due))
                del self._due[self._merging]
                try:
                    await self.consolidate(self._merging)
                except (DocumentDamaged, storage.NotFound) as error:
                    # Nothing is lost by not merging, and whoever opens the block next is told.
                    _log.error("the updates of block %s cannot be merged: %s", self._merging, error)
            self._merging = ""
            self._asked = trio.Event()
            await self._asked.wait()

    async def consolidate(self, block_id: str) -> bool:
        """Merge a block's stored updates into a checkpoint, now; return whether there were any.

        Updates that are stored meanwhile stay as they are; of the earlier checkpoints the newest few are kept.

        Raises:
            NotFound: (of storage) there is no such block.
            DocumentDamaged: the stored document cannot be opened; nothing is changed.
        """
        checkpoint, updates = await self._database.read(memory_blocks.get_checkpoint_and_updates, block_id)
        if not updates:
            return False
        try:
            await self._database.write(_merge, block_id, checkpoint, updates, now_text(self._clock))
        except storage.Conflict:  # somebody merged further meanwhile
            return False
        self._on_merged(block_id, len(updates), sum(len(update.update_blob) for update in updates))
        return True


def _merge(
    connection: Connection, block_id: str, checkpoint: Checkpoint | None, updates: list[Update], now: str
) -> None:
    """Make the snapshot and store it. On the database's thread, so that packing does not hold the loop."""
    document = open_document(checkpoint, updates, peer=READER_PEER)
    data, encoding = pack(document.snapshot())
    memory_blocks.consolidate_checkpoint(
        connection, block_id, data, document.frontier(), updates[-1].seq, now, encoding
    )
    memory_blocks.prune_checkpoints(connection, block_id, CHECKPOINTS_KEPT)
