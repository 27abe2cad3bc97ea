"""The conversation of each agent, in the order of positions. Tombstones are never returned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pattern_db.columns import Json, from_json, to_json
from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import BatchType, Role, SearchKind
from pattern_db.errors import NotFound
from pattern_db.tables import embeddings


class MessageRow(NamedTuple):
    """One message; a tuple, since a history is thousands of them and a frozen dataclass takes four times as long.

    `position` is a Snowflake of 19 digits; `batch_id` the position of the first message of its turn, None for what
    no turn made (imported history). `content` is the words; `parts` is a JSON array of all parts in order, where the
    message is more than words. `tool_args`, `tool_result` and `source_metadata` are JSON values.
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

    @property
    def is_said_by_call(self) -> bool:
        """Whether a tool call said this in the agent's name: a prompt shows the call instead."""
        return self.role is Role.ASSISTANT and self.tool_call_id is not None


_COLUMNS = (
    "id, agent_id, position, role, created_at, content, parts, batch_id, sequence_in_batch, batch_type,"
    " tool_call_id, tool_name, tool_args, tool_result, source, source_metadata, session_id, workspace, is_archived"
)

_ROLES = {role.value: role for role in Role}  # a call of the enumeration takes ten times as long


def append(connection: Connection, rows: Sequence[MessageRow]) -> None:
    """Add messages.

    Raises:
        apsw.ConstraintError: a position is taken or the agent is missing (a `Conflict` once translated).
    """
    connection.executemany(
        f"INSERT INTO messages ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                row.id,
                row.agent_id,
                row.position,
                row.role,
                row.created_at,
                row.content,
                None if row.parts is None else to_json(row.parts),
                row.batch_id,
                row.sequence_in_batch,
                row.batch_type,
                row.tool_call_id,
                row.tool_name,
                None if row.tool_args is None else to_json(row.tool_args),
                None if row.tool_result is None else to_json(row.tool_result),
                row.source,
                None if row.source_metadata is None else to_json(row.source_metadata),
                row.session_id,
                row.workspace,
                int(row.is_archived),
            )
            for row in rows
        ],
    )


def get(connection: Connection, message_id: str) -> MessageRow:
    """The message with this id.

    Raises:
        NotFound: there is none, or it was deleted.
    """
    found = _select(connection, "WHERE id = ? AND is_deleted = 0", (message_id,))
    if not found:
        raise NotFound(f"there is no message {message_id}")
    return found[0]


def recent(
    connection: Connection,
    agent_id: str,
    limit: int,
    *,
    before: str | None = None,
    include_archived: bool = False,
) -> list[MessageRow]:
    """The agent's newest `limit` messages, newest first; only those at positions smaller than `before`, if given.

    What the prompt shows leaves the archived ones out; a person's history includes them.
    """
    return _select(
        connection,
        "WHERE agent_id = ? AND position < ? AND is_deleted = 0 AND is_archived <= ? ORDER BY position DESC LIMIT ?",
        (agent_id, before if before is not None else "~", include_archived, limit),  # '~' is beyond all digits
    )


def after(connection: Connection, agent_id: str, position: str, limit: int) -> list[MessageRow]:
    """The agent's first `limit` messages beyond `position`, oldest first, archived or not."""
    return _select(
        connection,
        "WHERE agent_id = ? AND position > ? AND is_deleted = 0 ORDER BY position LIMIT ?",
        (agent_id, position, limit),
    )


def by_batch(connection: Connection, agent_id: str, batch_id: str) -> list[MessageRow]:
    """The messages of one turn, oldest first; empty if there are none.

    An agent runs one turn at a time, so they lie between the batch's own position and the next batch; the range
    takes the place of an index. Only what a turn said after it waited for a person stands further back.
    """
    together = _select(
        connection,
        "WHERE agent_id = ?1 AND batch_id = ?2 AND is_deleted = 0 AND position >= ?2 AND position < coalesce("
        "(SELECT position FROM messages WHERE agent_id = ?1 AND position > ?2 AND batch_id <> ?2"
        " ORDER BY position LIMIT 1), '~') ORDER BY position",
        (agent_id, batch_id),
    )
    last = together[-1].position if together else batch_id
    continued = _select(
        connection,
        "WHERE batch_id = ? AND position > ? AND agent_id = ? AND batch_type = 'continuation' AND is_deleted = 0"
        " ORDER BY position",
        (batch_id, last, agent_id),
    )
    return [*together, *continued]


def discard_batch(connection: Connection, agent_id: str, batch_id: str) -> None:
    """Make tombstones of the messages of one turn: they leave the conversation and every search."""
    tombstone(connection, [row.id for row in by_batch(connection, agent_id, batch_id)])


def by_session(connection: Connection, session_id: str, limit: int, *, before: str | None = None) -> list[MessageRow]:
    """The newest `limit` messages of a session, newest first, archived or not."""
    return _select(
        connection,
        "WHERE session_id = ? AND position < ? AND is_deleted = 0 ORDER BY position DESC LIMIT ?",
        (session_id, before if before is not None else "~", limit),
    )


def newest_position(connection: Connection) -> str | None:
    """The greatest position of all agents, tombstones included, because no position is given twice; None if empty."""
    row = connection.execute(
        "SELECT max(newest) FROM (SELECT (SELECT max(position) FROM messages WHERE agent_id = agents.id) AS newest"
        " FROM agents)"
    ).fetchone()
    return None if row is None else row[0]


