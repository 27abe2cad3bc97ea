"""The conversation of each agent, in the order of positions, its imports and images.

Tombstones are never returned. An image is stored once under its own digest, however many messages show it.

A message of a session is archived for the agent's main conversation from the beginning. Which prompts of its session
show it, and which of another one's messages a session begins with, is in `session_message`.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pattern_db.columns import Json, to_json
from pattern_db.connection import Connection, Table, Values, fetch_all
from pattern_db.enums import BatchType, Role, SearchKind, TrustLevel
from pattern_db.tables import embeddings

PARTIAL = "partial"  # in the metadata of an incomplete answer: the reason


class MessageRow(NamedTuple):
    """One message; a tuple, since a history has thousands of them and a frozen dataclass is four times slower.

    `position` is a Snowflake of 19 digits; `batch_id` the position of the first message of its turn, None for imported
    history. `content` is the text; `parts` is a JSON array of all parts in order, if the message is more than text.
    `tool_args`, `tool_result` and `source_metadata` are JSON values. `note` is what prompts show before a turn's first
    message. `trust` is how far who sent it, all who led to it, or the turn that it was said in, are trusted.
    """

    id: str
    agent_id: str
    position: str
    role: Role
    created_at: str
    content: str | None = None
    parts: Json = None
    batch_id: str | None = None
    sequence_in_batch: int | None = None
    batch_type: BatchType | None = None
    tool_call_id: str | None = None
    tool_name: str | None = None
    tool_args: Json = None
    tool_result: Json = None
    source: str | None = None
    source_metadata: Json = None
    session_id: str | None = None
    workspace: str | None = None
    is_archived: bool = False
    note: str | None = None
    trust: TrustLevel = TrustLevel.SOURCE

    @property
    def finish_reason(self) -> str | None:
        """Why an answer is incomplete, such as `length` or its turn's status; None if it is complete."""
        is_own = self.role is Role.ASSISTANT and self.batch_id is not None
        why = self.source_metadata.get(PARTIAL) if is_own and isinstance(self.source_metadata, dict) else None
        return None if why is None else str(why)

    @property
    def is_said_by_call(self) -> bool:
        """Whether a tool call sent this as the agent: a prompt shows the call instead."""
        return self.role is Role.ASSISTANT and self.tool_call_id is not None


_MESSAGES = Table(
    "messages",
    MessageRow,
    json=("parts", "tool_args", "tool_result", "source_metadata"),
    types={"role": Role, "batch_type": BatchType, "is_archived": bool, "trust": TrustLevel},
)
append = _MESSAGES.insert
# Of the agent ?1, in its main conversation or in its session ?2.
_IN_MAIN_PROMPT = "agent_id = ?1 AND is_archived = 0 AND is_deleted = 0"
IN_SESSION = (
    "agent_id = ?1 AND is_deleted = 0 AND position IN (SELECT position FROM messages WHERE session_id = ?2"
    " UNION SELECT position FROM session_message WHERE session_id = ?2)"
)
_IN_SESSION_PROMPT = (
    f"{IN_SESSION} AND position NOT IN (SELECT position FROM session_message WHERE session_id = ?2 AND is_archived = 1)"
)


def _in_prompt(session_id: str | None) -> str:
    return _IN_MAIN_PROMPT if session_id is None else _IN_SESSION_PROMPT


def set_note(connection: Connection, agent_id: str, position: str, note: str) -> None:
    """Set what prompts show before the agent's message at a position."""
    connection.execute(
        "UPDATE messages SET note = ? WHERE agent_id = ? AND position = ?", (note or None, agent_id, position)
    )


def get(connection: Connection, message_id: str) -> MessageRow:
    """Return the message with this id.

    Raises:
        RowNotFound: there is none, or it was deleted.
    """
    return _MESSAGES.one(connection, "WHERE id = ? AND is_deleted = 0", (message_id,), f"message {message_id}")


def recent(
    connection: Connection, agent_id: str, limit: int, *, before: str | None = None, session_id: str | None = None
) -> list[MessageRow]:
    """Return the agent's newest `limit` messages, newest first, archived ones included; only those at positions smaller
    than `before` and those of one session, if given.
    """
    chosen = "agent_id = ?1 AND is_deleted = 0" if session_id is None else IN_SESSION
    return _MESSAGES.select(
        connection,
        f"WHERE {chosen} AND position < ?3 ORDER BY position DESC LIMIT ?4",
        (agent_id, session_id, "~" if before is None else before, limit),  # '~' is beyond all digits
    )


