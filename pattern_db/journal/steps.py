"""Steps: one model call each, opened before it (T2) and closed with its decision (T3)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from pattern_db.connection import Connection
from pattern_db.errors import Conflict
from pattern_db.tables import prompts
from pattern_db.tables.prompts import ShownRow

_COLUMNS = "turn, no, attempt, status, provider, model, cursor, prefix_hash, request_hash, finish_reason, started_at"


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step as stored. The hashes are 16-byte digests, `cursor` the position of the newest message shown.

    `shown` is what the model is shown, to be stored with the step; it is read by `tables.prompts`, not from here.
    """

    turn: int
    no: int
    attempt: int
    status: str
    provider: str
    model: str
    cursor: str
    prefix_hash: bytes
    request_hash: bytes
    finish_reason: str | None
    started_at: str
    shown: ShownRow | None = field(default=None, compare=False, repr=False)


def open_step(connection: Connection, row: StepRow, known: Collection[bytes] = ()) -> None:
    """Store a step that is about to ask its model. `known` are digests of what prompts showed that are stored."""
    shown = row.shown
    connection.execute(
        "INSERT INTO step (turn, no, attempt, status, provider, model, cursor, prefix_hash, request_hash, started_at,"
        " prompt_tokens, prompt_stable, prompt_volatile, history_from, history_count, history_tokens)"
        " VALUES (?, ?, ?, 'open', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            row.turn,
            row.no,
            row.attempt,
            row.provider,
            row.model,
            row.cursor,
            row.prefix_hash,
            row.request_hash,
            row.started_at,
            *(
                (None,) * 6
                if shown is None
                else (
                    shown.tokens,
                    shown.stable.digest,
                    shown.volatile.digest,
                    shown.history_from,
                    shown.history_count,
                    shown.history_tokens,
                )
            ),
        ),
    )
    for logged in () if shown is None else (shown.stable, shown.volatile):
        if logged.digest not in known:
            prompts.remember(connection, row.turn, logged)


def close(
    connection: Connection,
    key: tuple[int, int, int],
    *,
    status: str,
    ended_at: str,
    finish_reason: str | None = None,
    request_id: str | None = None,
    answered: tuple[str, str] | None = None,
) -> None:
    """Close the open step `(turn, no, attempt)` as done, superseded or failed. `answered` is the provider and model
    whose answer it is, if others were asked first.

    Raises:
        Conflict: it is not open.
    """
    connection.execute(
        "UPDATE step SET status = ?, ended_at = ?, finish_reason = ?, provider_request_id = ?,"
        " provider = coalesce(?, provider), model = coalesce(?, model)"
        " WHERE turn = ? AND no = ? AND attempt = ? AND status = 'open'",
        (status, ended_at, finish_reason, request_id, *(answered or (None, None)), *key),
    )
    if connection.changes() != 1:
        raise Conflict(f"step {key} is not open")


def latest(connection: Connection, turn: int) -> StepRow | None:
    """The newest attempt of the turn's newest step, if it has any."""
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM step WHERE turn = ? ORDER BY no DESC, attempt DESC LIMIT 1", (turn,)
    ).fetchone()
    return None if row is None else StepRow(*row)
