"""The memory of a constellation. Every edit has one path: permission, limit and schema, document, one transaction
with the update, the text for search and the history, and an event.

An edit belongs to a unit of work. A tool passes the one of its call, which commits with the call's result; without one
the store creates and commits its own. In both cases the block is held until the transaction is settled.

Reads use storage, never an open document, with one exception: the prompt of an agent also shows changes of this agent's
own uncommitted call, because that prompt is stored in the same transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace

from pattern_core.approvals import Approval, ApprovalAnswer, Approvals
from pattern_core.errors import Conflict, InvalidInput, NotFound, PermissionDenied
from pattern_core.ids import Ids, Randomness, now_text
from pattern_core.limits import Limits
from pattern_core.memory.block import (
    Attribution,
    BlockRow,
    BlockSettings,
    Edited,
    NewBlock,
    Operation,
    check_description,
    check_label,
    check_limit,
    check_metadata,
    is_agent,
    schema_of,
    shaped,
    shown_schema,
    with_schema,
)
from pattern_core.memory.checkpoint import pack
from pattern_core.memory.content import entry_text, raw, value_of
from pattern_core.memory.document import BlockDocument
from pattern_core.memory.edits import BlockEdit, Proposal, proposal_of, question
from pattern_core.memory.opened import OpenBlock, OpenBlocks, changed_event, distinct, line_of, resolve
from pattern_core.memory.plan import plan, plan_schema, plan_start
from pattern_core.memory.schema import TIMESTAMP, LogSchema, Schema, TextSchema
from pattern_core.unit_of_work import Storage, UnitOfWork, given_or_alone
from pattern_db import errors as storage
from pattern_db.columns import Json, canonical, unix_ms
from pattern_db.connection import Connection
from pattern_db.enums import CONSTELLATION_OWNER, BlockType
from pattern_db.tables import archival, block_versions, memory_blocks
from pattern_db.tables.archival import ArchivalRow
from pattern_db.tables.memory_blocks import Via


class MemoryStore:
    """The blocks of one constellation. Run `blocks.run` in another task, so that updates are merged into checkpoints.

    `blocks` are the open ones, for the other parts of memory. With `consent`, edits that need approval become questions
    instead of errors, and `grant` makes them.
    """

    def __init__(
        self, storage: Storage, *, randomness: Randomness, limits: Limits, consent: Approvals | None = None
    ) -> None:
        self._ids = storage.ids
        self._consent = consent
        self.blocks = OpenBlocks(storage, randomness=randomness, limits=limits)

    async def create(self, owner: str, new: NewBlock, *, by: Attribution, work: UnitOfWork | None = None) -> BlockRow:
        """Create a block of `owner` (an agent, a group, `_constellation_`).

        Raises:
            InvalidInput: the label, content, limit or schema is invalid.
            Conflict: the owner has a block of that label. Within a given `work` storage refuses the transaction.
        """
        label, limit = check_label(new.label), check_limit(new.char_limit, self.blocks.limits)
        new = shaped(new)
        now = now_text(self.blocks.clock)
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
            metadata=None if new.metadata is None else dict(new.metadata),
        )
        planned = plan_start(row, new, by)
        document = BlockDocument(self.blocks.peer)
        signed = document.sign({}, planned.writes, by, now_ms=unix_ms(now))
        snapshot = document.snapshot() if planned.writes else b""
        row = replace(row, content_preview=planned.plain, frontier=signed.frontier)
        async with given_or_alone(work, self.blocks.commit) as unit:
            data, encoding = pack(snapshot, self.blocks.limits.memory)
            unit.store(_store_labelled, label, lambda c: memory_blocks.create(c, row, data, encoding=encoding))
            unit.store(block_versions.append, line_of(row, by, planned, signed.change))
            archive(row, planned.moved, self._ids, unit)
            unit.event("memory.changed", changed_event(row, by))
            unit.when_settled(self.blocks.stored)
        return row

    async def view(self, agent_id: str, label: str) -> BlockRow:
        """Return the block that `label` names for `agent_id`: its own, else one shared with it, else the
        constellation's.

        Raises:
            NotFound: there is none; the message lists the existing ones.
        """
        return await self.blocks.database.read(resolve, agent_id, label)

    async def list(self, agent_id: str) -> Sequence[BlockRow]:
        """Return all blocks that `agent_id` sees, by label: first its own, then shared ones, then the constellation's.

        Of several with one label only the first.
        """
        return distinct(await self.blocks.database.read(memory_blocks.list_visible, agent_id))

    async def owners(self, agent_id: str) -> Sequence[str]:
        """Return who owns what the agent may look for: itself, its groups, the constellation."""
        rows = await self.blocks.seen_by(agent_id)
        return [agent_id, CONSTELLATION_OWNER, *{row.agent_id for row in rows if row.via is Via.GROUP}]

    async def value_of(self, row: BlockRow) -> Json:
        """Return the content of the block as a JSON value. Text comes from `row`, all else from its document.

        Raises:
            NotFound: (of storage) the block no longer exists.
            DocumentDamaged: the stored document cannot be opened.
        """
        schema = shown_schema(row.metadata)
        if isinstance(schema, TextSchema):
            return row.content
        return raw(value_of(await self.blocks.read(row), schema), schema)

    async def edit(
        self,
        agent_id: str,
        label: str,
        edit: BlockEdit,
        *,
        by: Attribution,
        expected_version: int | None = None,
        work: UnitOfWork | None = None,
    ) -> Edited:
        """Edit the block that `label` names for `agent_id`; an edit that changes nothing stores nothing.

        The block's permission applies to agents; users and the system may edit any block.

        Raises:
            NotFound: there is no such block.
            PermissionDenied: the permission forbids it, or a person must approve it and cannot be asked.
            Conflict: the block is no longer at `expected_version`.
            InvalidInput: the edit does not match the content or its schema, or the result exceeds the limit.
            DocumentDamaged: the stored document cannot be opened.
        """
        async with given_or_alone(work, self.blocks.commit) as unit:
            refusal = None
            try:
                opened = await self.blocks.hold(agent_id, label, by, edit.operation, unit)
            except PermissionDenied as error:
                if self._consent is None or "consent" not in error.details:
                    raise
                refusal = error
                opened = await self.blocks.hold(agent_id, label, by, Operation.READ, unit)
            row = opened.row
            if expected_version is not None and expected_version != row.last_seq:
                raise Conflict(
                    f"the block {row.label} is at version {row.last_seq}, not {expected_version}; read it again",
                    version=row.last_seq,
                )
            proposal = Proposal(agent_id=agent_id, label=label, block_id=row.id, edit=edit, by=by)
            return await self._carry_out(opened, proposal, unit, refusal)

    async def grant(self, approval: Approval, answer: ApprovalAnswer, work: UnitOfWork) -> str:
        """Make the edit that a person approved, within `work`, which also stores the answer.

        Raises:
            InvalidInput: the answer has other arguments; an edit can only be approved unchanged.
            NotFound: the block was deleted, or the agent sees another one under its label.
            PatternError: the edit no longer matches the block.
        """
        if answer.arguments is not None:
            raise InvalidInput("an edit can only be approved unchanged; deny it and edit the block yourself instead")
        proposal = proposal_of(approval.request, approval.id, answer.by)
        person = Attribution(author=answer.by)
        opened = await self.blocks.hold(proposal.agent_id, proposal.label, person, Operation.READ, work)
        if opened.row.id != proposal.block_id:
            raise NotFound(
                f"the block {proposal.label} of this approval no longer exists; deny it, and ask the agent again"
            )
        return (await self._carry_out(opened, proposal, work)).note

    async def _carry_out(
        self, opened: OpenBlock, asked: Proposal, work: UnitOfWork, refusal: PermissionDenied | None = None
    ) -> Edited:
        """Make the edit in the held block; after a `refusal` only if a person approved it, else ask one."""
        row, by, consent = opened.row, asked.by, self._consent
        before = await self.blocks.load(opened)
        planned = await plan(row, before, asked.edit, by, now_text(self.blocks.clock))
        if not planned.writes:
            return Edited(block=row, note=planned.note)
        if refusal is not None and consent is not None:
            asking = question(asked, refusal)
            if not await consent.grants.covers(asking.request):
                approval_id = await consent.ask(asking, work)
                note = (
                    f"Not changed yet: the block {row.label} is changed only with consent, and a person has been asked"
                    f" ({approval_id}). It will be changed when they agree; continue without it"
                )
                return Edited(block=row, note=note)
        edited = self.blocks.change(opened, before, planned, by, work)
        archive(edited.block, planned.moved, self._ids, work)
        return edited

    async def set_metadata(
        self,
        agent_id: str,
        label: str,
        settings: BlockSettings,
        *,
        by: Attribution,
        work: UnitOfWork | None = None,
    ) -> BlockRow:
        """Update a block's settings; those that `settings` leaves out (None) stay. Agents may update their own blocks.

        Raises:
            NotFound: there is no such block.
            PermissionDenied: an agent does not own it.
            InvalidInput: a setting is invalid, or a core block would be archived.
            Conflict: the owner has another block of the new label.
        """
        async with given_or_alone(work, self.blocks.commit) as unit:
            opened = await self.blocks.hold(agent_id, label, by, Operation.READ, unit)
            row = opened.row
            if is_agent(by.author) and row.via is not Via.OWN:
                raise PermissionDenied(f"the block {label} is not yours; only its owner can change its settings")
            settings = _checked(row, settings, self.blocks.limits)
            if settings.metadata is not None:
                await self._reshape(opened, schema_of(settings.metadata), by, unit)
            now = now_text(self.blocks.clock)
            known = {one.name: value for one in fields(settings) if (value := getattr(settings, one.name)) is not None}
            if row.via is Via.ATTACHED:  # a share has its own
                known.pop("permission", None)
            opened.row, opened.author = replace(opened.row, **known, updated_at=now), by.author
            unit.store(_store_labelled, settings.label, lambda c: memory_blocks.update_config(c, row.id, settings, now))
            unit.event("memory.changed", changed_event(opened.row, by))
            return opened.row

    async def _reshape(self, opened: OpenBlock, schema: Schema, by: Attribution, work: UnitOfWork) -> None:
        """Convert the content of a held block to the new `schema` of the same kind."""
        row = opened.row
        if schema == shown_schema(row.metadata):
            return
        state = await self.blocks.load(opened)
        planned = plan_schema(row, state, schema)
        if planned.writes:
            self.blocks.change(opened, state, planned, by, work)
        elif planned.plain != row.content_preview:
            work.store(memory_blocks.update_content, row.id, planned.plain, row.frontier, now_text(self.blocks.clock))
            opened.row = replace(row, content_preview=planned.plain)

    async def delete(self, agent_id: str, label: str, *, by: Attribution, work: UnitOfWork | None = None) -> None:
        """Delete a block softly: it is no longer found and its label is free; its bytes stay in the file.

        Raises:
            NotFound: there is no such block.
            PermissionDenied: an agent's permission for it is not `admin`.
        """
        async with given_or_alone(work, self.blocks.commit) as unit:
            opened = await self.blocks.hold(agent_id, label, by, Operation.DELETE, unit)
            opened.row, opened.author = replace(opened.row, is_active=False), by.author
            unit.store(memory_blocks.deactivate, opened.row.id, now_text(self.blocks.clock))
            unit.event("memory.changed", {**changed_event(opened.row, by), "deleted": True})


def _checked(row: BlockRow, settings: BlockSettings, limits: Limits) -> BlockSettings:
    """Return the settings if they are valid for the block, with its old schema if the new metadata has none."""
    if settings.label is not None:
        check_label(settings.label)
    if settings.description is not None:
        check_description(settings.description)
    if settings.char_limit is not None and check_limit(settings.char_limit, limits) != settings.char_limit:
        raise InvalidInput("a block's limit must be at least 1 character")
    if settings.block_type is BlockType.ARCHIVAL and row.block_type is BlockType.CORE:
        raise InvalidInput(f"{row.label} is a core block, which is always in the prompt; it cannot be archived")
    if settings.metadata is None:
        return settings
    old, schema = shown_schema(row.metadata), check_metadata(settings.metadata)
    if "schema" not in settings.metadata:
        schema = old
    elif schema.kind != old.kind:
        raise InvalidInput(f"{row.label} stays a {old.kind}; for another kind of schema create another block")
    return replace(settings, metadata=with_schema(settings.metadata, schema))


def archive(row: BlockRow, entries: Sequence[Json], ids: Ids, work: UnitOfWork) -> None:
    """Let `work` move entries that no longer fit into a log to its owner's archive, where search finds them."""
    schema = schema_of(row.metadata)
    if not isinstance(schema, LogSchema):
        return
    for entry in entries:
        kept = ArchivalRow(
            id=ids.new("arch"),
            agent_id=row.agent_id,
            content=entry_text(entry, schema),
            created_at=_time_of(entry) or row.updated_at,
            metadata={"from_block": row.label, "block_id": row.id},
        )
        work.store(archival.insert, kept)


def _time_of(entry: Json) -> str | None:
    """Return the stored time of an entry; None if it is missing or invalid."""
    try:
        return canonical(entry[TIMESTAMP])
    except (KeyError, TypeError, ValueError):
        return None


def _store_labelled(connection: Connection, label: str | None, write: Callable[[Connection], None]) -> None:
    """Run `write`, which sets a block's label to this one (None: keeps it).

    Raises:
        Conflict: (of storage) the owner has another active block of that label.
    """
    try:
        with storage.translated():
            write(connection)
    except storage.RowConflict as error:
        raise storage.RowConflict(f"the block {label!r} already exists; edit it or choose another label") from error
