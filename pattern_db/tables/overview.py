"""What agents did recently, what was notable, and both by day and by week: written for other agents and for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pattern_db.connection import Connection, Table, fetch_all

NOTABLE_KEPT = 10_000  # newest notable events
PERIODS_KEPT = 5_000  # newest summaries of days and weeks: eleven years


@dataclass(frozen=True, slots=True)
class AgentSummaryRow:
    """What an agent, called `name`, did up to its message at the position `up_to`, which is from `last_active`.

    It is made of `messages_covered` messages by `model` (`provider/model`); None: no model could write it.
    """

    agent_id: str
    name: str
    summary: str
    messages_covered: int
    generated_at: str
    last_active: str
    up_to: str
    model: str | None


@dataclass(frozen=True, slots=True)
class PeriodRow:
    """The summary of a day or a week of the constellation; the lists are of strings."""

    id: str
    period_start: str
    period_end: str
    summary: str
    key_decisions: Sequence[str]
    open_threads: Sequence[str]
    created_at: str


@dataclass(frozen=True, slots=True)
class NotableRow:
    """A notable event. `agents_involved` are ids; `importance` is 0 to 3."""

    id: str
    timestamp: str
    event_type: str
    description: str
    agents_involved: Sequence[str]
    importance: int
    created_at: str


_SUMMARIES = Table(
    "agent_summaries",
    AgentSummaryRow,
    source="agent_summaries AS s JOIN agents AS a ON a.id = s.agent_id",
    columns={"name": "a.name"},
)
_PERIODS = Table("constellation_summaries", PeriodRow, json=("key_decisions", "open_threads"))
_NOTABLE = Table("notable_events", NotableRow, "notable event {}", json=("agents_involved",))
delete = _NOTABLE.delete


def put_summary(connection: Connection, row: AgentSummaryRow) -> None:
    """Store an agent's summary in the place of the one before.

    Raises:
        apsw.ConstraintError: the agent was deleted (a `RowConflict` once translated).
    """
    columns = "summary, messages_covered, generated_at, last_active, up_to, model"
    connection.execute(
        f"INSERT INTO agent_summaries (agent_id, {columns}) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (agent_id)"
        f" DO UPDATE SET ({columns}) = (excluded.{columns.replace(', ', ', excluded.')})",
        (row.agent_id, row.summary, row.messages_covered, row.generated_at, row.last_active, row.up_to, row.model),
    )


def summary_of(connection: Connection, agent_id: str) -> AgentSummaryRow | None:
    """Return the agent's summary; None if there is none."""
    return _SUMMARIES.first(connection, "WHERE agent_id = ?", (agent_id,))


def summaries(
    connection: Connection, limit: int, *, before: str | None = None, since: str = "", but: str = ""
) -> list[AgentSummaryRow]:
    """Return the newest summaries of agents, newest first: those written from `since` on, without the agent `but`, and
    after that of the agent `before` in this order, if given.
    """
    return _SUMMARIES.select(
        connection,
        "WHERE generated_at >= ?1 AND agent_id <> ?2 AND (?3 IS NULL OR (generated_at, agent_id) <"
        " (SELECT generated_at, agent_id FROM agent_summaries WHERE agent_id = ?3))"
        " ORDER BY generated_at DESC, agent_id DESC LIMIT ?4",
        (since, but, before, limit),
    )


def due(connection: Connection, since: str, count: int, *, only: str | None = None) -> list[str]:
    """Return the agents with `count` messages after the position `since` that no summary covers, of a hibernated one a
    single one; only that one, if it is given. The only agent of a constellation is none: no other would read it.
    """
    found = fetch_all(
        connection,
        "SELECT a.id FROM agents AS a LEFT JOIN agent_summaries AS s ON s.agent_id = a.id"
        " WHERE (?3 IS NULL OR a.id = ?3) AND a.status IN ('active', 'hibernated')"
        " AND EXISTS (SELECT 1 FROM agents WHERE id <> a.id) AND (SELECT count(*) FROM (SELECT 1 FROM messages AS m"
        " WHERE m.agent_id = a.id AND m.position > max(?1, coalesce(s.up_to, '')) AND m.session_id IS NULL"
        " AND m.is_deleted = 0 LIMIT ?2)) >= iif(a.status = 'hibernated', 1, ?2)",
        (since, count, only),
    )
    return [agent_id for (agent_id,) in found]


def put_period(connection: Connection, row: PeriodRow) -> None:
    """Store the summary of a period, in the place of an earlier one, and delete the oldest ones beyond
    `PERIODS_KEPT`.
    """
    again = "ON CONFLICT (period_end, period_start) DO UPDATE SET summary = excluded.summary,"
    again += " key_decisions = excluded.key_decisions, open_threads = excluded.open_threads"
    _PERIODS.insert(connection, [row], again)
    _forget_oldest(connection, "constellation_summaries", PERIODS_KEPT)


def periods(connection: Connection, limit: int, *, before: str | None = None) -> list[PeriodRow]:
    """Return summaries of days and weeks, newest first; only those before an id, if given."""
    return _PERIODS.select(connection, "WHERE ?1 IS NULL OR id < ?1 ORDER BY id DESC LIMIT ?2", (before, limit))


def record(connection: Connection, row: NotableRow) -> None:
    """Add a notable event, and delete the oldest ones beyond `NOTABLE_KEPT`."""
    _NOTABLE.insert(connection, [row])
    _forget_oldest(connection, "notable_events", NOTABLE_KEPT)


def notable(
    connection: Connection, limit: int, *, before: str | None = None, since: str = "", until: str = "~"
) -> list[NotableRow]:
    """Return notable events, newest first: before an id, from `since` on, before `until`, if given."""
    return _NOTABLE.select(
        connection,
        "WHERE (?1 IS NULL OR id < ?1) AND timestamp >= ?2 AND timestamp < ?3 ORDER BY id DESC LIMIT ?4",
        (before, since, until, limit),
    )


def find(connection: Connection, ref: str) -> AgentSummaryRow | NotableRow | None:
    """Return the notable event with this id, or the summary of the agent with it; None if there is neither."""
    return _NOTABLE.first(connection, "WHERE id = ?", (ref,)) or summary_of(connection, ref)


def _forget_oldest(connection: Connection, table: str, kept: int) -> None:
    connection.execute(
        f"DELETE FROM {table} WHERE id IN (SELECT id FROM {table} ORDER BY id DESC LIMIT -1 OFFSET ?)", (kept,)
    )
