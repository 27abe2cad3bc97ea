"""Effects: the tool calls that a model decided on, planned with the decision (T3), started (T5), ended (T6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pattern_db.connection import Connection
from pattern_db.errors import Conflict

_COLUMNS = (
    "turn, step, call, call_id, tool, args, args_hash, class, idempotency_key, status, attempts, message_id,"
    " deadline_at"
)


@dataclass(frozen=True, slots=True)
class EffectRow:
    """A tool call as stored. `effect_class` and `status` are values of `pattern_db.enums`; `args` is JSON text."""

    turn: int
    step: int
    call: int
    call_id: str
    tool: str
    args: str
    args_hash: bytes
    effect_class: str
    idempotency_key: str
    status: str = "planned"
    attempts: int = 0
    message_id: str | None = None
    deadline_at: str | None = None


def plan(connection: Connection, rows: Sequence[EffectRow]) -> None:
    """Store the calls of one decision, in the model's order."""
    connection.executemany(
        "INSERT INTO effect (turn, step, call, call_id, tool, args, args_hash, class, idempotency_key, status)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                row.turn,
                row.step,
                row.call,
                row.call_id,
                row.tool,
                row.args,
                row.args_hash,
                row.effect_class,
                row.idempotency_key,
                row.status,
            )
            for row in rows
        ],
    )


def start(connection: Connection, key: tuple[int, int, int], *, epoch: int, started_at: str, deadline_at: str) -> None:
    """Store the intent to run the call `(turn, step, call)` now: before this is durable, it must not run.

    Raises:
        Conflict: it is neither planned nor a started one that may be run again.
    """
    connection.execute(
        "UPDATE effect SET status = 'started', epoch = ?, attempts = attempts + 1, started_at = ?, deadline_at = ?"
        " WHERE turn = ? AND step = ? AND call = ? AND (status = 'planned'"
        " OR (status = 'started' AND class IN ('idempotent', 'verifiable')))",
        (epoch, started_at, deadline_at, *key),
    )
    _exactly_one(connection, key)


def finish(connection: Connection, key: tuple[int, int, int], *, status: str, message_id: str, ended_at: str) -> None:
    """Store what the call came to, once.

    Raises:
        Conflict: it has ended already.
    """
    connection.execute(
        "UPDATE effect SET status = ?, message_id = ?, ended_at = ? WHERE turn = ? AND step = ? AND call = ?"
        " AND status IN ('planned', 'started', 'awaiting_approval')",
        (status, message_id, ended_at, *key),
    )
    _exactly_one(connection, key)


def of_step(connection: Connection, turn: int, step: int) -> list[EffectRow]:
    """The calls of one step in the model's order."""
    rows = connection.execute(f"SELECT {_COLUMNS} FROM effect WHERE turn = ? AND step = ? ORDER BY call", (turn, step))
    return [EffectRow(*row) for row in rows]


def of_turn(connection: Connection, turn: int) -> list[EffectRow]:
    """All calls of a turn in order."""
    rows = connection.execute(f"SELECT {_COLUMNS} FROM effect WHERE turn = ? ORDER BY step, call", (turn,))
    return [EffectRow(*row) for row in rows]


def _exactly_one(connection: Connection, key: tuple[int, int, int]) -> None:
    if connection.changes() != 1:
        raise Conflict(f"the tool call {key} is not in a state that allows this")
