"""Long-term entries of agents: stored, found, removed, never changed."""

from __future__ import annotations

from dataclasses import dataclass

from pattern_db import vectors
from pattern_db.columns import Json, from_json, to_json_or_null
from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import SearchKind
from pattern_db.errors import NotFound


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivalRow:
    """One entry. A long text is several: the first, and further chunks that name it as their parent."""

    id: str
    agent_id: str
    content: str
    created_at: str
    metadata: Json = None
    chunk_index: int = 0
    parent_entry_id: str | None = None


def insert(connection: Connection, row: ArchivalRow) -> None:
    """Add an entry.

    Raises:
        apsw.ConstraintError: the id is taken or the parent is missing (a `Conflict` once translated).
    """
    connection.execute(
        "INSERT INTO archival_entries (id, agent_id, content, metadata, chunk_index, parent_entry_id, created_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            row.id,
            row.agent_id,
            row.content,
            to_json_or_null(row.metadata),
            row.chunk_index,
            row.parent_entry_id,
            row.created_at,
        ),
    )


def get(connection: Connection, entry_id: str) -> ArchivalRow:
    """The entry with this id.

    Raises:
        NotFound: there is none.
    """
    found = _select(connection, "WHERE id = ?", (entry_id,))
    if not found:
        raise NotFound(f"there is no archival entry {entry_id}")
    return found[0]


def list_for_agent(
    connection: Connection, agent_id: str, limit: int, *, before: str | None = None
) -> list[ArchivalRow]:
    """The agent's newest `limit` entries, newest first; only those older than the entry with the id `before`."""
    return _select(
        connection,
        "WHERE agent_id = ?1 AND (?2 IS NULL OR (created_at, row) < (SELECT created_at, row FROM archival_entries"
        " WHERE id = ?2)) ORDER BY created_at DESC, row DESC LIMIT ?3",
        (agent_id, before, limit),
    )


def count(connection: Connection, agent_id: str) -> int:
    """How many entries the agent has."""
    row = fetch_all(connection, "SELECT count(*) FROM archival_entries WHERE agent_id = ?", (agent_id,))
    return int(row[0][0])


def delete(connection: Connection, entry_id: str) -> None:
    """Remove the entry, its further chunks and their vectors.

    Raises:
        NotFound: there is none.
    """
    with connection:
        rows = fetch_all(
            connection, "SELECT id FROM archival_entries WHERE id = ?1 OR parent_entry_id = ?1", (entry_id,)
        )
        connection.execute("DELETE FROM archival_entries WHERE id = ?", (entry_id,))
        if connection.changes() == 0:
            raise NotFound(f"there is no archival entry {entry_id}")
        for (removed,) in rows:
            vectors.delete(connection, SearchKind.ARCHIVAL, removed)


def _select(connection: Connection, where: str, values: tuple[str | int | None, ...]) -> list[ArchivalRow]:
    rows = connection.execute(
        "SELECT id, agent_id, content, metadata, chunk_index, parent_entry_id, created_at"
        f" FROM archival_entries {where}",
        values,
    )
    return [
        ArchivalRow(
            id=row[0],
            agent_id=row[1],
            content=row[2],
            metadata=from_json(row[3]),
            chunk_index=row[4],
            parent_entry_id=row[5],
            created_at=row[6],
        )
        for row in rows
    ]