def shown(connection: Connection, agent_id: str, limit: int) -> list[MessageRow]:
    """The newest `limit` messages that are not archived, newest first: what a prompt may show.

    However many are archived, only these are read.
    """
    return _select(
        connection,
        "WHERE agent_id = ? AND is_archived = 0 AND is_deleted = 0 ORDER BY position DESC LIMIT ?",
        (agent_id, limit),
    )


def count_shown(connection: Connection, agent_id: str, *, before: str) -> int:
    """How many messages at positions smaller than `before` are not archived."""
    row = fetch_all(
        connection,
        "SELECT count(*) FROM messages WHERE agent_id = ? AND is_archived = 0 AND is_deleted = 0 AND position < ?",
        (agent_id, before),
    )
    return int(row[0][0])


def first_shown(connection: Connection, agent_id: str, limit: int, *, before: str) -> list[tuple[str, str]]:
    """Position and time of the oldest `limit` messages that are not archived, before a position; oldest first."""
    return fetch_all(
        connection,
        "SELECT position, created_at FROM messages WHERE agent_id = ? AND is_archived = 0 AND is_deleted = 0"
        " AND position < ? ORDER BY position LIMIT ?",
        (agent_id, before, limit),
    )


def positions_of(connection: Connection, agent_id: str, batch_ids: Sequence[str]) -> list[str]:
    """Positions of the messages of these turns that are not archived."""
    rows = fetch_all(
        connection,
        "SELECT position FROM messages WHERE agent_id = ?1 AND is_archived = 0 AND is_deleted = 0"
        " AND position >= (SELECT min(value) FROM json_each(?2)) AND batch_id IN (SELECT value FROM json_each(?2))",
        (agent_id, to_json(list(batch_ids))),
    )
    return [position for (position,) in rows]


def count(connection: Connection, agent_id: str, *, include_archived: bool = True) -> int:
    """How many messages the agent has."""
    row = fetch_all(
        connection,
        "SELECT count(*) FROM messages WHERE agent_id = ? AND is_deleted = 0 AND is_archived <= ?",
        (agent_id, include_archived),
    )
    return int(row[0][0])


def archive(connection: Connection, agent_id: str, positions: Sequence[str]) -> int:
    """Take the messages at these positions out of the prompt; return how many were in it. None is ever removed."""
    connection.execute(
        "UPDATE messages SET is_archived = 1 WHERE agent_id = ? AND is_archived = 0"
        " AND position IN (SELECT value FROM json_each(?))",
        (agent_id, to_json(list(positions))),
    )
    return connection.changes()


def archive_hidden(connection: Connection, agent_id: str, positions: Sequence[str], first: str, last: str) -> None:
    """Archive what no prompt shows beside what has left it: the messages at `positions`, and what tool calls said
    between two positions (both included). Those of turns that have not ended stay: their calls are still shown.
    """
    connection.execute(
        "UPDATE messages SET is_archived = 1 WHERE agent_id = ?1 AND is_archived = 0 AND is_deleted = 0"
        " AND (position IN (SELECT value FROM json_each(?2))"
        " OR position BETWEEN ?3 AND ?4 AND role = 'assistant' AND tool_call_id IS NOT NULL)"
        " AND coalesce(batch_id, '') NOT IN (SELECT batch_id FROM turn"
        " WHERE agent_id = ?1 AND ended_at IS NULL AND batch_id IS NOT NULL)",
        (agent_id, to_json(list(positions)), first, last),
    )


def replace(connection: Connection, row: MessageRow) -> None:
    """Rewrite what a message says: content, parts and tool columns. Its place, role and origin stay.

    Raises:
        NotFound: there is no such message.
    """
    connection.execute(
        "UPDATE messages SET content = ?, parts = ?, tool_call_id = ?, tool_name = ?, tool_args = ?, tool_result = ?"
        " WHERE id = ? AND is_deleted = 0",
        (
            row.content,
            None if row.parts is None else to_json(row.parts),
            row.tool_call_id,
            row.tool_name,
            None if row.tool_args is None else to_json(row.tool_args),
            None if row.tool_result is None else to_json(row.tool_result),
            row.id,
        ),
    )
    if connection.changes() == 0:
        raise NotFound(f"there is no message {row.id}")


def tombstone(connection: Connection, message_ids: Sequence[str]) -> int:
    """Hide messages for good, from reads and from both searches; return how many were visible."""
    connection.execute(
        "UPDATE messages SET is_deleted = 1 WHERE is_deleted = 0 AND id IN (SELECT value FROM json_each(?))",
        (to_json(list(message_ids)),),
    )
    changed = connection.changes()
    for message_id in message_ids:
        embeddings.delete(connection, SearchKind.MESSAGE, message_id)
    return changed


def _select(connection: Connection, where: str, values: tuple[str | int, ...]) -> list[MessageRow]:
    return [
        MessageRow(
            id=row[0],
            agent_id=row[1],
            position=row[2],
            role=_ROLES[row[3]],
            created_at=row[4],
            content=row[5],
            parts=from_json(row[6]),
            batch_id=row[7],
            sequence_in_batch=row[8],
            batch_type=None if row[9] is None else BatchType(row[9]),
            tool_call_id=row[10],
            tool_name=row[11],
            tool_args=from_json(row[12]),
            tool_result=from_json(row[13]),
            source=row[14],
            source_metadata=from_json(row[15]),
            session_id=row[16],
            workspace=row[17],
            is_archived=bool(row[18]),
        )
        for row in connection.execute(f"SELECT {_COLUMNS} FROM messages {where}", values)
    ]
