"""Budgets: how much may be spent, what is spent of it, and what calls under way hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pattern_db.connection import Connection, Table, Value
from pattern_db.journal.usage import DAY_CHARS, TREE


class BudgetScope(StrEnum):
    """Whose calls a budget is about. A turn's are also those of all turns that it led to."""

    TURN = "turn"
    AGENT = "agent"
    GROUP = "group"
    CONSTELLATION = "constellation"


class Period(StrEnum):
    """When a budget starts again: each day or month (UTC), or never."""

    DAY = "day"
    MONTH = "month"
    TOTAL = "total"


class Unit(StrEnum):
    """What a budget counts: tokens in and out, or millionths of a dollar."""

    TOKENS = "tokens"
    MICRODOLLARS = "microdollars"


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """A budget: at most `amount` of `unit` per `period`. `ref` is an agent's or group's id; empty for each one."""

    scope: BudgetScope
    ref: str
    period: Period
    unit: Unit
    amount: int


@dataclass(frozen=True, slots=True)
class Spent:
    """What some calls took; `microdollars` leaves the `unpriced_calls` out."""

    tokens: int
    microdollars: int
    unpriced_calls: int = 0


@dataclass(frozen=True, slots=True)
class TurnBudgetRow:
    """What a turn may spend together with all that it led to; None is without a bound. `id` is the turn's."""

    turn: int
    id: str
    tokens: int | None
    microdollars: int | None


@dataclass(frozen=True, slots=True)
class ReservationRow:
    """What a call may cost at most, and what its prompt alone costs; money is None where no price is known.

    `no` tells several calls of one purpose within a step apart.
    """

    turn: int
    step: int
    attempt: int
    purpose: str
    no: int
    agent_id: str
    group_id: str | None
    provider: str
    model: str
    tokens: int
    microdollars: int | None
    prompt_tokens: int
    prompt_microdollars: int | None

    @property
    def key(self) -> tuple[int, int, int, str, int]:
        """The primary key."""
        return (self.turn, self.step, self.attempt, self.purpose, self.no)


_BUDGETS = Table("budget", BudgetRow, types={"scope": BudgetScope, "period": Period, "unit": Unit})
_RESERVATIONS = Table("reservation", ReservationRow)
_USED = "coalesce(sum(input_tokens + output_tokens), 0), coalesce(sum(cost_microdollars), 0)"
_HELD = "coalesce(sum(tokens), 0), coalesce(sum(microdollars), 0), 0"
_OF_SCOPE = {
    BudgetScope.AGENT: "agent_id = :ref",
    BudgetScope.GROUP: "group_id = :ref",
    BudgetScope.CONSTELLATION: "true",
}


def put(connection: Connection, row: BudgetRow, *, now: str) -> None:
    """Store a budget, in the place of one about the same."""
    connection.execute(
        "INSERT INTO budget (scope, ref, period, unit, amount, updated_at) VALUES (?, ?, ?, ?, ?, ?)"
        " ON CONFLICT DO UPDATE SET amount = excluded.amount, updated_at = excluded.updated_at",
        (row.scope.value, row.ref, row.period.value, row.unit.value, row.amount, now),
    )


def remove(connection: Connection, row: BudgetRow) -> bool:
    """Delete the budget about the same as `row`, whatever its amount; False if there is none."""
    connection.execute(
        "DELETE FROM budget WHERE scope = ? AND ref = ? AND period = ? AND unit = ?",
        (row.scope.value, row.ref, row.period.value, row.unit.value),
    )
    return connection.changes() == 1


def every(connection: Connection) -> list[BudgetRow]:
    """Return all stored budgets, ordered by scope, ref, period and unit."""
    return _BUDGETS.select(connection, "ORDER BY scope, ref, period, unit")


def about_call(connection: Connection, agent_id: str, group_id: str | None) -> list[BudgetRow]:
    """Return the stored budgets that a call of an agent, perhaps on behalf of a group, has to keep; not those of
    turns.
    """
    return _BUDGETS.select(
        connection,
        "WHERE scope = 'constellation' OR (scope = 'agent' AND ref IN (?1, '')) OR (scope = 'group' AND ref = ?2)",
        (agent_id, group_id),
    )


def about_turns(connection: Connection) -> list[BudgetRow]:
    """Return the stored budgets of each turn."""
    return _BUDGETS.select(connection, "WHERE scope = 'turn'")


