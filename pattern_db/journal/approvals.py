"""Approvals: questions to people, which survive restarts, can be answered by any client, and expire (T4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pattern_db.columns import Json, from_json, to_json, to_json_or_null
from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import ApprovalKind, ApprovalStatus
from pattern_db.errors import Conflict, NotFound

_COLUMNS = (
    "id, kind, request, args_hash, created_at, status, turn, audience, decision, decided_by, expires_at, decided_at"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRow:
    """One question. `request` is a JSON object with all that is needed to do what was asked for, `args_hash` tells
    whether two ask for the same. `turn` is the key of the turn that asked, `decision` a JSON object.
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


def insert(connection: Connection, row: ApprovalRow, *, turn_id: str | None = None) -> None:
    """Ask. `turn_id` names the turn that asks, if one does."""
    connection.execute(
        "INSERT INTO approval (id, turn, kind, request, args_hash, audience, status, expires_at, created_at)"
        " VALUES (?, (SELECT key FROM turn WHERE id = ?), ?, ?, ?, ?, ?, ?, ?)",
        (
            row.id,
            turn_id,
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
        (status, by, to_json_or_null(decision), at, approval_id),
    )
    if connection.changes() != 1:
        raise Conflict(f"the approval {approval_id} was decided already")


def expire(connection: Connection, now: str) -> list[str]:
    """Close the open questions whose time is over; return their ids."""
    rows = fetch_all(
        connection,
        "UPDATE approval SET status = 'expired', decided_at = ?1 WHERE status = 'pending' AND expires_at <= ?1"
        " RETURNING id",
        (now,),
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
        )
        for row in connection.execute(f"SELECT {_COLUMNS} FROM approval {where}", values)
    ]
