"""The blocks that are worked on: found by their labels, held by one unit of work each, opened, changed, and stored.

A unit of work that edits a block keeps it to itself until its transaction is settled, because what it did to the open
document is not on disk before. If the transaction fails the open document is dropped, so that memory never runs ahead
of the disk. A bounded number of documents stays open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import trio

from pattern_core.errors import NotFound
from pattern_core.ids import Clock, Randomness
from pattern_core.memory.block import Operation, agent_author, is_agent, require
from pattern_core.memory.checkpoint import Consolidator, open_document
from pattern_core.memory.document import READER_PEER, BlockDocument, DocumentDamaged, State, new_peer, packed, state_of
from pattern_core.memory.plan import Planned
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.columns import iso, unix_ms
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.enums import UpdateSource
from pattern_db.tables import block_checkpoints, block_versions, memory_blocks
from pattern_db.tables.block_versions import HistoryRow, UpdateStats
from pattern_db.tables.memory_blocks import Attribution, BlockRow, VisibleBlock

LABELS_SHOWN_MAX = 50  # of an agent's blocks, in the answer to a wrong label
SEEN_MAX = 1_024  # agents whose visible blocks are kept in memory
SOUND_MAX = 10_000  # blocks that were found sound, remembered
# When a block's updates are merged into a checkpoint. Source: thresholds as in the database design (LoroStorageConfig).
UPDATES_MAX = 100
UPDATE_BYTES_MAX = 50 * 1024
INTERVAL_MS = 60 * 60 * 1000
# The first three are floors. For a large document they grow with what a merge writes, so that each edit is written a
# bounded number of times; and the number of updates stays bounded, so that the document still opens at once.
BASE_FRACTION = 4
BASE_BYTES_PER_UPDATE = 512
UPDATES_HARD_MAX = 1_000


@dataclass(slots=True)
class Pending:
    """What a block's updates since its checkpoint come to; `oldest_ms` is the first one's time, None without any.

    `base` is the size of that checkpoint in bytes.
    """

    count: int = 0
    size: int = 0
    oldest_ms: int | None = None
    base: int = 0

    @classmethod
    def of(cls, stats: UpdateStats) -> Pending:
        """As storage counted it, without the checkpoint."""
        oldest = None if stats.oldest_at is None else unix_ms(stats.oldest_at)
        return cls(stats.count, stats.total_bytes, oldest)

    def merged(self, count: int, size: int, now_ms: int) -> None:
        """Take off `count` updates of `size` bytes that are in a checkpoint now; those left are taken for new ones."""
        self.count, self.size = max(self.count - count, 0), max(self.size - size, 0)
        self.oldest_ms = now_ms if self.count else None

    def is_due(self, now_ms: int) -> bool:
        """Whether it is time to merge: by number, by bytes, or by age."""
        if self.oldest_ms is None:
            return False
        return (
            self.count >= min(max(UPDATES_MAX, self.base // BASE_BYTES_PER_UPDATE), UPDATES_HARD_MAX)
            or self.size >= max(UPDATE_BYTES_MAX, self.base // BASE_FRACTION)
            or now_ms - self.oldest_ms >= INTERVAL_MS
        )


@dataclass(slots=True, kw_only=True, eq=False)
class Hot:
    """One block that is open or waited for.

    `document` is None until it is loaded, `seq` the newest update in it, `pending` what its updates come to. While
    `holder` has the block, `visible` is the block as the holder will see it once its work is committed (None if it did
    not change it), and `author` who changes it; `is_changed` tells that the holder changed something.
    """

    block_id: str
    owner: str = ""
    gate: trio.Semaphore = field(default_factory=lambda: trio.Semaphore(1, max_value=1))
    users: int = 0
    holder: UnitOfWork | None = None
    document: BlockDocument | None = None
    seq: int = 0
    pending: Pending = field(default_factory=Pending)
    visible: VisibleBlock | None = None
    author: str = ""
    is_changed: bool = False


class OpenBlocks:
    """The open documents of a constellation, least recently used first, and what its agents see of the stored blocks.

    `peer` is the number under which new edits are made; `consolidator` merges what they leave behind. `generation`
    rises with every change of what is stored, so that a reader can tell whether there is something new to read. At most
    `open_max` documents stay open besides those in use.
    """

    def __init__(self, database: Database, clock: Clock, randomness: Randomness, open_max: int) -> None:
        self.generation = 0
        self.peer = new_peer(randomness)
        self.consolidator = Consolidator(database, clock, self._on_merged)
        self._database = database
        self._clock = clock
        self._randomness = randomness
        self._open_max = open_max
        self._open: dict[str, Hot] = {}
        self._seen: dict[str, tuple[int, Sequence[VisibleBlock], Mapping[str, str]]] = {}
        self._sound: dict[str, int] = {}  # the version at which a block could be opened, by id

    async def run(self) -> None:
        """Merge updates into checkpoints whenever it is time, until cancelled; first what grew old before the start.

        Raises:
            StorageFailed: the disk failed; the file must be opened again.
        """
        now_ms = self._clock.now_ms()
        for block_id, stats in await self._database.read(block_versions.list_pending):
            if Pending.of(stats).is_due(now_ms):
                self.consolidator.ask(block_id)
        await self.consolidator.run()

    async def seen_by(self, agent_id: str) -> tuple[Sequence[VisibleBlock], Mapping[str, str]]:
        """The active blocks that the agent sees, of each label the one that it means; the names of its lenders by id.

        What the agent's own call under way has changed is as changed, though that is not stored yet. What is stored is
        read again only after a change: every prompt asks for it.
        """
        known = self._seen.get(agent_id)
        if known is None or known[0] != self.generation:
            generation = self.generation
            stored = await self._database.read(memory_blocks.list_visible, agent_id)
            known = (generation, stored, {one.block.agent_id: one.lender for one in stored if one.lender is not None})
            if len(self._seen) >= SEEN_MAX:
                self._seen.clear()  # rare, and filled again by those who are at work
            self._seen[agent_id] = known
        author, first = agent_author(agent_id), dict[str, VisibleBlock]()
        for visible in known[1]:
            hot = self._open.get(visible.block.id)
            if hot is not None and hot.visible is not None and hot.author == author:
                visible = hot.visible
            if visible.block.is_active:
                first.setdefault(visible.block.label, visible)
        return list(first.values()), known[2]

    async def hold(
        self, agent_id: str, label: str, by: Attribution, operation: Operation, work: UnitOfWork
    ) -> tuple[VisibleBlock, Hot]:
        """The block that `agent_id` means by `label`, kept for `work` until it is settled.

        Waits until no other unit of work has the block; one that has it already gets it again at once.

        Raises:
            NotFound: there is no such block; the message lists those that there are.
            PermissionDenied: `by` may not do this with it, or a person would have to consent.
        """
        hot = None
        while True:
            generation = self.generation
            visible = await self._database.read(resolve, agent_id, label)
            row = visible.block
            if is_agent(by.author):
                require(visible.permission, operation, row.label)  # most refusals need not wait
            if hot is not None and hot.block_id == row.id:
                return visible, hot  # read while it was kept, so it is what it will stay
            hot = self._open.pop(row.id, None) or Hot(block_id=row.id)
            self._open[row.id] = hot  # now the most recently used
            hot.owner = row.agent_id
            if hot.holder is not work:
                hot.users += 1
                try:
                    await hot.gate.acquire()
                    hot.holder = work
                finally:
                    if hot.holder is not work:
                        hot.users -= 1
                work.when_settled(partial(self._settled, hot))
            if hot.visible is not None:  # this unit of work changed it already, and no other did
                return hot.visible, hot
            if generation == self.generation:
                return visible, hot
            # Something was stored while this one read and waited: read again, now that the block cannot change.

    def _settled(self, hot: Hot, committed: bool) -> None:
        """Let go of a block, before the next one gets it."""
        if hot.is_changed:
            self.generation += 1
            if not committed:
                # The document has seen what the disk has not. The numbers that its edits were given must not be given
                # to others, so the next ones come from another peer.
                hot.document, hot.pending = None, Pending()
                self.peer = new_peer(self._randomness)
            elif hot.pending.is_due(self._clock.now_ms()):
                self.consolidator.ask(hot.block_id)
        hot.holder, hot.visible, hot.author, hot.is_changed = None, None, "", False
        hot.users -= 1
        hot.gate.release()
        if (surplus := len(self._open) - self._open_max) > 0:
            for block_id in [one.block_id for one in self._open.values() if one.users == 0][:surplus]:
                del self._open[block_id]

    async def document(self, hot: Hot, row: BlockRow) -> BlockDocument:
        """The open document of a block that is held, as it stands at `row`.

        Raises:
            DocumentDamaged: what is stored cannot be opened; other blocks can.
        """
        if hot.document is None or hot.seq != row.last_seq:
            checkpoint, updates = await self._database.read(block_checkpoints.get_checkpoint_and_updates, row.id)
            try:
                hot.document = open_document(checkpoint, updates, peer=self.peer)
            except DocumentDamaged as error:
                raise _damaged(row.label, error) from error
            hot.seq, hot.pending = (
                row.last_seq,
                Pending(
                    count=len(updates),
                    size=sum(len(update.update_blob) for update in updates),
                    oldest_ms=unix_ms(updates[0].created_at) if updates else None,
                    base=0 if checkpoint is None else len(checkpoint.snapshot),
                ),
            )
        return hot.document

    def change(
        self, visible: VisibleBlock, hot: Hot, before: State, planned: Planned, by: Attribution, work: UnitOfWork
    ) -> VisibleBlock:
        """Make the change in the held block's open document, which holds `before`, and have `work` store it; return the
        block as it is then.

        Nothing waits in here: the document and the unit of work change together.

        Raises:
            DocumentDamaged: it does not fit, or the library failed. The document is dropped.
        """
        if hot.document is None:
            raise RuntimeError("the block was held but not opened")
        now_ms = self._clock.now_ms()
        hot.is_changed, hot.author = True, by.author  # first, so that a document that fails half way is dropped
        signed = hot.document.sign(before, planned.writes, by.author, by.cause or {}, now_ms=now_ms)
        row = replace(
            visible.block,
            content_preview=planned.plain,
            frontier=signed.frontier,
            last_seq=visible.block.last_seq + 1,
            updated_at=iso(now_ms),
        )
        hot.visible, hot.seq = replace(visible, block=row), row.last_seq
        pending = hot.pending
        pending.count, pending.size = pending.count + 1, pending.size + len(signed.update)
        pending.oldest_ms = now_ms if pending.oldest_ms is None else pending.oldest_ms
        line = HistoryRow(
            block_id=row.id,
            seq=row.last_seq,
            frontiers=signed.frontier.hex(),
            changed_by=by.author,
            timestamp=row.updated_at,
            change_summary=planned.note,
            cause=by.cause,
            kind=planned.kind,
            stack=planned.stack,
            reverts=planned.reverts,
            change=packed(signed.change),
        )
        source = UpdateSource.AGENT if is_agent(by.author) else UpdateSource.MANUAL
        work.store(
            block_versions.store_update,
            row.id,
            signed.update,
            source,
            row.updated_at,
            row.frontier,
            by,
            row.content_preview,
            expected_seq=row.last_seq,  # others wait for the block, so no other writer can have been given that number
        )
        work.store(block_versions.append, line)
        work.event("memory.changed", told(row, by))
        return hot.visible

    def settled_document(self, block_id: str, version: int) -> BlockDocument | None:
        """The block's document if it is open, stored as it stands and at `version`. For reading, without waiting."""
        hot = self._open.get(block_id)
        return hot.document if hot is not None and hot.seq == version and not hot.is_changed else None

    async def to_read(self, block_id: str, label: str, version: int) -> State:
        """What the document of a block holds that was just seen at `version`, as it is stored.

        Raises:
            NotFound: (of storage) the block is gone for good.
            DocumentDamaged: what is stored cannot be opened; other blocks can.
        """
        document = self.settled_document(block_id, version)
        try:
            if document is None:
                stored = await self._database.read(block_checkpoints.get_checkpoint_and_updates, block_id)
                document = open_document(*stored, peer=READER_PEER)
            state = state_of(document)  # a part may be found damaged only when it is read
        except DocumentDamaged as error:
            raise _damaged(label, error) from error
        self._sound[block_id] = version
        if len(self._sound) > SOUND_MAX:
            del self._sound[next(iter(self._sound))]
        return state

    async def check(self, block_id: str, label: str, version: int) -> None:
        """Pass if the block that was just seen at `version` can be opened. Each version is looked at once.

        Raises:
            NotFound: (of storage) the block is gone for good.
            DocumentDamaged: what is stored cannot be opened; other blocks can.
        """
        if self._sound.get(block_id) != version:
            await self.to_read(block_id, label, version)

    def forget(self, owner: str) -> None:
        """Close what is open of an owner's blocks, and read again who it is: it was renamed or deleted."""
        for hot in [one for one in self._open.values() if one.owner == owner and one.users == 0]:
            del self._open[hot.block_id]
        self.generation += 1

    def stored(self, _committed: bool) -> None:
        """Have what agents see read again: something was stored, or may have been. For `UnitOfWork.when_settled`."""
        self.generation += 1

    def _on_merged(self, block_id: str, count: int, size: int) -> None:
        hot = self._open.get(block_id)
        if hot is not None:
            hot.pending.merged(count, size, self._clock.now_ms())


