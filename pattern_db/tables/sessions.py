"""Sessions: conversations of front ends with an agent or a group, in addition to the main one; and forks of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pattern_db.columns import to_json
from pattern_db.connection import Connection, Table, fetch_all
from pattern_db.enums import SearchKind, TurnStatus
from pattern_db.errors import RowNotFound
from pattern_db.tables import embeddings, messages, meta, summaries

ALIKE_MAX = 100  # newest sessions that began alike, among which the one with an answer is looked for
FORKED_MESSAGES_MAX = 10_000  # that a fork has in common with its parent, the newest; older ones are only in the parent


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A conversation with an agent or a group. `origin` is the front end that began it, `said_at` the time of its last
    message.

    A fork begins as the session `parent_id`; `summary_id` is the newest summary that both have. `beginning` is a digest
    (of its owner, too) by which a front end without ids of sessions finds it again. `working_dir` is where commands of
    its turns run: an absolute path, None for the shell's first root.
    """

    id: str
    created_at: str
    updated_at: str
    agent_id: str | None = None
    group_id: str | None = None
    title: str | None = None
    origin: str | None = None
    is_archived: bool = False
    parent_id: str | None = None
    summary_id: str | None = None
    beginning: bytes | None = None
    workspace: str | None = None
    said_at: str | None = None
    working_dir: str | None = None


@dataclass(frozen=True, slots=True)
class ChatRow:
    """A session of an agent as a front end lists it: the `status` of its newest turn (None: it had none), how many
    messages of people, the agent and tools it has, the tokens of its turns (in and out, and those from before it was
    imported), and what was said in it first.
    """

    id: str
    agent_id: str
    title: str | None
    working_dir: str | None
    created_at: str
    updated_at: str
    status: TurnStatus | None
    message_count: int
    tokens: int
    first_said: str | None


_LAST_SAID = "(SELECT created_at FROM messages WHERE session_id = sessions.id ORDER BY position DESC LIMIT 1)"
_SESSIONS = Table("sessions", SessionRow, "session {}", columns={"said_at": _LAST_SAID}, types={"is_archived": bool})
_OF_SESSION = (
    "messages WHERE agent_id = sessions.agent_id AND is_deleted = 0 AND position IN (SELECT position FROM messages"
    " WHERE session_id = sessions.id UNION SELECT position FROM session_message WHERE session_id = sessions.id)"
)
_CHATS = Table(
    "sessions",
    ChatRow,
    columns={
        "updated_at": f"max(updated_at, coalesce({_LAST_SAID}, ''))",
        "status": "(SELECT status FROM turn WHERE session_id = sessions.id ORDER BY key DESC LIMIT 1)",
        "message_count": f"(SELECT count(*) FROM {_OF_SESSION} AND role IN ('user', 'assistant', 'tool'))",
        "tokens": "(SELECT coalesce(sum(input_tokens + output_tokens), 0) FROM turn JOIN usage ON usage.turn = turn.key"
        " WHERE turn.session_id = sessions.id) + coalesce((SELECT raw ->> '$.tokens' FROM external_refs"
        " WHERE system = 'codepilot' AND local_id = sessions.id), 0)",
        "first_said": f"(SELECT content FROM {_OF_SESSION} AND role = 'user' ORDER BY position LIMIT 1)",
    },
    types={"status": TurnStatus},
)
_READ = "reflected/"  # before an id: a key in `meta`
_LISTED = "WHERE agent_id IS NOT NULL AND is_archived = 0"
change = _SESSIONS.change


def create(connection: Connection, owner_id: str, row: SessionRow) -> None:
    """Add a session of an agent or a group, whichever has the id `owner_id`.

    Raises:
        RowNotFound: neither has.
        apsw.ConstraintError: its parent is gone (translated to `RowConflict`).
    """
    connection.execute(
        "INSERT INTO sessions (id, title, origin, parent_id, created_at, updated_at, beginning, workspace, working_dir,"
        " agent_id, group_id) SELECT ?1, ?2, ?3, ?4, ?5, ?5, ?7, ?8, ?9, * FROM (SELECT id, NULL FROM agents WHERE"
        " id = ?6 UNION ALL SELECT NULL, id FROM agent_groups WHERE id = ?6)",
        (
            *(row.id, row.title, row.origin, row.parent_id, row.created_at, owner_id, row.beginning),
            *(row.workspace, row.working_dir),
        ),
    )
    if connection.changes() != 1:
        raise RowNotFound(f"there is no agent or group {owner_id}")


def find(connection: Connection, owner_id: str, session_id: str) -> SessionRow:
    """Return a session of an agent or a group.

    Raises:
        RowNotFound: there is none.
    """
    where = "WHERE id = ? AND coalesce(agent_id, group_id) = ?"
    return _SESSIONS.one(connection, where, (session_id, owner_id), f"session {session_id}")


def chat(connection: Connection, session_id: str) -> ChatRow:
    """Return a session of an agent as a front end lists it.

    Raises:
        RowNotFound: there is none.
    """
    return _CHATS.one(connection, "WHERE id = ? AND agent_id IS NOT NULL", (session_id,), f"session {session_id}")


def chats(connection: Connection, limit: int, offset: int) -> tuple[list[ChatRow], int]:
    """Return sessions of agents that are not archived, the newest first: at most `limit` after the first `offset`; and
    how many there are.
    """
    page = f"{_LISTED} ORDER BY created_at DESC, id DESC LIMIT ? OFFSET ?"
    return _CHATS.select(connection, page, (limit, offset)), _CHATS.count(connection, _LISTED)


