"""Changes that come from a block's own past: undo, redo, rollback, and writing against an older version.

They take the same path as edits: the block is held, permission, schema and limit are looked at, and one transaction
stores the change with its line of history.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pattern_core.errors import Conflict
from pattern_core.ids import Clock, now_text
from pattern_core.memory.block import BlockView, Operation, is_agent, schema_of, view_of
from pattern_core.memory.content import plain, value_of, writes_between
from pattern_core.memory.document import State, state_of
from pattern_core.memory.edits.edit import SetText, SetValue
from pattern_core.memory.edits.plan import Content, check_size, plan
from pattern_core.memory.edits.structured import Writer
from pattern_core.memory.opened import DocumentChange, Hot, OpenBlocks
from pattern_core.memory.past.changes import applied, apply_change
from pattern_core.memory.past.history import BlockHistory, lines_since, newest_lines
from pattern_core.memory.past.undo import Plan, plan_merge, plan_redo, plan_rollback, plan_undo
from pattern_core.memory.shapes.schema import LogSchema, Schema
from pattern_core.unit_of_work import Commit, UnitOfWork, given_or_alone
from pattern_db.database import Database
from pattern_db.tables.block_versions import HistoryRow
from pattern_db.tables.memory_blocks import Attribution, BlockRow, VisibleBlock


@dataclass(frozen=True, slots=True, kw_only=True)
class Revised:
    """The block after a change from its past, words about it, and what its author can still undo and redo."""

    block: BlockView
    note: str
    undo_remaining: int
    redo_remaining: int


class Revisions:
    """Undo, redo, rollback and merging, over the blocks that a `MemoryStore` works on."""

    def __init__(
        self, *, database: Database, clock: Clock, blocks: OpenBlocks, history: BlockHistory, commit: Commit
    ) -> None:
        self._database = database
        self._clock = clock
        self._blocks = blocks
        self._history = history
        self._commit = commit

    async def undo(
        self, agent_id: str, label: str, by: Attribution, *, of: str | None = None, work: UnitOfWork | None = None
    ) -> Revised:
        """Take back the newest edit by `of` (an author; by default whoever asks). What others wrote since stays.

        Raises:
            NotFound: there is no such block.
            PermissionDenied: the permission does not let an agent overwrite.
            InvalidInput: there is nothing to undo, or the block would not fit its limit or schema.
            Conflict: it was changed within the same unit of work.
        """
        return await self._revised(agent_id, label, by, lambda rows: plan_undo(rows, of or by.author), work)

    async def redo(
        self, agent_id: str, label: str, by: Attribution, *, of: str | None = None, work: UnitOfWork | None = None
    ) -> Revised:
        """Bring the edit by `of` again that was taken back last, unless its author has edited since.

        Raises:
            InvalidInput: there is nothing to redo; else as `undo`.
        """
        return await self._revised(agent_id, label, by, lambda rows: plan_redo(rows, of or by.author), work)

    async def rollback(
        self, agent_id: str, label: str, by: Attribution, *, version: int, work: UnitOfWork | None = None
    ) -> Revised:
        """Make the block what it was at `version`, by a new change; its whole history stays.

        Raises:
            NotFound: there is no such block or version.
            InvalidInput: it is so already; else as `undo`.
        """
        async with given_or_alone(work, self._commit) as unit:
            visible, hot, now = await self._opened(agent_id, label, by, unit)
            then = await self._history.state_at(visible.block.id, version)
            return await self._carried_out(visible, hot, now, plan_rollback(now, then, version), by, unit)

    async def merge(
        self,
        agent_id: str,
        label: str,
        by: Attribution,
        edit: SetText | SetValue,
        *,
        base: int,
        work: UnitOfWork | None = None,
    ) -> Revised:
        """Write content that was made from version `base`: what others did since stays, where both did not.

        Raises:
            NotFound: there is no such block or version.
            Conflict: `base` is too old, or greater than the block's version.
            InvalidInput: the content does not fit; else as `undo`.
        """
        async with given_or_alone(work, self._commit) as unit:
            visible, hot, now = await self._opened(agent_id, label, by, unit)
            row = visible.block
            if not 0 <= base <= row.last_seq:
                raise Conflict(f"the block {label} has the versions 0 to {row.last_seq}, and no {base}; read it again")
            then = await self._history.state_at(row.id, base)
            written = await plan(_content(row, schema_of(row.metadata), then), edit, self._writer(by))
            rows = await self._database.read(lines_since, row.id, base, row.last_seq)
            planned = plan_merge(rows, now, lambda then: then.apply(written.writes), base=base, note=written.note)
            if not planned.change:
                return Revised(block=view_of(visible), note="Nothing changed", undo_remaining=0, redo_remaining=0)
            return await self._carried_out(visible, hot, now, planned, by, unit)

    async def _revised(
        self,
        agent_id: str,
        label: str,
        by: Attribution,
        make_plan: Callable[[Sequence[HistoryRow]], Plan],
        work: UnitOfWork | None,
    ) -> Revised:
        async with given_or_alone(work, self._commit) as unit:
            visible, hot, now = await self._opened(agent_id, label, by, unit)
            rows = await self._database.read(newest_lines, visible.block.id, visible.block.last_seq)
            return await self._carried_out(visible, hot, now, make_plan(rows), by, unit)

    async def _opened(
        self, agent_id: str, label: str, by: Attribution, work: UnitOfWork
    ) -> tuple[VisibleBlock, Hot, State]:
        """The block, held and opened, and what its document holds."""
        visible, hot = await self._blocks.hold(agent_id, label, by, Operation.OVERWRITE, work)
        return visible, hot, state_of(await self._blocks.document(hot, visible.block))

    async def _carried_out(
        self, visible: VisibleBlock, hot: Hot, now: State, planned: Plan, by: Attribution, work: UnitOfWork
    ) -> Revised:
        """Check what would come of the plan, then make it."""
        change = DocumentChange(
            before=now,
            edit=lambda document: apply_change(document, planned.change),
            plain=await self._fitting(visible.block, now, applied(now, planned.change), by),
            note=planned.note,
            kind=planned.kind,
            stack=planned.stack,
            reverts=planned.reverts,
        )
        changed = self._blocks.change(visible, hot, change, by, work)
        return Revised(
            block=view_of(changed),
            note=planned.note,
            undo_remaining=planned.undo_remaining,
            redo_remaining=planned.redo_remaining,
        )

    async def _fitting(self, row: BlockRow, before: State, after: State, by: Attribution) -> str:
        """The plain rendering after the change.

        Raises:
            InvalidInput: it does not fit the block's schema or limit any more.
            PermissionDenied: an agent would change what is read-only.
        """
        schema = schema_of(row.metadata)
        content, value = _content(row, schema, before), value_of(after, schema)
        if not writes_between(schema, content.value, value):
            return row.content_preview or ""
        if not isinstance(schema, LogSchema):
            return (await plan(content, SetValue(value=value), self._writer(by))).plain
        text = plain(value, schema)  # entries keep their stamps, which writing them again would not
        check_size(row.label, size=len(text), before=len(row.content_preview or ""), limit=row.char_limit)
        return text

    def _writer(self, by: Attribution) -> Writer:
        return Writer(author=by.author, now=now_text(self._clock), is_agent=is_agent(by.author))


def _content(row: BlockRow, schema: Schema, state: State) -> Content:
    return Content(label=row.label, schema=schema, value=value_of(state, schema), limit=row.char_limit)
