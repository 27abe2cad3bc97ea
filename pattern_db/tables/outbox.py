"""The outbox: what is to be delivered by itself, and tried again until it is, or a person decides about it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pattern_db.columns import to_json
from pattern_db.connection import Connection, Table
from pattern_db.enums import DeliveryStatus
from pattern_db.errors import RowConflict
from pattern_db.tables import timers

KEPT = {DeliveryStatus.DELIVERED: 1_000, DeliveryStatus.DEAD: 10_000}  # newest rows of each kind of target


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """Something to deliver. `id` is the name by which a receiver knows it again; `target` is `webhook:{id}`,
    `agent:{id}`, `group:{id}`, `source:{id}:{agent or chat}` or `chat:{id}`, and `payload` JSON text that its kind
    understands. `turn` is the turn that led to it. `unclear` is how often it was begun to send it without an outcome.
    """

    id: str
    target: str
    payload: str
    next_at: str
    created_at: str
    turn: int | None = None
    status: DeliveryStatus = DeliveryStatus.PENDING
    attempts: int = 0
    last_error: str | None = None
    delivered_at: str | None = None
    unclear: int = 0


_OUTBOX = Table("outbox", OutboxRow, "delivery {}", types={"status": DeliveryStatus})
get, discard, select = _OUTBOX.get, _OUTBOX.delete, _OUTBOX.select
# Of these targets no row passes another one that is tried again: what is said in a chat has an order.
_IS_FREE = (
    "NOT ((target GLOB 'source:*' OR target GLOB 'chat:*') AND EXISTS (SELECT 1 FROM outbox AS first"
    " WHERE first.target = outbox.target AND first.status = 'pending' AND first.id < outbox.id))"
)
_FIRST = "SELECT next_at FROM outbox WHERE status = 'pending'"


def add(connection: Connection, row: OutboxRow) -> None:
    """Add a row."""
    _OUTBOX.insert(connection, [row])
    _trim(connection, row.target, row.status)


def due(connection: Connection, now: str, busy: Collection[str], limit: int) -> tuple[list[OutboxRow], str | None]:
    """Return the first row that is due of each target that is not busy, at most `limit`, and when the next one is."""
    rows = _OUTBOX.select(
        connection,
        "WHERE id IN (SELECT substr(min(next_at || id), 25) FROM outbox WHERE status = 'pending' AND next_at <= ?1"
        f" AND target NOT IN (SELECT value FROM json_each(?2)) AND {_IS_FREE} GROUP BY target)"
        " ORDER BY next_at, id LIMIT ?3",
        (now, to_json(list(busy)), limit),
    )
    waits = f"{_FIRST} AND next_at > ? AND {_IS_FREE} ORDER BY next_at LIMIT 1"
    upcoming: str | None = connection.execute(waits, (now,)).get
    return rows, upcoming


def is_free(connection: Connection, row_id: str) -> bool:
    """Return whether a row waits for no other row of its target."""
    return bool(connection.execute(f"SELECT {_IS_FREE} FROM outbox WHERE id = ?", (row_id,)).get)


def next_of(connection: Connection, row: OutboxRow, limit: int) -> list[OutboxRow]:
    """Return the rows that wait for the target of a row and follow it, in order."""
    where = "WHERE target = ? AND status = 'pending' AND id > ? ORDER BY id LIMIT ?"
    return _OUTBOX.select(connection, where, (row.target, row.id, limit))


def last_delivered(connection: Connection, target: str) -> str | None:
    """Return when something was delivered to a target last, if that is kept."""
    found: str | None = connection.execute(
        "SELECT max(delivered_at) FROM outbox WHERE target = ? AND status = 'delivered'", (target,)
    ).get
    return found


def set_unclear(connection: Connection, row_id: str, count: int) -> None:
    """Store how often it was begun to send a row without an outcome.

    Raises:
        RowNotFound: there is no such row any more.
    """
    _OUTBOX.change(connection, row_id, {"unclear": count})


def first_due(connection: Connection) -> str | None:
    """Return when the constellation has something to do by itself next, a timer or a delivery; None for never."""
    waiting: str | None = connection.execute(f"{_FIRST} ORDER BY next_at LIMIT 1").get
    return min((one for one in (waiting, timers.first_due(connection)) if one is not None), default=None)


def newest(
    connection: Connection,
    kinds: str,
    limit: int,
    *,
    statuses: Collection[DeliveryStatus] = tuple(DeliveryStatus),
    before: str | None = None,
) -> list[OutboxRow]:
    """Return rows with a target like `kinds` (as of GLOB) and one of these statuses, newest first; those older than the
    id `before`.
    """
    return _OUTBOX.select(
        connection,
        "WHERE target GLOB ?1 AND status IN (SELECT value FROM json_each(?2)) AND (?3 IS NULL OR (created_at, id) <"
        " (SELECT created_at, id FROM outbox WHERE id = ?3)) ORDER BY created_at DESC, id DESC LIMIT ?4",
        (kinds, to_json(list(statuses)), before, limit),
    )


def count_pending(connection: Connection) -> int:
    """Return how many rows wait."""
    return _OUTBOX.count(connection, "WHERE status = 'pending'")


def delivered(connection: Connection, rows: Sequence[OutboxRow], now: str) -> None:
    """Note that rows of one target were delivered; old ones are deleted.

    Raises:
        RowConflict: one was delivered or deleted since it was read.
    """
    for row in rows:
        connection.execute(
            "UPDATE outbox SET status = 'delivered', attempts = attempts + 1, delivered_at = ?, last_error = NULL,"
            " unclear = 0 WHERE id = ? AND status <> 'delivered'",
            (now, row.id),
        )
        if connection.changes() != 1:
            raise RowConflict(f"the delivery {row.id} was made or discarded by another request")
    for target in {row.target for row in rows}:
        _trim(connection, target, DeliveryStatus.DELIVERED)


def failed(connection: Connection, row: OutboxRow, attempts: int, error: str, next_at: str | None) -> None:
    """Note that so many attempts failed; the next one is at `next_at`, or None: only if a person wants it."""
    connection.execute(
        "UPDATE outbox SET attempts = ?4, last_error = ?1, status = iif(?2 IS NULL, 'dead', 'pending'),"
        " next_at = coalesce(?2, next_at) WHERE id = ?3 AND status <> 'delivered'",
        (error, next_at, row.id, attempts),
    )
    if next_at is None:
        _trim(connection, row.target, DeliveryStatus.DEAD)


def pause_all(connection: Connection, why: str) -> None:
    """Leave all that waits to a person."""
    connection.execute("UPDATE outbox SET status = 'dead', last_error = ? WHERE status = 'pending'", (why,))


def _trim(connection: Connection, target: str, status: DeliveryStatus) -> None:
    if status is not DeliveryStatus.PENDING:
        connection.execute(
            "DELETE FROM outbox WHERE id IN (SELECT id FROM outbox WHERE status = ? AND target GLOB ?"
            " ORDER BY coalesce(delivered_at, created_at) DESC LIMIT -1 OFFSET ?)",
            (status, f"{target.partition(':')[0]}:*", KEPT[status]),
        )
