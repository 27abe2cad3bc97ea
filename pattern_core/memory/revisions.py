"""Changes that come from a block's own history: undo, redo, rollback, and writing against an older version.

They follow the same path as edits: the block is held, permission, schema and limit are checked, and one transaction
stores the change with its line of history.

Each author has a stack. An undo applies the inverse of the author's newest edit, transformed against all later changes;
edits of others stay, even within removed text, and so does a key that another author set later. An earlier undo does
not count as an edit: it and its edit cancel out, so that restored text is the same text, and is removed again with the
edit that wrote it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pattern_core.errors import Conflict, InvalidInput
from pattern_core.ids import now_text
from pattern_core.memory.block import Attribution, Edited, Operation, schema_of
from pattern_core.memory.changes import applied, carried, change_by, change_to, inverse
from pattern_core.memory.content import plain, value_of, writes_between
from pattern_core.memory.document import Change, State, Writes, unpacked
from pattern_core.memory.edits import SetText, SetValue
from pattern_core.memory.history import state_at
from pattern_core.memory.opened import OpenBlock, OpenBlocks
from pattern_core.memory.plan import Planned, check_size, plan
from pattern_core.memory.schema import LogSchema
from pattern_core.unit_of_work import UnitOfWork, given_or_alone
from pattern_db.connection import Connection
from pattern_db.enums import HistoryKind
from pattern_db.tables import block_versions
from pattern_db.tables.block_versions import HistoryRow

UNDO_REACH = 1_000  # versions that are searched; rollback also reaches older ones
_EDITS = (HistoryKind.EDIT, HistoryKind.ROLLBACK, HistoryKind.MERGE)


class Revisions:
    """Undo, redo, rollback and merging, over the blocks that a `MemoryStore` works on."""

    def __init__(self, blocks: OpenBlocks) -> None:
        self._blocks = blocks

    async def revert(
        self,
        agent_id: str,
        label: str,
        by: Attribution,
        kind: HistoryKind,
        *,
        of: str | None = None,
        work: UnitOfWork | None = None,
    ) -> Edited:
        """Undo the newest edit by `of` (an author; default: the caller), or redo the last undone one, unless its author
        has edited since. Later edits of others stay.

        Raises:
            NotFound: there is no such block.
            PermissionDenied: the permission does not let an agent overwrite.
            InvalidInput: there is nothing to undo or redo, or the block would violate its limit or schema.
            Conflict: it was changed within the same unit of work.
        """
        async with given_or_alone(work, self._blocks.commit) as unit:
            opened, now = await self._opened(agent_id, label, by, unit)
            last = opened.row.last_seq
            rows = await self._blocks.database.read(lines_since, opened.row.id, max(last - UNDO_REACH, -1), last)
            return await self._carry_out(opened, now, plan_revert(rows, of or by.author, kind), by, unit)

    async def rollback(
        self, agent_id: str, label: str, by: Attribution, *, version: int, work: UnitOfWork | None = None
    ) -> Edited:
        """Restore the block's content at `version`, by a new change; its whole history stays.

        Raises:
            NotFound: there is no such block or version.
            InvalidInput: it already has this content; else as `revert`.
        """
        async with given_or_alone(work, self._blocks.commit) as unit:
            opened, now = await self._opened(agent_id, label, by, unit)
            then = await self._blocks.database.read_aside(state_at, opened.row.id, version)
            return await self._carry_out(opened, now, plan_rollback(now, then, version), by, unit)

    async def merge(
        self,
        agent_id: str,
        label: str,
        by: Attribution,
        edit: SetText | SetValue,
        *,
        base: int,
        work: UnitOfWork | None = None,
    ) -> Edited:
        """Write content that is based on version `base`; later changes of others are merged.

        Raises:
            NotFound: there is no such block or version.
            Conflict: `base` is too old, or greater than the block's version.
            InvalidInput: the content is invalid; else as `revert`.
        """
        async with given_or_alone(work, self._blocks.commit) as unit:
            opened, now = await self._opened(agent_id, label, by, unit)
            row = opened.row
            if not 0 <= base <= row.last_seq:
                raise Conflict(
                    f"the block {label} has no version {base}, its versions are 0 to {row.last_seq}; read it again"
                )
            then = await self._blocks.database.read_aside(state_at, row.id, base)
            written = await plan(row, then, edit, by, now_text(self._blocks.clock))
            rows = await self._blocks.database.read(lines_since, row.id, base, row.last_seq)
            planned = plan_merge(rows, now, written.writes, base=base, note=written.note)
            if not planned.writes:
                return Edited(block=row, note="Nothing changed")
            return await self._carry_out(opened, now, planned, by, unit)

    async def _opened(self, agent_id: str, label: str, by: Attribution, work: UnitOfWork) -> tuple[OpenBlock, State]:
        """Return the block, held and opened, and its document's content."""
        opened = await self._blocks.hold(agent_id, label, by, Operation.OVERWRITE, work)
        return opened, await self._blocks.load(opened)

    async def _carry_out(
        self, opened: OpenBlock, now: State, planned: Planned, by: Attribution, work: UnitOfWork
    ) -> Edited:
        """Check the content after the change, then make it.

        Raises:
            InvalidInput: the block would violate its schema or limit.
            PermissionDenied: an agent would change what is read-only.
        """
        row = opened.row
        schema = schema_of(row.metadata)
        before, value = value_of(now, schema), value_of(applied(now, planned.writes), schema)
        shown = row.content
        if writes_between(schema, before, value):
            if isinstance(schema, LogSchema):  # keeps the stamps of entries, which writing would replace
                shown = plain(value, schema)
                check_size(row, size=len(shown), before=len(row.content))
            else:
                shown = (await plan(row, now, SetValue(value=value), by, now_text(self._blocks.clock))).plain
        return self._blocks.change(opened, now, replace(planned, plain=shown), by, work)


