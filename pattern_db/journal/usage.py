"""Usage: tokens and cost of each model call, as exact integers that can be summed.

`usage` has a row per call, `usage_day` the same by day, agent, group and model; `add` writes both, so that sums over
whole days read few rows, however many calls there were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from pattern_db.columns import iso, unix_ms
from pattern_db.connection import Connection, Table

STEP = "step"  # the purpose of a step's own call; others may be made several times in a step
SUMMARY, OVERVIEW = "summary", "overview"  # of messages that leave a conversation; of what an agent did
REFLECTION = "reflection"  # for guidance that a model proposes from sessions
DAY_CHARS = 10  # `2026-11-21`
_MIDNIGHT = "T00:00:00.000Z"
_DISORDER_MS = 86_400_000  # rows are in the order of their times, except for long calls and clocks that were set back


class UsageRow(NamedTuple):
    """Tokens and micro-dollars of one call; `cost_microdollars` is None if the price is unknown.

    `input_tokens` holds `cached_tokens` and `cache_write_tokens`, `output_tokens` holds `reasoning_tokens`. `at` is
    the time as stored at which the call ended. `turn` is None for a call outside of turns; `group_id` is the group for
    which it was made. `no` numbers the calls of one purpose within a step; `add` sets it.
    """

    turn: int | None
    step: int
    attempt: int
    agent_id: str
    provider: str
    model: str
    at: str
    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    cost_microdollars: int | None = None
    is_estimate: bool = False
    purpose: str = STEP
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    group_id: str | None = None
    no: int = 0


_USAGE = Table("usage", UsageRow)


@dataclass(frozen=True, slots=True)
class UsageSum:
    """The sum over some calls; `cost_microdollars` is None if any call's price is unknown or there is no call."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost_microdollars: int | None
    is_estimate: bool


NOTHING = UsageSum(0, 0, 0, None, is_estimate=False)
SUMS = (  # over calls, as in `UsageSum`
    *(f"coalesce(sum({name}), 0)" for name in ("input_tokens", "output_tokens", "cached_tokens")),
    "iif(count(*) = count(cost_microdollars), sum(cost_microdollars), NULL)",
    "coalesce(max(is_estimate), 0)",
)


class Grouping(StrEnum):
    """The grouping of a report."""

    DAY = "day"
    AGENT = "agent"
    MODEL = "model"
    TURN = "turn"
    CAUSE = "cause"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageFilter:
    """Selects calls: of an agent (id), of a turn (key) with all turns that it started, from `since` until before
    `until` (times as stored). None: all.
    """

    agent_id: str | None = None
    turn: int | None = None
    since: str | None = None
    until: str | None = None


@dataclass(frozen=True, slots=True)
class UsageLine:
    """The sum over the calls of one day, agent, model, turn or cause.

    `key` is the day, the agent's id, `provider/model`, the turn's id or the cause; `name` an agent's name while it
    exists.
    `cost_microdollars` does not include the `unpriced_calls`, which have no known price.
    """

    key: str
    name: str | None
    calls: int
    unpriced_calls: int
    estimated_calls: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    cost_microdollars: int


# A turn with the turns that it started.
TREE = (
    "WITH RECURSIVE tree(key) AS (SELECT :root UNION SELECT t.key FROM turn AS t JOIN tree ON t.parent_turn = tree.key)"
)
_OF_CALLS = (
    "count(*), count(*) FILTER (WHERE cost_microdollars IS NULL), coalesce(sum(is_estimate), 0),"
    " coalesce(sum(input_tokens), 0), coalesce(sum(output_tokens), 0), coalesce(sum(cached_tokens), 0),"
    " coalesce(sum(cache_write_tokens), 0), coalesce(sum(reasoning_tokens), 0), coalesce(sum(cost_microdollars), 0)"
)
_COUNTED = (  # columns of `usage_day`, as in `UsageLine`
    *("calls", "unpriced_calls", "estimated_calls", "input_tokens", "output_tokens", "cached_tokens"),
    *("cache_write_tokens", "reasoning_tokens", "cost_microdollars"),
)
_OF_DAYS = ", ".join(f"coalesce(sum({column}), 0)" for column in _COUNTED)
# Who or what the first turn of the chain was for: turns of a heartbeat (`system:heartbeat`) or a task are its own, also
# those of a group that it asks.
_ROOT_CAUSE = (
    "(WITH RECURSIVE up(parent, sender, is_group) AS (SELECT parent_turn, sender, group_id IS NOT NULL FROM turn"
    " WHERE key = usage.turn UNION ALL SELECT t.parent_turn, t.sender, up.is_group OR t.group_id IS NOT NULL"
    " FROM turn AS t JOIN up ON t.key = up.parent) SELECT CASE WHEN sender LIKE 'system:%' THEN substr(sender, 8)"
    " WHEN sender = 'system' THEN 'schedule' WHEN is_group THEN 'group' WHEN sender LIKE 'agent:%' THEN 'unknown'"
    " ELSE 'person' END FROM up WHERE parent IS NULL)"
)
_CAUSE = (
    f"CASE WHEN purpose IN ('{SUMMARY}', '{OVERVIEW}') THEN 'summary' WHEN purpose = '{REFLECTION}' THEN purpose"
    " WHEN purpose = 'aside' THEN 'person'"
    f" ELSE coalesce({_ROOT_CAUSE}, 'unknown') END"
)
_DAY_KEY = "day, agent_id, group_id, provider, model"
_NAME = "(SELECT name FROM agents WHERE id = agent_id)"
_ADD_TO_DAY = (
    f"INSERT INTO usage_day ({_DAY_KEY}, {', '.join(_COUNTED)})"
    f" SELECT substr(at, 1, {DAY_CHARS}), agent_id, coalesce(group_id, ''), provider, model, 1,"
    " cost_microdollars IS NULL, is_estimate, input_tokens, output_tokens, cached_tokens, cache_write_tokens,"
    " reasoning_tokens, coalesce(cost_microdollars, 0) FROM usage WHERE key = last_insert_rowid()"
    f" ON CONFLICT DO UPDATE SET {', '.join(f'{column} = {column} + excluded.{column}' for column in _COUNTED)}"
)

