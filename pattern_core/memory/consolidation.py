"""Merging updates into checkpoints, in the background: a document that is edited for years still opens at once.

A checkpoint is the document's state; its operations go into a segment at the same time. So a merge costs what the
document's size and the new updates ask for, and not what its history does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from pattern_core.clock import Clock, now_text
from pattern_core.memory.checkpoint import Pending, Retention, open_document, pack, to_drop
from pattern_core.memory.document import READER_PEER, DocumentDamaged, state_snapshot
from pattern_core.memory.segments import segment_of
from pattern_db import errors as storage
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.tables import block_checkpoints, block_versions
from pattern_db.tables.block_checkpoints import Checkpoint
from pattern_db.tables.block_versions import Update

_log = logging.getLogger(__name__)
OnMerged = Callable[[str, int, int], None]
RETENTION = Retention()


class Consolidator:
    """Merges the blocks that `ask` names, one after the other, while `run` runs.

    `on_merged(block_id, count, size)` is told how many updates, of how many bytes, are in a checkpoint now.
    """

    def __init__(self, database: Database, clock: Clock, on_merged: OnMerged, retention: Retention = RETENTION) -> None:
        self._database = database
        self._retention = retention
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
        """Merge what is asked for, until cancelled; first of all what grew old while nobody was here.

        Raises:
            StorageFailed: the disk failed; the file must be opened anew.
        """
        now_ms = self._clock.now_ms()
        for block_id, stats in await self._database.read(block_versions.list_pending):
            if Pending.of(stats).is_due(now_ms):
                self.ask(block_id)
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

        Updates that are stored meanwhile stay as they are; of the earlier checkpoints those are kept that the
        retention names.

        Raises:
            NotFound: (of storage) there is no such block.
            DocumentDamaged: the stored document cannot be opened; nothing is changed.
        """
        checkpoint, updates = await self._database.read(block_checkpoints.get_checkpoint_and_updates, block_id)
        if not updates:
            return False
        try:
            await self._database.write(_merge, checkpoint, updates, now_text(self._clock), self._retention)
        except storage.Conflict:  # somebody merged further meanwhile
            return False
        self._on_merged(block_id, len(updates), sum(len(update.update_blob) for update in updates))
        return True


def _merge(
    connection: Connection, checkpoint: Checkpoint | None, updates: list[Update], now: str, retention: Retention
) -> None:
    """Make the snapshot and store it. On the database's thread, so that packing does not hold the loop."""
    block_id, last_seq = updates[-1].block_id, updates[-1].seq
    document = open_document(checkpoint, [], peer=READER_PEER)
    version = document.version()
    for update in updates:
        document.import_update(update.update_blob)
    segment = segment_of(block_id, document, checkpoint, version, last_seq, now)
    data, encoding = pack(state_snapshot(document))
    block_checkpoints.consolidate_checkpoint(connection, block_id, data, document.frontier(), last_seq, now, encoding)
    block_checkpoints.add_segment(connection, segment)
    dropped = to_drop(block_checkpoints.list_stamps(connection, block_id), now, retention)
    block_checkpoints.drop_checkpoints(connection, block_id, dropped)
