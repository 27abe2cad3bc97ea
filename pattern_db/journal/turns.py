"""Turns: one row from acceptance to the terminal event; and the inbox of accepted messages.

A message's row exists from T0 (accepted) to T1 (started).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pattern_db.connection import Connection, Table, Values, fetch_all
from pattern_db.enums import TrustLevel, TurnStatus
from pattern_db.errors import RowConflict
from pattern_db.journal import usage
from pattern_db.journal.usage import UsageSum

_NEW = (  # as in NewTurn
    "agent_id, id, sender, seed, created_at, parent_turn, depth, idempotency, fingerprint, session_id, options"
)
_NEXT_EVENT = "(SELECT coalesce(max(seq), 0) + 1 FROM event)"
REPEATED_AMONG = 1_000  # turns, the newest
OPEN = (TurnStatus.QUEUED, TurnStatus.RUNNING, TurnStatus.WAITING)
_KEY_MAX = 2**63 - 1
_FAILED = "status NOT IN ('queued', 'running', 'waiting', 'completed')"  # as in the index turn_failed
_LAST_SAID = (
    "(SELECT {} FROM messages AS m WHERE m.agent_id = turn.agent_id AND m.position >= turn.batch_id"
    " AND m.batch_id = turn.batch_id AND m.role = 'assistant' AND m.content IS NOT NULL AND m.is_deleted = 0"
    " ORDER BY m.position DESC LIMIT 1)"
)
_SAID_AND_SPENT = ", ".join(
    [
        *map(_LAST_SAID.format, ("m.id", "m.content", "m.source_metadata ->> '$.partial'")),
        *(f"(SELECT {one} FROM usage AS u WHERE u.turn = turn.key)" for one in usage.SUMS),
    ]
)
_TRUSTS = (  # of the messages of a turn, found as by `messages.by_batch`
    "(SELECT group_concat(trust, ' ') FROM (SELECT m.trust FROM messages AS m WHERE m.agent_id = t.agent_id"
    " AND m.batch_id = t.batch_id AND m.position >= t.batch_id AND m.position < coalesce((SELECT n.position"
    " FROM messages AS n WHERE n.agent_id = t.agent_id AND n.position > t.batch_id AND n.batch_id <> t.batch_id"
    " ORDER BY n.position LIMIT 1), '~') UNION SELECT m.trust FROM messages AS m WHERE m.batch_id = t.batch_id"
    " AND m.agent_id = t.agent_id AND m.batch_type = 'continuation'))"
)
_BUSY = "SELECT 1 FROM turn WHERE agent_id = ?1 AND ended_at IS NULL AND status <> 'waiting' LIMIT 1"


class NewTurn(NamedTuple):
    """A turn about to be accepted. `idempotency` and `fingerprint` are 16-byte digests, `options` a JSON object; times
    are stored text.
    """

    agent_id: str
    id: str
    sender: str
    seed: int
    created_at: str
    parent_turn: int | None = None
    depth: int = 0
    idempotency: bytes | None = None
    fingerprint: bytes | None = None
    session_id: str | None = None
    options: str | None = None


class Started(NamedTuple):
    """What is stored when a turn starts: its batch, its owner's epoch, and its deadline."""

    batch_id: str
    epoch: int
    started_at: str
    deadline_at: str | None


@dataclass(frozen=True, slots=True)
class TurnRow:
    """A turn as stored. `status` is a `pattern_db.enums.TurnStatus` value, `error` a JSON object or None. Either
    `agent_id` is empty or `group_id` is None.

    `steps` is the number of steps once it has ended, before that the step at which it was last resumed; `time_left_ms`
    is the remaining time of a waiting turn, `options` are those of one that has not ended.
    """

    key: int
    id: str
    agent_id: str
    parent_turn: int | None
    depth: int
    sender: str
    status: str
    batch_id: str | None
    seed: int
    epoch: int | None
    steps: int
    resumes: int
    cancel_reason: str | None
    error: str | None
    deadline_at: str | None
    created_at: str
    started_at: str | None
    ended_at: str | None
    fingerprint: bytes | None
    time_left_ms: int | None = None
    group_id: str | None = None
    session_id: str | None = None
    options: str | None = None


