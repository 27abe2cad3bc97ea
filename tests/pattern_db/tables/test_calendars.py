"""Calendar events, their occurrences and sources."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pattern_db.connection import Connection
from pattern_db.enums import EventOccurrenceStatus, OccurrenceStatus
from pattern_db.errors import RowConflict, RowNotFound
from pattern_db.tables import calendars, timers
from pattern_db.tables.calendars import REMINDERS_KEPT, CalendarEventRow, EventOccurrenceRow
from pattern_db.tables.timers import TimerRow

NOW = "2026-01-01T00:00:00.000Z"
EVENT = CalendarEventRow("evt_1", "Walk", NOW, NOW, NOW, exdates=[NOW], rdates=[], all_day=True)


def at(day: int) -> str:
    return f"2026-{day // 28 + 1:02}-{day % 28 + 1:02}T00:00:00.000Z"


def occurrence(day: int, **fields: object) -> EventOccurrenceRow:
    return replace(EventOccurrenceRow(f"occ_{day}", "evt_1", at(day), at(day), NOW), **fields)  # type: ignore[arg-type]  # the tests know the fields


def test_events_are_found_by_id_or_their_only_title(db: Connection) -> None:
    calendars.create(db, EVENT)
    timers.put(db, TimerRow(calendars.TIMER, "evt_1", at(5)))
    assert calendars.find(db, "Walk") == calendars.find(db, "evt_1") == (EVENT, at(5))
    calendars.create(db, replace(EVENT, id="Walk"))
    assert calendars.find(db, "Walk")[0].id == "Walk"
    calendars.create(db, replace(EVENT, id="evt_2", title="Run"))
    calendars.create(db, replace(EVENT, id="evt_3", title="Run"))
    with pytest.raises(RowConflict, match="several events"):
        calendars.find(db, "Run")
    with pytest.raises(RowNotFound):
        calendars.find(db, "Swim")
    assert calendars.count(db) == len(calendars.list_all(db)) == 4
    calendars.update(db, EVENT, replace(EVENT, title="March"))
    calendars.update(db, EVENT, replace(EVENT, rdates=[at(3)]))
    calendars.update(db, EVENT, EVENT)
    assert calendars.find(db, "March")[0].exdates == [NOW]
    calendars.delete(db, "evt_1")
    assert timers.first_due(db) is None


def test_a_list_reads_what_may_take_place_then(db: Connection) -> None:
    for name, fields in {
        "over": {},
        "long": {"ends_at": at(20)},
        "rule": {"rrule": "FREQ=DAILY"},
        "dates": {"rdates": [at(11)]},
        "moved": {},
        "later": {"starts_at": at(15)},
    }.items():
        calendars.create(db, replace(EVENT, id=name, exdates=[], **fields))  # type: ignore[arg-type]  # as above
    calendars.put_occurrence(db, occurrence(0, event_id="moved", starts_at=at(12)))
    assert {row.id for row in calendars.between(db, at(10), at(14))} == {"long", "rule", "dates", "moved"}


def test_a_reminder_is_decided_once_and_the_newest_are_kept(db: Connection) -> None:
    calendars.create(db, EVENT)
    fired = {"reminder": OccurrenceStatus.FIRED, "reminded_at": NOW, "turn_id": "turn_1"}
    calendars.put_occurrence(db, occurrence(0, notes="kept"))
    calendars.note_reminder(db, occurrence(0, **fired))
    with pytest.raises(RowConflict, match="decided already"):
        calendars.note_reminder(db, occurrence(0, id="other", **fired))
    [noted] = calendars.occurrences(db, "evt_1", 9)
    assert (noted.notes, noted.reminder, noted.is_changed) == ("kept", "fired", True)
    for number in range(REMINDERS_KEPT + 5):
        nominal = f"2027-01-01T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}.000Z"
        calendars.note_reminder(db, occurrence(1, id=f"o{number}", nominal_at=nominal, starts_at=nominal, **fired))
    assert len(calendars.occurrences(db, "evt_1", 9_999)) == REMINDERS_KEPT + 1
    assert [one.notes for one in calendars.changed(db, "evt_1", "2028")] == ["kept"]
    assert calendars.occurrences(db, "evt_1", 1, before=at(1))[0].notes == "kept"


def test_a_reset_keeps_what_was_decided(db: Connection) -> None:
    calendars.create(db, EVENT)
    calendars.put_occurrence(db, occurrence(1, status=EventOccurrenceStatus.CANCELLED))
    calendars.put_occurrence(db, occurrence(2, starts_at=at(3), reminder=OccurrenceStatus.MISSED, reason="late"))
    for nominal in ("", at(1)):
        calendars.put_source(db, "evt_1", nominal, "text")
    calendars.reset(db, "evt_1")
    assert calendars.changed(db, None, "") == [occurrence(2, reminder=OccurrenceStatus.MISSED, reason="late")]
    assert calendars.sources(db) == {("evt_1", ""): "text"}
    timers.put(db, TimerRow(calendars.TIMER, "evt_1", at(5)))
    calendars.pause_reminders(db)
    assert timers.first_due(db) is None
