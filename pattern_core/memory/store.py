"""The memory of a constellation. Every edit takes one path: permission, limit and schema, document, one transaction
with the update, the text for search and the history, and an event.

An edit belongs to a unit of work. A tool gives the one of its call, which commits with the call's result; without
one the store makes its own and commits it. Either way the block is held until the transaction is settled.

What is read comes from storage, never from an open document, but for one case: the prompt of an agent also shows what
this agent's own uncommitted call changed, because that prompt is stored in the same transaction.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from pattern_core.clock import Clock, now_text
from pattern_core.errors import Conflict, InvalidInput, NotFound, PermissionDenied
from pattern_core.ids import Ids, Randomness
from pattern_core.limits import Limits
from pattern_core.memory.block import (
    BlockSettings,
    BlockView,
    Edited,
    NewBlock,
    check_description,
    check_label,
    check_limit,
    check_metadata,
    is_in_prompt,
    view_of,
)
from pattern_core.memory.checkpoint import Pending, open_document
from pattern_core.memory.consolidation import Consolidator
from pattern_core.memory.document import Document, new_peer
from pattern_core.memory.edit import BlockEdit, Change, change_of, operation_of
from pattern_core.memory.hot import Hot, HotDocuments
from pattern_core.memory.permission import Operation, require
from pattern_core.memory.render import PromptBlock, prompt
from pattern_core.memory.schema import check_size, check_text, kind_of
from pattern_core.memory.seen import SeenBlocks
from pattern_core.memory.stored import (
    AGENT,
    StoredEdit,
    distinct,
    load,
    resolve,
    store_block,
    store_edit,
    store_settings,
)
from pattern_core.unit_of_work import UnitOfWork
from pattern_db import errors as storage
from pattern_db.database import Database
from pattern_db.enums import BlockType
from pattern_db.tables import block_sharing, memory_blocks
from pattern_db.tables.block_sharing import Via, VisibleBlock
from pattern_db.tables.memory_blocks import Attribution, BlockRow

HOT_MAX = 256  # documents kept open: some 25 KiB each
Commit = Callable[[UnitOfWork], Awaitable[None]]
Cause = Mapping[str, str]  # the "message", "turn" and "call" that led to a change, as far as there were any


class MemoryStore:
    """The blocks of one constellation. Run `run` beside it, so that updates are merged into checkpoints.

    `commit` stores a unit of work in one transaction, tells its events and settles it.
    """

    def __init__(
        self,
        *,
        database: Database,
        clock: Clock,
        ids: Ids,
        randomness: Randomness,
        limits: Limits,
        commit: Commit,
        hot_max: int = HOT_MAX,
    ) -> None:
        self._database = database
        self._clock = clock
        self._ids = ids
        self._randomness = randomness
        self._limits = limits
        self._commit = commit
        self._hot = HotDocuments(hot_max, self._on_settled)
        self._peer = new_peer(randomness)
        self._seen = SeenBlocks(database)
        self._consolidator = Consolidator(database, clock, self._on_merged)

    async def create(
        self, owner: str, new: NewBlock, *, author: str, cause: Cause | None = None, work: UnitOfWork | None = None
    ) -> BlockView:
        """Make a block that `owner` (an agent, a group, `_constellation_`) owns.

        Raises:
            InvalidInput: the label, content, limit or schema will not do.
            Conflict: the owner has a block of that label. Within a given `work` storage refuses the transaction.
        """
        if work is None:
            async with _alone(self._commit) as unit:
                return await self.create(owner, new, author=author, cause=cause, work=unit)
        by = Attribution(author=author, cause=cause)
        label, limit = check_label(new.label), check_limit(new.char_limit, self._limits)
        check_metadata(new.metadata)
        check_size(label, size=len(check_text(new.content)), before=0, limit=limit)
        document = Document(self._peer)
        document.append(new.content)
        document.commit(by.author, by.cause or {}, now_ms=self._clock.now_ms())
        now = now_text(self._clock)
        row = BlockRow(
            id=self._ids.new("mem"),
            agent_id=owner,
            label=label,
            description=check_description(new.description),
            block_type=new.block_type,
            created_at=now,
            updated_at=now,
            char_limit=limit,
            permission=new.permission,
            pinned=new.pinned,
            content_preview=new.content,
            metadata=None if new.metadata is None else dict(new.metadata),
            frontier=document.frontier(),
        )
        work.store(store_block, row, document.snapshot() if new.content else b"")
        work.event("memory.changed", _changed(row, by))
        work.when_settled(self._seen.changed)
        return view_of(VisibleBlock(block=row, via=Via.OWN, permission=row.permission))

    async def view(self, agent_id: str, label: str) -> BlockView:
        """The block that `agent_id` means by `label`: its own, else one lent to it, else the constellation's.

        Raises:
            NotFound: there is none; the message lists those that there are.
        """
        return view_of(await self._database.read(resolve, agent_id, label))

    async def list(self, agent_id: str) -> Sequence[BlockView]:
        """All blocks that `agent_id` sees, by label within its own, those lent to it, the constellation's.

        Of several with one label only the one that the label means.
        """
        visible = await self._database.read(block_sharing.list_visible, agent_id)
        return [view_of(one) for one in distinct(visible)]

    async def prompt_blocks(self, agent_id: str) -> Sequence[str]:
        """The blocks that the agent's prompt shows, rendered, core ones before working ones.

        Shows what the agent's own call under way has changed, though it is not stored yet.
        """
        visible, names = await self._seen.by(agent_id)
        changed = [self._as_changed(one, agent_id) for one in visible]
        shown = [one for one in distinct([one for one in changed if one.block.is_active]) if is_in_prompt(one)]
        shown.sort(key=lambda one: one.block.block_type is not BlockType.CORE)
        return [_rendered(one, names) for one in shown]

    def _as_changed(self, visible: VisibleBlock, agent_id: str) -> VisibleBlock:
        hot = self._hot.find(visible.block.id)
        if hot is None or hot.row is None or not hot.is_changed or hot.author != agent_author(agent_id):
            return visible
        return _as_is(visible, hot.row)

    async def edit(
        self,
        agent_id: str,
        label: str,
        edit: BlockEdit,
        *,
        author: str,
        cause: Cause | None = None,
        expected_version: int | None = None,
        work: UnitOfWork | None = None,
    ) -> Edited:
        """Change the text of the block that `agent_id` means by `label`; an edit that changes nothing stores nothing.

        The block's permission binds agents; its owner's people and the system may edit any block.

        Raises:
            NotFound: there is no such block.
            PermissionDenied: the permission forbids it, or a person would have to consent.
            Conflict: the block is not at `expected_version` any more.
            InvalidInput: the edit does not fit the text, or the result not the limit.
            DocumentDamaged: the stored document cannot be opened.
        """
        by = Attribution(author=author, cause=cause)
        if work is not None:
            return await self._edit(agent_id, label, edit, by, expected_version, work)
        async with _alone(self._commit) as unit:
            return await self._edit(agent_id, label, edit, by, expected_version, unit)

    async def _edit(
        self, agent_id: str, label: str, edit: BlockEdit, by: Attribution, expected: int | None, work: UnitOfWork
    ) -> Edited:
        visible, hot = await self._held(agent_id, label, by, operation_of(edit), work)
        row = visible.block
        if expected is not None and expected != row.last_seq:
            raise Conflict(
                f"the block {row.label} is at version {row.last_seq}, not {expected}; read it again",
                version=row.last_seq,
            )
        kind_of(row.metadata)
        document = await self._opened(hot, row)
        before = document.text
        change = await change_of(before, edit)
        if change.after == before:
            return Edited(block=view_of(visible), note="Nothing changed", is_changed=False)
        check_size(row.label, size=len(change.after), before=len(before), limit=row.char_limit)
        return self._applied(visible, hot, document, change, by, work)

    def _applied(
        self,
        visible: VisibleBlock,
        hot: Hot,
        document: Document,
        change: Change,
        by: Attribution,
        work: UnitOfWork,
    ) -> Edited:
        """From here to the end nothing waits: the document and the unit of work change together."""
        now_ms = self._clock.now_ms()
        hot.is_changed, hot.author = True, by.author  # first, so that a document that fails half way is dropped
        update = _apply(document, change, by, now_ms)
        row = replace(
            visible.block,
            content_preview=change.after,
            frontier=document.frontier(),
            last_seq=visible.block.last_seq + 1,
            updated_at=now_text(self._clock),
        )
        hot.row, hot.seq = row, row.last_seq
        if hot.pending is not None:
            hot.pending.add(len(update), now_ms)
        work.store(store_edit, StoredEdit(row=row, seq=row.last_seq, update=update, by=by, note=change.note))
        work.event("memory.changed", _changed(row, by))
        return Edited(block=view_of(replace(visible, block=row)), note=change.note, is_changed=True)

    async def set_metadata(
        self,
        agent_id: str,
        label: str,
        settings: BlockSettings,
        *,
        author: str,
        cause: Cause | None = None,
        work: UnitOfWork | None = None,
    ) -> BlockView:
        """Change a block's settings; what `settings` leaves out (None) stays. Agents may do so with their own blocks.

        Raises:
            NotFound: there is no such block.
            PermissionDenied: an agent does not own it.
            InvalidInput: a setting will not do, or a core block would be archived.
            Conflict: the owner has another block of the new label.
        """
        by = Attribution(author=author, cause=cause)
        if work is not None:
            return await self._set_metadata(agent_id, label, settings, by, work)
        async with _alone(self._commit) as unit:
            return await self._set_metadata(agent_id, label, settings, by, unit)

    async def _set_metadata(
        self, agent_id: str, label: str, settings: BlockSettings, by: Attribution, work: UnitOfWork
    ) -> BlockView:
        visible, hot = await self._held(agent_id, label, by, Operation.READ, work)
        row = visible.block
        if is_agent(by) and visible.via is not Via.OWN:
            raise PermissionDenied(
                f"the block {label} belongs to somebody else; only its owner can change its settings"
            )
        _check_settings(row, settings, self._limits)
        now = now_text(self._clock)
        known = {name: value for name in _SETTINGS if (value := getattr(settings, name)) is not None}
        hot.row, hot.author, hot.is_changed = replace(row, **known, updated_at=now), by.author, True
        work.store(store_settings, row.id, settings, now)
        work.event("memory.changed", _changed(hot.row, by))
        return view_of(_as_is(visible, hot.row))

    async def delete(
        self, agent_id: str, label: str, *, author: str, cause: Cause | None = None, work: UnitOfWork | None = None
    ) -> None:
        """Delete a block softly: it is no longer found and its label is free; its bytes stay in the file.

        Raises:
            NotFound: there is no such block.
            PermissionDenied: an agent's permission for it is not `admin`.
        """
        by = Attribution(author=author, cause=cause)
        if work is not None:
            await self._delete(agent_id, label, by, work)
            return
        async with _alone(self._commit) as unit:
            await self._delete(agent_id, label, by, unit)

    async def _delete(self, agent_id: str, label: str, by: Attribution, work: UnitOfWork) -> None:
        visible, hot = await self._held(agent_id, label, by, Operation.DELETE, work)
        now = now_text(self._clock)
        hot.row, hot.author, hot.is_changed = replace(visible.block, is_active=False), by.author, True
        work.store(memory_blocks.deactivate, visible.block.id, now)
        work.event("memory.changed", {**_changed(hot.row, by), "deleted": True})

    async def _held(
        self, agent_id: str, label: str, by: Attribution, operation: Operation, work: UnitOfWork
    ) -> tuple[VisibleBlock, Hot]:
        """The block as it stands, kept for `work`; refused if `by` may not do this with it."""
        while True:
            generation = self._seen.generation
            visible = await self._database.read(resolve, agent_id, label)
            _require(visible, by, operation)  # before waiting: most refusals need no gate
            hot = await self._hot.hold(visible.block.id, work)
            hot.owner = visible.block.agent_id
            if hot.row is not None:  # this unit of work changed it already, and nobody else did
                return _as_is(visible, hot.row), hot
            if generation == self._seen.generation:
                return visible, hot
            # Something was stored while we read and waited: look again, now that this block cannot change.
            again = await self._database.read(resolve, agent_id, label)
            if again.block.id == visible.block.id:
                _require(again, by, operation)
                return again, hot

    async def _opened(self, hot: Hot, row: BlockRow) -> Document:
        if hot.document is None or hot.seq != row.last_seq:
            checkpoint, updates, stats = await self._database.read(load, row.id)
            hot.document = open_document(checkpoint, updates, peer=self._peer)
            hot.seq, hot.pending = row.last_seq, Pending.of(stats)
        return hot.document

    def forget(self, owner: str) -> None:
        """Close what is open of an owner's blocks, and read again who it is: it was renamed or deleted."""
        self._hot.forget(owner)
        self._seen.changed()

    def _on_settled(self, hot: Hot, committed: bool) -> None:
        if not hot.is_changed:
            return
        self._seen.changed()
        if not committed:
            # The document has seen what the disk has not. The numbers that its edits were given must not be given
            # to others, so the next ones come from another peer.
            hot.document, hot.pending = None, None
            self._peer = new_peer(self._randomness)
        elif hot.pending is not None and hot.pending.is_due(self._clock.now_ms()):
            self._consolidator.ask(hot.block_id)

    def _on_merged(self, block_id: str, count: int, size: int) -> None:
        hot = self._hot.find(block_id)
        if hot is not None and hot.pending is not None:
            hot.pending.merged(count, size, self._clock.now_ms())

    async def run(self) -> None:
        """Merge updates into checkpoints whenever it is time, until cancelled.

        Raises:
            StorageFailed: the disk failed; the file must be opened anew.
        """
        await self._consolidator.run()

    async def consolidate(self, block_id: str) -> bool:
        """Merge a block's stored updates into a checkpoint, now; return whether there were any.

        Raises:
            NotFound: (of storage) there is no such block.
            DocumentDamaged: the stored document cannot be opened; nothing is changed.
        """
        return await self._consolidator.consolidate(block_id)


