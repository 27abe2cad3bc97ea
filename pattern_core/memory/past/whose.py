"""Which version made which line: from the text as it is, back through what each version changed. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from pattern_core.memory.document import TEXT, Change, Spliced, State
from pattern_core.memory.past.changes import applied, inverse


@dataclass(frozen=True, slots=True)
class Origin:
    """A line without its end, and the newest version that wrote any of it.

    Not `is_certain`: it is at least as old as `version`, which is as far back as anybody knows.
    """

    text: str
    version: int
    is_certain: bool = True


@dataclass(slots=True)
class _Piece:
    """`length` characters that stand at `now` in the text as it is and at `then` in the version looked at."""

    now: int
    then: int
    length: int


def lines_by(text: str, past: Iterable[tuple[int, Change]], newest: int) -> list[Origin]:
    """The lines of a text at the version `newest`. `past` are the versions' changes, newest first, without a gap; only
    as many are taken as are needed. What no change wrote was there before the oldest of them.
    """
    lines = text.splitlines(keepends=True)
    written = [-1] * len(lines)  # by line: the newest version found so far
    ends = _ends(lines)
    pieces = [_Piece(0, 0, len(text))] if text else []
    floor = newest
    for seq, change in past if text else ():
        floor = seq - 1
        part = change.get(TEXT)
        if isinstance(part, Spliced):
            pieces, found = _before(pieces, part)
            for start, length in found:
                _mark(written, ends, start, length, seq)
            if found:  # what stands in a line that a newer version wrote is of no interest
                pieces = [piece for piece in pieces if _is_open(piece, written, ends)]
        if not pieces:
            break
    return [
        Origin(line.splitlines()[0], seq if seq >= 0 else floor, seq >= 0 or floor == 0)
        for line, seq in zip(lines, written, strict=True)
    ]


def _ends(lines: list[str]) -> list[int]:
    ends, at = [], 0
    for line in lines:
        at += len(line)
        ends.append(at)
    return ends


def _line_of(ends: list[int], place: int) -> int:
    low, high = 0, len(ends) - 1
    while low < high:
        middle = (low + high) // 2
        if place < ends[middle]:
            high = middle
        else:
            low = middle + 1
    return low


def _mark(written: list[int], ends: list[int], start: int, length: int, seq: int) -> None:
    for line in range(_line_of(ends, start), _line_of(ends, start + length - 1) + 1):
        written[line] = max(written[line], seq)


def _is_open(piece: _Piece, written: list[int], ends: list[int]) -> bool:
    first, last = _line_of(ends, piece.now), _line_of(ends, piece.now + piece.length - 1)
    return any(written[line] < 0 for line in range(first, last + 1))


def _before(pieces: list[_Piece], part: Spliced) -> tuple[list[_Piece], list[tuple[int, int]]]:
    """Where the pieces stood before the change, and which ranges of the text as it is the change wrote."""
    older: list[_Piece] = []
    found: list[tuple[int, int]] = []
    written = list(_written(part))
    for piece in pieces:
        start, end = piece.then, piece.then + piece.length
        for at, length, shift in written:
            if at >= end:
                break
            if at > start:  # what stands in front of what was written
                older.append(_Piece(piece.now + start - piece.then, start + shift, at - start))
                start = at
            if start < at + length:
                stop = min(end, at + length)
                found.append((piece.now + start - piece.then, stop - start))
                start = stop
            if start >= end:
                break
        if start < end:
            shift = _shift_at(written, start)
            older.append(_Piece(piece.now + start - piece.then, start + shift, end - start))
    return older, found


def _written(part: Spliced) -> Iterator[tuple[int, int, int]]:
    """Of each splice: where what it added stands after the change, how long that is, and by how much what stands in
    front of it (back to the splice before) has to be moved to where it stood before.
    """
    at = shift = 0
    for one in part.splices:
        at += one.skip
        yield at, len(one.added), shift
        at += len(one.added)
        shift += len(one.removed) - len(one.added)
    yield 2**62, 0, shift


def _shift_at(written: list[tuple[int, int, int]], place: int) -> int:
    return next(shift for at, _, shift in written if place < at)


def lines_by_rendering(
    state: State, past: Iterable[tuple[int, Change]], newest: int, plain: Callable[[State], str]
) -> list[Origin]:
    """The lines of any document's rendering, by comparing each version's with the one before. As `lines_by`."""
    lines = plain(state).splitlines()
    origins = [Origin(line, -1, False) for line in lines]
    places: list[int | None] = list(range(len(lines)))  # of the lines of the version looked at, where they are now
    shown, floor = lines, newest
    for seq, change in past:
        state = applied(state, inverse(change))
        before, floor = plain(state).splitlines(), seq - 1
        if before == shown:
            continue
        older: list[int | None] = [None] * len(before)
        for tag, start, end, new_start, new_end in difflib.SequenceMatcher(None, before, shown, False).get_opcodes():
            if tag == "equal":
                older[start:end] = places[new_start:new_end]
            for place in places[new_start:new_end] if tag in ("insert", "replace") else ():
                if place is not None:
                    origins[place] = replace(origins[place], version=seq, is_certain=True)
        places, shown = older, before
        if all(one.version >= 0 for one in origins):
            break
    return [one if one.version >= 0 else replace(one, version=floor, is_certain=floor == 0) for one in origins]
