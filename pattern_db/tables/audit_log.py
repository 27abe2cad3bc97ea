"""The audit log, in the global database: rows that are only added, in a chain of hashes."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from hashlib import sha256

from pattern_db.columns import to_json
from pattern_db.connection import Connection, Table

BEGINNING = bytes(32)  # stands for the hash of the row before the first


@dataclass(frozen=True, slots=True)
class AuditRow:
    """What was done, by whom and from where. `append` assigns `seq`, from 1."""

    created_at: str
    action: str
    object: str
    status: int
    user_id: str | None
    token_id: str | None
    address: str
    seq: int = 0


@dataclass(frozen=True, slots=True)
class AuditState:
    """How far the chain was followed: the last row's number and hash, and the first row that does not fit, if any."""

    entries: int = 0
    head: bytes = BEGINNING
    broken_at: int | None = None


_LOG = Table("audit_log", AuditRow)


def append(connection: Connection, row: AuditRow) -> None:
    """Add a row to the end of the chain."""
    last = connection.execute("SELECT seq, hash FROM audit_log ORDER BY seq DESC LIMIT 1").fetchone()
    seq, before = last or (0, BEGINNING)
    row = replace(row, seq=seq + 1)
    connection.execute(
        f"INSERT INTO audit_log ({_LOG.columns}, hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*_LOG.values(row), _hash(before, row)),
    )


def page(connection: Connection, *, before: int | None, limit: int) -> list[AuditRow]:
    """Return up to `limit` rows, newest first; `before` is the number that all are below."""
    return _LOG.select(connection, "WHERE ?1 IS NULL OR seq < ?1 ORDER BY seq DESC LIMIT ?2", (before, limit))


def follow(connection: Connection, state: AuditState, limit: int) -> AuditState:
    """Check up to `limit` rows (-1: all) behind a state; return the state after them, which is the same at the end."""
    rows = connection.execute(
        f"SELECT {_LOG.columns}, hash FROM audit_log WHERE seq > ? ORDER BY seq LIMIT ?", (state.entries, limit)
    )
    for values in rows:
        row, found = _LOG.make(values), values[-1]
        if row.seq != state.entries + 1 or found != _hash(state.head, row):
            return replace(state, broken_at=state.entries + 1)
        state = AuditState(entries=row.seq, head=found)
    return state


def _hash(before: bytes, row: AuditRow) -> bytes:
    return sha256(before + to_json(astuple(row)).encode()).digest()