_SETTINGS = ("label", "description", "block_type", "char_limit", "permission", "pinned", "metadata", "embedding_model")


def agent_author(agent_id: str) -> str:
    """The author of what an agent does."""
    return AGENT + agent_id


def is_agent(by: Attribution) -> bool:
    """Whether an agent acts, whom the blocks' permissions bind; people and the system own the constellation."""
    return by.author.startswith(AGENT)


@asynccontextmanager
async def _alone(commit: Commit) -> AsyncIterator[UnitOfWork]:
    """A unit of work of its own, committed at the end of the block, or given up if the block raises.

    Raises:
        Conflict: storage refused it: a name is taken, or another writer was first.
        NotFound: the block was deleted meanwhile.
    """
    unit = UnitOfWork()
    finished = False
    try:
        yield unit
        finished = True
    finally:
        if not finished:
            unit.settle(committed=False)
    if not unit.drafts:  # nothing was changed: no transaction for nothing
        unit.settle(committed=True)
        return
    try:
        await commit(unit)
    except storage.Conflict as error:
        raise Conflict(error.message) from error
    except storage.NotFound as error:
        raise NotFound(error.message) from error


def _apply(document: Document, change: Change, by: Attribution, now_ms: int) -> bytes:
    """Make the change in the open document and return it as an update."""
    version = document.version()
    if change.splices is None:
        document.set_text(change.after)
    else:
        for splice in change.splices:
            document.splice(splice.at, splice.delete, splice.insert)
    document.commit(by.author, by.cause or {}, now_ms=now_ms)
    return document.export_since(version)


