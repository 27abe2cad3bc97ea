"""Approvals: questions to people, which survive restarts, can be answered by any client, and expire (T4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pattern_db.columns import Json, from_json, to_json
from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import ApprovalKind, ApprovalStatus
from pattern_db.errors import Conflict, NotFound

_COLUMNS = (
    "id, kind, request, args_hash, created_at, status, turn, audience, decision, decided_by, expires_at, decided_at,"
    " step, call"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRow:
    """One question. `request` is a JSON object with all that is needed to do what was asked for, `args_hash` tells
    whether two ask for the same. `turn` is the key of the turn that asked, `step` and `call` its tool call if it is
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


def insert(connection: Connection, row: ApprovalRow, *, turn_id: str | None = None) -> None:
    """Ask. `turn_id` names the turn that asks, if one does and the row does not hold its key."""
    connection.execute(
        "INSERT INTO approval"
        " (id, turn, step, call, kind, request, args_hash, audience, status, expires_at, created_at)"
        " VALUES (?1, coalesce(?2, (SELECT key FROM turn WHERE id = ?3)), ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
        (
            row.id,
            row.turn,
            turn_id,
            row.step,
            row.call,
            row.kind,
            to_json(row.request),
            row.args_hash,
            row.audience,
            row.status,
            row.expires_at,
            row.created_at,
        ),
    )


def get(connection: Connection, approval_id: str) -> ApprovalRow:
    """The question with this id.

    Raises:
        NotFound: there is none.
    """
    found = _select(connection, "WHERE id = ?", (approval_id,))
    if not found:
        raise NotFound(f"there is no approval {approval_id}")
    return found[0]


def find_pending(connection: Connection, args_hash: bytes) -> ApprovalRow | None:
    """The open question for the same thing, if there is one."""
    found = _select(connection, "WHERE status = 'pending' AND args_hash = ?", (args_hash,))
    return found[0] if found else None


def recent(
    connection: Connection, limit: int, *, status: ApprovalStatus | None = None, before: str | None = None
) -> list[ApprovalRow]:
    """The newest `limit` questions (of one status), newest first; only those with ids smaller than `before`."""
    return _select(
        connection,
        "WHERE (?1 IS NULL OR status = ?1) AND (?2 IS NULL OR id < ?2) ORDER BY id DESC LIMIT ?3",
        (status, before, limit),
    )


def count_pending(connection: Connection) -> int:
    """How many questions are open."""
    return int(fetch_all(connection, "SELECT count(*) FROM approval WHERE status = 'pending'")[0][0])


def first_expiry(connection: Connection) -> str | None:
    """When the first of the open questions is over; None without any."""
    first = fetch_all(connection, "SELECT min(expires_at) FROM approval WHERE status = 'pending'")[0][0]
    return None if first is None else str(first)


def decide(
    connection: Connection, approval_id: str, *, status: ApprovalStatus, by: str, decision: Json, at: str
) -> None:
    """Answer an open question, once.

    Raises:
        Conflict: it is not open any more.
    """
    connection.execute(
        "UPDATE approval SET status = ?, decided_by = ?, decision = ?, decided_at = ?"
        " WHERE id = ? AND status = 'pending'",
        (status, by, None if decision is None else to_json(decision), at, approval_id),
    )
    if connection.changes() != 1:
        raise Conflict(f"the approval {approval_id} was decided already")


def due(connection: Connection, now: str) -> list[ApprovalRow]:
    """The open questions whose time is over, oldest first."""
    return _select(connection, "WHERE status = 'pending' AND expires_at <= ? ORDER BY id", (now,))


def of_turn(connection: Connection, turn: int) -> list[ApprovalRow]:
    """The questions that a turn asked, in the order of asking, whatever the clock said: the last one about a call
    counts.
    """
    return _select(connection, "WHERE turn = ? ORDER BY rowid", (turn,))


def arguments_before(connection: Connection, turn: int, step: int) -> dict[int, Json]:
    """The arguments that calls of a step had before a person changed them, by the call's place."""
    rows = connection.execute(
        "SELECT call, request ->> '$.arguments' FROM approval WHERE turn = ? AND step = ? AND status = 'edited'"
        " ORDER BY id DESC",
        (turn, step),
    )
    return {call: from_json(arguments) for call, arguments in rows}


def cancel_calls(connection: Connection, turn: int, at: str) -> list[str]:
    """Close the open questions about a turn's tool calls: it has ended. Returns their ids."""
    rows = fetch_all(
        connection,
        "UPDATE approval SET status = 'cancelled', decided_at = ? WHERE turn = ? AND call IS NOT NULL"
        " AND status = 'pending' RETURNING id",
        (at, turn),
    )
    return sorted(str(row[0]) for row in rows)


def _select(connection: Connection, where: str, values: Sequence[str | int | bytes | None]) -> list[ApprovalRow]:
    return [
        ApprovalRow(
            id=row[0],
            kind=ApprovalKind(row[1]),
            request=from_json(row[2]),
            args_hash=row[3],
            created_at=row[4],
            status=ApprovalStatus(row[5]),
            turn=row[6],
            audience=row[7],
            decision=from_json(row[8]),
            decided_by=row[9],
            expires_at=row[10],
            decided_at=row[11],
            step=row[12],
            call=row[13],
        )
        for row in connection.execute(f"SELECT {_COLUMNS} FROM approval {where}", values)
    ]
