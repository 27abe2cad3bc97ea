"""The runs of groups: one for each turn of a group, and the turns of the members that it asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pattern_db.connection import Connection, Table, fetch_all
from pattern_db.enums import Role
from pattern_db.journal import turns
from pattern_db.journal.turns import NewTurn, Started, TurnRow, by_key
from pattern_db.tables import messages
from pattern_db.tables.messages import MessageRow


@dataclass(frozen=True, slots=True)
class RunRow:
    """The run of the turn with this key. `payload` and `plan` are JSON; no `plan`: not started."""

    turn: int
    payload: str
    plan: str | None = None
    answer: str | None = None


class AskRow(NamedTuple):
    """A question to a member: the run's turn, the place in the run, the member's turn, and why it was asked."""

    turn: int
    place: str
    asked: int
    why: str | None = None


class MemberTurn(NamedTuple):
    """A member's turn that a run asked for: its key and id, the agent, its status, and its last words, if any;
    `changed` are the labels of the blocks that it changed, in lines.
    """

    key: int
    place: str
    turn_id: str
    agent_id: str
    status: str
    text: str | None
    ended_at: str | None
    changed: str | None


class Branch(NamedTuple):
    """A turn below a group's turn: its id, the id of the turn that asked for it, who works on it, and why it was asked,
    if a group did.
    """

    turn_id: str
    parent_id: str
    name: str
    reason: str | None
    status: str
    created_at: str
    started_at: str | None
    ended_at: str | None


class GroupSaid(NamedTuple):
    """Something that was said in a group: a message to it (no `agent_id`), or a member's answer; `key` and `id` are
    those of its own turn, `turn_id` is the group's turn.
    """

    key: int
    id: str
    turn_id: str
    agent_id: str | None
    created_at: str
    sender: str
    content: str | None
    session_id: str | None = None


_RUNS = Table("group_run", RunRow)
_ASKS = Table("group_ask", AskRow)
_OPEN = "+group_id = ? AND agent_id IS NULL AND ended_at IS NULL"  # by the index of open turns, which are few
_LAST_SAID = (
    "(SELECT m.content FROM messages AS m WHERE m.agent_id = t.agent_id AND m.position >= t.batch_id"
    " AND m.batch_id = t.batch_id AND m.role = 'assistant' AND m.content IS NOT NULL AND m.is_deleted = 0"
    " ORDER BY m.position DESC LIMIT 1)"
)
_CHANGED = (
    "(SELECT group_concat(e.data ->> '$.label', char(10)) FROM event AS e WHERE e.seq >= t.first_event"
    " AND e.turn = t.key AND e.name = 'memory.changed')"
)
_EXCHANGES = (
    f"SELECT t.key, a.place, t.id, t.agent_id, t.status, {_LAST_SAID}, t.ended_at, {_CHANGED}"
    " FROM group_ask AS a JOIN turn AS t ON t.key = a.asked WHERE a.turn = ?"
)


def accept(connection: Connection, turn: NewTurn, payload: str, start: tuple[Started, str] | None = None) -> int:
    """Store an accepted turn of a group (its `agent_id` is the group's) with its message, as queued or, with a `start`
    and the run's plan, as running; return its key.
    """
    started, plan = start or ((None,) * 4, None)
    key: int = connection.execute(
        "INSERT INTO turn (group_id, id, sender, seed, created_at, parent_turn, depth, idempotency, fingerprint,"
        " session_id, options, batch_id, epoch, started_at, deadline_at, status, first_event) VALUES (?, ?, ?, ?, ?, ?,"
        " ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, (SELECT coalesce(max(seq), 0) + 1 FROM event)) RETURNING key",
        (*turn, *started, "queued" if start is None else "running"),
    ).get
    _RUNS.insert(connection, [RunRow(turn=key, payload=payload, plan=plan)])
    return key


def get(connection: Connection, turn: int) -> RunRow:
    """Return the run of a turn.

    Raises:
        RowNotFound: the turn is not a group's.
    """
    return _RUNS.one(connection, "WHERE turn = ?", (turn,), f"run of the turn {turn}")


def start(connection: Connection, turn: int, started: Started, plan: str) -> None:
    """Mark a queued turn as running, and store what the run will be.

    Raises:
        RowConflict: it is no longer queued.
    """
    turns.start(connection, turn, started)
    connection.execute("UPDATE group_run SET plan = ? WHERE turn = ?", (plan, turn))


def set_answer(connection: Connection, turn: int, answer: str | None) -> None:
    """Store what the group answered."""
    connection.execute("UPDATE group_run SET answer = ? WHERE turn = ?", (answer, turn))


def ask(connection: Connection, row: AskRow) -> None:
    """Note that the run asked a member.

    Raises:
        apsw.ConstraintError: there is a question at this place (a `RowConflict` once translated).
    """
    _ASKS.insert(connection, [row])


def exchanges(connection: Connection, turn: int) -> list[MemberTurn]:
    """Return the turns of members that a run asked for, oldest first."""
    return [MemberTurn(*row) for row in fetch_all(connection, f"{_EXCHANGES} ORDER BY t.key", (turn,))]


def exchange(connection: Connection, turn: int, place: str) -> MemberTurn | None:
    """Return the turn of the member that a run asked at a place; None if its agent was deleted."""
    found = connection.execute(f"{_EXCHANGES} AND a.place = ?", (turn, place)).fetchone()
    return None if found is None else MemberTurn(*found)


def member_turns(connection: Connection, turn_id: str) -> set[str]:
    """Return the ids of the turns that a group's turn asked for; none of another turn."""
    found = connection.execute(
        "SELECT m.id FROM turn AS t JOIN group_ask AS a ON a.turn = t.key JOIN turn AS m ON m.key = a.asked"
        " WHERE t.id = ?",
        (turn_id,),
    )
    return {member for (member,) in found}


def tree(connection: Connection, turn: int, limit: int) -> list[Branch]:
    """Return the turns that a group's turn asked for, those that they asked for, and so on: the `limit` oldest, in the
    order of their acceptance.
    """
    found = fetch_all(
        connection,
        "WITH RECURSIVE below(key) AS (SELECT key FROM turn WHERE parent_turn = ?1 UNION ALL SELECT t.key FROM below"
        " JOIN turn AS t ON t.parent_turn = below.key ORDER BY 1 LIMIT ?2) SELECT t.id, p.id, coalesce(a.name, g.name),"
        " k.why, t.status, t.created_at, t.started_at, t.ended_at FROM below JOIN turn AS t ON t.key = below.key"
        " JOIN turn AS p ON p.key = t.parent_turn LEFT JOIN agents AS a ON a.id = t.agent_id"
        " LEFT JOIN agent_groups AS g ON g.id = t.group_id LEFT JOIN group_ask AS k ON k.asked = t.key ORDER BY t.key",
        (turn, limit),
    )
    return [Branch(*row) for row in found]


def oldest_open(connection: Connection, group_id: str) -> TurnRow | None:
    """Return the group's oldest turn that has not ended, if any: the one that runs, or the next to start."""
    key = connection.execute(f"SELECT min(key) FROM turn WHERE {_OPEN}", (group_id,)).get
    return None if key is None else by_key(connection, key)


def groups_with_work(connection: Connection) -> list[str]:
    """Return the groups that have a turn which has not ended."""
    found = fetch_all(connection, "SELECT DISTINCT +group_id FROM turn WHERE agent_id IS NULL AND ended_at IS NULL")
    return [group_id for (group_id,) in found]


def count_open(connection: Connection, group_id: str) -> int:
    """Return how many turns of the group run or wait."""
    count: int = connection.execute(f"SELECT count(*) FROM turn WHERE {_OPEN}", (group_id,)).get
    return count


def conversation(
    connection: Connection,
    group_id: str,
    limit: int,
    *,
    before: int | None = None,
    session_id: str | None = None,
    is_all: bool = False,
) -> list[GroupSaid]:
    """Return what was said in a group, newest first: the messages to it, and its members' answers; those of turns with
    keys smaller than `before`, if given. They are those of a session (None: of none), or with `is_all` all.
    """
    # Each turn of the group is a line at least: the newest lines are of its newest turns.
    found = fetch_all(
        connection,
        "WITH newest AS MATERIALIZED (SELECT key, id, created_at, sender, session_id FROM turn WHERE group_id = ?1"
        " AND (?2 IS NULL OR key < ?2) AND (?5 OR session_id IS ?4) ORDER BY key DESC LIMIT ?3)"
        " SELECT key, id, run, agent_id, at, sender, CASE WHEN agent_id IS NULL THEN"
        f" (SELECT payload ->> '$.content' FROM group_run WHERE turn = t.key) ELSE {_LAST_SAID} END, session_id FROM ("
        "SELECT key, id, id AS run, NULL AS agent_id, created_at AS at, sender, session_id, NULL AS batch_id"
        " FROM newest UNION ALL SELECT m.key, m.id, g.id, m.agent_id, m.ended_at, m.sender, m.session_id, m.batch_id"
        " FROM newest AS g"
        " JOIN group_ask AS a ON a.turn = g.key JOIN turn AS m ON m.key = a.asked WHERE m.status = 'completed'"
        " AND (?2 IS NULL OR m.key < ?2) ORDER BY key DESC LIMIT ?3) AS t ORDER BY key DESC",
        (group_id, before, limit, session_id, is_all),
    )
    return [GroupSaid(*row) for row in found]


def answers(connection: Connection, turn: int) -> list[MessageRow]:
    """Return what members answered in a run, oldest first: the last words of each turn that they completed."""
    asked = "SELECT agent_id, batch_id FROM group_ask JOIN turn ON key = asked WHERE group_ask.turn = ? ORDER BY key"
    found = []
    for agent_id, batch_id in fetch_all(connection, asked, (turn,)):
        said = messages.by_batch(connection, agent_id, batch_id or "")
        found += [row for row in said if row.role is Role.ASSISTANT and row.content][-1:]
    return found
