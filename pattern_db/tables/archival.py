"""Archive entries of agents: add, find, supersede, delete. Their text never changes.

A long text is several rows: the first chunk, which is the entry, and later ones with the entry as their parent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pattern_db.columns import Json, to_json
from pattern_db.connection import Connection, Table, fetch_all
from pattern_db.enums import SearchKind
from pattern_db.errors import RowNotFound
from pattern_db.tables import embeddings

CHANGEABLE = ("tags", "metadata", "workspace", "valid_from", "valid_to")
_OF_EVERY_CHUNK = ("tags", "workspace", "valid_from", "valid_to")  # so that a search filters chunks without a join


@dataclass(frozen=True, slots=True)
class ArchivalRow:
    """One entry, or one chunk of a long one.

    `valid_from` None is since `created_at`, `valid_to` (excluded) None is until now; both are column times. `source` is
    a JSON object with the entry's origin, `content_hash` 16 bytes over the whole text.
    """

    id: str
    agent_id: str
    content: str
    created_at: str
    metadata: Json = None
    chunk_index: int = 0
    parent_entry_id: str | None = None
    tags: Sequence[str] | None = None
    workspace: str | None = None
    valid_from: str | None = None
    valid_to: str | None = None
    superseded_by: str | None = None
    source: Json = None
    content_hash: bytes | None = None


_ENTRIES = Table("archival_entries", ArchivalRow, "archival entry {}", json=("metadata", "tags", "source"))
get = _ENTRIES.get  # of an entry its first chunk, or a later chunk


def insert(connection: Connection, row: ArchivalRow) -> None:
    """Add an entry or a chunk.

    Raises:
        apsw.ConstraintError: the id is in use or the parent is missing (translated to `RowConflict`).
    """
    _ENTRIES.insert(connection, [replace(row, tags=row.tags or None)])


def contents(connection: Connection, entry_ids: Sequence[str]) -> dict[str, list[str]]:
    """Return the texts of the chunks of each of these entries, in order; joined they are the whole text."""
    rows = fetch_all(
        connection,
        "SELECT coalesce(parent_entry_id, id), content FROM archival_entries WHERE id IN (SELECT value FROM"
        " json_each(?1)) OR parent_entry_id IN (SELECT value FROM json_each(?1)) ORDER BY chunk_index",
        (to_json(list(entry_ids)),),
    )
    found: dict[str, list[str]] = {}
    for entry_id, content in rows:
        found.setdefault(entry_id, []).append(content)
    return found


def list_for_agent(
    connection: Connection,
    agent_id: str,
    limit: int,
    *,
    before: tuple[str, str] | None = None,
    tag: str | None = None,
    valid_at: str | None = None,
) -> list[ArchivalRow]:
    """Return the agent's newest `limit` entries (first chunks), newest first.

    `before` selects those older than an entry, given by its `created_at` and id (it may be deleted). `tag` selects
    those with the tag, `valid_at` those that are not superseded or ended at that time.
    """
    return _ENTRIES.select(
        connection,
        "WHERE agent_id = ?1 AND parent_entry_id IS NULL AND (?2 IS NULL OR (created_at, row) < (?6, coalesce((SELECT"
        " row FROM archival_entries WHERE id = ?2), 9223372036854775807)))"
        " AND (?4 IS NULL OR ?4 IN (SELECT value FROM json_each(tags)))"
        " AND (?5 IS NULL OR valid_to IS NULL OR valid_to > ?5) ORDER BY created_at DESC, row DESC LIMIT ?3",
        (agent_id, before and before[1], limit, tag, valid_at, before and before[0]),
    )


def events(
    connection: Connection,
    workspace: str,
    kind: str,
    limit: int,
    *,
    words: str | None = None,
    tags: Sequence[str] | None = None,
    since: str | None = None,
    session: str | None = None,
) -> list[ArchivalRow]:
    """Return the newest `limit` entries (first chunks) of a workspace with this `kind` in their metadata, newest first.

    Only those with `words` anywhere in their text and one of the `tags`, both whatever the case of ASCII letters,
    stored at `since` or later, with this `session` in their metadata.
    """
    return _ENTRIES.select(
        connection,
        "WHERE workspace = ?1 AND parent_entry_id IS NULL AND metadata ->> '$.kind' = ?2"
        " AND (?4 IS NULL OR id IN (SELECT coalesce(parent_entry_id, id) FROM archival_entries WHERE workspace = ?1"
        " AND instr(lower(content), lower(?4))))"
        " AND (?5 IS NULL OR EXISTS (SELECT 1 FROM json_each(tags) AS has JOIN json_each(?5) AS wanted"
        " ON lower(has.value) = lower(wanted.value)))"
        " AND (?6 IS NULL OR created_at >= ?6) AND (?7 IS NULL OR metadata ->> '$.session' = ?7)"
        " ORDER BY created_at DESC, row DESC LIMIT ?3",
        (workspace, kind, limit, words, None if tags is None else to_json(list(tags)), since, session),
    )


def count_events(connection: Connection, workspace: str, kind: str) -> int:
    """Return how many entries of a workspace have this `kind` in their metadata."""
    return _ENTRIES.count(
        connection, "WHERE workspace = ? AND parent_entry_id IS NULL AND metadata ->> '$.kind' = ?", (workspace, kind)
    )


def count_rows(connection: Connection, agent_id: str) -> int:
    """Return the number of rows of the agent's archive, with all chunks; reads only the index."""
    return _ENTRIES.count(connection, "WHERE agent_id = ?", (agent_id,))


