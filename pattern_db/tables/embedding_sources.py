"""The stored texts that can be embedded: messages, blocks, entries, passages of files, summaries and tasks."""

from __future__ import annotations

from dataclasses import dataclass

from pattern_db.columns import from_json
from pattern_db.connection import Connection, Values, fetch_all
from pattern_db.enums import CONSTELLATION_OWNER, SPOKEN, SearchKind
from pattern_db.tables.embedding_indexes import SOURCES

# What has a text among messages: no results of tools, no tombstones.
_SAID = "is_deleted = 0 AND content IS NOT NULL AND role IN ({})".format(", ".join(f"'{role}'" for role in SPOKEN))
LOOKBACK = 8  # rows that are searched for a message's predecessor (before it) and successor (after it)


# Of each kind but messages: scope, text, title and parent of the text ?1.
_TEXTS = {
    SearchKind.BLOCK: "SELECT agent_id, content_preview, label, NULL FROM memory_blocks"
    " WHERE id = ?1 AND is_active = 1 AND content_preview IS NOT NULL",
    SearchKind.ARCHIVAL: "SELECT agent_id, content, NULL, NULL FROM archival_entries WHERE id = ?1",
    SearchKind.FILE: "SELECT f.folder_id, p.content, f.name || iif(p.heading = '', '', ': ' || p.heading), f.id"
    " FROM file_passages AS p JOIN folder_files AS f ON f.id = p.file_id WHERE p.id = ?1",
    # Stubs have no vectors: they have no content, and all of them would be near each other.
    SearchKind.SUMMARY: "SELECT agent_id, summary, NULL, NULL FROM archive_summaries WHERE id = ?1 AND is_stub = 0",
    SearchKind.TASK: f"SELECT coalesce(agent_id, '{CONSTELLATION_OWNER}'), content, NULL, NULL FROM tasks"
    " WHERE id = ?1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A text and the name of its speaker, if there is one."""

    text: str
    speaker: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingSource:
    """One text. `scope` is its owner (an agent, or a file's folder), `parent` a passage's file.

    `title` is a block's label, or a passage's file and heading. `speaker` is a message's; `previous` the message before
    it in the same session, if any.
    """

    kind: SearchKind
    ref: str
    scope: str
    text: str
    parent: str | None = None
    title: str | None = None
    speaker: str | None = None
    previous: Said | None = None


def newer(connection: Connection, kind: SearchKind, row: int, limit: int) -> list[tuple[int, str]]:
    """Return the first `limit` rows beyond `row`, upwards, each with its id, even if they cannot be embedded."""
    return fetch_all(
        connection, f"SELECT row, id FROM {SOURCES[kind]} WHERE row > ? ORDER BY row LIMIT ?", (row, limit)
    )


def older(connection: Connection, kind: SearchKind, row: int, limit: int) -> list[tuple[int, str]]:
    """Return the first `limit` rows from `row` downwards, each with its id, even if they cannot be embedded."""
    return fetch_all(
        connection, f"SELECT row, id FROM {SOURCES[kind]} WHERE row <= ? ORDER BY row DESC LIMIT ?", (row, limit)
    )


def get(connection: Connection, kind: SearchKind, ref: str) -> EmbeddingSource | None:
    """Return the current text; None if it was deleted, or has nothing to embed."""
    if kind is SearchKind.MESSAGE:
        return _message(connection, ref)
    row = connection.execute(_TEXTS[kind], (ref,)).fetchone()
    if row is None:
        return None
    scope, text, title, parent = row
    return EmbeddingSource(kind=kind, ref=ref, scope=scope, text=text, title=title, parent=parent)


def successor(connection: Connection, message_id: str) -> str | None:
    """Return the message after this one, even if this one was deleted."""
    here = connection.execute(
        "SELECT agent_id, position, session_id FROM messages WHERE id = ?", (message_id,)
    ).fetchone()
    found = None if here is None else _near(connection, here, ">", "ASC")
    return None if found is None else found[0]


def _near(connection: Connection, here: Values, side: str, order: str) -> tuple[str, str, str | None] | None:
    """Return id, content and metadata of the next text on one side of the message with this agent, position, session.

    It is of the same session, and among the next `LOOKBACK` rows.
    """
    found: tuple[str, str, str | None] | None = connection.execute(
        "SELECT id, content, source_metadata FROM (SELECT id, position, role, content, is_deleted, session_id,"
        f" source_metadata FROM messages WHERE agent_id = ?1 AND position {side} ?2 ORDER BY position {order}"
        f" LIMIT {LOOKBACK}) WHERE {_SAID} AND session_id IS ?3 ORDER BY position {order} LIMIT 1",
        here,
    ).fetchone()
    return found


def _message(connection: Connection, ref: str) -> EmbeddingSource | None:
    row = connection.execute(
        f"SELECT agent_id, position, session_id, content, source_metadata FROM messages WHERE id = ? AND {_SAID}",
        (ref,),
    ).fetchone()
    if row is None:
        return None
    agent_id, _position, _session_id, content, metadata = row
    before = _near(connection, row[:3], "<", "DESC")
    return EmbeddingSource(
        kind=SearchKind.MESSAGE,
        ref=ref,
        scope=agent_id,
        text=content,
        speaker=_speaker(metadata),
        previous=None if before is None else Said(text=before[1], speaker=_speaker(before[2])),
    )


def _speaker(metadata: str | None) -> str | None:
    value = from_json(metadata)
    name = value.get("name") if isinstance(value, dict) else None
    return name if isinstance(name, str) and name.strip() else None
