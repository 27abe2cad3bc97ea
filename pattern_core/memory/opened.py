"""The blocks that are worked on: resolved, held by one unit of work each, opened, and dropped when a commit fails."""

from __future__ import annotations

from dataclasses import replace

from pattern_core.clock import Clock
from pattern_core.ids import Randomness
from pattern_core.memory.authors import agent_author, is_agent
from pattern_core.memory.checkpoint import Pending, open_document
from pattern_core.memory.consolidation import Consolidator
from pattern_core.memory.document import READER_PEER, Document, DocumentDamaged, new_peer, state_of
from pattern_core.memory.hot import Hot, HotDocuments
from pattern_core.memory.permission import Operation, require
from pattern_core.memory.seen import SeenBlocks
from pattern_core.memory.stored import load, resolve
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.database import Database
from pattern_db.tables.memory_blocks import Attribution, BlockRow, Via, VisibleBlock

SOUND_MAX = 10_000  # blocks that were found sound, remembered


class OpenBlocks:
    """The open documents of a constellation and what its agents see of the stored blocks (`seen`).

    `peer` is the number under which new edits are made; `consolidator` merges what they leave behind.
    """

    def __init__(self, database: Database, clock: Clock, randomness: Randomness, hot_max: int) -> None:
        self.seen = SeenBlocks(database)
        self.peer = new_peer(randomness)
        self.consolidator = Consolidator(database, clock, self._on_merged)
        self._database = database
        self._clock = clock
        self._randomness = randomness
        self._sound: dict[str, int] = {}  # the version at which a block could be opened, by id
        self._hot = HotDocuments(hot_max, self._on_settled)

    async def hold(
        self, agent_id: str, label: str, by: Attribution, operation: Operation, work: UnitOfWork
    ) -> tuple[VisibleBlock, Hot]:
        """The block that `agent_id` means by `label`, kept for `work` until it is settled.

        Raises:
            NotFound: there is no such block; the message lists those that there are.
            PermissionDenied: `by` may not do this with it, or a person would have to consent.
        """
        while True:
            generation = self.seen.generation
            visible = await self._database.read(resolve, agent_id, label)
            _require(visible, by, operation)  # before waiting: most refusals need no gate
            hot = await self._hot.hold(visible.block.id, work)
            hot.owner = visible.block.agent_id
            if hot.row is not None:  # this unit of work changed it already, and nobody else did
                return as_is(visible, hot.row), hot
            if generation == self.seen.generation:
                return visible, hot
            # Something was stored while we read and waited: look again, now that this block cannot change.
            again = await self._database.read(resolve, agent_id, label)
            if again.block.id == visible.block.id:
                _require(again, by, operation)
                return again, hot

    async def document(self, hot: Hot, row: BlockRow) -> Document:
        """The open document of a block that is held, as it stands at `row`.

        Raises:
            DocumentDamaged: what is stored cannot be opened; other blocks can.
        """
        if hot.document is None or hot.seq != row.last_seq:
            checkpoint, updates, stats = await self._database.read(load, row.id)
            try:
                hot.document = open_document(checkpoint, updates, peer=self.peer)
            except DocumentDamaged as error:
                raise _damaged(row.label, error) from error
            base = 0 if checkpoint is None else len(checkpoint.snapshot)
            hot.seq, hot.pending = row.last_seq, Pending.of(stats, base)
        return hot.document

    def settled_document(self, block_id: str, version: int) -> Document | None:
        """The block's document if it is open, stored as it stands and at `version`. For reading, without waiting."""
        hot = self._hot.find(block_id)
        return hot.document if hot is not None and hot.seq == version and not hot.is_changed else None

    async def to_read(self, block_id: str, label: str, version: int) -> Document:
        """The document of a block that was just seen at `version`, as it is stored. It must not be changed.

        Raises:
            NotFound: (of storage) the block is gone for good.
            DocumentDamaged: what is stored cannot be opened; other blocks can.
        """
        document = self.settled_document(block_id, version)
        if document is None:
            checkpoint, updates, _stats = await self._database.read(load, block_id)
            try:
                document = open_document(checkpoint, updates, peer=READER_PEER)
                state_of(document)  # a part may be found damaged only when it is read
            except DocumentDamaged as error:
                raise _damaged(label, error) from error
        self._sound[block_id] = version
        if len(self._sound) > SOUND_MAX:
            del self._sound[next(iter(self._sound))]
        return document

    async def check(self, block_id: str, label: str, version: int) -> None:
        """Pass if the block that was just seen at `version` can be opened. Each version is looked at once.

        Raises:
            NotFound: (of storage) the block is gone for good.
            DocumentDamaged: what is stored cannot be opened; other blocks can.
        """
        if self._sound.get(block_id) != version:
            await self.to_read(block_id, label, version)

    def as_changed(self, visible: VisibleBlock, agent_id: str) -> VisibleBlock:
        """The block as the agent's own call under way has changed it, though that is not stored yet."""
        hot = self._hot.find(visible.block.id)
        if hot is None or hot.row is None or not hot.is_changed or hot.author != agent_author(agent_id):
            return visible
        return as_is(visible, hot.row)

    def forget(self, owner: str) -> None:
        """Close what is open of an owner's blocks, and read again who it is: it was renamed or deleted."""
        self._hot.forget(owner)
        self.seen.changed()

    def _on_settled(self, hot: Hot, committed: bool) -> None:
        if not hot.is_changed:
            return
        self.seen.changed()
        if not committed:
            # The document has seen what the disk has not. The numbers that its edits were given must not be given
            # to others, so the next ones come from another peer.
            hot.document, hot.pending = None, None
            self.peer = new_peer(self._randomness)
        elif hot.pending is not None and hot.pending.is_due(self._clock.now_ms()):
            self.consolidator.ask(hot.block_id)

    def _on_merged(self, block_id: str, count: int, size: int) -> None:
        hot = self._hot.find(block_id)
        if hot is not None and hot.pending is not None:
            hot.pending.merged(count, size, self._clock.now_ms())


def as_is(visible: VisibleBlock, row: BlockRow) -> VisibleBlock:
    """The block as its holder left it, with the permission that follows."""
    return replace(visible, block=row, permission=visible.permission if visible.via is Via.ATTACHED else row.permission)


def _require(visible: VisibleBlock, by: Attribution, operation: Operation) -> None:
    if is_agent(by.author):
        require(visible.permission, operation, visible.block.label)


def _damaged(label: str, error: DocumentDamaged) -> DocumentDamaged:
    return DocumentDamaged(
        f"what is stored of the block {label} is damaged ({error.message}); a person can bring it back with "
        f"`pattern memory repair {label}`"
    )
