from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import apsw
import pytest

from pattern_db.connection import Connection
from pattern_db.enums import AssignmentStatus, Priority
from pattern_db.errors import RowConflict, RowNotFound
from pattern_db.tables import agents, assignments
from pattern_db.tables.assignments import ENDED_KEPT, OPEN_MAX, AssignmentRow
from tests.pattern_db.conftest import LATER, NOW

ADA, BOB = "agt_ada", "agt_bob"
PENDING, WORKING, DONE = AssignmentStatus.PENDING, AssignmentStatus.IN_PROGRESS, AssignmentStatus.COMPLETED


def put(db: Connection, own_id: str, agent: str | None = None, **columns: object) -> AssignmentRow:
    row = AssignmentRow(own_id, f"do {own_id}", agent, PENDING, Priority.MEDIUM, NOW, NOW)
    row = replace(row, **columns)  # type: ignore[arg-type]  # columns as the test names them
    assignments.put(db, row)
    return row


def ids(rows: Iterable[AssignmentRow]) -> list[str]:
    return [row.id for row in rows]


def test_the_next_one_is_the_agents_own_then_the_most_urgent_then_the_oldest(db: Connection) -> None:
    rows = [put(db, "1"), put(db, "2", priority=Priority.URGENT), put(db, "3", ADA), put(db, "4", BOB)]
    order = []
    while (found := assignments.next_for(db, ADA)) is not None:
        order.append(found.id)
        assignments.put(db, replace(found, assigned_to=ADA, status=WORKING, updated_at=LATER), found)
    assert order == ["3", "2", "1"]
    assert assignments.next_for(db, BOB) == rows[3] and assignments.next_for(db, BOB, but="4") is None
    assert ids(assignments.page(db, 2, "4")) == ["3", "2"]
    agents.delete(db, ADA)
    left = assignments.next_for(db, BOB, but="4")
    assert left is not None and (left.id, left.assigned_to, left.status) == ("2", None, WORKING)


def test_only_the_first_of_two_changes_is_stored(db: Connection) -> None:
    row = put(db, "1")
    taken = replace(row, assigned_to=ADA, status=WORKING)
    assignments.put(db, taken, row)
    with pytest.raises(RowConflict, match="claimed the assignment 1"):
        assignments.put(db, replace(row, assigned_to=BOB, status=WORKING), row)
    assert assignments.get(db, "1") == taken
    with pytest.raises(RowNotFound, match="no assignment 2"):
        assignments.put(db, replace(row, id="2"), replace(row, id="2"))
    with pytest.raises(apsw.ConstraintError):
        put(db, "3", "agt_nobody")


def test_they_are_bounded(db: Connection) -> None:
    for number in range(ENDED_KEPT + 2):
        put(db, f"a{number:04}", status=DONE)
    assert ids(assignments.page(db, 9_999))[-1] == "a0002"
    for number in range(OPEN_MAX):
        put(db, f"b{number:04}")
    with pytest.raises(RowConflict, match="1,000 assignments are open"):
        put(db, "c")
