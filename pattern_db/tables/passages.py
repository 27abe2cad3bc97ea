"""Passages of files: pieces with their lines, which keep their id, and so their vector, while they are unchanged."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pattern_db.columns import to_json
from pattern_db.connection import Connection, Table
from pattern_db.enums import SearchKind
from pattern_db.tables import embeddings


@dataclass(frozen=True, slots=True)
class PassageRow:
    """A piece of a file's text: its lines from 1, both included, and its page if the file has pages.

    `heading` is the file's name and the headings above it, and is searched with the content.
    """

    id: str
    file_id: str
    content: str
    start_line: int
    end_line: int
    chunk_index: int
    created_at: str
    heading: str = ""
    page: int | None = None


_PASSAGES = Table("file_passages", PassageRow)
_STORED = Table(  # older rows have no lines
    "file_passages",
    PassageRow,
    columns={"start_line": "coalesce(start_line, 1)", "end_line": "coalesce(end_line, 1)"},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A passage before it has an id."""

    content: str
    start_line: int
    end_line: int
    heading: str = ""
    page: int | None = None


def replace(
    connection: Connection, file_id: str, pieces: Sequence[Piece], *, new_id: Callable[[], str], now: str
) -> None:
    """Make `pieces` the passages of the file. A piece with the same text under the same heading keeps its row, id and
    vector, even if it moved to other lines.

    Raises:
        apsw.ConstraintError: there is no such file (translated to `RowConflict`).
    """
    known: defaultdict[tuple[str, str], deque[PassageRow]] = defaultdict(deque)
    for row in of_file(connection, file_id):
        known[row.heading, row.content].append(row)
    for index, piece in enumerate(pieces):
        same = known[piece.heading, piece.content]
        if same:
            _move(connection, same.popleft(), piece, index)
        else:
            lines = piece.start_line, piece.end_line
            new = PassageRow(new_id(), file_id, piece.content, *lines, index, now, piece.heading, piece.page)
            _PASSAGES.insert(connection, [new])
    for row in (row for rows in known.values() for row in rows):
        embeddings.delete(connection, SearchKind.FILE, row.id)
        connection.execute("DELETE FROM file_passages WHERE id = ?", (row.id,))


def of_file(
    connection: Connection, file_id: str, *, first_line: int = 1, last_line: int | None = None
) -> list[PassageRow]:
    """Return the passages of a file in order; only those that hold any of the given lines."""
    return _STORED.select(
        connection,
        "WHERE file_id = ?1 AND coalesce(end_line, 1) >= ?2 AND (?3 IS NULL OR coalesce(start_line, 1) <= ?3)"
        " ORDER BY chunk_index",
        (file_id, first_line, last_line),
    )


def _move(connection: Connection, row: PassageRow, piece: Piece, index: int) -> None:
    place = (piece.start_line, piece.end_line, piece.page, index)
    if place != (row.start_line, row.end_line, row.page, row.chunk_index):
        connection.execute(
            "UPDATE file_passages SET start_line = ?, end_line = ?, page = ?, chunk_index = ? WHERE id = ?",
            (*place, row.id),
        )


@dataclass(frozen=True, slots=True)
class PassagePlace:
    """The place of a passage: its folder's and file's names, its lines, its page."""

    folder: str
    file: str
    start_line: int
    end_line: int
    page: int | None


def places(connection: Connection, passage_ids: Sequence[str]) -> dict[str, PassagePlace]:
    """Return the places of these passages, by id; deleted ones are left out."""
    rows = connection.execute(
        "SELECT p.id, o.name, f.name, coalesce(p.start_line, 1), coalesce(p.end_line, 1), p.page"
        " FROM file_passages AS p JOIN folder_files AS f ON f.id = p.file_id JOIN folders AS o ON o.id = f.folder_id"
        " WHERE p.id IN (SELECT value FROM json_each(?))",
        (to_json(list(passage_ids)),),
    )
    return {passage_id: PassagePlace(*place) for passage_id, *place in rows}
