"""Calendar events, the occurrences that have a state of their own, and what they were imported from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pattern_db.connection import Connection, Table, Values, fetch_all
from pattern_db.enums import EventOccurrenceStatus, OccurrenceStatus
from pattern_db.errors import RowConflict, RowNotFound
from pattern_db.tables import timers

TIMER = "reminder"  # the kind of timer of the next reminder of an event
REMINDERS_KEPT = 1_000  # of each event, the newest

# What an occurrence has beyond its reminder.
_IS_CHANGED = "(starts_at <> nominal_at OR status <> 'scheduled' OR title IS NOT NULL OR notes IS NOT NULL)"


@dataclass(frozen=True, slots=True)
class CalendarEventRow:
    """An event of the calendar. Its times are moments; `exdates` and `rdates` are nominal times that it lacks, and has
    besides those of its rule. `external_id` is its UID in the calendar that it was imported from.
    """

    id: str
    title: str
    starts_at: str
    created_at: str
    updated_at: str
    agent_id: str | None = None
    description: str | None = None
    ends_at: str | None = None
    zone: str = "UTC"
    all_day: bool = False
    rrule: str | None = None
    exdates: Sequence[str] = ()
    rdates: Sequence[str] = ()
    location: str | None = None
    reminder_minutes: int | None = None
    missed: str = "last"
    external_id: str | None = None
    external_source: str | None = None


@dataclass(frozen=True, slots=True)
class EventOccurrenceRow:
    """An occurrence that was changed or that people were reminded of, by its nominal time.

    `title` is None where it is the event's. `reminder` says whether that fired; then `turn_id` is the turn of the agent
    that was reminded, if there was one, else `reason` says why not.
    """

    id: str
    event_id: str
    nominal_at: str
    starts_at: str
    created_at: str
    ends_at: str | None = None
    status: EventOccurrenceStatus = EventOccurrenceStatus.SCHEDULED
    title: str | None = None
    notes: str | None = None
    reminder: OccurrenceStatus | None = None
    reminded_at: str | None = None
    reason: str | None = None
    turn_id: str | None = None

    @property
    def is_changed(self) -> bool:
        """Whether it has more than a reminder."""
        is_plain = (self.starts_at, self.status) == (self.nominal_at, EventOccurrenceStatus.SCHEDULED)
        return not is_plain or self.title is not None or self.notes is not None


_EVENTS = Table("events", CalendarEventRow, "event {}", json=("exdates", "rdates"), types={"all_day": bool})
create, count = _EVENTS.create, _EVENTS.count
_OCCURRENCES = Table(
    "event_occurrences",
    EventOccurrenceRow,
    types={"status": EventOccurrenceStatus, "reminder": OccurrenceStatus},
)


def find(connection: Connection, id_or_title: str) -> tuple[CalendarEventRow, str | None]:
    """Return the event with this id or, if there is none, the only one with this title, and when it next reminds.

    Raises:
        RowNotFound: there is none.
        RowConflict: several have the title.
    """
    found = _with_due(connection, "WHERE id = ?1 OR title = ?1 ORDER BY id = ?1 DESC LIMIT 2", (id_or_title,))
    if not found:
        raise RowNotFound(f"there is no event {id_or_title}")
    if len(found) > 1 and found[0][0].id != id_or_title:
        raise RowConflict(f"several events are called {id_or_title}")
    return found[0]


def list_all(connection: Connection) -> list[tuple[CalendarEventRow, str | None]]:
    """Return all events in the order of their beginning, each with the time at which its next reminder is due."""
    return _with_due(connection, "ORDER BY starts_at, id")


def between(connection: Connection, since: str, until: str) -> list[CalendarEventRow]:
    """Return the events that may have an occurrence in this time."""
    moved = f"id IN (SELECT event_id FROM event_occurrences WHERE {_IS_CHANGED})"
    repeats = "rrule IS NOT NULL OR rdates <> '[]'"
    begun = f"starts_at < ?2 AND (coalesce(ends_at, starts_at) >= ?1 OR {repeats})"
    return _EVENTS.select(connection, f"WHERE {begun} OR {moved}", (since, until))


def _with_due(connection: Connection, rest: str, values: Values = ()) -> list[tuple[CalendarEventRow, str | None]]:
    due_at = f"(SELECT due_at FROM timer WHERE kind = '{TIMER}' AND ref = events.id)"
    found = fetch_all(connection, f"SELECT {_EVENTS.columns}, {due_at} FROM events {rest}", values)
    return [(_EVENTS.make(row), row[-1]) for row in found]


def update(connection: Connection, before: CalendarEventRow, row: CalendarEventRow) -> None:
    """Store in what an event differs from what it was; its other fields may have changed in between.

    Raises:
        RowNotFound: there is no such event.
    """
    stored = zip(_EVENTS.columns.split(", "), _EVENTS.values(before), _EVENTS.values(row), strict=True)
    changes = {column: new for column, old, new in stored if new != old or column == "updated_at"}
    _EVENTS.change(connection, row.id, changes)


def delete(connection: Connection, event_id: str) -> None:
    """Delete an event with its occurrences.

    Raises:
        RowNotFound: there is no such event.
    """
    _EVENTS.delete(connection, event_id)
    timers.delete(connection, TIMER, event_id)


def pause_reminders(connection: Connection) -> None:
    """Let no reminder be due."""
    connection.execute("DELETE FROM timer WHERE kind = ?", (TIMER,))


def changed(connection: Connection, event_id: str | None, reminded_from: str) -> list[EventOccurrenceRow]:
    """Return the occurrences that were changed, of one event or of all; and those that were decided to be reminded of,
    from a nominal time on.
    """
    return _OCCURRENCES.select(
        connection,
        f"WHERE (?1 IS NULL OR event_id = ?1) AND (nominal_at >= ?2 OR {_IS_CHANGED})",
        (event_id, reminded_from),
    )


def occurrences(
    connection: Connection, event_id: str, limit: int, *, before: str | None = None
) -> list[EventOccurrenceRow]:
    """Return the newest occurrences that were changed or decided, newest first; only before one, if given."""
    return _OCCURRENCES.select(
        connection,
        "WHERE event_id = ?1 AND (?2 IS NULL OR nominal_at < ?2) ORDER BY nominal_at DESC LIMIT ?3",
        (event_id, before, limit),
    )


def put_occurrence(connection: Connection, row: EventOccurrenceRow) -> None:
    """Store an occurrence, or replace what is stored of it."""
    names = ("starts_at", "ends_at", "status", "title", "notes", "reminder", "reminded_at", "reason", "turn_id")
    replaced = ", ".join(f"{name} = excluded.{name}" for name in names)
    _OCCURRENCES.insert(connection, [row], f"ON CONFLICT (event_id, nominal_at) DO UPDATE SET {replaced}")


def note_reminder(connection: Connection, row: EventOccurrenceRow) -> None:
    """Store what happened to the reminder of an occurrence, once.

    Raises:
        RowConflict: that is stored already.
    """
    noted = ", ".join(f"{name} = excluded.{name}" for name in ("reminder", "reminded_at", "reason", "turn_id"))
    once = f"ON CONFLICT (event_id, nominal_at) DO UPDATE SET {noted} WHERE event_occurrences.reminder IS NULL"
    _OCCURRENCES.insert(connection, [row], once)
    if connection.changes() != 1:
        raise RowConflict(f"the reminder of {row.event_id} for {row.nominal_at} was decided already")
    connection.execute(
        f"DELETE FROM event_occurrences WHERE event_id = ?1 AND NOT {_IS_CHANGED} AND nominal_at < (SELECT nominal_at"
        " FROM event_occurrences WHERE event_id = ?1 ORDER BY nominal_at DESC LIMIT 1 OFFSET ?2)",
        (row.event_id, REMINDERS_KEPT - 1),
    )


def reset(connection: Connection, event_id: str) -> None:
    """Forget what was changed of an event's occurrences, and what they were imported from; reminders stay noted."""
    connection.execute("DELETE FROM event_occurrences WHERE event_id = ? AND reminder IS NULL", (event_id,))
    connection.execute(
        "UPDATE event_occurrences SET starts_at = nominal_at, ends_at = NULL, status = 'scheduled', title = NULL,"
        " notes = NULL WHERE event_id = ?",
        (event_id,),
    )
    connection.execute("DELETE FROM event_source WHERE event_id = ? AND nominal_at <> ''", (event_id,))


def put_source(connection: Connection, event_id: str, nominal_at: str, content: str) -> None:
    """Store what an event (`nominal_at` empty) or an occurrence was imported from."""
    connection.execute("INSERT OR REPLACE INTO event_source VALUES (?, ?, ?)", (event_id, nominal_at, content))


def sources(connection: Connection) -> Mapping[tuple[str, str], str]:
    """Return what was imported, by event and nominal time."""
    rows: Iterable[tuple[str, str, str]] = connection.execute("SELECT event_id, nominal_at, content FROM event_source")
    return {(event_id, nominal_at): content for event_id, nominal_at, content in rows}
