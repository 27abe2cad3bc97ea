"""Who asked whom: agents and groups that wait for an answer, and what an agent sent another recently."""

from __future__ import annotations

from typing import NamedTuple

from pattern_db.connection import Connection, fetch_all

# Whether the message of the turn `t` needs an answer: a group's question to a member does, others say so.
_NEEDS_ANSWER = (
    "coalesce((SELECT m.source = 'group' OR m.source_metadata ->> '$.needs_response' FROM messages AS m"
    " WHERE m.agent_id = t.agent_id AND m.position = t.batch_id),"
    " (SELECT payload ->> '$.source_metadata.needs_response' FROM group_run WHERE turn = t.key), 0)"
)


class Waiting(NamedTuple):
    """An agent or a group in a chain of questions; `sender` sent the message of its turn."""

    id: str
    name: str
    sender: str


def chain(connection: Connection, turn: int, longest: int) -> list[Waiting]:
    """Return who works on the turn with this key, then who waits for its answer, who waits for that, and so on: at most
    `longest` of them.
    """
    found = fetch_all(
        connection,
        "WITH RECURSIVE chain(place, key) AS (SELECT 1, ?1 UNION ALL SELECT place + 1, t.parent_turn FROM chain"
        " JOIN turn AS t ON t.key = chain.key WHERE place < ?2 AND t.parent_turn IS NOT NULL"
        f" AND {_NEEDS_ANSWER}) SELECT coalesce(a.id, g.id), coalesce(a.name, g.name), t.sender FROM chain"
        " JOIN turn AS t ON t.key = chain.key LEFT JOIN agents AS a ON a.id = t.agent_id"
        " LEFT JOIN agent_groups AS g ON g.id = t.group_id ORDER BY place",
        (turn, longest),
    )
    return [Waiting(*row) for row in found]


def newest(connection: Connection, sender: str, target: str, since: str, position: str) -> str | None:
    """Return when the agent `sender` last sent the agent `target` a message, if that was after the time `since`, of
    which `position` is the first position. What waits counts from its acceptance, another from the start of its turn.
    """
    found: str | None = connection.execute(
        "SELECT max(at) FROM (SELECT created_at AS at FROM messages WHERE agent_id = ?2 AND position >= ?4"
        " AND source = 'agent' AND source_metadata ->> '$.agent_id' = ?1 UNION ALL SELECT created_at FROM inbox"
        " WHERE agent_id = ?2 AND created_at >= ?3 AND payload ->> '$.source' = 'agent'"
        " AND payload ->> '$.source_metadata.agent_id' = ?1)",
        (sender, target, since, position),
    ).get
    return found
