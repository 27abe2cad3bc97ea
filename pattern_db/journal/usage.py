"""Usage: tokens and money of each model call, exact integers that sum to any roll-up."""

from __future__ import annotations

from dataclasses import dataclass

from pattern_db.connection import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """Tokens and micro-dollars of one call; `cost_microdollars` is None where the price is unknown."""

    turn: int
    step: int
    attempt: int
    provider: str
    model: str
    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    cost_microdollars: int | None = None
    is_estimate: bool = False


@dataclass(frozen=True, slots=True)
class UsageSum:
    """The sum over some calls; `cost_microdollars` is None if any call's price is unknown or there is no call."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost_microdollars: int | None
    is_estimate: bool


def add(connection: Connection, row: UsageRow) -> None:
    """Store what a call cost."""
    connection.execute(
        "INSERT INTO usage (turn, step, attempt, provider, model, input_tokens, output_tokens, cached_tokens,"
        " cost_microdollars, is_estimate) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            row.turn,
            row.step,
            row.attempt,
            row.provider,
            row.model,
            row.input_tokens,
            row.output_tokens,
            row.cached_tokens,
            row.cost_microdollars,
            int(row.is_estimate),
        ),
    )


def of_turn(connection: Connection, turn: int) -> UsageSum:
    """The sum over all calls of a turn, failed attempts included."""
    input_tokens, output_tokens, cached_tokens, cost, unpriced, estimates = connection.execute(
        "SELECT coalesce(sum(input_tokens), 0), coalesce(sum(output_tokens), 0), coalesce(sum(cached_tokens), 0),"
        " sum(cost_microdollars), count(*) FILTER (WHERE cost_microdollars IS NULL), coalesce(sum(is_estimate), 0)"
        " FROM usage WHERE turn = ?",
        (turn,),
    ).get
    return UsageSum(input_tokens, output_tokens, cached_tokens, None if unpriced else cost, estimates > 0)