def plan_revert(rows: Sequence[HistoryRow], author: str, kind: HistoryKind) -> Planned:
    """Undo: revert the author's newest edit that is not undone and still has an effect. Redo: apply the last undone
    edit again, unless the author has edited since.

    `rows` are the block's newest versions (`UNDO_REACH` of them are enough), oldest first, without a gap.

    Raises:
        InvalidInput: there is none.
        HistoryDamaged: a recorded change cannot be read.
    """
    known, undoing = _known(rows), kind is HistoryKind.UNDO
    mine = [row for row in known if row.stack == author]
    edits = [row for row in mine if row.kind in _EDITS]
    edited = max([row.seq or 0 for row in edits], default=-1)
    undoable = [row for row in edits if not row.is_undone]
    redoable = [row for row in mine if row.kind is HistoryKind.UNDO and not row.is_undone and (row.seq or 0) > edited]
    for left, target in reversed(list(enumerate(undoable if undoing else redoable))):
        change = _piled(known, target, author).get(target.seq or 0, {})
        if not change:
            continue
        edit = target if undoing else next((row for row in known if row.seq == target.reverts), target)
        about = f" ({edit.change_summary})" if edit.change_summary else ""
        return Planned(
            writes=change,
            kind=kind,
            note=f"{'Undid' if undoing else 'Redid'} version {edit.seq}{about}",
            stack=author,
            reverts=target.seq,
            undo_remaining=left if undoing else len(undoable) + 1,
            redo_remaining=len(redoable) + 1 if undoing else left,
        )
    if undoing:
        raise InvalidInput(f"nothing to undo: {author} has no remaining edits in this block")
    raise InvalidInput(f"nothing to redo: {author} has undone nothing in this block since the last edit")


def plan_rollback(now: State, then: State, version: int) -> Planned:
    """Return a new change that restores the document's content at `version`. The history stays complete.

    Raises:
        InvalidInput: it already has this content.
    """
    change = change_to(now, then)
    if not change:
        raise InvalidInput(f"the block already has the content of version {version}; there is nothing to roll back")
    return Planned(writes=change, kind=HistoryKind.ROLLBACK, note=f"Rolled back to version {version}")


def plan_merge(rows: Sequence[HistoryRow], now: State, writes: Writes, *, base: int, note: str) -> Planned:
    """Return the change of `writes` to the block at version `base`, transformed against all later changes.

    `rows` are all versions after `base`, oldest first. If both wrote a key, the new value wins. The change is empty if
    nothing is left to do.

    Raises:
        Conflict: the changes since `base` are not recorded.
        HistoryDamaged: it is, but cannot be read.
    """
    changes = [unpacked(row.change) for row in rows if row.change is not None]
    if len(changes) < len(rows):
        raise Conflict(f"version {base} is too old for a merge; read the block again and base the edit on its version")
    state = now
    for change in reversed(changes):
        state = applied(state, inverse(change))
    mine = change_by(state, writes)
    for change in changes:
        mine = carried(mine, change, wins=True)
    return Planned(writes=mine, kind=HistoryKind.MERGE if changes else HistoryKind.EDIT, note=note)


def _known(rows: Sequence[HistoryRow]) -> Sequence[HistoryRow]:
    """Return the newest rows with recorded changes, without a gap: unknown changes cannot be transformed."""
    for number in range(len(rows) - 1, -1, -1):
        has_gap = number + 1 < len(rows) and (rows[number].seq or 0) + 1 != rows[number + 1].seq
        if rows[number].change is None or has_gap:
            return rows[number + 1 :]
    return rows


def _piled(known: Sequence[HistoryRow], target: HistoryRow, author: str) -> dict[int, Change]:
    """Return the inverse of each version in effect from `target` on, by version, for the current document.

    The last entry applies to the document, the one before it to the result, and so on. Only versions of `target`'s
    kind: edits, or undos (their inverse redoes edits).
    """
    pile: dict[int, Change] = {}
    by_seq = {row.seq: row for row in known}
    undoing = target.kind is not HistoryKind.UNDO
    for row in known[known.index(target) :]:
        change = unpacked(row.change or b"{}")
        if row.stack != author or row.kind in (HistoryKind.CREATE, HistoryKind.REPAIR):
            for seq in reversed(list(pile)):
                change, pile[seq] = carried(change, pile[seq], wins=True), carried(pile[seq], change, wins=False)
            continue
        reverted = by_seq.get(row.reverts)
        match row.kind:
            case HistoryKind.UNDO if undoing:
                pile.pop(row.reverts or 0, None)
            case HistoryKind.REDO if undoing and reverted is not None:
                pile[reverted.reverts or 0] = inverse(change)
            case HistoryKind.REDO if undoing is False:
                pile.pop(row.reverts or 0, None)
            case _:
                pile[row.seq or 0] = inverse(change)
    return pile


def lines_since(connection: Connection, block_id: str, base: int, version: int) -> list[HistoryRow]:
    """Return the lines of the versions after `base` up to `version`, oldest first, `UNDO_REACH` at most.

    Raises:
        Conflict: `version` is not the newest that is stored (the caller's own unit of work made it), or `base`
            is too far back.
    """
    rows = block_versions.between(connection, block_id, base, version, limit=UNDO_REACH)
    if version > max(base, 0) and (not rows or rows[-1].seq != version):
        raise Conflict(f"version {version} of the block is not stored yet; do this in a separate call")
    if version - base > UNDO_REACH:
        raise Conflict(f"version {base} is more than {UNDO_REACH} versions back; read the block again")
    return rows
