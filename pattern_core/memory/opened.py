"""The blocks that are worked on: found by their labels, held by one unit of work each, opened, changed, and stored.

A unit of work that edits a block keeps it to itself until its transaction is settled, because what it did to the open
document is not on disk before. If the transaction fails the open document is dropped, so that memory never runs ahead
of the disk. A bounded number of documents stays open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import trio

from pattern_core.errors import NotFound
from pattern_core.ids import Randomness
from pattern_core.limits import Limits
from pattern_core.memory.block import Attribution, BlockRow, Edited, Operation, agent_author, is_agent, require
from pattern_core.memory.checkpoint import Consolidator, Pending, open_document
from pattern_core.memory.document import READER_PEER, BlockDocument, Change, DocumentDamaged, State, new_peer, packed
from pattern_core.memory.plan import Planned
from pattern_core.unit_of_work import Storage, UnitOfWork
from pattern_db.columns import iso
from pattern_db.connection import Connection
from pattern_db.enums import UpdateSource
from pattern_db.tables import block_checkpoints, block_versions, memory_blocks
from pattern_db.tables.block_versions import HistoryRow

LABELS_SHOWN_MAX = 50  # of an agent's blocks, in the answer to a wrong label
SEEN_MAX = 1_024  # agents whose visible blocks are kept in memory
SOUND_MAX = 10_000  # blocks that were found sound, remembered


@dataclass(slots=True, kw_only=True, eq=False)
class OpenBlock:
    """One block that is open or waited for.

    While `holder` has it, `row` is the block as the holder will see it once its work is committed, and `author` is who
    changed it; empty before a change. `document` is None until it is loaded, `seq` the newest update in it, and
    `pending` what its updates come to.
    """

    row: BlockRow
    gate: trio.Semaphore = field(default_factory=lambda: trio.Semaphore(1, max_value=1))
    users: int = 0
    holder: UnitOfWork | None = None
    author: str = ""
    document: BlockDocument | None = None
    seq: int = 0
    pending: Pending = field(default_factory=Pending)


class OpenBlocks:
    """The open documents of a constellation, least recently used first, and what its agents see of the stored blocks.

    `peer` is the number under which new edits are made; `consolidator` merges what they leave behind. `generation`
    rises with every change of what is stored, so that a reader knows whether there is something new to read.
    `commit` stores a unit of work that belongs to no call.
    """

    def __init__(self, storage: Storage, *, randomness: Randomness, limits: Limits) -> None:
        self.database = storage.database
        self.clock = storage.clock
        self.commit = storage.commit
        self.randomness = randomness
        self.limits = limits
        self.generation = 0
        self.peer = new_peer(randomness)
        self.consolidator = Consolidator(self.database, self.clock, self._on_merged, limits.memory)
        self._open: dict[str, OpenBlock] = {}
        self._seen: dict[str, tuple[int, Sequence[BlockRow]]] = {}
        self._sound: dict[str, int] = {}  # the version at which a block could be opened, by id

    async def run(self) -> None:
        """Merge updates into checkpoints whenever it is time, until cancelled; first what grew old before the start.

        Raises:
            StorageFailed: the disk failed; the file must be opened again.
        """
        for block_id, stats in await self.database.read(block_versions.list_pending):
            if Pending.of(stats).is_due(self.clock.now_ms(), self.limits.memory):
                self.consolidator.ask(block_id)
        await self.consolidator.run()

    def changed_outside(self) -> None:
        """Read again what agents see: it may have changed without a change of a block."""
        self.generation += 1

    async def seen_by(self, agent_id: str) -> Sequence[BlockRow]:
        """Return the active blocks that the agent sees, of each label the one that it means.

        What the agent's own call under way has changed is as changed, though that is not stored yet. What is stored is
        read again only after a change: every prompt asks for it.
        """
        known = self._seen.get(agent_id)
        if known is None or known[0] != self.generation:
            known = self.generation, await self.database.read(memory_blocks.list_visible, agent_id)
            if len(self._seen) >= SEEN_MAX:
                self._seen.clear()  # rare, and filled again by those who are at work
            self._seen[agent_id] = known
        author = agent_author(agent_id)
        changed = {one.row.id: one.row for one in self._open.values() if one.author == author}
        rows = [changed.get(row.id, row) for row in known[1]]
        return distinct([row for row in rows if row.is_active])

    async def hold(
        self, agent_id: str, label: str, by: Attribution, operation: Operation, work: UnitOfWork
    ) -> OpenBlock:
        """Return the block that `agent_id` means by `label`, kept for `work` until it is settled.

        Waits until no other unit of work has the block; one that has it already gets it again at once.

        Raises:
            NotFound: there is no such block; the message lists those that there are.
            PermissionDenied: `by` may not do this with it, or a person would have to consent.
        """
        opened = None
        while True:
            generation = self.generation
            row = await self.database.read(resolve, agent_id, label)
            if is_agent(by.author):
                require(row.permission, operation, row.label)  # most refusals need not wait
            if opened is not None and opened.row.id == row.id:
                opened.row = row  # read while it was kept, so it is what it will stay
                return opened
            opened = self._open.pop(row.id, None) or OpenBlock(row=row)
            self._open[row.id] = opened  # now the most recently used
            if opened.holder is not work:
                opened.users += 1
                try:
                    await opened.gate.acquire()
                    opened.holder = work
                finally:
                    if opened.holder is not work:
                        opened.users -= 1
                work.when_settled(partial(self._settled, opened))
            if opened.author:  # this unit of work changed it already, and no other did
                return opened
            if generation == self.generation:
                opened.row = row
                return opened
            # Something was stored while this one read and waited: read again, now that the block cannot change.

    def _settled(self, opened: OpenBlock, committed: bool) -> None:
        """Let go of a block, before the next one gets it."""
        if opened.author:
            self.generation += 1
            if not committed:
                # The document has seen what the disk has not. The numbers that its edits were given must not be given
                # to others, so the next ones come from another peer.
                opened.document, opened.pending = None, Pending()
                self.peer = new_peer(self.randomness)
            elif opened.pending.is_due(self.clock.now_ms(), self.limits.memory):
                self.consolidator.ask(opened.row.id)
        opened.holder, opened.author = None, ""
        opened.users -= 1
        opened.gate.release()
        if (surplus := len(self._open) - self.limits.open_documents_max) > 0:
            for block_id in [one.row.id for one in self._open.values() if one.users == 0][:surplus]:
                del self._open[block_id]

    async def load(self, opened: OpenBlock) -> State:
        """Open the document of a block that is held, as of its row, unless it is open; return what it holds.

        Raises:
            DocumentDamaged: what is stored cannot be opened; other blocks can.
        """
        row = opened.row
        if opened.document is None or opened.seq != row.last_seq:
            stored = await self.database.read(block_checkpoints.get_checkpoint_and_updates, row.id)
            with _named(row.label):
                opened.document = open_document(*stored, peer=self.peer)
            opened.seq, opened.pending = row.last_seq, Pending.stored(*stored)
        return opened.document.state()

    def change(self, opened: OpenBlock, before: State, planned: Planned, by: Attribution, work: UnitOfWork) -> Edited:
        """Make the change in the held block's open document, which holds `before`, and have `work` store it.

        Nothing waits in here: the document and the unit of work change together.

        Raises:
            DocumentDamaged: it does not fit, or the library failed. The document is dropped.
        """
        if opened.document is None:
            raise RuntimeError("the block was held but not opened")
        now_ms = self.clock.now_ms()
        opened.author = by.author  # first, so that a document that fails half way is dropped
        signed = opened.document.sign(before, planned.writes, by, now_ms=now_ms)
        row = opened.row = replace(
            opened.row,
            content_preview=planned.plain,
            frontier=signed.frontier,
            last_seq=opened.row.last_seq + 1,
            updated_at=iso(now_ms),
        )
        opened.seq = row.last_seq
        opened.pending.add(len(signed.update), now_ms)
        work.store(
            block_versions.store_update,
            row.id,
            signed.update,
            UpdateSource.AGENT if is_agent(by.author) else UpdateSource.MANUAL,
            row.updated_at,
            row.frontier,
            by,
            row.content_preview,
            expected_seq=row.last_seq,  # others wait for the block, so no other writer can have been given that number
        )
        work.store(block_versions.append, line_of(row, by, planned, signed.change))
        work.event("memory.changed", changed_event(row, by))
        return Edited(
            block=row,
            note=planned.note,
            undo_remaining=planned.undo_remaining,
            redo_remaining=planned.redo_remaining,
        )

    async def read(self, row: BlockRow) -> State:
        """Return what the document of a block holds that was just seen as `row`, as it is stored.

        Raises:
            NotFound: (of storage) the block is gone for good.
            DocumentDamaged: what is stored cannot be opened; other blocks can.
        """
        opened = self._open.get(row.id)
        with _named(row.label):
            if opened is not None and opened.document is not None and opened.seq == row.version and not opened.author:
                state = opened.document.state()  # stored as it is; a part may be found damaged only now
            else:
                stored = await self.database.read(block_checkpoints.get_checkpoint_and_updates, row.id)
                state = open_document(*stored, peer=READER_PEER).state()
        self._sound[row.id] = row.version
        if len(self._sound) > SOUND_MAX:
            del self._sound[next(iter(self._sound))]
        return state

    async def check(self, row: BlockRow) -> None:
        """Pass if the block that was just seen as `row` can be opened. Each version is looked at once.

        Raises:
            NotFound: (of storage) the block is gone for good.
            DocumentDamaged: what is stored cannot be opened; other blocks can.
        """
        if self._sound.get(row.id) != row.version:
            await self.read(row)

    def forget(self, owner: str) -> None:
        """Close what is open of an owner's blocks, and read again who it is: it was renamed or deleted."""
        for opened in [one for one in self._open.values() if one.row.agent_id == owner and one.users == 0]:
            del self._open[opened.row.id]
        self.generation += 1

    def stored(self, _committed: bool) -> None:
        """Have what agents see read again: something was stored, or may have been. For `UnitOfWork.when_settled`."""
        self.generation += 1

    def _on_merged(self, block_id: str) -> None:
        opened = self._open.get(block_id)
        if opened is not None:  # updates that were stored during the merge are not counted: the next one takes them
            opened.pending = Pending(base=opened.pending.base)


