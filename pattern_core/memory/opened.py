"""Open blocks: found by label, held by one unit of work each, opened, changed, and stored.

A unit of work that edits a block holds it until its transaction is settled, because its changes of the open document
are not on disk before. If the transaction fails, the open document is dropped, so that memory is never ahead of the
disk. A bounded number of documents stays open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
from pattern_db.tables.activity import MEDIUM
from pattern_db.tables.block_versions import HistoryRow

LABELS_SHOWN_MAX = 50  # of an agent's blocks, in the error about an unknown label
SEEN_MAX = 1_024  # agents with visible blocks in memory
SOUND_MAX = 10_000  # blocks that are known to open


@dataclass(slots=True, kw_only=True, eq=False)
class OpenBlock:
    """One block that is open or being opened.

    While `holder` has it, `row` is the block after the commit of its work, and `author` is who changed it; empty before
    a change. `document` is None until it is loaded, `seq` the newest update in it, and `pending` the counts of its
    updates.
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
    """The open documents of a constellation, least recently used first, and the stored blocks that its agents see.

    `peer` is the number of new edits; `consolidator` merges their updates. `generation` rises with every stored change,
    so that a reader knows whether it must read again. `commit` stores a unit of work outside of calls.
    """

    def __init__(self, storage: Storage, *, randomness: Randomness, limits: Limits) -> None:
        self.database = storage.database
        self.clock = storage.clock
        self.commit = storage.commit
        self._note = storage.note
        self.randomness = randomness
        self.limits = limits
        self.generation = 0
        self.on_change: Callable[[BlockRow, UnitOfWork], None] = lambda _row, _work: None  # set by the schedules
        self.peer = new_peer(randomness)
        self.consolidator = Consolidator(self.database, self.clock, self._on_merged, limits.memory)
        self._open: dict[str, OpenBlock] = {}
        self._seen: dict[str, tuple[int, Sequence[BlockRow]]] = {}
        self._sound: dict[str, int] = {}  # the version at which a block could be opened, by id

    async def run(self) -> None:
        """Merge updates into checkpoints when they are due, until cancelled; first those that are overdue at the start.

        Raises:
            StorageFailed: the disk failed; the file must be opened again.
        """
        for block_id, stats in await self.database.read(block_versions.list_pending):
            if Pending.of(stats).is_due(self.clock.now_ms(), self.limits.memory):
                self.consolidator.ask(block_id)
        await self.consolidator.run()

    async def seen_by(self, agent_id: str) -> Sequence[BlockRow]:
        """Return the active blocks that the agent sees, one per label.

        Uncommitted changes of the agent's own running call are included. Stored blocks are read again only after a
        change, because every prompt needs them.
        """
        known = self._seen.get(agent_id)
        if known is None or known[0] != self.generation:
            known = self.generation, await self.database.read(memory_blocks.list_visible, agent_id)
            if len(self._seen) >= SEEN_MAX:
                self._seen.clear()  # rare, and filled again by working agents
            self._seen[agent_id] = known
        author = agent_author(agent_id)
        changed = {one.row.id: one.row for one in self._open.values() if one.author == author}
        rows = [changed.get(row.id, row) for row in known[1]]
        return distinct([row for row in rows if row.is_active])

    async def hold(
        self, agent_id: str, label: str, by: Attribution, operation: Operation, work: UnitOfWork
    ) -> OpenBlock:
        """Return the block that `label` names for `agent_id`, held by `work` until it is settled.

        Waits until no other unit of work holds the block; its holder gets it again immediately.

        Raises:
            NotFound: there is no such block; the message lists the existing ones.
            PermissionDenied: `by` may not do this with it, or a person must approve it.
        """
        opened = None
        while True:
            generation = self.generation
            row = await self.database.read(resolve, agent_id, label)
            if is_agent(by.author):
                require(row.permission, operation, row.label)  # most refusals are immediate
            if opened is not None and opened.row.id == row.id:
                opened.row = row  # read while it was held, so it is current
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
            if opened.author:  # this unit of work has already changed it, and no other
                return opened
            if generation == self.generation:
                opened.row = row
                return opened
            # Something was stored during the read or wait: read again, now that the block cannot change.

    def _settled(self, opened: OpenBlock, committed: bool) -> None:
        """Release a block, before the next one gets it."""
        if opened.author:
            self.generation += 1
            if not committed:
                # The document has edits that the disk has not. The numbers of these edits must not be used
                # for others, so the next ones come from another peer.
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
        """Open the document of a held block, as of its row, unless it is open; return its content.

        Raises:
            DocumentDamaged: the stored document cannot be opened; others can.
        """
        row = opened.row
        if opened.document is None or opened.seq != row.last_seq:
            stored = await self.database.read(block_checkpoints.get_checkpoint_and_updates, row.id)
            with _named(row.label):
                opened.document = open_document(*stored, peer=self.peer)
            opened.seq, opened.pending = row.last_seq, Pending.stored(*stored)
        return opened.document.state()

    def change(self, opened: OpenBlock, before: State, planned: Planned, by: Attribution, work: UnitOfWork) -> Edited:
        """Make the change in the held block's open document, which has the content `before`, and add it to `work`.

        There is no checkpoint in here: the document and the unit of work change together.

        Raises:
            DocumentDamaged: the change does not match, or the library failed. The document is dropped.
        """
        if opened.document is None:
            raise RuntimeError("the block was held but not opened")
        now_ms = self.clock.now_ms()
        opened.author = by.author  # first, so that a partly changed document is dropped
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
            expected_seq=row.last_seq,  # others wait for the block, so no other writer can have this number
        )
        work.store(block_versions.append, line_of(row, by, planned, signed.change))
        work.event("memory.changed", changed_event(row, by))
        is_own = row.agent_id in by.author
        if not is_own:  # what one agent owns is not watched
            self.on_change(row, work)
        if (row.lent_to or not is_own) and is_agent(by.author):
            self._note(work, "memory_updated", row.label, author=by.author, importance=MEDIUM)
        return Edited(
            block=row,
            note=planned.note,
            undo_remaining=planned.undo_remaining,
            redo_remaining=planned.redo_remaining,
        )

    async def read(self, row: BlockRow) -> State:
        """Return the stored content of a block that was just read as `row`.

        Raises:
            NotFound: (of storage) the block no longer exists.
            DocumentDamaged: the stored document cannot be opened; others can.
        """
        opened = self._open.get(row.id)
        with _named(row.label):
            if opened is not None and opened.document is not None and opened.seq == row.version and not opened.author:
                state = opened.document.state()  # a damaged part may be found only now
            else:
                stored = await self.database.read(block_checkpoints.get_checkpoint_and_updates, row.id)
                state = open_document(*stored, peer=READER_PEER).state()
        self._sound[row.id] = row.version
        if len(self._sound) > SOUND_MAX:
            del self._sound[next(iter(self._sound))]
        return state

    async def check(self, row: BlockRow) -> None:
        """Check that a block that was just read as `row` can be opened. Each version is checked once.

        Raises:
            NotFound: (of storage) the block no longer exists.
            DocumentDamaged: the stored document cannot be opened; others can.
        """
        if self._sound.get(row.id) != row.version:
            await self.read(row)

    def forget(self, owner: str) -> None:
        """Close an owner's open blocks, and read the owner again: it was renamed or deleted."""
        for opened in [one for one in self._open.values() if one.row.agent_id == owner and one.users == 0]:
            del self._open[opened.row.id]
        self.generation += 1

    def stored(self, _committed: bool = True) -> None:
        """Drop cached views of blocks: something was stored, or may have been, or who sees them has changed. For
        `UnitOfWork.when_settled`.
        """
        self.generation += 1

    def _on_merged(self, block_id: str) -> None:
        opened = self._open.get(block_id)
        if opened is not None:  # updates stored during the merge are left to the next one
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
    """Return an error that names the damaged block and the remedy."""
    try:
        yield
    except DocumentDamaged as error:
        raise DocumentDamaged(
            f"the block {label} is damaged ({error.message}); a person can repair it with `pattern memory repair "
            f"{label}`"
        ) from error


def distinct(visible: Sequence[BlockRow]) -> Sequence[BlockRow]:
    """Return the first block of each label, which is the one that the label means."""
    first: dict[str, BlockRow] = {}
    for one in visible:
        first.setdefault(one.label, one)
    return list(first.values())


def resolve(connection: Connection, agent_id: str, label: str) -> BlockRow:
    """Return the block that the label names for the agent: its own, else one shared with it, else the constellation's.

    Raises:
        NotFound: it sees none; the message lists what it sees.
    """
    if found := memory_blocks.list_visible(connection, agent_id, label=label):
        return found[0]
    there = distinct(memory_blocks.list_visible(connection, agent_id))
    labels = ", ".join([one.label for one in there[:LABELS_SHOWN_MAX]]) or "none"
    raise NotFound(f"there is no memory block {label!r}; there are: {labels}")
