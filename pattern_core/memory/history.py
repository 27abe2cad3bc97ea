"""What a block was and who wrote what: versions, the block at one of them, differences, and blame. Reads only.

Everything is computed on a database thread from recorded changes, outward from the nearest known state, so its cost
grows with the distance and not with the document's history. Only versions from before changes were recorded need the
document's own history.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from pattern_core.errors import NotFound
from pattern_core.memory.block import schema_of
from pattern_core.memory.changes import applied, inverse
from pattern_core.memory.checkpoint import open_document, unpack, whole_document
from pattern_core.memory.content import plain, raw, value_of
from pattern_core.memory.document import (
    READER_PEER,
    TEXT,
    BlockDocument,
    Change,
    Spliced,
    State,
    document_at,
    state_of,
    unpacked,
)
from pattern_db.columns import Json
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.enums import HistoryKind
from pattern_db.tables import block_checkpoints, block_versions, memory_blocks
from pattern_db.tables.block_versions import HistoryRow
from pattern_db.tables.memory_blocks import BlockRow

RENDERED_MAX = 2_000  # versions that blame renders of a block that is no text; what is older counts as the oldest


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version of a block. `author` is 'agent:{id}', 'user:{id}' or 'system'; `cause` names message, turn, call."""

    version: int
    kind: HistoryKind
    author: str
    cause: Mapping[str, str]
    summary: str
    undone: bool
    created_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Blamed:
    """A line of the block (numbers from 1) and the version that made it what it is.

    Where the history does not reach back far enough `author` is empty and `version` the oldest one known.
    """

    line: int
    text: str
    version: int
    author: str
    cause: Mapping[str, str]
    created_at: str


