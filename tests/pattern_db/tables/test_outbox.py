"""The outbox as rows: what is due, in which order, and what is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pattern_db.connection import Connection
from pattern_db.enums import DeliveryStatus
from pattern_db.errors import RowConflict, RowNotFound
from pattern_db.tables import outbox, timers
from pattern_db.tables.outbox import OutboxRow
from pattern_db.tables.timers import TimerRow

DAYS = [f"2026-11-2{day}T00:00:00.000Z" for day in range(1, 5)]
ONE = OutboxRow(id="b", target="webhook:x", payload="{}", next_at=DAYS[0], created_at=DAYS[0])


def test_one_row_of_each_target_is_due_and_the_oldest_first(db: Connection) -> None:
    rows = [ONE, replace(ONE, id="a"), replace(ONE, id="c", next_at=DAYS[1]), replace(ONE, id="d", target="agent:y")]
    for row in [*rows, replace(ONE, id="e", target="agent:z", next_at=DAYS[3])]:
        outbox.add(db, row)
    assert outbox.due(db, DAYS[1], [], 9) == ([rows[1], rows[3]], DAYS[3])
    assert outbox.due(db, DAYS[1], [], 1)[0] == [rows[1]]
    assert outbox.due(db, DAYS[1], ["webhook:x"], 9)[0] == [rows[3]]
    assert outbox.count_pending(db) == 5
    assert outbox.last_delivered(db, rows[1].target) is None
    outbox.delivered(db, [rows[1]], DAYS[2])
    assert outbox.last_delivered(db, rows[1].target) == DAYS[2]
    with pytest.raises(RowConflict, match="the delivery a"):
        outbox.delivered(db, [rows[1]], DAYS[2])
    outbox.failed(db, ONE, 1, "no answer", DAYS[2])
    outbox.failed(db, rows[3], 1, "no agent", None)
    due, upcoming = outbox.due(db, DAYS[1], [], 9)
    assert ([row.id for row in due], upcoming) == (["c"], DAYS[2])
    found = {row.id: (row.status, row.attempts, row.last_error) for row in outbox.newest(db, "*", 9)}
    assert found["b"] == (DeliveryStatus.PENDING, 1, "no answer")
    assert found["d"] == (DeliveryStatus.DEAD, 1, "no agent")
    assert [row.id for row in outbox.newest(db, "webhook:*", 2)] == ["c", "b"]
    assert [row.id for row in outbox.newest(db, "webhook:*", 2, before="b")] == ["a"]
    assert [row.id for row in outbox.newest(db, "*", 9, statuses=[DeliveryStatus.DEAD])] == ["d"]
    outbox.discard(db, "d")
    with pytest.raises(RowNotFound, match="delivery d"):
        outbox.get(db, "d")


@pytest.mark.parametrize("kind", ["source", "chat"])
def test_what_waits_for_an_older_row_of_its_target_is_nothing_to_wake_for(db: Connection, kind: str) -> None:
    held = replace(ONE, target=f"{kind}:x", next_at=DAYS[3])
    behind, other = replace(held, id="c", next_at=DAYS[1]), replace(held, id="d", target=f"{kind}:y", next_at=DAYS[2])
    for row in (held, behind, other, replace(ONE, id="e", next_at=DAYS[3]), replace(ONE, id="f", next_at=DAYS[3])):
        outbox.add(db, row)
    assert outbox.due(db, DAYS[0], [], 9) == ([], DAYS[2])
    assert [outbox.is_free(db, one) for one in "bcdef"] == [True, False, True, True, True]
    outbox.discard(db, held.id)
    assert outbox.due(db, DAYS[0], [], 9) == ([], DAYS[1])
    assert outbox.is_free(db, behind.id)


def test_what_is_due_first_is_a_timer_or_a_delivery(db: Connection) -> None:
    assert outbox.first_due(db) is None
    timers.put(db, TimerRow("schedule", "a", DAYS[1]))
    assert outbox.first_due(db) == DAYS[1]
    outbox.add(db, ONE)
    assert outbox.first_due(db) == DAYS[0]
    outbox.failed(db, ONE, 1, "no answer", None)
    assert outbox.first_due(db) == DAYS[1]


def test_the_newest_that_were_delivered_are_kept(db: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(outbox.KEPT, DeliveryStatus.DELIVERED, 2)
    for number, day in enumerate(DAYS):
        row = replace(ONE, id=str(number), created_at=day)
        outbox.add(db, row)
        outbox.delivered(db, [row], day)
        outbox.add(db, replace(row, id=f"m{number}", target="agent:y", status=DeliveryStatus.DEAD))
    assert [row.id for row in outbox.newest(db, "webhook:*", 9)] == ["3", "2"]
    assert len(outbox.newest(db, "agent:*", 9)) == 4
