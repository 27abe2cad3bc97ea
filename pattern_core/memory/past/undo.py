"""Taking back one author's edits, bringing them again, rolling back, and merging what was written against an older
version. Pure: recorded changes in, one change for the block as it stands out.

Each author has a stack. What is taken back is the inverse of the author's newest edit, carried past everything that
others did since; edits of others stay, also within text that goes, and a key that somebody else set later stays theirs.
An undo made earlier does not count as somebody's edit: it and what it took back cancel out, so that a text that came
back is the same text, and goes again with the edit that wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pattern_core.errors import Conflict, InvalidInput
from pattern_core.memory.document import Change, Document, State, unpacked
from pattern_core.memory.past.changes import applied, carried, change_by, change_to, inverse
from pattern_db.enums import HistoryKind
from pattern_db.tables.block_versions import HistoryRow

UNDO_REACH = 1_000  # versions that are looked at; what is older can be rolled back to
_EDITS = (HistoryKind.EDIT, HistoryKind.ROLLBACK, HistoryKind.MERGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A change for the document as it stands, and what its line of history says.

    `stack` is whose edits it is about, `reverts` the version that it takes back. The remaining counts are those after
    it, of `stack`'s author.
    """

    change: Change
    kind: HistoryKind
    note: str
    stack: str | None = None
    reverts: int | None = None
    undo_remaining: int = 0
    redo_remaining: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining:
    """How many edits an author can take back, and how many bring again."""

    undo: int
    redo: int


def remaining(rows: Sequence[HistoryRow], author: str) -> Remaining:
    """What the author could take back and bring again. `rows` are the newest versions, oldest first."""
    known = _known(rows)
    return Remaining(undo=len(_undoable(known, author)), redo=len(_redoable(known, author)))


def plan_undo(rows: Sequence[HistoryRow], author: str) -> Plan:
    """Take back the author's newest edit that is not taken back yet and that something is left of.

    `rows` are the block's newest versions (`UNDO_REACH` of them are enough), oldest first, without a gap.

    Raises:
        InvalidInput: there is none.
        HistoryDamaged: a recorded change cannot be read.
    """
    known = _known(rows)
    targets = _undoable(known, author)
    for left, target in reversed(list(enumerate(targets))):
        change = _piled(known, target, author).get(target.seq or 0, {})
        if change:
            return Plan(
                change=change,
                kind=HistoryKind.UNDO,
                note=_note("Undid", target),
                stack=author,
                reverts=target.seq,
                undo_remaining=left,
                redo_remaining=len(_redoable(known, author)) + 1,
            )
    raise InvalidInput(f"there is nothing to undo: {author} has no edit here that is not undone already")


def plan_redo(rows: Sequence[HistoryRow], author: str) -> Plan:
    """Bring the author's edit again that was taken back last, unless the author has edited since.

    Raises:
        InvalidInput: there is none.
        HistoryDamaged: a recorded change cannot be read.
    """
    known = _known(rows)
    targets = _redoable(known, author)
    for left, target in reversed(list(enumerate(targets))):
        change = _piled(known, target, author).get(target.seq or 0, {})
        if change:
            edit = next((row for row in known if row.seq == target.reverts), target)
            return Plan(
                change=change,
                kind=HistoryKind.REDO,
                note=_note("Redid", edit),
                stack=author,
                reverts=target.seq,
                undo_remaining=len(_undoable(known, author)) + 1,
                redo_remaining=left,
            )
    raise InvalidInput(f"there is nothing to redo: {author} has undone nothing here since the last edit")


def plan_rollback(now: State, then: State, version: int) -> Plan:
    """A new change after which the document holds what it held at `version`. Nothing of the history goes.

    Raises:
        InvalidInput: it holds that already.
    """
    change = change_to(now, then)
    if not change:
        raise InvalidInput(f"the block is as it was at version {version} already; there is nothing to roll back")
    return Plan(change=change, kind=HistoryKind.ROLLBACK, note=f"Rolled back to version {version}")


def plan_merge(
    rows: Sequence[HistoryRow], now: State, write: Callable[[Document], None], *, base: int, note: str
) -> Plan:
    """What `write` does to the block as it was at version `base`, carried past what was done since.

    `rows` are all versions after `base`, oldest first. `write` edits the document that it is given and does not commit.
    Where both wrote a key, what is written now counts. The change is empty if nothing is left to do.

    Raises:
        Conflict: what was done since `base` is not recorded.
        HistoryDamaged: it is, but cannot be read.
    """
    changes = [unpacked(row.change) for row in rows if row.change is not None]
    if len(changes) < len(rows):
        raise Conflict(f"version {base} is too old to be merged with; read the block again and write against that")
    state = now
    for change in reversed(changes):
        state = applied(state, inverse(change))
    mine = change_by(state, write)
    for change in changes:
        mine = carried(mine, change, wins=True)
    return Plan(change=mine, kind=HistoryKind.MERGE if changes else HistoryKind.EDIT, note=note)


def _known(rows: Sequence[HistoryRow]) -> Sequence[HistoryRow]:
    """The newest rows whose changes are recorded, without a gap: nothing is carried past what nobody knows."""
    for number in range(len(rows) - 1, -1, -1):
        has_gap = number + 1 < len(rows) and (rows[number].seq or 0) + 1 != rows[number + 1].seq
        if rows[number].change is None or has_gap:
            return rows[number + 1 :]
    return rows


def _undoable(known: Sequence[HistoryRow], author: str) -> list[HistoryRow]:
    return [row for row in known if row.stack == author and row.kind in _EDITS and not row.is_undone]


def _redoable(known: Sequence[HistoryRow], author: str) -> list[HistoryRow]:
    mine = [row for row in known if row.stack == author]
    edited = max([row.seq or 0 for row in mine if row.kind in _EDITS], default=-1)
    return [row for row in mine if row.kind is HistoryKind.UNDO and not row.is_undone and (row.seq or 0) > edited]


def _piled(known: Sequence[HistoryRow], target: HistoryRow, author: str) -> dict[int, Change]:
    """What takes each version back that stands from `target` on, by version, for the document as it stands.

    The last entry fits the document, the one before it the document after that, and so on. Of `target`'s kind only:
    edits, by their inverse; or undos, by theirs, which is what brings edits again.
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


def _note(what: str, row: HistoryRow) -> str:
    return f"{what} version {row.seq}" + (f" ({row.change_summary})" if row.change_summary else "")