_CALLS = (  # rows of `usage_day` as the calls make them
    f"SELECT substr(at, 1, {DAY_CHARS}), agent_id, coalesce(group_id, ''), provider, model, {_OF_CALLS} FROM usage"
)
# Until this day, sums may have come with an archive, without their calls.
_IMPORTED = f"(SELECT coalesce(substr(max(imported_at), 1, {DAY_CHARS}), '') FROM migration_audit)"
_WRONG_DAYS = (
    f"WITH calls({_DAY_KEY}, {', '.join(_COUNTED)}) AS ({_CALLS} GROUP BY 1, 2, 3, 4, 5), difference AS (SELECT day,"
    f" {', '.join(f'sum({column}) AS {column}' for column in _COUNTED)} FROM (SELECT * FROM usage_day UNION ALL"
    f" SELECT {_DAY_KEY}, {', '.join(f'-{column}' for column in _COUNTED)} FROM calls) GROUP BY {_DAY_KEY})"
    f" SELECT count(DISTINCT day) FROM difference WHERE min({', '.join(_COUNTED)}) < 0"
    f" OR (max({', '.join(_COUNTED)}) > 0 AND day > {_IMPORTED})"
)


def wrong_days(connection: Connection) -> int:
    """Return on how many days the sums of `usage_day` cannot be those of the calls. Reads all calls."""
    count: int = connection.execute(_WRONG_DAYS).get
    return count


def rebuild_days(connection: Connection) -> None:
    """Make `usage_day` again of the calls; sums of days with an import, and of earlier ones, only grow."""
    connection.execute(f"DELETE FROM usage_day WHERE day > {_IMPORTED}")
    greater = ", ".join(f"{column} = max({column}, excluded.{column})" for column in _COUNTED)
    connection.execute(
        f"INSERT INTO usage_day ({_DAY_KEY}, {', '.join(_COUNTED)}) {_CALLS} WHERE true GROUP BY 1, 2, 3, 4, 5"
        f" ON CONFLICT DO UPDATE SET {greater}"
    )


def add(connection: Connection, row: UsageRow) -> None:
    """Store the usage of a call. A step's own call is stored once; calls of other purposes are numbered.

    Raises:
        apsw.ConstraintError: there is no such turn, or the usage of this attempt of the step is already stored (a
            `RowConflict` once translated).
    """
    if row.purpose != STEP:
        no = connection.execute(
            "SELECT coalesce(max(no) + 1, 0) FROM usage WHERE turn = ? AND step = ? AND attempt = ? AND purpose = ?",
            (row.turn, row.step, row.attempt, row.purpose),
        ).get
        row = row._replace(no=no)
    _USAGE.insert(connection, [row])
    connection.execute(_ADD_TO_DAY)


def of_model_calls(connection: Connection, turn: int) -> list[UsageRow]:
    """Return the usage of the calls of a turn's steps, in order."""
    return _USAGE.select(connection, "WHERE turn = ? AND purpose = ? ORDER BY step, attempt", (turn, STEP))


def of_turn(connection: Connection, turn: int) -> UsageSum:
    """Return the sum over all calls of a turn, failed attempts included; without the turns that it started."""
    return sum_of(connection.execute(f"SELECT {', '.join(SUMS)} FROM usage WHERE turn = ?", (turn,)).get)


