"""Standing consent: what people agreed to beforehand, for one agent, until it expires or is revoked."""

from __future__ import annotations

from dataclasses import dataclass

from pattern_db.connection import Connection
from pattern_db.errors import NotFound

_COLUMNS = "id, agent_id, subject, args_hash, approval_id, granted_by, expires_at, created_at"


@dataclass(frozen=True, slots=True)
class GrantRow:
    """One consent. `subject` is `tool:{name}` or `block:{label}`; `args_hash` (16 bytes) None stands for any arguments,
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


def insert(connection: Connection, row: GrantRow) -> None:
    """Store a consent."""
    connection.execute(
        "INSERT INTO consent_grant (id, agent_id, subject, args_hash, approval_id, granted_by, expires_at, created_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            row.id,
            row.agent_id,
            row.subject,
            row.args_hash,
            row.approval_id,
            row.granted_by,
            row.expires_at,
            row.created_at,
        ),
    )


def covers(connection: Connection, agent_id: str, subject: str, args_hash: bytes, now: str) -> bool:
    """Whether the agent may do this without asking, at the wall time `now`."""
    row = connection.execute(
        "SELECT 1 FROM consent_grant WHERE agent_id = ? AND subject = ? AND (args_hash IS NULL OR args_hash = ?)"
        " AND (expires_at IS NULL OR expires_at > ?) LIMIT 1",
        (agent_id, subject, args_hash, now),
    ).fetchone()
    return row is not None


def standing(connection: Connection, now: str, *, limit: int, before: str | None = None) -> list[GrantRow]:
    """The newest consents that hold at `now`, newest first; only those with ids smaller than `before`, if given."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM consent_grant WHERE (expires_at IS NULL OR expires_at > ?1)"
        " AND (?2 IS NULL OR id < ?2) ORDER BY id DESC LIMIT ?3",
        (now, before, limit),
    )
    return [GrantRow(*row) for row in rows]


def delete(connection: Connection, grant_id: str) -> None:
    """Revoke a consent.

    Raises:
        NotFound: there is none with this id.
    """
    connection.execute("DELETE FROM consent_grant WHERE id = ?", (grant_id,))
    if connection.changes() != 1:
        raise NotFound(f"there is no consent {grant_id}")


def delete_expired(connection: Connection, now: str) -> None:
    """Remove what no longer holds."""
    connection.execute("DELETE FROM consent_grant WHERE expires_at <= ?", (now,))