def working_dir(connection: Connection, session_id: str) -> str | None:
    """Return where commands of a session run; None if the session has no place of its own, or is gone."""
    found = connection.execute("SELECT working_dir FROM sessions WHERE id = ?", (session_id,)).fetchone()
    return None if found is None else found[0]


def begun_as(connection: Connection, beginning: bytes, answer: str) -> SessionRow | None:
    """Return the newest session that began like this, if any; rather one with this text as its first answer."""
    first = (
        "(SELECT trim(content) FROM messages WHERE session_id = sessions.id AND role = 'assistant'"
        " AND content IS NOT NULL ORDER BY position LIMIT 1)"
    )
    return _SESSIONS.first(
        connection,
        "WHERE id IN (SELECT id FROM sessions WHERE beginning = ? AND is_archived = 0 ORDER BY id DESC LIMIT"
        f" {ALIKE_MAX}) ORDER BY {first} IS ? DESC, id DESC LIMIT 1",
        (beginning, answer.strip()),
    )


def known(connection: Connection, agent_id: str, session_ids: Collection[str]) -> set[str]:
    """Return those of the ids that are sessions of the agent."""
    found = fetch_all(
        connection,
        "SELECT id FROM sessions WHERE agent_id = ? AND id IN (SELECT value FROM json_each(?))",
        (agent_id, to_json(list(session_ids))),
    )
    return {session_id for (session_id,) in found}


def newest(
    connection: Connection, owner_id: str, limit: int, *, before: str | None = None, is_archived: bool = False
) -> list[SessionRow]:
    """Return the newest `limit` sessions of an agent or a group, archived ones or others, newest first; only those with
    ids smaller than `before`, if given.
    """
    return _SESSIONS.select(
        connection,
        "WHERE coalesce(agent_id, group_id) = ? AND id < ? AND is_archived = ? ORDER BY id DESC LIMIT ?",
        (owner_id, before or "~", is_archived, limit),
    )


def count(connection: Connection, owner_id: str) -> int:
    """Return how many sessions an agent or a group has."""
    return _SESSIONS.count(connection, "WHERE coalesce(agent_id, group_id) = ?", (owner_id,))


def has_forks(connection: Connection, session_id: str) -> bool:
    """Return whether sessions were forked from this one."""
    found = connection.execute("SELECT 1 FROM sessions WHERE parent_id = ? LIMIT 1", (session_id,))
    return found.fetchone() is not None


def share(connection: Connection, parent: SessionRow, fork_id: str, position: str) -> None:
    """Let a fork of an agent's session, just created, begin with the messages of its parent up to a position.

    Those that the parent had archived at that time are archived in the fork, too: the summaries made from messages up
    to the position are the fork's.
    """
    known = summaries.newest(connection, parent.agent_id or "", parent.id, up_to=position)
    if known is not None:
        change(connection, fork_id, {"summary_id": known.id})
    connection.execute(
        f"INSERT INTO session_message (session_id, position, is_archived) SELECT ?3, position, position <= ?5"
        f" AND position IN (SELECT position FROM session_message WHERE session_id = ?2 AND is_archived = 1)"
        f" FROM messages WHERE {messages.IN_SESSION} AND position <= ?4 ORDER BY position DESC LIMIT ?6",
        (
            parent.agent_id,
            parent.id,
            fork_id,
            position,
            "" if known is None else known.end_position,
            FORKED_MESSAGES_MAX,
        ),
    )


def unread(connection: Connection, agent_id: str, count: int) -> list[tuple[str, str]]:
    """Return the agent's sessions about a project with `count` messages that were not read for guidance, the last that
    was changed first, and the position of the last message that was.
    """
    found = fetch_all(
        connection,
        "SELECT s.id, coalesce(m.value, '') FROM sessions AS s LEFT JOIN meta AS m ON m.key = ?2 || s.id WHERE"
        " s.agent_id = ?1 AND coalesce(s.workspace, s.working_dir) IS NOT NULL AND (SELECT count(*) FROM (SELECT 1"
        " FROM messages WHERE session_id = s.id AND position > coalesce(m.value, '') AND is_deleted = 0 LIMIT ?3)) = ?3"
        " ORDER BY s.updated_at DESC, s.id",
        (agent_id, _READ, count),
    )
    return [(session_id, position) for session_id, position in found]


def note_read(connection: Connection, session_id: str, position: str) -> None:
    """Note that a session was read for guidance up to a position, and forget that of sessions that are gone."""
    meta.put(connection, f"{_READ}{session_id}", position)
    connection.execute(
        "DELETE FROM meta WHERE key GLOB ?1 || '*' AND substr(key, length(?1) + 1) NOT IN (SELECT id FROM sessions)",
        (_READ,),
    )


def delete(connection: Connection, row: SessionRow) -> None:
    """Delete a session: its messages leave every search, its summaries and a group's turns in it are gone.

    Raises:
        RowNotFound: there is no such session.
        apsw.ConstraintError: it has forks (translated to `RowConflict`).
    """
    said = fetch_all(connection, "SELECT id FROM messages WHERE session_id = ? AND is_deleted = 0", (row.id,))
    messages.tombstone(connection, [message_id for (message_id,) in said])
    for (summary_id,) in fetch_all(
        connection, "DELETE FROM archive_summaries WHERE session_id = ? RETURNING id", (row.id,)
    ):
        embeddings.delete(connection, SearchKind.SUMMARY, summary_id)
    own = "SELECT key FROM turn WHERE group_id = ? AND session_id = ?"
    connection.execute(f"UPDATE event SET turn = NULL WHERE turn IN ({own})", (row.group_id, row.id))
    connection.execute(f"DELETE FROM turn WHERE key IN ({own})", (row.group_id, row.id))
    _SESSIONS.delete(connection, row.id)
