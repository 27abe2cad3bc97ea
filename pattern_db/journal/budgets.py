"""Budgets: how much may be spent, what was spent, and what is reserved for running calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pattern_db.connection import Connection, Table, Value
from pattern_db.journal.usage import DAY_CHARS, TREE


class BudgetScope(StrEnum):
    """The scope of a budget. The calls of a turn include those of all turns that it started."""

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
    """A budget: at most `amount` of `unit` per `period`. `ref` is an agent's or group's id; empty: each one."""

    scope: BudgetScope
    ref: str
    period: Period
    unit: Unit
    amount: int


@dataclass(frozen=True, slots=True)
class Spent:
    """The usage of some calls; `microdollars` does not include the `unpriced_calls`."""

    tokens: int
    microdollars: int
    unpriced_calls: int = 0


@dataclass(frozen=True, slots=True)
class TurnBudgetRow:
    """What a turn and the turns that it started may spend together; None: no limit. `id` is the turn's."""

    turn: int
    id: str
    tokens: int | None
    microdollars: int | None


@dataclass(frozen=True, slots=True)
class ReservationRow:
    """The most that a call may cost, and the cost of its prompt alone; money is None if the price is unknown.

    `no` numbers the calls of one purpose within a step.
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
    """Store a budget; it replaces one with the same scope, ref, period and unit."""
    connection.execute(
        "INSERT INTO budget (scope, ref, period, unit, amount, updated_at) VALUES (?, ?, ?, ?, ?, ?)"
        " ON CONFLICT DO UPDATE SET amount = excluded.amount, updated_at = excluded.updated_at",
        (row.scope.value, row.ref, row.period.value, row.unit.value, row.amount, now),
    )


def remove(connection: Connection, row: BudgetRow) -> bool:
    """Delete the budget with the same key as `row`, whatever its amount; return False if there is none."""
    connection.execute(
        "DELETE FROM budget WHERE scope = ? AND ref = ? AND period = ? AND unit = ?",
        (row.scope.value, row.ref, row.period.value, row.unit.value),
    )
    return connection.changes() == 1


def every(connection: Connection) -> list[BudgetRow]:
    """Return all stored budgets, ordered by scope, ref, period and unit."""
    return _BUDGETS.select(connection, "ORDER BY scope, ref, period, unit")


def about_call(connection: Connection, agent_id: str, group_id: str | None) -> list[BudgetRow]:
    """Return the stored budgets that apply to a call of an agent, possibly for a group; not those of turns."""
    return _BUDGETS.select(
        connection,
        "WHERE scope = 'constellation' OR (scope = 'agent' AND ref IN (?1, '')) OR (scope = 'group' AND ref = ?2)",
        (agent_id, group_id),
    )


def about_turns(connection: Connection) -> list[BudgetRow]:
    """Return the stored budgets of each turn."""
    return _BUDGETS.select(connection, "WHERE scope = 'turn'")


def has_any(connection: Connection) -> bool:
    """Return whether any budget is stored that applies to a call."""
    found: int = connection.execute("SELECT EXISTS (SELECT 1 FROM budget) OR EXISTS (SELECT 1 FROM turn_budget)").get
    return bool(found)


def open_turn(connection: Connection, turn: int, *, tokens: int | None, microdollars: int | None) -> None:
    """Store the limits of a turn. Existing ones stay."""
    connection.execute(
        "INSERT INTO turn_budget (turn, tokens, microdollars) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
        (turn, tokens, microdollars),
    )


def of_ancestors(connection: Connection, turn: int) -> list[TurnBudgetRow]:
    """Return the budgets of a turn and of the turns that started it, nearest first."""
    found = connection.execute(
        "WITH RECURSIVE chain(key, height) AS (SELECT ?1, 0 UNION SELECT t.parent_turn, chain.height + 1"
        " FROM turn AS t JOIN chain ON t.key = chain.key WHERE t.parent_turn IS NOT NULL)"
        " SELECT b.turn, t.id, b.tokens, b.microdollars FROM chain JOIN turn_budget AS b ON b.turn = chain.key"
        " JOIN turn AS t ON t.key = b.turn ORDER BY chain.height",
        (turn,),
    )
    return [TurnBudgetRow(*row) for row in found]


def children(connection: Connection, turn: int) -> int:
    """Return how many turns this one started directly."""
    count: int = connection.execute("SELECT count(*) FROM turn WHERE parent_turn = ?", (turn,)).get
    return count


def spent(connection: Connection, scope: BudgetScope, ref: str, *, since: str) -> Spent:
    """Return the usage of an agent, a group or the constellation from the day of `since` on (empty: always)."""
    return _sum(
        connection,
        f"SELECT {_USED}, coalesce(sum(unpriced_calls), 0) FROM usage_day WHERE day >= :since AND {_OF_SCOPE[scope]}",
        {"since": since[:DAY_CHARS], "ref": ref},
    )


def spent_by_tree(connection: Connection, turn: int) -> Spent:
    """Return the usage of a turn and of all turns that it started."""
    unpriced = "count(*) FILTER (WHERE cost_microdollars IS NULL)"
    sql = f"{TREE} SELECT {_USED}, {unpriced} FROM usage WHERE turn IN (SELECT key FROM tree)"
    return _sum(connection, sql, {"root": turn})


def held(connection: Connection, scope: BudgetScope, ref: str) -> Spent:
    """Return what is reserved for running calls of an agent, a group or the constellation."""
    return _sum(connection, f"SELECT {_HELD} FROM reservation WHERE {_OF_SCOPE[scope]}", {"ref": ref})


def held_by_tree(connection: Connection, turn: int) -> Spent:
    """Return what is reserved for running calls of a turn and of all turns that it started."""
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
    """Reserve what a call may cost.

    Raises:
        RowConflict: it is already reserved.
    """
    _RESERVATIONS.insert(connection, [row])


def let_go(connection: Connection, key: tuple[int, int, int, str, int]) -> None:
    """Release the reservation of one call."""
    connection.execute(
        "DELETE FROM reservation WHERE turn = ? AND step = ? AND attempt = ? AND purpose = ? AND no = ?", key
    )


def let_go_of_turn(connection: Connection, turn: int) -> None:
    """Release the reservations of all calls of a turn."""
    connection.execute("DELETE FROM reservation WHERE turn = ?", (turn,))


def reservations(connection: Connection, turn: int) -> list[ReservationRow]:
    """Return the reservations of a turn's calls."""
    return _RESERVATIONS.select(connection, "WHERE turn = ? ORDER BY step, attempt", (turn,))
