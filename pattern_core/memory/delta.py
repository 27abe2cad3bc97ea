"""What a version of a document changed, as plain values: to take it back, to carry it past others' changes, to read
older versions. Pure, and knows no document library.

A document's state is a value per root container: text, list of JSON values, map without nulls, or count. Containers
that are empty are left out. A change says for each container what went and what came in its place, so that its
inverse needs nothing else. Positions count code points or items.

Packed, a change is JSON, `{container: part}`: text and lists as `[["t" or "l"], [skip, removed, added], …]`, maps as
`{key: [before, after]}`, counts as a number; over 200 bytes it is a zstd frame.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import zstandard

from pattern_core.errors import PatternError
from pattern_db.columns import Json, to_json

COMPRESS_ABOVE_BYTES = 200  # smaller ones do not shrink
CHANGE_BYTES_MAX = 256 * 1024 * 1024  # unpacked
_LEVEL = 3

Run: TypeAlias = "str | tuple[Json, ...]"  # a piece of a text or of a list
State: TypeAlias = "dict[str, Json]"


class HistoryDamaged(PatternError):
    """A recorded change cannot be read, or does not fit the state that it is applied to."""

    code = "history_damaged"


@dataclass(frozen=True, slots=True)
class Splice:
    """After `skip` elements that stay, `removed` was replaced by `added`."""

    skip: int
    removed: Run
    added: Run


@dataclass(frozen=True, slots=True)
class Spliced:
    """A change of a text or a list. No two splices touch, none is empty; an empty list's runs are `()`."""

    is_text: bool
    splices: tuple[Splice, ...]


@dataclass(frozen=True, slots=True)
class Keys:
    """A change of a map: each key's value before and after; None where there was or is none."""

    values: Mapping[str, tuple[Json, Json]]


@dataclass(frozen=True, slots=True)
class Count:
    """A change of a counter."""

    by: float


Part: TypeAlias = "Spliced | Keys | Count"
Change: TypeAlias = "Mapping[str, Part]"


def spliced(is_text: bool, pieces: Iterator[tuple[str, Run | int]]) -> Spliced:
    """A change from `("keep", n)`, `("remove", run)` and `("add", run)` in the order of the document before it."""
    empty: Run = "" if is_text else ()
    splices: list[Splice] = []
    skip, removed, added = 0, empty, empty
    for what, piece in pieces:
        if isinstance(piece, int):
            if piece and (removed or added):
                splices.append(Splice(skip, removed, added))
                skip, removed, added = 0, empty, empty
            skip += piece
        elif what == "remove":
            removed = _joined(removed, piece)
        else:
            added = _joined(added, piece)
    if removed or added:
        splices.append(Splice(skip, removed, added))
    return Spliced(is_text, tuple(splices))


def cleaned(change: Change) -> Change:
    """The change without parts that change nothing."""
    kept: dict[str, Part] = {}
    for name, part in change.items():
        match part:
            case Keys(values):
                real = {key: (before, after) for key, (before, after) in values.items() if not _same(before, after)}
                if real:
                    kept[name] = Keys(real)
            case Spliced(is_text, splices):
                if any(not _same(one.removed, one.added) for one in splices):
                    kept[name] = Spliced(is_text, splices)
            case Count(by):
                if by:
                    kept[name] = part
    return kept


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
        if not _same(value[start:end], one.removed if part.is_text else list(one.removed)):
            raise HistoryDamaged(f"a recorded change of {name} does not fit the text that it was made on")
        pieces += [value[at:start], one.added if part.is_text else list(one.added)]
        at = end
    pieces.append(value[at:])
    return "".join(pieces) if part.is_text else [item for piece in pieces for item in piece]


def carried(change: Change, past: Change, *, wins: bool) -> Change:
    """`change` as it reads after `past`, where both were made on the same state.

    What both removed is gone once; what either added stays. Where both set a key, or add at one place, `wins` says
    whether this one counts (and comes first); calling with the two exchanged and `not wins` gives the other side, and
    both orders come to the same state.
    """
    result: dict[str, Part] = {}
    for name, part in change.items():
        other = past.get(name)
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


def packed(change: Change | None) -> bytes | None:
    """The change as it is stored; None stays None."""
    if change is None:
        return None
    data = to_json({name: _to_json(part) for name, part in change.items()}).encode()
    return data if len(data) <= COMPRESS_ABOVE_BYTES else zstandard.compress(data, _LEVEL)


def unpacked(data: bytes) -> Change:
    """The inverse of `packed`.

    Raises:
        HistoryDamaged: the bytes are no packed change.
    """
    try:
        if not data.startswith(b"{"):
            if zstandard.get_frame_parameters(data).content_size > CHANGE_BYTES_MAX:
                raise HistoryDamaged("a recorded change claims to be larger than any can be")
            data = zstandard.decompress(data)
        return {name: _from_json(part) for name, part in json.loads(data).items()}
    except (zstandard.ZstdError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise HistoryDamaged(f"a recorded change cannot be read ({error})") from None


def _to_json(part: Part) -> Json:
    match part:
        case Spliced(is_text, splices):
            return ["t" if is_text else "l", *([one.skip, one.removed, one.added] for one in splices)]
        case Keys(values):
            return dict(values)
        case Count(by):
            return by


def _from_json(part: Json) -> Part:
    if isinstance(part, int | float):
        return Count(part)
    if isinstance(part, dict):
        return Keys({key: (before, after) for key, (before, after) in part.items()})
    is_text = part[0] == "t"
    if not isinstance(part, list) or part[0] not in ("t", "l"):
        raise ValueError("a part of no known kind")
    run = str if is_text else tuple
    return Spliced(is_text, tuple(Splice(int(skip), run(removed), run(added)) for skip, removed, added in part[1:]))


def _joined(left: Run, right: Run) -> Run:
    if isinstance(left, str) and isinstance(right, str):
        return left + right
    return (*left, *right)


def _same(left: Json, right: Json) -> bool:
    """Whether two values are the same; unlike `==` it tells true from 1."""
    if isinstance(left, str) and isinstance(right, str):
        return left == right
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


def starts_of(part: Spliced) -> list[int]:
    """Where each splice begins, in the text or list before the change."""
    starts, at = [], 0
    for one in part.splices:
        starts.append(at + one.skip)
        at += one.skip + len(one.removed)
    return starts