def _shown(row: BlockRow, state: State) -> str:
    """The plain rendering of what a document holds, by its block's schema.

    Raises:
        InvalidInput: the block's metadata names no schema that there is.
    """
    schema = schema_of(row.metadata)
    return plain(value_of(state, schema), schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionContent:
    """What a block held once: its plain rendering, and the same as JSON."""

    content: str
    value: Json


class BlockHistory:
    """The history of one constellation's blocks."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def versions(self, block_id: str, *, limit: int, before: int | None = None) -> Sequence[Version]:
        """The newest `limit` versions (of those below `before`), newest first."""
        rows = await self._database.read(
            lambda connection: block_versions.recent(connection, block_id, limit, before=before)
        )
        return [
            Version(
                version=row.seq or 0,
                kind=row.kind,
                author=row.changed_by,
                cause=row.cause or {},
                summary=row.change_summary or "",
                undone=row.is_undone,
                created_at=row.timestamp,
            )
            for row in rows
        ]

    async def state_at(self, block_id: str, version: int) -> State:
        """What the block's document held at `version`: a value per container.

        Raises:
            NotFound: there is no such version, or nobody knows any more what it was.
            HistoryDamaged: a recorded change cannot be read.
            DocumentDamaged: the stored document cannot be opened.
        """
        return await self._database.read_aside(_state_at, block_id, version)

    async def content_at(self, block_id: str, version: int) -> VersionContent:
        """What the block held at `version`, as its schema of today shows it.

        Raises:
            NotFound: as `state_at`.
            HistoryDamaged: as `state_at`.
            DocumentDamaged: as `state_at`.
        """
        return await self._database.read_aside(_content_at, block_id, version)

    async def diff(self, block_id: str, before: int, after: int) -> str:
        """What differs between two versions, as a unified diff of the plain renderings; empty if nothing does.

        Raises:
            NotFound: as `state_at`.
            HistoryDamaged: as `state_at`.
            DocumentDamaged: as `state_at`.
        """
        return await self._database.read_aside(_diff, block_id, (before, after))

    async def blame(self, block_id: str) -> Sequence[Blamed]:
        """Each line of the block's plain rendering with the version that made it.

        Raises:
            NotFound: there is no such block.
            HistoryDamaged: as `state_at`.
            DocumentDamaged: as `state_at`.
        """
        return await self._database.read_aside(_blame, block_id)


def _now(connection: Connection, block_id: str) -> State:
    checkpoint, updates = block_checkpoints.get_checkpoint_and_updates(connection, block_id)
    return state_of(open_document(checkpoint, updates, peer=READER_PEER))


def _state_at(connection: Connection, block_id: str, version: int) -> State:
    """From the nearest known state, forward or back by recorded changes."""
    row = memory_blocks.get(connection, block_id)
    if not 0 <= version <= row.last_seq:
        raise NotFound(f"the block {row.label} has the versions 0 to {row.last_seq}, and no {version}")
    stamps = block_checkpoints.list_stamps(connection, block_id)
    near = min(stamps, key=lambda stamp: abs(stamp.up_to_seq - version), default=None)
    if near is not None and abs(near.up_to_seq - version) < row.last_seq - version:
        snapshot, encoding = block_checkpoints.snapshot_of(connection, near.id)
        state, at = state_of(BlockDocument.load(unpack(snapshot, encoding), peer=READER_PEER)), near.up_to_seq
    else:
        state, at = _now(connection, block_id), row.last_seq
    first, last = min(at, version), max(at, version)
    for seq, data in block_versions.changes(connection, block_id, first, last, newest_first=version < at):
        if data is None or seq != (at if version < at else at + 1):
            return _state_by_itself(connection, row, version)
        change = unpacked(data)
        state = applied(state, inverse(change) if version < at else change)
        at += -1 if version < at else 1
    return state if at == version else _state_by_itself(connection, row, version)


def _state_by_itself(connection: Connection, row: BlockRow, version: int) -> State:
    """From the document's own history: for versions from before changes were recorded."""
    line = block_versions.get(connection, row.id, version)
    if line is None or not isinstance(line.frontiers, str):
        raise NotFound(f"what the block {row.label} was at version {version} is not known any more; try a later one")
    whole = whole_document(connection, row.id)
    return state_of(document_at(whole, bytes.fromhex(line.frontiers)))


def _content_at(connection: Connection, block_id: str, version: int) -> VersionContent:
    row = memory_blocks.get(connection, block_id)
    schema = schema_of(row.metadata)
    value = value_of(_state_at(connection, block_id, version), schema)
    return VersionContent(content=plain(value, schema), value=raw(value, schema))


def _diff(connection: Connection, block_id: str, versions: tuple[int, int]) -> str:
    row = memory_blocks.get(connection, block_id)
    before, after = (_shown(row, _state_at(connection, block_id, version)).splitlines() for version in versions)
    lines = difflib.unified_diff(before, after, f"version {versions[0]}", f"version {versions[1]}", lineterm="")
    return "".join(f"{line}\n" for line in lines)


def _blame(connection: Connection, block_id: str) -> list[Blamed]:
    row = memory_blocks.get(connection, block_id)
    state = _now(connection, block_id)
    shown = _shown(row, state)
    stored = block_versions.changes(connection, block_id, 0, row.last_seq, newest_first=True)
    changes = _unpacked(stored, row.last_seq)
    if shown == state.get(TEXT, ""):
        origins = lines_by(shown, changes, row.last_seq)
    else:
        origins = lines_by_rendering(state, islice(changes, RENDERED_MAX), row.last_seq, lambda then: _shown(row, then))
    known = {version: block_versions.get(connection, block_id, version) for version in {one.version for one in origins}}
    return [_blamed(number, one, known[one.version]) for number, one in enumerate(origins, 1)]


def _blamed(number: int, origin: LineOrigin, line: HistoryRow | None) -> Blamed:
    is_known = line is not None and origin.is_certain
    cause: Json = line.cause if line is not None and is_known else None
    return Blamed(
        line=number,
        text=origin.text,
        version=origin.version,
        author=line.changed_by if line is not None and is_known else "",
        cause=cause or {},
        created_at=line.timestamp if line is not None and is_known else "",
    )


def _unpacked(changes: Iterator[tuple[int, bytes | None]], last: int) -> Iterator[tuple[int, Change]]:
    """The changes from the newest back, until one is not known."""
    for seq, data in changes:
        if data is None or seq != last:
            return
        yield seq, unpacked(data)
        last -= 1


@dataclass(frozen=True, slots=True)
class LineOrigin:
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


def lines_by(text: str, changes: Iterable[tuple[int, Change]], newest: int) -> list[LineOrigin]:
    """The lines of a text at the version `newest`. `changes` are the versions' changes, newest first, without a gap;
    only as many are taken as are needed. What no change wrote was there before the oldest of them.
    """
    lines = text.splitlines(keepends=True)
    written = [-1] * len(lines)  # by line: the newest version found so far
    ends = _ends(lines)
    pieces = [_Piece(0, 0, len(text))] if text else []
    floor = newest
    for seq, change in changes if text else ():
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
        LineOrigin(line.splitlines()[0], seq if seq >= 0 else floor, seq >= 0 or floor == 0)
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
    state: State, changes: Iterable[tuple[int, Change]], newest: int, plain: Callable[[State], str]
) -> list[LineOrigin]:
    """The lines of any document's rendering, by comparing each version's with the one before. As `lines_by`."""
    lines = plain(state).splitlines()
    origins = [LineOrigin(line, -1, False) for line in lines]
    places: list[int | None] = list(range(len(lines)))  # of the lines of the version looked at, where they are now
    shown, floor = lines, newest
    for seq, change in changes:
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