def same(connection: Connection, agent_id: str, content_hash: bytes, now: str) -> ArchivalRow | None:
    """Return the agent's valid entry with this hash of its whole text; None if there is none."""
    return _ENTRIES.first(
        connection,
        "WHERE agent_id = ? AND content_hash = ? AND (valid_to IS NULL OR valid_to > ?) ORDER BY row LIMIT 1",
        (agent_id, content_hash, now),
    )


def candidates(
    connection: Connection, agent_id: str, groups: Sequence[Sequence[str]], now: str, *, chars: range, limit: int
) -> list[str]:
    """Return ids of valid entries that hold all words of one of the `groups` in one chunk, and as many characters as
    `chars`.

    At most `limit`, best first. Words are plain text.
    """
    wanted = [" AND ".join('"' + word.replace('"', '""') + '"' for word in words) for words in groups if words]
    if not wanted:
        return []
    rows = fetch_all(
        connection,
        "SELECT entry FROM (SELECT coalesce(e.parent_entry_id, e.id) AS entry, bm25(archival_fts) AS words"
        " FROM archival_fts JOIN archival_entries AS e ON e.row = archival_fts.rowid WHERE archival_fts MATCH ?1"
        " AND e.agent_id = ?2 AND (e.valid_to IS NULL OR e.valid_to > ?3)) WHERE (SELECT sum(length(content))"
        " FROM archival_entries WHERE id = entry OR parent_entry_id = entry) BETWEEN ?4 AND ?5"
        " ORDER BY words LIMIT ?6",
        (f"content : ({' OR '.join(f'({words})' for words in wanted)})", agent_id, now, chars.start, chars.stop, limit),
    )
    return list(dict.fromkeys(entry for (entry,) in rows))


def supersede(connection: Connection, entry_id: str, *, by: str, valid_to: str) -> None:
    """End an entry at `valid_to`, if it does not end earlier, and set its successor; an entry with a successor stays
    unchanged.
    """
    connection.execute(
        "UPDATE archival_entries SET superseded_by = ? WHERE id = ? AND superseded_by IS NULL", (by, entry_id)
    )
    if connection.changes():
        connection.execute(
            "UPDATE archival_entries SET valid_to = ?1 WHERE (id = ?2 OR parent_entry_id = ?2)"
            " AND (valid_to IS NULL OR valid_to > ?1)",
            (valid_to, entry_id),
        )


def versions(connection: Connection, entry_id: str, limit: int) -> list[ArchivalRow]:
    """Return the entry with all that it superseded and that superseded it, oldest first; at most `limit`."""
    return _ENTRIES.select(
        connection,
        "WHERE id IN (WITH RECURSIVE chain (id) AS (VALUES (?1) UNION SELECT e.superseded_by FROM chain"
        " JOIN archival_entries AS e ON e.id = chain.id WHERE e.superseded_by IS NOT NULL UNION SELECT e.id FROM chain"
        " JOIN archival_entries AS e ON e.superseded_by = chain.id) SELECT id FROM chain)"
        " ORDER BY created_at, row LIMIT ?2",
        (entry_id, limit),
    )


def update(connection: Connection, entry_id: str, changes: Mapping[str, Json]) -> None:
    """Update fields named in CHANGEABLE; those that searches filter by change in every chunk.

    Raises:
        RowNotFound: there is no such entry.
        KeyError: a field cannot be changed.
    """
    for name in sorted(changes):
        if name not in CHANGEABLE:
            raise KeyError(name)
        where = "id = ?2 OR parent_entry_id = ?2" if name in _OF_EVERY_CHUNK else "id = ?2"
        value = _encoded(name, changes[name])
        connection.execute(f"UPDATE archival_entries SET {name} = ?1 WHERE {where}", (value, entry_id))
        if connection.changes() == 0:
            raise RowNotFound(f"there is no archival entry {entry_id}")


def _encoded(name: str, value: Json) -> str | None:
    if name == "tags":
        return to_json(list(value)) if value else None
    return None if value is None else to_json(value) if name == "metadata" else value


def delete(connection: Connection, entry_id: str) -> None:
    """Delete the entry, its later chunks and their vectors. Entries that it superseded stay, without a successor.

    Raises:
        RowNotFound: there is none.
    """
    rows = fetch_all(connection, "SELECT id FROM archival_entries WHERE id = ?1 OR parent_entry_id = ?1", (entry_id,))
    _ENTRIES.delete(connection, entry_id)
    for (removed,) in rows:
        embeddings.delete(connection, SearchKind.ARCHIVAL, removed)