def line_of(row: BlockRow, by: Attribution, planned: Planned, change: Change | None) -> HistoryRow:
    """Return the line of history of the newest version of a block, which is `row` now."""
    return HistoryRow(
        block_id=row.id,
        seq=row.last_seq,
        frontiers=None if row.frontier is None else row.frontier.hex(),
        changed_by=by.author,
        timestamp=row.updated_at,
        change_summary=planned.note,
        cause=by.cause,
        kind=planned.kind,
        stack=planned.stack,
        reverts=planned.reverts,
        change=packed(change),
    )


def changed_event(row: BlockRow, by: Attribution) -> dict[str, object]:
    """Return the data of the event `memory.changed`: which block, its owner, its version, and who changed it."""
    return {
        "block_id": row.id,
        "label": row.label,
        "agent_id": row.agent_id,
        "version": row.last_seq,
        "by": by.author,
    }


@contextmanager
def _named(label: str) -> Iterator[None]:
    """Say which block is damaged, and what can be done about it."""
    try:
        yield
    except DocumentDamaged as error:
        raise DocumentDamaged(
            f"what is stored of the block {label} is damaged ({error.message}); a person can bring it back with "
            f"`pattern memory repair {label}`"
        ) from error


def distinct(visible: Sequence[BlockRow]) -> Sequence[BlockRow]:
    """Return of each label the first, which is the one that the label means."""
    first: dict[str, BlockRow] = {}
    for one in visible:
        first.setdefault(one.label, one)
    return list(first.values())


def resolve(connection: Connection, agent_id: str, label: str) -> BlockRow:
    """Return the block that the agent means by the label: its own, else one lent to it, else the constellation's.

    Raises:
        NotFound: it sees none; the message lists what it sees.
    """
    if found := memory_blocks.list_visible(connection, agent_id, label=label):
        return found[0]
    there = distinct(memory_blocks.list_visible(connection, agent_id))
    labels = ", ".join([one.label for one in there[:LABELS_SHOWN_MAX]]) or "none"
    raise NotFound(f"there is no memory block {label!r}; there are: {labels}")
