"""Schedules as rows: their occurrences, once each, and what changed since one fired."""

from __future__ import annotations

from dataclasses import replace

import apsw
import pytest

from pattern_db.connection import Connection
from pattern_db.enums import OccurrenceStatus, ScheduleStatus
from pattern_db.errors import RowConflict, RowNotFound
from pattern_db.tables import groups, schedules, timers
from pattern_db.tables.groups import GroupRow
from pattern_db.tables.schedules import OCCURRENCES_KEPT, Changes, OccurrenceRow, ScheduleRow
from pattern_db.tables.timers import TimerRow
from tests.pattern_db.conftest import LATER, NOW, MakeTurn

DAILY = ScheduleRow("sch_1", "daily", "Look.", NOW, NOW, agent_id="agt_ada", plan={"every": 60}, seen={"turn": 0})


def occurred(number: int, status: OccurrenceStatus = OccurrenceStatus.FIRED) -> OccurrenceRow:
    return OccurrenceRow(DAILY.id, f"2026-01-01T{number // 60:02}:{number % 60:02}:00.000Z", status, NOW)


def test_a_schedule_is_found_changed_and_deleted_with_its_timer(db: Connection) -> None:
    schedules.create(db, DAILY)
    timers.put(db, TimerRow(schedules.TIMER, DAILY.id, LATER, LATER))
    assert schedules.list_all(db) == [(DAILY, LATER)]
    assert schedules.count(db) == 1
    schedules.set_seen(db, DAILY.id, {"turn": 5})
    schedules.set_status(db, DAILY.id, ScheduleStatus.FINISHED)
    stored = replace(DAILY, seen={"turn": 5}, status=ScheduleStatus.FINISHED)
    assert schedules.find(db, "daily") == schedules.find(db, DAILY.id) == (stored, LATER)
    changed = replace(DAILY, name="hourly", plan={"every": 3600}, updated_at=LATER)
    schedules.update(db, changed)
    assert schedules.find(db, "hourly") == (changed, LATER)
    with pytest.raises(apsw.ConstraintError):
        schedules.create(db, replace(DAILY, id="sch_2", name="hourly"))
    schedules.pause_all(db)
    paused = replace(changed, status=ScheduleStatus.PAUSED)
    assert (schedules.find(db, "hourly"), timers.first_due(db)) == ((paused, None), None)
    timers.put(db, TimerRow(schedules.TIMER, DAILY.id, LATER, LATER))
    schedules.delete(db, DAILY.id)
    assert timers.first_due(db) is None
    with pytest.raises(RowNotFound, match="daily"):
        schedules.find(db, "daily")


def test_an_occurrence_is_stored_once_but_for_one_that_a_person_is_asked_about(db: Connection) -> None:
    schedules.create(db, DAILY)
    schedules.note_occurrence(db, occurred(1))
    with pytest.raises(RowConflict, match="already"):
        schedules.note_occurrence(db, occurred(1, OccurrenceStatus.MISSED))
    schedules.note_occurrence(db, occurred(2, OccurrenceStatus.ASKED))
    schedules.note_occurrence(db, replace(occurred(2), turn_id="turn_1"))
    with pytest.raises(RowConflict):
        schedules.note_occurrence(db, occurred(2))
    assert schedules.occurrences(db, DAILY.id, 9) == [replace(occurred(2), turn_id="turn_1"), occurred(1)]
    assert schedules.occurrences(db, DAILY.id, 1, before=occurred(2).nominal_at) == [occurred(1)]


def test_the_newest_occurrences_are_kept(db: Connection) -> None:
    schedules.create(db, DAILY)
    for number in range(OCCURRENCES_KEPT + 5):
        schedules.note_occurrence(db, occurred(number))
    kept = schedules.occurrences(db, DAILY.id, 2 * OCCURRENCES_KEPT)
    assert (len(kept), kept[-1]) == (OCCURRENCES_KEPT, occurred(5))


def test_what_the_system_asked_for_is_no_change(db: Connection, make_turn: MakeTurn) -> None:
    schedules.create(db, DAILY)
    before = make_turn("turn_1")
    make_turn("turn_2", sender="system")
    make_turn("turn_3")
    newest = make_turn("turn_4", agent="bob", sender="agent:agt_ada")
    assert schedules.changes(db, DAILY, before, ["none"], ["none"], LATER) == Changes(
        newest, 2, 1, 0, 0, {"none": 0}, {"none": "0 0"}, 0
    )
    assert schedules.changes(db, DAILY, newest, [], [], LATER) == Changes(newest, 0, 0, 0, 0, {}, {}, 0)
    assert schedules.said_since(db, "0", 9) == []


def test_a_change_of_a_block_wakes_the_groups_that_watch_it_once(db: Connection) -> None:
    for name, pattern, label in (
        ("desk", "blackboard", "plan"),
        ("far", "blackboard", "other"),
        ("old", "voting", "plan"),
    ):
        groups.create(db, GroupRow(name, name, pattern, NOW, NOW, pattern_config={"label": label}))
        schedules.create(db, replace(DAILY, id=f"sch_{name}", name=name, agent_id=None, group_id=name))
        timers.put(db, TimerRow(schedules.TIMER, f"sch_{name}", LATER, LATER))
    assert not schedules.wake(db, "plan", "agt_ada", NOW)
    assert not schedules.wake(db, "plan", "far", NOW)
    assert schedules.wake(db, "plan", "desk", NOW)
    soon = TimerRow(schedules.TIMER, "sch_desk", NOW.replace(":40.", ":45."), schedules.WOKEN)
    assert timers.due(db, soon.due_at, 9) == [soon]
    assert not schedules.wake(db, "plan", "_constellation_", soon.due_at)
    groups.delete(db, "desk")
    assert not schedules.wake(db, "plan", "_constellation_", NOW)