TURNS = Table("turn", TurnRow, columns={"agent_id": "coalesce(agent_id, '')"})


def insert(connection: Connection, turn: NewTurn) -> int:
    """Store an accepted turn as queued and return its key."""
    key: int = connection.execute(
        f"INSERT INTO turn ({_NEW}, status, first_event) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'queued',"
        f" {_NEXT_EVENT}) RETURNING key",
        turn,
    ).get
    return key


def insert_started(connection: Connection, turn: NewTurn, started: Started) -> int | None:
    """Store an accepted turn as running and return its key; None, and nothing is stored, if its agent is busy."""
    key: int | None = connection.execute(
        f"INSERT INTO turn ({_NEW}, batch_id, epoch, started_at, deadline_at, status, first_event)"
        f" SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, 'running', {_NEXT_EVENT}"
        f" WHERE NOT EXISTS ({_BUSY}) RETURNING key",
        (*turn, *started),
    ).get
    return key


def by_key(connection: Connection, key: int) -> TurnRow:
    """Return the turn with this key.

    Raises:
        RowNotFound: there is none.
    """
    return TURNS.one(connection, "WHERE key = ?", (key,), f"turn {key}")


def by_id(connection: Connection, turn_id: str) -> TurnRow:
    """Return the turn with this id.

    Raises:
        RowNotFound: there is none.
    """
    return TURNS.one(connection, "WHERE id = ?", (turn_id,), f"turn {turn_id}")


def newest(
    connection: Connection,
    limit: int,
    *,
    before: int | None = None,
    status: TurnStatus | None = None,
    agent_id: str | None = None,
    group_id: str | None = None,
) -> list[TurnRow]:
    """Return turns, newest first: at most `limit` of those with keys smaller than `before`, this status, this agent or
    group.
    """
    given = {"agent_id = ?": agent_id, "group_id = ?": group_id, "status = ?": status}
    values = {condition: value for condition, value in given.items() if value is not None}
    # Separate queries, since each half needs its own index. The open ones are few: with `+key` they are found first,
    # then sorted.
    halves = [("ended_at IS NULL", "+key"), ("ended_at IS NOT NULL", "key")]
    if status in OPEN:
        del halves[1]
    elif status is not None:
        halves = [("ended_at IS NOT NULL" + ("" if status is TurnStatus.COMPLETED else f" AND {_FAILED}"), "key")]
    found: list[TurnRow] = []
    for half, key in halves:
        where = " AND ".join([half, f"{key} < ?", *values])
        last = _KEY_MAX if before is None else before
        found += TURNS.select(connection, f"WHERE {where} ORDER BY {key} DESC LIMIT {limit}", (last, *values.values()))
    return sorted(found, key=lambda row: -row.key)[:limit]


def by_idempotency(connection: Connection, idempotency: bytes) -> TurnRow | None:
    """Return the turn that was accepted under this digest, if any."""
    return TURNS.first(connection, "WHERE idempotency = ?", (idempotency,))


def repeated(connection: Connection, fingerprint: bytes, since: str) -> TurnRow | None:
    """Return the newest turn with this fingerprint that was accepted since a time, if it is among the last ones."""
    return TURNS.first(
        connection,
        "WHERE key > (SELECT max(key) FROM turn) - ? AND fingerprint = ? AND created_at >= ? ORDER BY key DESC LIMIT 1",
        (REPEATED_AMONG, fingerprint, since),
    )


class Origin(NamedTuple):
    """Who sent the message of a turn, whether another turn led to it, and the levels of trust of its messages."""

    sender: str
    is_led_to: bool
    trusts: Sequence[TrustLevel]