def since(connection: Connection, agent_id: str, position: str, limit: int) -> list[MessageRow]:
    """Return the newest `limit` messages of the agent's main conversation after a position, oldest first."""
    found = _MESSAGES.select(
        connection,
        "WHERE agent_id = ? AND position > ? AND session_id IS NULL AND is_deleted = 0 ORDER BY position DESC LIMIT ?",
        (agent_id, position, limit),
    )
    return found[::-1]


def by_batch(connection: Connection, agent_id: str, batch_id: str) -> list[MessageRow]:
    """Return the messages of one turn, oldest first; empty if there are none.

    An agent runs one turn at a time, so they are between the batch's own position and the next batch; the range
    replaces an index. Only messages of a turn after it waited for a person are further back.
    """
    together = _MESSAGES.select(
        connection,
        "WHERE agent_id = ?1 AND batch_id = ?2 AND is_deleted = 0 AND position >= ?2 AND position < coalesce("
        "(SELECT position FROM messages WHERE agent_id = ?1 AND position > ?2 AND batch_id <> ?2"
        " ORDER BY position LIMIT 1), '~') ORDER BY position",
        (agent_id, batch_id),
    )
    last = together[-1].position if together else batch_id
    continued = _MESSAGES.select(
        connection,
        "WHERE batch_id = ? AND position > ? AND agent_id = ? AND batch_type = 'continuation' AND is_deleted = 0"
        " ORDER BY position",
        (batch_id, last, agent_id),
    )
    return [*together, *continued]


def discard_batch(connection: Connection, agent_id: str, batch_id: str) -> None:
    """Turn the messages of one turn into tombstones: they leave the conversation and every search."""
    tombstone(connection, [row.id for row in by_batch(connection, agent_id, batch_id)])


def newest_position(connection: Connection) -> str | None:
    """Return the greatest position of all agents, tombstones included, because no position is used twice; None if
    empty.
    """
    row = connection.execute(
        "SELECT max(newest) FROM (SELECT (SELECT max(position) FROM messages WHERE agent_id = agents.id) AS newest"
        " FROM agents)"
    ).fetchone()
    return None if row is None else row[0]


def shown(connection: Connection, agent_id: str, limit: int, *, session_id: str | None = None) -> list[MessageRow]:
    """Return the newest `limit` messages that a prompt may show, newest first: those of the agent's main conversation,
    or of a session, that are not archived.

    However many are archived, only these are read.
    """
    return _MESSAGES.select(
        connection,
        f"WHERE {_in_prompt(session_id)} ORDER BY position DESC LIMIT ?3",
        (agent_id, session_id, limit),
    )


def count_shown(connection: Connection, agent_id: str, *, before: str, session_id: str | None = None) -> int:
    """Return how many messages at positions smaller than `before` are not archived, as in `shown`."""
    shown: int = connection.execute(
        f"SELECT count(*) FROM messages WHERE {_in_prompt(session_id)} AND position < ?3",
        (agent_id, session_id, before),
    ).get
    return shown


def first_shown(
    connection: Connection, agent_id: str, limit: int, *, before: str, session_id: str | None = None
) -> list[tuple[str, str]]:
    """Position and time of the oldest `limit` messages that are not archived, as in `shown`, before a position; oldest
    first.
    """
    return fetch_all(
        connection,
        f"SELECT position, created_at FROM messages WHERE {_in_prompt(session_id)} AND position < ?3"
        " ORDER BY position LIMIT ?4",
        (agent_id, session_id, before, limit),
    )


def positions_of(
    connection: Connection, agent_id: str, batch_ids: Sequence[str], *, session_id: str | None = None
) -> list[str]:
    """Return positions of the messages of these turns that are not archived, as in `shown`."""
    rows = fetch_all(
        connection,
        f"SELECT position FROM messages WHERE {_in_prompt(session_id)}"
        " AND position >= (SELECT min(value) FROM json_each(?3)) AND batch_id IN (SELECT value FROM json_each(?3))",
        (agent_id, session_id, to_json(list(batch_ids))),
    )
    return [position for (position,) in rows]


