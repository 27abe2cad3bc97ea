"""Timers as rows: one for each thing, taken once."""

from __future__ import annotations

import pytest

from pattern_db.connection import Connection
from pattern_db.errors import RowConflict
from pattern_db.tables import timers
from pattern_db.tables.timers import TimerRow

FIRST, SECOND = "2026-11-21T00:00:00.000Z", "2026-11-22T00:00:00.000Z"


def test_a_timer_is_moved_found_and_taken_once(db: Connection) -> None:
    one, other = TimerRow("schedule", "a", FIRST, SECOND), TimerRow("approval", "a", SECOND)
    timers.put(db, one)
    timers.put(db, other)
    assert timers.first_due(db) == FIRST
    assert timers.outlook(db, "approval") == (FIRST, 1)
    assert timers.due(db, FIRST, 9) == [one]
    moved = one._replace(due_at=SECOND)
    timers.put(db, moved)
    with pytest.raises(RowConflict, match="schedule a"):
        timers.take(db, one)
    assert timers.due(db, SECOND, 9) == [other, moved]
    timers.take(db, moved)
    assert timers.due(db, SECOND, 9) == [other]
    timers.delete(db, "approval", "a")
    timers.delete(db, "approval", "a")
    assert timers.first_due(db) is None