def origins(connection: Connection, key: int) -> list[Origin]:
    """Return the origin of a turn and, as far as they have no messages, of the turns that led to it: a group's turn has
    none, and one that has not started.
    """
    found = fetch_all(
        connection,
        f"WITH RECURSIVE chain(sender, parent, trusts) AS (SELECT sender, parent_turn, {_TRUSTS} FROM turn AS t"
        f" WHERE key = ? UNION ALL SELECT t.sender, t.parent_turn, {_TRUSTS} FROM chain JOIN turn AS t"
        " ON t.key = chain.parent WHERE chain.trusts IS NULL) SELECT sender, parent IS NOT NULL, trusts FROM chain",
        (key,),
    )
    return [Origin(one, led == 1, [*map(TrustLevel, (said or "").split())]) for one, led, said in found]


def unfinished(connection: Connection, agent_id: str) -> TurnRow | None:
    """Return the agent's turn to continue, if any: the running one, else the first waiting one with all questions
    answered, or with a request to stop. An agent runs one at a time.
    """
    found = TURNS.select(
        connection,
        "WHERE agent_id = ? AND ended_at IS NULL AND (status = 'running'"
        " OR (status = 'waiting' AND (cancel_reason IS NOT NULL OR NOT EXISTS (SELECT 1 FROM effect"
        " WHERE effect.turn = turn.key AND effect.status = 'awaiting_approval'))))"
        " ORDER BY key",
        (agent_id,),
    )
    return min(found, key=lambda row: row.status != "running", default=None)


def running(connection: Connection, agent_id: str) -> TurnRow | None:
    """Return the agent's running turn, if any; one that waits for a person does not count."""
    return TURNS.first(
        connection, "WHERE agent_id = ? AND ended_at IS NULL AND status = 'running' LIMIT 1", (agent_id,)
    )


def is_busy(connection: Connection, agent_id: str) -> bool:
    """Return whether the agent has a running or queued turn."""
    return connection.execute(_BUSY, (agent_id,)).fetchone() is not None


def join(connection: Connection, key: int, into: int, *, ended_at: str) -> None:
    """End a queued turn because its message joins another one.

    Raises:
        RowConflict: it is no longer queued.
    """
    _change(
        connection,
        key,
        "queued",
        "status = 'completed', joined_turn = ?, ended_at = ?, options = NULL",
        (into, ended_at),
    )


def waiting_batches(connection: Connection, agent_id: str) -> list[str]:
    """Return the batches of the agent's turns that wait for a person, oldest first."""
    rows = connection.execute(
        "SELECT batch_id FROM turn WHERE agent_id = ? AND ended_at IS NULL AND status = 'waiting' ORDER BY key",
        (agent_id,),
    )
    return [batch_id for (batch_id,) in rows]


def unanswered(connection: Connection, agent_id: str, since: str) -> dict[str, str]:
    """Return the status of the agent's turns that did not complete, by batch, from the batch `since` on."""
    found = connection.execute(
        f"SELECT batch_id, status FROM turn WHERE agent_id = ? AND batch_id >= ? AND {_FAILED}", (agent_id, since)
    )
    return dict(found)


def agents_with_work(connection: Connection) -> list[str]:
    """Return the agents that have a queued or unfinished turn."""
    rows = connection.execute(
        "SELECT DISTINCT agent_id FROM turn WHERE ended_at IS NULL AND agent_id IS NOT NULL ORDER BY agent_id"
    )
    return [agent_id for (agent_id,) in rows]


def open_turns(connection: Connection, agent_id: str) -> list[str]:
    """Return the ids of the agent's turns that have not ended, oldest first."""
    rows = connection.execute("SELECT id FROM turn WHERE agent_id = ? AND ended_at IS NULL ORDER BY key", (agent_id,))
    return [turn_id for (turn_id,) in rows]


def require_rest(connection: Connection, owner_id: str) -> None:
    """Check that all turns of an agent or a group have ended: one that is deleted before would never end.

    Raises:
        RowConflict: one has not.
    """
    sql = "SELECT id FROM turn WHERE ended_at IS NULL AND coalesce(agent_id, group_id) = ? LIMIT 1"
    if (found := connection.execute(sql, (owner_id,)).fetchone()) is not None:
        raise RowConflict(f"the turn {found[0]} of {owner_id} has not ended")