def archive(connection: Connection, agent_id: str, positions: Sequence[str], *, session_id: str | None = None) -> int:
    """Archive the messages at these positions, as in `shown`; return how many were not archived. None is deleted."""
    which = "position IN (SELECT value FROM json_each(?3))"
    return _archive(connection, which, (agent_id, session_id, to_json(list(positions))))


def archive_hidden(
    connection: Connection,
    agent_id: str,
    positions: Sequence[str],
    first: str,
    last: str,
    *,
    session_id: str | None = None,
) -> None:
    """Archive hidden messages together with archived ones: the messages at `positions`, and those sent by tool calls
    between two positions (both included). Those of open turns stay: their calls are still shown.
    """
    which = (
        "(position IN (SELECT value FROM json_each(?3))"
        " OR position BETWEEN ?4 AND ?5 AND role = 'assistant' AND tool_call_id IS NOT NULL)"
        " AND coalesce(batch_id, '') NOT IN (SELECT batch_id FROM turn"
        " WHERE agent_id = ?1 AND ended_at IS NULL AND batch_id IS NOT NULL)"
    )
    _archive(connection, which, (agent_id, session_id, to_json(list(positions)), first, last))


def _archive(connection: Connection, which: str, values: Values) -> int:
    if values[1] is None:
        connection.execute(f"UPDATE messages SET is_archived = 1 WHERE {_IN_MAIN_PROMPT} AND {which}", values)
    else:
        connection.execute(
            "INSERT INTO session_message (session_id, position, is_archived) SELECT ?2, position, 1 FROM messages"
            f" WHERE {_IN_SESSION_PROMPT} AND {which} ON CONFLICT DO UPDATE SET is_archived = 1",
            values,
        )
    return connection.changes()


def tombstone(connection: Connection, message_ids: Sequence[str]) -> None:
    """Hide messages permanently, from reads and from both searches."""
    connection.execute(
        "UPDATE messages SET is_deleted = 1 WHERE is_deleted = 0 AND id IN (SELECT value FROM json_each(?))",
        (to_json(list(message_ids)),),
    )
    for message_id in message_ids:
        embeddings.delete(connection, SearchKind.MESSAGE, message_id)


@dataclass(frozen=True, slots=True)
class ImportRow:
    """One import. Both digests have 16 bytes; `positions` are those of its messages, in the order of the request."""

    idempotency: bytes
    fingerprint: bytes
    agent_id: str
    created_at: str
    positions: Sequence[int]


_IMPORTS = Table(
    "history_import",
    ImportRow,
    types={"positions": lambda packed: struct.unpack(f"<{len(packed) // 8}q", packed)},
)


def note_import(connection: Connection, row: ImportRow) -> None:
    """Store an import.

    Raises:
        apsw.ConstraintError: the key was used, or the agent is missing (translated to `RowConflict`).
    """
    connection.execute(
        f"INSERT INTO history_import ({_IMPORTS.columns}) VALUES (?, ?, ?, ?, ?)",
        (*_IMPORTS.values(row)[:-1], struct.pack(f"<{len(row.positions)}q", *row.positions)),
    )


def find_import(connection: Connection, idempotency: bytes) -> ImportRow | None:
    """Return the import made under this digest of a key; None if there is none."""
    return _IMPORTS.first(connection, "WHERE idempotency = ?", (idempotency,))


def imported(connection: Connection, agent_id: str, session_id: str) -> dict[str, str]:
    """Return the positions of the messages of a session that were imported with an `id`, a text, by that."""
    found = fetch_all(
        connection,
        f"SELECT source_metadata ->> '$.id', position FROM messages WHERE {IN_SESSION}"
        " AND json_type(source_metadata, '$.id') = 'text'",
        (agent_id, session_id),
    )
    return dict(found)