def told(row: BlockRow, by: Attribution) -> dict[str, object]:
    """What the event `memory.changed` says: which block, its owner, its version, and who changed it."""
    return {
        "block_id": row.id,
        "label": row.label,
        "agent_id": row.agent_id,
        "version": row.last_seq,
        "by": by.author,
    }


def _damaged(label: str, error: DocumentDamaged) -> DocumentDamaged:
    return DocumentDamaged(
        f"what is stored of the block {label} is damaged ({error.message}); a person can bring it back with "
        f"`pattern memory repair {label}`"
    )


# What is asked of storage: functions of a connection that each are one read or part of one write.


def distinct(visible: Sequence[VisibleBlock]) -> Sequence[VisibleBlock]:
    """Of each label the first, which is the one that the label means."""
    first: dict[str, VisibleBlock] = {}
    for one in visible:
        first.setdefault(one.block.label, one)
    return list(first.values())


def resolve(connection: Connection, agent_id: str, label: str) -> VisibleBlock:
    """The block that the agent means by the label: its own, else one lent to it, else the constellation's.

    Raises:
        NotFound: it sees none; the message lists what it sees.
    """
    if found := memory_blocks.list_visible(connection, agent_id, label=label):
        return found[0]
    there = distinct(memory_blocks.list_visible(connection, agent_id))
    labels = ", ".join([one.block.label for one in there[:LABELS_SHOWN_MAX]]) or "none"
    raise NotFound(f"there is no memory block {label!r}; there are: {labels}")