def _as_is(visible: VisibleBlock, row: BlockRow) -> VisibleBlock:
    """The block as its holder left it, with the permission that follows."""
    return replace(visible, block=row, permission=visible.permission if visible.via is Via.ATTACHED else row.permission)


def _require(visible: VisibleBlock, by: Attribution, operation: Operation) -> None:
    if is_agent(by):
        require(visible.permission, operation, visible.block.label)


def _check_settings(row: BlockRow, settings: BlockSettings, limits: Limits) -> None:
    if settings.label is not None:
        check_label(settings.label)
    if settings.description is not None:
        check_description(settings.description)
    if settings.char_limit is not None and check_limit(settings.char_limit, limits) != settings.char_limit:
        raise InvalidInput("a block's limit is at least 1 character")
    if settings.metadata is not None and check_metadata(settings.metadata) is not kind_of(row.metadata):
        raise InvalidInput("a block keeps its schema; make another block")
    if settings.block_type is BlockType.ARCHIVAL and row.block_type is BlockType.CORE:
        raise InvalidInput(f"{row.label} is a core block, which is always in the prompt; it cannot be archived")


def _changed(row: BlockRow, by: Attribution) -> dict[str, object]:
    return {
        "block_id": row.id,
        "label": row.label,
        "agent_id": row.agent_id,
        "version": row.last_seq,
        "by": by.author,
    }


def _rendered(visible: VisibleBlock, owners: Mapping[str, str]) -> str:
    view = view_of(visible)
    return prompt(
        PromptBlock(
            label=view.label,
            permission=view.permission.value,
            content=view.content,
            char_limit=view.char_limit,
            description=view.description,
            owner=owners.get(view.agent_id),
        )
    )