def newest_between(connection: Connection, agent_id: str, first: str, last: str) -> str | None:
    """Return the greatest used position from `first` to `last`; None if there is none.

    A message's id contains its position, so the messages of all agents count; for this agent's messages the position
    counts, too, because an id may be imported.
    """
    row = connection.execute(
        "SELECT max(taken) FROM (SELECT substr((SELECT max(id) FROM messages WHERE id BETWEEN 'msg_' || ?2 AND"
        " 'msg_' || ?3), 5) AS taken UNION ALL"
        " SELECT (SELECT max(position) FROM messages WHERE agent_id = ?1 AND position BETWEEN ?2 AND ?3))",
        (agent_id, first, last),
    ).fetchone()
    return None if row is None else row[0]


DIGEST_BYTES = 32  # BLAKE2b-256 of the content before compression

Encoding = Literal["raw", "zstd"]


@dataclass(frozen=True, slots=True)
class BlobRow:
    """Stored content. `data` is encoded as `encoding`; `size` is its length in bytes before that."""

    digest: bytes
    size: int
    data: bytes
    created_at: str
    encoding: Encoding = "raw"


_BLOBS = Table("blob", BlobRow)


def put_blob(connection: Connection, row: BlobRow) -> None:
    """Store the content, unless it is already stored."""
    _BLOBS.insert(connection, [row], "ON CONFLICT (digest) DO NOTHING")


def get_blob(connection: Connection, digest: bytes) -> BlobRow:
    """Return the content with this digest.

    Raises:
        RowNotFound: there is none.
    """
    return _BLOBS.one(connection, "WHERE digest = ?", (digest,), f"stored content {digest.hex()}")


def blobs_older_than(
    connection: Connection, created_before: str, limit: int, *, after: tuple[str, bytes] = ("", b"")
) -> list[tuple[str, bytes, bytes]]:
    """Return the oldest `limit` uncompressed contents created before a time, oldest first: time, digest and their first
    16 bytes. Begin `after` nothing, and continue with the last one's time and digest.
    """
    return fetch_all(
        connection,
        "SELECT created_at, digest, substr(data, 1, 16) FROM blob WHERE created_at < ? AND encoding = 'raw'"
        " AND (created_at, digest) > (?, ?) ORDER BY created_at, digest LIMIT ?",
        (created_before, *after, limit),
    )


def blobs_shown_between(connection: Connection, after: int, to: int) -> set[str]:
    """Return the digests (hex) of the images in messages with `after` < row <= `to`; deleted ones have none."""
    rows = fetch_all(
        connection,
        "SELECT DISTINCT part.value ->> '$.digest' FROM messages AS m, json_each(m.parts) AS part"
        f" WHERE m.row > ? AND m.row <= ? AND {_SHOWS}",
        (after, to),
    )
    return {digest for (digest,) in rows}


def newest_message_row(connection: Connection) -> int:
    """Return the greatest row of a message; 0 if there is none."""
    return int(fetch_all(connection, "SELECT coalesce(max(row), 0) FROM messages")[0][0])


def remove_unused_blobs(connection: Connection, digests: Collection[bytes], *, since: str) -> tuple[int, int]:
    """Delete these contents, except those in messages at positions from `since` on, or in queued messages; return their
    number and bytes. The caller has scanned the older messages.
    """
    needed = {
        digest
        for (digest,) in fetch_all(
            connection,
            "SELECT DISTINCT part.value ->> '$.digest' FROM agents AS a CROSS JOIN messages AS m ON m.agent_id = a.id"
            f" AND m.position >= ?1, json_each(m.parts) AS part WHERE {_SHOWS}"
            " UNION SELECT part.value ->> '$.digest' FROM inbox AS i, json_each(i.payload, '$.parts') AS part"
            " WHERE part.value ->> '$.type' = 'image'",
            (since,),
        )
    }
    names = [digest.hex() for digest in digests if digest.hex() not in needed]
    gone = fetch_all(
        connection,
        "DELETE FROM blob WHERE digest IN (SELECT unhex(value) FROM json_each(?)) RETURNING size",
        (to_json(names),),
    )
    return len(gone), sum(size for (size,) in gone)


# `m` is a readable message, `part` one of its parts. The text is compared first: most parts are tool calls.
_SHOWS = (
    "m.is_deleted = 0 AND m.parts IS NOT NULL AND instr(m.parts, '\"digest\"') > 0"
    " AND part.value ->> '$.type' = 'image' AND part.value ->> '$.digest' IS NOT NULL"
)
