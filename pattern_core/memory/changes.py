"""The algebra of changes: to take one back, to carry it past others' changes, to make it in a document.

A change says for each container what went and what came in its place, so that its inverse needs nothing else. Positions
count code points or items. States are put into documents by the fewest edits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pattern_core.memory.content import item_writes, text_writes
from pattern_core.memory.document import (
    READER_PEER,
    AddCount,
    BlockDocument,
    Change,
    Count,
    HistoryDamaged,
    Keys,
    Part,
    PutField,
    Run,
    Splice,
    Spliced,
    SpliceItems,
    SpliceText,
    State,
    Write,
    cleaned,
    same,
)
from pattern_db.columns import Json

_BY = "system"  # signs commits of scratch documents, which are never stored


def spliced(is_text: bool, pieces: Iterator[tuple[str, Run | int]]) -> Spliced:
    """A change from `("keep", n)`, `("remove", run)` and `("add", run)` in the order of the document before it."""
    empty: Json = "" if is_text else ()
    splices: list[Splice] = []
    skip, removed, added = 0, empty, empty
    for what, piece in pieces:
        if isinstance(piece, int):
            if piece and (removed or added):
                splices.append(Splice(skip, removed, added))
                skip, removed, added = 0, empty, empty
            skip += piece
        elif what == "remove":
            removed += piece
        else:
            added += piece
    if removed or added:
        splices.append(Splice(skip, removed, added))
    return Spliced(is_text, tuple(splices))


def inverse(change: Change) -> Change:
    """What takes the change back."""
    return {name: _inverse(part) for name, part in change.items()}


def _inverse(part: Part) -> Part:
    match part:
        case Spliced(is_text, splices):
            return Spliced(is_text, tuple(Splice(one.skip, one.added, one.removed) for one in splices))
        case Keys(values):
            return Keys({key: (after, before) for key, (before, after) in values.items()})
        case Count(by):
            return Count(-by)


def applied(state: State, change: Change) -> State:
    """The state after the change.

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
            raise HistoryDamaged(f"a recorded change of {name} does not fit the text that it was made on")
        pieces += [value[at:start], one.added if part.is_text else list(one.added)]
        at = end
    pieces.append(value[at:])
    return "".join(pieces) if part.is_text else [item for piece in pieces for item in piece]


def carried(change: Change, earlier: Change, *, wins: bool) -> Change:
    """`change` as it reads after `earlier`, where both were made on the same state.

    What both removed is gone once; what either added stays. Where both set a key, or add at one place, `wins` says
    whether this one counts (and comes first); calling with the two exchanged and `not wins` gives the other side, and
    both orders come to the same state.
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
    """Walk over the common state, both changes side by side."""
    left, right = _Walk(mine), _Walk(theirs)
    while not left.is_done:
        if left.added and (wins or not right.added):
            yield "add", left.take_added()
        elif right.added:
            yield "keep", len(right.take_added())
        else:
            step = min(left.length, right.length)
            removed, gone = left.take(step), right.take(step)
            if removed is not None and gone is None:
                yield "remove", removed
            elif removed is None and gone is None:
                yield "keep", step


class _Walk:
    """A change as pieces of the state before it: kept, or removed, with what is added in front of a removed piece."""

    def __init__(self, part: Spliced) -> None:
        self._splices = list(part.splices[::-1])
        self._empty: Run = "" if part.is_text else ()
        self._keep = 0
        self._removed: Run = self._empty
        self.added: Run = self._empty
        self._next()

    @property
    def is_done(self) -> bool:
        return not (self._splices or self._keep or self._removed or self.added)

    @property
    def length(self) -> int:
        """Of the piece that comes next; without end after the last one."""
        if self._keep:
            return self._keep
        return len(self._removed) or 2**62

    def take_added(self) -> Run:
        taken, self.added = self.added, self._empty
        self._next()
        return taken

    def take(self, step: int) -> Run | None:
        """Go `step` elements on; return them if they are removed. Never called while something is to be added."""
        if self._keep:
            self._keep -= step
            taken = None
        elif self._removed:
            taken, self._removed = self._removed[:step], self._removed[step:]
        else:
            return None
        self._next()
        return taken

    def _next(self) -> None:
        """Have the next splice's pieces ready: first what stays, then what is added, then what is removed."""
        if self._keep or self._removed or self.added or not self._splices:
            return
        if self._splices[-1].skip:
            one = self._splices.pop()
            self._keep = one.skip
            self._splices.append(Splice(0, one.removed, one.added))
            return
        one = self._splices.pop()
        self.added, self._removed = one.added, one.removed


def writes_of(change: Change) -> list[Write]:
    """What makes the change in a document that holds what it was made on (or carried to)."""
    writes: list[Write] = []
    for name, part in change.items():
        match part:
            case Spliced(is_text, splices):
                for start, one in reversed(list(zip(starts_of(part), splices, strict=True))):
                    if is_text:
                        text = str(one.added)
                        writes.append(SpliceText(container=name, at=start, delete=len(one.removed), insert=text))
                    else:
                        items = tuple(one.added)
                        writes.append(SpliceItems(container=name, at=start, delete=len(one.removed), insert=items))
            case Keys(values):
                writes += [PutField(container=name, key=key, value=after) for key, (_before, after) in values.items()]
            case Count(by):
                writes.append(AddCount(container=name, delta=by))
    return writes


def starts_of(part: Spliced) -> list[int]:
    """Where each splice begins, in the text or list before the change."""
    starts, at = [], 0
    for one in part.splices:
        starts.append(at + one.skip)
        at += one.skip + len(one.removed)
    return starts


def writes_to(held: State, state: State) -> list[Write]:
    """What makes `state` and nothing else of a document that holds `held`."""
    writes: list[Write] = []
    for name in {**held, **state}:
        match state.get(name, held.get(name)):
            case str():
                writes += text_writes(name, held.get(name, ""), state.get(name, ""))
            case list():
                writes += item_writes(name, held.get(name, []), state.get(name, []))
            case dict():
                before, after = held.get(name, {}), state.get(name, {})
                writes += [
                    PutField(container=name, key=key, value=after.get(key))
                    for key in {**before, **after}
                    if not same(before.get(key), after.get(key))
                ]
            case int() | float():
                writes.append(AddCount(container=name, delta=state.get(name, 0) - held.get(name, 0)))
    return writes


def document_of(state: State) -> BlockDocument:
    """A document that holds `state` and has no history, for trying something out."""
    document = BlockDocument(READER_PEER)
    document.sign({}, writes_to({}, state), _BY, {}, now_ms=0)
    return document


def change_by(state: State, writes: Iterable[Write]) -> Change:
    """What the writes change in a document that holds `state`.

    Raises:
        DocumentDamaged: they were made for another content.
    """
    return document_of(state).sign(state, writes, _BY, {}, now_ms=0).change or {}


def change_to(before: State, after: State) -> Change:
    """What makes `after` of `before`, by few edits."""
    return change_by(before, writes_to(before, after))
