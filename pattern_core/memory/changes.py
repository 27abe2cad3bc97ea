"""The algebra of changes: invert one, transform it against other changes, apply it to a document.

A change has the removed and the added content of each container, so that it can be inverted alone. Positions count code
points or items. States are written to documents with the fewest edits.
"""

from __future__ import annotations

from collections.abc import Iterator

from pattern_core.memory.block import SYSTEM
from pattern_core.memory.content import writes_to
from pattern_core.memory.document import (
    READER_PEER,
    BlockDocument,
    Change,
    Count,
    HistoryDamaged,
    Keys,
    Part,
    Run,
    Splice,
    Spliced,
    State,
    Writes,
    cleaned,
    same,
    spliced,
)
from pattern_db.columns import Json

_ENDLESS = 2**62  # after the last splice


def inverse(change: Change) -> Change:
    """Return the inverse of the change."""
    return {name: _inverse(part) for name, part in change.items()}


def _inverse(part: Part) -> Part:
    match part:
        case Spliced(is_text, splices):
            return Spliced(is_text, tuple(Splice(one.skip, one.added, one.removed) for one in splices))
        case Keys(values):
            return Keys({key: (after, before) for key, (before, after) in values.items()})
        case Count(by):
            return Count(-by)


def applied(state: State, change: Writes) -> State:
    """Return the state after the change.

    Raises:
        HistoryDamaged: the change was not made on this state.
    """
    after = dict(state)
    for name, part in change.items():
        value: Json = None
        match part:
            case Spliced():
                value = _apply_splices(after.get(name, "" if part.is_text else []), part, name)
            case Keys(values):
                value = dict(after.get(name, {}))
                for key, (_before, new) in values.items():
                    value.pop(key, None)
                    if new is not None:
                        value[key] = new
            case Count(by):
                value = after.get(name, 0) + by
            case str():
                value = part
        after.pop(name, None)
        if value:
            after[name] = value
    return after


def _apply_splices(value: Json, part: Spliced, name: str) -> Json:
    pieces: list[Json] = []
    at = 0
    for one in part.splices:
        start = at + one.skip
        end = start + len(one.removed)
        if not same(value[start:end], one.removed if part.is_text else list(one.removed)):
            raise HistoryDamaged(f"a recorded change of {name} does not match its text; restore a backup")
        pieces += [value[at:start], one.added if part.is_text else list(one.added)]
        at = end
    pieces.append(value[at:])
    return "".join(pieces) if part.is_text else [item for piece in pieces for item in piece]


def carried(change: Change, earlier: Change, *, wins: bool) -> Change:
    """Return `change` transformed to follow `earlier`; both were made on the same state.

    What both removed is removed once; what either added stays. If both set a key, or add at the same place, `wins` says
    whether this one has priority (and comes first). Calling with exchanged arguments and `not wins` gives the other
    side, and both orders lead to the same state.
    """
    result: dict[str, Part] = {}
    for name, part in change.items():
        other = earlier.get(name)
        match part, other:
            case Spliced(), Spliced():
                result[name] = spliced(part.is_text, _carried(part, other, wins))
            case Keys(mine), Keys(theirs):
                result[name] = Keys(
                    {
                        key: (theirs[key][1] if key in theirs else before, after)
                        for key, (before, after) in mine.items()
                        if wins or key not in theirs
                    }
                )
            case _:
                result[name] = part
    return cleaned(result)


def _carried(mine: Spliced, theirs: Spliced, wins: bool) -> Iterator[tuple[str, Run | int]]:
    """Walk over the common state with both changes."""
    left, right = _pieces(mine), [("keep", _ENDLESS), *_pieces(theirs)]
    while left:
        (kind, run), (other, that) = left[-1], right[-1]
        if kind == "add" and (wins or other != "add"):
            yield left.pop()
        elif other == "add":
            yield "keep", _length(right.pop()[1])
        else:
            step = min(_length(run), _length(that))
            taken, gone = _take(left, step), _take(right, step)
            if not isinstance(taken, int) and isinstance(gone, int):
                yield "remove", taken
            elif isinstance(taken, int) and isinstance(gone, int):
                yield "keep", step


def _pieces(part: Spliced) -> list[tuple[str, Run | int]]:
    """Return the change as pieces of the state before it, the last one first: kept, added and removed ones."""
    pieces: list[tuple[str, Run | int]] = []
    for one in reversed(part.splices):
        of_one = ("remove", one.removed), ("add", one.added), ("keep", one.skip)
        pieces += [(kind, piece) for kind, piece in of_one if piece]
    return pieces


def _length(piece: Run | int) -> int:
    return piece if isinstance(piece, int) else len(piece)


def _take(pieces: list[tuple[str, Run | int]], step: int) -> Run | int:
    """Consume `step` elements of the next piece, which is at least as long."""
    kind, piece = pieces.pop()
    rest = piece - step if isinstance(piece, int) else piece[step:]
    if rest:
        pieces.append((kind, rest))
    return step if isinstance(piece, int) else piece[:step]


def document_of(state: State) -> BlockDocument:
    """Return a document with `state` and no history, for trial changes."""
    document = BlockDocument(READER_PEER)
    document.sign({}, writes_to({}, state), SYSTEM, now_ms=0)
    return document


def change_by(state: State, writes: Writes) -> Change:
    """Return the change that the writes make in a document with `state`.

    Raises:
        DocumentDamaged: they do not match the content.
    """
    return document_of(state).sign(state, writes, SYSTEM, now_ms=0).change or {}


def change_to(before: State, after: State) -> Change:
    """Return a change from `before` to `after` with few edits."""
    return change_by(before, writes_to(before, after))