def open_in_session(connection: Connection, session_id: str) -> list[str]:
    """Return the ids of the session's turns that have not ended, oldest first: a group's before its members'."""
    rows = connection.execute(
        "SELECT id FROM turn WHERE session_id = ? AND ended_at IS NULL ORDER BY key", (session_id,)
    )
    return [turn_id for (turn_id,) in rows]


def in_session(connection: Connection, session_id: str, event: int | None, *, was_over: bool) -> TurnRow | None:
    """Return the newest turn of a session; given the number of an event, the one to which that belongs, or if the turn
    `was_over` with it the next one.
    """
    where, order = ("> ?2", "ASC") if was_over else ("<= coalesce(?2, first_event)", "DESC")
    place = f"WHERE session_id = ?1 AND first_event {where} ORDER BY key {order} LIMIT 1"
    return TURNS.first(connection, place, (session_id, event))


def unwanted(connection: Connection) -> list[tuple[str, str]]:
    """Return the ids of queued turns that were asked to stop, with the reasons, oldest first."""
    rows = connection.execute(
        "SELECT id, cancel_reason FROM turn WHERE ended_at IS NULL AND status = 'queued' AND cancel_reason IS NOT NULL"
        " ORDER BY key"
    )
    return [(turn_id, reason) for turn_id, reason in rows]


def start(connection: Connection, key: int, started: Started) -> None:
    """Mark a queued turn as running.

    Raises:
        RowConflict: it is no longer queued.
    """
    changes = "status = 'running', batch_id = ?, epoch = ?, started_at = ?, deadline_at = ?"
    _change(connection, key, "queued", changes, started)


def resume(connection: Connection, key: int, *, epoch: int, step: int) -> None:
    """Note that the owner of `epoch` resumes an unfinished turn at `step`; count how often that step was resumed.

    Raises:
        RowConflict: the turn has ended.
    """
    changes = "epoch = ?, resumes = CASE steps WHEN ? THEN resumes + 1 ELSE 1 END, steps = ?"
    _change(connection, key, "open", changes, (epoch, step, step))


def wait(connection: Connection, key: int, *, time_left_ms: int) -> None:
    """Let a running turn wait for a person: its clock is stopped.

    Raises:
        RowConflict: it no longer runs.
    """
    changes = "status = 'waiting', deadline_at = NULL, time_left_ms = ?"
    _change(connection, key, "running", changes, (time_left_ms,))


def go_on(connection: Connection, key: int, *, deadline_at: str) -> None:
    """Resume a waiting turn, until `deadline_at`.

    Raises:
        RowConflict: it does not wait any more.
    """
    changes = "status = 'running', deadline_at = ?, time_left_ms = NULL"
    _change(connection, key, "waiting", changes, (deadline_at,))


def request_cancel(connection: Connection, key: int, reason: str) -> bool:
    """Store a request to stop the turn; return False if it had ended. The first reason stays."""
    connection.execute(
        "UPDATE turn SET cancel_reason = coalesce(cancel_reason, ?) WHERE key = ? AND ended_at IS NULL", (reason, key)
    )
    return connection.changes() == 1


def request_cancel_all(connection: Connection, reason: str) -> None:
    """Store a request to stop every open turn."""
    connection.execute("UPDATE turn SET cancel_reason = coalesce(cancel_reason, ?) WHERE ended_at IS NULL", (reason,))


