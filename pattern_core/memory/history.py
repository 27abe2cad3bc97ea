"""The history of a block: versions, its content at a version, differences, and blame. Reads only.

Everything is computed from recorded changes, from the nearest known state, so its cost grows with the distance and not
with the document's history; call it with `Database.read_aside`. Only versions from before changes were recorded need
the document's own history.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count, islice

from pattern_core.errors import NotFound
from pattern_core.memory.block import schema_of
from pattern_core.memory.changes import applied, inverse
from pattern_core.memory.checkpoint import open_document, unpack, whole_document
from pattern_core.memory.content import differences, plain, raw, rendered, value_of
from pattern_core.memory.document import READER_PEER, TEXT, BlockDocument, Change, State, unpacked
from pattern_db.columns import Json
from pattern_db.connection import Connection
from pattern_db.enums import HistoryKind
from pattern_db.tables import block_checkpoints, block_versions, memory_blocks
from pattern_db.tables.memory_blocks import BlockRow

RENDERED_MAX = 2_000  # versions that blame renders of a block that is not text; older ones count as the oldest


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
    """A line of the block (numbers from 1) and the version that last changed it.

    If the history does not reach back far enough, `author` is empty and `version` the oldest known one.
    """

    line: int
    text: str
    version: int
    author: str
    cause: Mapping[str, str]
    created_at: str


def versions(connection: Connection, block_id: str, *, limit: int, before: int | None = None) -> list[Version]:
    """Return the newest `limit` versions (of those below `before`), newest first."""
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
        for row in block_versions.recent(connection, block_id, limit, before=before)
    ]


def _now(connection: Connection, block_id: str) -> State:
    checkpoint, updates = block_checkpoints.get_checkpoint_and_updates(connection, block_id)
    return open_document(checkpoint, updates, peer=READER_PEER).state()


def state_at(connection: Connection, block_id: str, version: int) -> State:
    """Return the document's state at `version`: from the nearest known state, by recorded changes.

    Raises:
        NotFound: there is no such version, or its content is no longer known.
        HistoryDamaged: a recorded change cannot be read.
        DocumentDamaged: the stored document cannot be opened.
    """
    row = memory_blocks.get(connection, block_id)
    if not 0 <= version <= row.last_seq:
        raise NotFound(f"the block {row.label} has no version {version}; its versions are 0 to {row.last_seq}")
    stamps = block_checkpoints.list_stamps(connection, block_id)
    near = min(stamps, key=lambda stamp: abs(stamp.up_to_seq - version), default=None)
    if near is not None and abs(near.up_to_seq - version) < row.last_seq - version:
        snapshot, encoding = block_checkpoints.snapshot_of(connection, near.id)
        state, at = BlockDocument.load(unpack(snapshot, encoding), peer=READER_PEER).state(), near.up_to_seq
    else:
        state, at = _now(connection, block_id), row.last_seq
    backwards = version < at
    for seq, change in changes_between(connection, block_id, at, version):
        state = applied(state, inverse(change) if backwards else change)
        at = seq - 1 if backwards else seq
    return state if at == version else _state_by_itself(connection, row, version)


def changes_between(connection: Connection, block_id: str, at: int, to: int) -> Iterator[tuple[int, Change]]:
    """Yield number and change of each version between two, from `at` on, until one is not known. On the way back they
    come newest first, and must be inverted.

    Raises:
        HistoryDamaged: a recorded change cannot be read.
    """
    backwards = to < at
    stored = block_versions.changes(connection, block_id, min(at, to), max(at, to), newest_first=backwards)
    expected = count(at, -1) if backwards else count(at + 1)
    for (seq, data), wanted in zip(stored, expected, strict=False):
        if data is None or seq != wanted:
            return
        yield seq, unpacked(data)


def _state_by_itself(connection: Connection, row: BlockRow, version: int) -> State:
    """Return the state from the document's own history: for versions before changes were recorded."""
    line = block_versions.get(connection, row.id, version)
    if line is None or not isinstance(line.frontiers, str):
        raise NotFound(
            f"the content of the block {row.label} at version {version} is no longer known; use a later version"
        )
    whole = whole_document(connection, row.id)
    return whole.at(bytes.fromhex(line.frontiers)).state()


def content_at(connection: Connection, block_id: str, version: int) -> tuple[str, Json]:
    """Return the block's content at `version` with its current schema, as plain text and as JSON.

    Raises: as `state_at`.
    """
    row = memory_blocks.get(connection, block_id)
    schema = schema_of(row.metadata)
    value = value_of(state_at(connection, block_id, version), schema)
    return plain(value, schema), raw(value, schema)


def diff(connection: Connection, block_id: str, before: int, after: int) -> str:
    """Return a unified diff of the plain renderings of two versions; empty if they are equal.

    Raises: as `state_at`.
    """
    row = memory_blocks.get(connection, block_id)
    old, new = (rendered(row, state_at(connection, block_id, version)).splitlines() for version in (before, after))
    lines = difflib.unified_diff(old, new, f"version {before}", f"version {after}", lineterm="")
    return "".join(f"{line}\n" for line in lines)


def blame(connection: Connection, block_id: str) -> list[Blamed]:
    """Return each line of the block's plain rendering with the version that last changed it.

    Raises: as `state_at`.
    """
    row, state = memory_blocks.get(connection, block_id), _now(connection, block_id)
    changes, shown = changes_between(connection, block_id, row.last_seq, 0), rendered(row, state)
    if shown != state.get(TEXT, ""):
        changes = islice(changes, RENDERED_MAX)
    origins = line_versions(state, changes, row.last_seq, lambda then: rendered(row, then))
    known = {
        version: block_versions.get(connection, block_id, version) for version, is_certain in origins if is_certain
    }
    blamed: list[Blamed] = []
    for number, (text, (version, is_certain)) in enumerate(zip(shown.splitlines(), origins, strict=True), 1):
        line = known[version] if is_certain else None
        author, cause, at = ("", {}, "") if line is None else (line.changed_by, line.cause or {}, line.timestamp)
        blamed.append(Blamed(line=number, text=text, version=version, author=author, cause=cause, created_at=at))
    return blamed


def line_versions(
    state: State, changes: Iterable[tuple[int, Change]], newest: int, show: Callable[[State], str]
) -> list[tuple[int, bool]]:
    """Return for each line of `show` of the state at the version `newest` the version that last changed it.

    `changes` are the versions' changes, newest first, without a gap; only as many as needed are read. Other lines are
    older than the oldest: they get that version, and whether it is certain (from the start).
    """
    shown = show(state).splitlines()
    made = [-1] * len(shown)
    places = list(range(len(shown)))  # places of this version's lines in the newest one; -1 if removed
    floor = newest
    for seq, change in changes if shown else ():
        state, floor = applied(state, inverse(change)), seq - 1
        before = show(state).splitlines()
        older, at = list[int](), 0
        for low, high, begin, stop in differences(before, shown):
            older += places[at:begin] + [-1] * (high - low)
            for place in places[begin:stop]:
                if place >= 0:
                    made[place] = seq
            at = stop
        places, shown = older + places[at:], before
        if max(places, default=-1) < 0:
            break
    return [(version, True) if version >= 0 else (floor, floor == 0) for version in made]
