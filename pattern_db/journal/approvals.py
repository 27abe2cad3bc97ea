"""Approvals: questions to people, which survive restarts, can be answered by any client, and expire (T4).

Grants are standing answers: approvals in advance, for one agent, until they expire or are revoked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pattern_db.columns import Json, from_json, to_json
from pattern_db.connection import Connection, Table, fetch_all
from pattern_db.enums import ApprovalKind, ApprovalStatus
from pattern_db.errors import RowConflict
from pattern_db.tables import timers
from pattern_db.tables.timers import TimerRow

TIMER = "approval"  # the kind of timer that ends a question


@dataclass(frozen=True, slots=True)
class ApprovalRow:
    """One question. `request` is a JSON object with everything that the action needs; two questions about the same
    action have the same `args_hash`. `turn` is the key of the turn that asked, `step` and `call` its tool call if it is
    about one, `decision` a JSON object.
    """

    id: str
    kind: ApprovalKind
    request: Json
    args_hash: bytes
    created_at: str
    status: ApprovalStatus = ApprovalStatus.PENDING
    turn: int | None = None
    audience: str | None = None
    decision: Json = None
    decided_by: str | None = None
    expires_at: str | None = None
    decided_at: str | None = None
    step: int | None = None
    call: int | None = None


_APPROVALS = Table(
    "approval",
    ApprovalRow,
    "approval {}",
    json=("request", "decision"),
    types={"kind": ApprovalKind, "status": ApprovalStatus},
)
get = _APPROVALS.get


def insert(connection: Connection, row: ApprovalRow, *, turn_id: str | None = None) -> None:
    """Add a question. `turn_id` is the asking turn, if there is one and the row does not hold its key."""
    if row.turn is None and turn_id is not None:
        row = replace(row, turn=connection.execute("SELECT key FROM turn WHERE id = ?", (turn_id,)).get)
    _APPROVALS.insert(connection, [row])
    if row.expires_at is not None:
        timers.put(connection, TimerRow(TIMER, row.id, row.expires_at))


def find_pending(connection: Connection, args_hash: bytes, now: str) -> ApprovalRow | None:
    """Return the open question about the same action, if there is one that has not expired."""
    where = "WHERE status = 'pending' AND args_hash = ? AND (expires_at IS NULL OR expires_at > ?)"
    return _APPROVALS.first(connection, where, (args_hash, now))


def recent(
    connection: Connection, limit: int, *, status: ApprovalStatus | None = None, before: str | None = None
) -> list[ApprovalRow]:
    """Return the newest `limit` questions (of one status), newest first; only those with ids smaller than `before`."""
    return _APPROVALS.select(
        connection,
        "WHERE (?1 IS NULL OR status = ?1) AND (?2 IS NULL OR id < ?2) ORDER BY id DESC LIMIT ?3",
        (status, before, limit),
    )


def count_pending(connection: Connection) -> int:
    """Return how many questions are open."""
    return _APPROVALS.count(connection, "WHERE status = 'pending'")


def decide(
    connection: Connection, approval_id: str, *, status: ApprovalStatus, by: str, decision: Json, at: str
) -> None:
    """Answer an open question, once.

    Raises:
        RowConflict: it is no longer open.
    """
    connection.execute(
        "UPDATE approval SET status = ?, decided_by = ?, decision = ?, decided_at = ?"
        " WHERE id = ? AND status = 'pending'",
        (status, by, None if decision is None else to_json(decision), at, approval_id),
    )
    if connection.changes() != 1:
        raise RowConflict(f"the approval {approval_id} was already answered; read it again")
    timers.delete(connection, TIMER, approval_id)


def due(connection: Connection, now: str) -> list[ApprovalRow]:
    """Return the expired questions that are still open, oldest first."""
    return _APPROVALS.select(connection, "WHERE status = 'pending' AND expires_at <= ? ORDER BY id", (now,))


def of_turn(connection: Connection, turn: int) -> list[ApprovalRow]:
    """Return the questions of a turn in the order in which they were added, whatever their times: the last one about a
    call counts.
    """
    return _APPROVALS.select(connection, "WHERE turn = ? ORDER BY rowid", (turn,))


def arguments_before(connection: Connection, turn: int, step: int) -> dict[int, Json]:
    """Return the arguments that calls of a step had before a person changed them, by the call's place."""
    rows = connection.execute(
        "SELECT call, request ->> '$.arguments' FROM approval WHERE turn = ? AND step = ? AND status = 'edited'"
        " ORDER BY id DESC",
        (turn, step),
    )
    return {call: from_json(arguments) for call, arguments in rows}


def cancel_calls(connection: Connection, turn: int, at: str) -> list[str]:
    """Close the open questions about the tool calls of an ended turn. Return their ids."""
    rows = fetch_all(
        connection,
        "UPDATE approval SET status = 'cancelled', decided_at = ? WHERE turn = ? AND call IS NOT NULL"
        " AND status = 'pending' RETURNING id",
        (at, turn),
    )
    for (approval_id,) in rows:
        timers.delete(connection, TIMER, approval_id)
    return sorted(str(row[0]) for row in rows)


@dataclass(frozen=True, slots=True)
class GrantRow:
    """One grant. `subject` is `tool:{name}` or `block:{label}`; `args_hash` (16 bytes) None means any arguments,
    `expires_at` None for no end.
    """

    id: str
    agent_id: str
    subject: str
    args_hash: bytes | None
    approval_id: str | None
    granted_by: str
    expires_at: str | None
    created_at: str


_GRANTS = Table("consent_grant", GrantRow, "consent {}")
insert_grant, delete_grant = _GRANTS.create, _GRANTS.delete


def is_granted(connection: Connection, agent_id: str, subject: str, args_hash: bytes, now: str) -> bool:
    """Return whether the agent may do this without asking, at the wall time `now`."""
    row = connection.execute(
        "SELECT 1 FROM consent_grant WHERE agent_id = ? AND subject = ? AND (args_hash IS NULL OR args_hash = ?)"
        " AND (expires_at IS NULL OR expires_at > ?) LIMIT 1",
        (agent_id, subject, args_hash, now),
    ).fetchone()
    return row is not None


def standing_grants(connection: Connection, now: str, *, limit: int, before: str | None = None) -> list[GrantRow]:
    """Return the grants that are valid at `now`, newest first; with `before` only those with smaller ids."""
    return _GRANTS.select(
        connection,
        "WHERE (expires_at IS NULL OR expires_at > ?1) AND (?2 IS NULL OR id < ?2) ORDER BY id DESC LIMIT ?3",
        (now, before, limit),
    )


def delete_expired_grants(connection: Connection, now: str) -> None:
    """Delete expired grants."""
    connection.execute("DELETE FROM consent_grant WHERE expires_at <= ?", (now,))