def of_steps(connection: Connection, turn: int, after: int, last: int) -> UsageSum:
    """Return the sum over the calls of a turn's steps after one step, up to another and with that."""
    where = "WHERE turn = ? AND step > ? AND step <= ?"
    return sum_of(connection.execute(f"SELECT {', '.join(SUMS)} FROM usage {where}", (turn, after, last)).get)


def of_tree(connection: Connection, turn: int) -> UsageSum:
    """Return the sum over all calls of a turn and of those that it led to."""
    sql = f"{TREE} SELECT {', '.join(SUMS)} FROM tree CROSS JOIN usage ON usage.turn = tree.key"
    return sum_of(connection.execute(sql, {"root": turn}).get)


def sum_of(row: Sequence[Any]) -> UsageSum:
    """Return the values of `SUMS` as a sum."""
    given, made, cached, cost, is_estimate = row
    return UsageSum(given, made, cached, cost, is_estimate == 1)


def tokens_for(connection: Connection, purpose: str, since: str) -> int:
    """Return the tokens, in and out, of all calls for a purpose from `since` on."""
    sql = "SELECT coalesce(sum(input_tokens + output_tokens), 0) FROM usage WHERE at >= ? AND purpose = ?"
    found: int = connection.execute(sql, (since, purpose)).get
    return found


def total(connection: Connection, which: UsageFilter) -> UsageLine:
    """Return the sum over all selected calls; its key is empty."""
    table, sums = _source(which, None)
    conditions, values, tree = _conditions(which, table)
    row = connection.execute(f"{tree} SELECT {sums} FROM {table} {_where(conditions)}", values).get
    return UsageLine("", None, *row)


def lines(
    connection: Connection, which: UsageFilter, by: Grouping, *, limit: int, after: str | None = None
) -> list[UsageLine]:
    """Return a line per day (newest first), agent, model, cause (by key) or turn (newest first); those after the key
    `after`.
    """
    table, sums = _source(which, by)
    conditions, values, tree = _conditions(which, table)
    key, order, beyond = _KEYS[by]
    key = "substr(at, 1, 10)" if by is Grouping.DAY and table == "usage" else key
    if by is Grouping.TURN:
        conditions.append("turn IS NOT NULL")
    if after is not None:
        conditions.append(f"{key} {beyond} :after")
        values = {**values, "after": after}
    if by is Grouping.TURN and after is not None:
        conditions[-1] = "turn < (SELECT key FROM turn WHERE id = :after)"
    shown = "(SELECT id FROM turn WHERE turn.key = usage.turn)" if by is Grouping.TURN else key
    name = _NAME if by is Grouping.AGENT else "NULL"
    found = connection.execute(
        f"{tree} SELECT {shown}, {name}, {sums} FROM {table} {_where(conditions)} GROUP BY {key}"
        f" ORDER BY {key} {order} LIMIT :limit",
        {**values, "limit": limit},
    )
    return [UsageLine(*row) for row in found]


# grouping → the expression, its order, and what comes after a given one
_KEYS = {
    Grouping.DAY: ("day", "DESC", "<"),
    Grouping.AGENT: ("agent_id", "ASC", ">"),
    Grouping.MODEL: ("provider || '/' || model", "ASC", ">"),
    Grouping.TURN: ("turn", "DESC", "<"),
    Grouping.CAUSE: (_CAUSE, "ASC", ">"),
}


def _source(which: UsageFilter, by: Grouping | None) -> tuple[str, str]:
    """Return the cheapest table for the query, and its sums."""
    whole_days = all(bound is None or bound.endswith(_MIDNIGHT) for bound in (which.since, which.until))
    if whole_days and which.turn is None and by not in (Grouping.TURN, Grouping.CAUSE):
        return "usage_day", _OF_DAYS
    return "usage", _OF_CALLS


def _conditions(which: UsageFilter, table: str) -> tuple[list[str], dict[str, str | int], str]:
    """Conditions, their values, and what goes before the statement."""
    conditions: list[str] = []
    values: dict[str, str | int] = {}
    column, cut = ("day", DAY_CHARS) if table == "usage_day" else ("at", None)
    if which.agent_id is not None:
        conditions.append("agent_id = :agent")
        values["agent"] = which.agent_id
    if which.since is not None:
        conditions.append(f"{column} >= :since")
        values["since"] = which.since[:cut]
        if table == "usage":
            conditions.append("key > (SELECT coalesce(max(key), 0) FROM usage WHERE at < :well_before)")
            values["well_before"] = iso(unix_ms(which.since) - _DISORDER_MS)
    if which.until is not None:
        conditions.append(f"{column} < :until")
        values["until"] = which.until[:cut]
    if which.turn is None:
        return conditions, values, ""
    conditions.append("turn IN (SELECT key FROM tree)")
    return conditions, {**values, "root": which.turn}, TREE


def _where(conditions: Sequence[str]) -> str:
    return f"WHERE {' AND '.join(conditions)}" if conditions else ""