def end(
    connection: Connection,
    key: int,
    *,
    status: str,
    ended_at: str,
    steps: int = 0,
    error: Mapping[str, object] | None = None,
) -> tuple[str | None, str | None, str | None, UsageSum]:
    """Store the terminal status of the turn; `steps` is their number. Return id and text of its agent's last message in
    it, why that is incomplete, and the turn's usage.

    Raises:
        RowConflict: it has already ended; a second terminal event would be wrong.
    """
    said = None if error is None else json.dumps(error, ensure_ascii=False)
    changes = "status = ?, ended_at = ?, steps = ?, error = ?, deadline_at = NULL, options = NULL"
    message_id, text, finish, *spent = _change(
        connection, key, "open", changes, (status, ended_at, steps, said), returning=_SAID_AND_SPENT
    )
    return message_id, text, finish, usage.sum_of(spent)


def _change(
    connection: Connection, key: int, expected: str, changes: str, values: Values, *, returning: str = "key"
) -> tuple[Any, ...]:
    """Update a turn that has a status, or is open; return the columns `returning`.

    Raises:
        RowConflict: it is in another state.
    """
    condition = "ended_at IS NULL" if expected == "open" else f"status = '{expected}'"
    changed: tuple[Any, ...] | None = connection.execute(
        f"UPDATE turn SET {changes} WHERE key = ? AND {condition} RETURNING {returning}", (*values, key)
    ).fetchone()
    if changed is None:
        raise RowConflict(f"turn {key} is no longer {expected}")
    return changed


@dataclass(frozen=True, slots=True)
class InboxRow:
    """A waiting message: the key of its turn and the JSON payload `{"content", "source"?, "source_metadata"?, …}`."""

    turn: int
    payload: str


_INBOX = Table("inbox", InboxRow)


def put_message(
    connection: Connection, *, turn: int, agent_id: str, priority: int, payload: str, created_at: str
) -> None:
    """Store a message for the agent. `priority` is 0 (low) to 3 (urgent); `payload` JSON text."""
    connection.execute(
        "INSERT INTO inbox (turn, agent_id, priority, payload, created_at) VALUES (?, ?, ?, ?, ?)",
        (turn, agent_id, priority, payload, created_at),
    )


def first_message(connection: Connection, agent_id: str) -> InboxRow | None:
    """Return the next message: highest priority first, then in order of acceptance."""
    return _INBOX.first(connection, "WHERE agent_id = ? ORDER BY priority DESC, turn LIMIT 1", (agent_id,))


def message_of(connection: Connection, turn: int) -> InboxRow:
    """Return the message of a queued turn.

    Raises:
        RowNotFound: it is not in the inbox any more.
    """
    return _INBOX.one(connection, "WHERE turn = ?", (turn,), f"message of turn {turn}")


def steering_messages(connection: Connection, agent_id: str, session_id: str | None = None) -> list[InboxRow]:
    """Return the messages that will join the agent's running turn, which is of this session, oldest first."""
    return _INBOX.select(
        connection,
        "WHERE agent_id = ? AND payload ->> '$.policy' = 'steer' AND payload ->> '$.session_id' IS ? ORDER BY turn",
        (agent_id, session_id),
    )


def take_message(connection: Connection, turn: int) -> None:
    """Remove the message; its turn starts in the same transaction.

    Raises:
        RowConflict: it was already removed.
    """
    connection.execute("DELETE FROM inbox WHERE turn = ?", (turn,))
    if connection.changes() != 1:
        raise RowConflict(f"the message of turn {turn} was already started")


def take_first_message(connection: Connection, agent_id: str, turn: int) -> None:
    """As `take_message`, if the message is the next one: messages are started in order, whichever is noticed first.

    Raises:
        RowConflict: it was already removed, or another message comes first.
    """
    connection.execute(
        "DELETE FROM inbox WHERE turn = ?2"
        " AND turn = (SELECT turn FROM inbox WHERE agent_id = ?1 ORDER BY priority DESC, turn LIMIT 1)",
        (agent_id, turn),
    )
    if connection.changes() != 1:
        raise RowConflict(f"the message of turn {turn} was already started, or another one comes first")


def count_messages(connection: Connection, agent_id: str) -> int:
    """Return how many messages wait for the agent."""
    waiting: int = connection.execute("SELECT count(*) FROM inbox WHERE agent_id = ?", (agent_id,)).get
    return waiting