def has_any(connection: Connection) -> bool:
    """Return whether anything is stored that a call has to keep to."""
    found: int = connection.execute("SELECT EXISTS (SELECT 1 FROM budget) OR EXISTS (SELECT 1 FROM turn_budget)").get
    return bool(found)


def open_turn(connection: Connection, turn: int, *, tokens: int | None, microdollars: int | None) -> None:
    """Fix what a turn may spend. What was fixed once stays."""
    connection.execute(
        "INSERT INTO turn_budget (turn, tokens, microdollars) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
        (turn, tokens, microdollars),
    )


def of_ancestors(connection: Connection, turn: int) -> list[TurnBudgetRow]:
    """Return the budgets of a turn and of those that led to it, nearest first."""
    found = connection.execute(
        "WITH RECURSIVE chain(key, height) AS (SELECT ?1, 0 UNION SELECT t.parent_turn, chain.height + 1"
        " FROM turn AS t JOIN chain ON t.key = chain.key WHERE t.parent_turn IS NOT NULL)"
        " SELECT b.turn, t.id, b.tokens, b.microdollars FROM chain JOIN turn_budget AS b ON b.turn = chain.key"
        " JOIN turn AS t ON t.key = b.turn ORDER BY chain.height",
        (turn,),
    )
    return [TurnBudgetRow(*row) for row in found]


def children(connection: Connection, turn: int) -> int:
    """Return how many turns this one led to directly."""
    count: int = connection.execute("SELECT count(*) FROM turn WHERE parent_turn = ?", (turn,)).get
    return count


def spent(connection: Connection, scope: BudgetScope, ref: str, *, since: str) -> Spent:
    """Return what the calls of an agent, a group or the constellation took from the day of `since` on (empty: ever)."""
    return _sum(
        connection,
        f"SELECT {_USED}, coalesce(sum(unpriced_calls), 0) FROM usage_day WHERE day >= :since AND {_OF_SCOPE[scope]}",
        {"since": since[:DAY_CHARS], "ref": ref},
    )


def spent_by_tree(connection: Connection, turn: int) -> Spent:
    """Return what a turn took, with all turns that it led to."""
    unpriced = "count(*) FILTER (WHERE cost_microdollars IS NULL)"
    sql = f"{TREE} SELECT {_USED}, {unpriced} FROM usage WHERE turn IN (SELECT key FROM tree)"
    return _sum(connection, sql, {"root": turn})


def held(connection: Connection, scope: BudgetScope, ref: str) -> Spent:
    """Return what calls under way of an agent, a group or the constellation may take."""
    return _sum(connection, f"SELECT {_HELD} FROM reservation WHERE {_OF_SCOPE[scope]}", {"ref": ref})


def held_by_tree(connection: Connection, turn: int) -> Spent:
    """Return what calls under way of a turn may take, with those of all turns that it led to."""
    sql = f"{TREE} SELECT {_HELD} FROM reservation WHERE turn IN (SELECT key FROM tree)"
    return _sum(connection, sql, {"root": turn})


def _sum(connection: Connection, sql: str, values: Mapping[str, Value]) -> Spent:
    found: Any = connection.execute(sql, values).fetchone()
    return Spent(*found)


def next_no(connection: Connection, turn: int, step: int, attempt: int, purpose: str) -> int:
    """Return the number of the next call of a purpose within a step, from 0."""
    no: int = connection.execute(
        "SELECT coalesce(max(no) + 1, 0) FROM reservation WHERE turn = ? AND step = ? AND attempt = ? AND purpose = ?",
        (turn, step, attempt, purpose),
    ).get
    return no


def hold(connection: Connection, row: ReservationRow) -> None:
    """Store what a call may cost.

    Raises:
        RowConflict: it is held already.
    """
    _RESERVATIONS.insert(connection, [row])


def let_go(connection: Connection, key: tuple[int, int, int, str, int]) -> None:
    """Release what is held for one call."""
    connection.execute(
        "DELETE FROM reservation WHERE turn = ? AND step = ? AND attempt = ? AND purpose = ? AND no = ?", key
    )


def let_go_of_turn(connection: Connection, turn: int) -> None:
    """Release what is held for all calls of a turn."""
    connection.execute("DELETE FROM reservation WHERE turn = ?", (turn,))


def reservations(connection: Connection, turn: int) -> list[ReservationRow]:
    """Return what is held for a turn's calls."""
    return _RESERVATIONS.select(connection, "WHERE turn = ? ORDER BY step, attempt", (turn,))
