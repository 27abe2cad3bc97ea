from __future__ import annotations

from dataclasses import replace

import pytest

from pattern_db.connection import Connection
from pattern_db.errors import RowNotFound
from pattern_db.tables import overview
from pattern_db.tables.overview import NOTABLE_KEPT, AgentSummaryRow, NotableRow, PeriodRow
from tests.pattern_db.conftest import LATER, NOW

ADA, BOB = "agt_ada", "agt_bob"
DAY = PeriodRow("sum_1", NOW, LATER, "ada: Digs.", ["decision: Roses."], ["Buy roses"], LATER)


def summary(agent_id: str = ADA, at: str = NOW, text: str = "Digs.") -> AgentSummaryRow:
    return AgentSummaryRow(agent_id, agent_id[4:], text, 5, at, NOW, "1", None)


def event(event_id: str, at: str = NOW) -> NotableRow:
    return NotableRow(event_id, at, "decision", "Roses.", [ADA], 2, at)


def test_an_agent_has_one_summary_and_the_newest_are_listed_first(db: Connection) -> None:
    assert overview.summary_of(db, ADA) is None
    for row in (summary(), summary(BOB), summary(at=LATER, text="Plants.")):
        overview.put_summary(db, row)
    assert overview.summary_of(db, ADA) == summary(at=LATER, text="Plants.")
    assert [one.agent_id for one in overview.summaries(db, 9)] == [ADA, BOB]
    assert [one.agent_id for one in overview.summaries(db, 1, before=ADA)] == [BOB]
    assert overview.summaries(db, 9, since=LATER) == overview.summaries(db, 9, but=BOB)
    db.execute("DELETE FROM agents WHERE id = ?", (ADA,))
    assert overview.summary_of(db, ADA) is None


def test_a_period_is_stored_once_whatever_is_added_to_it(db: Connection) -> None:
    overview.put_period(db, DAY)
    overview.put_period(db, replace(DAY, id="sum_2", summary="ada: Plants.", key_decisions=[], open_threads=[]))
    week = replace(DAY, id="sum_3", period_start="2025-12-29T00:00:00.000Z")
    overview.put_period(db, week)
    again = replace(DAY, summary="ada: Plants.", key_decisions=[], open_threads=[])
    assert overview.periods(db, 9) == [week, again]
    assert overview.periods(db, 9, before="sum_3") == [again]


def test_notable_events_are_found_by_time_and_bounded(db: Connection) -> None:
    for row in (event("act_1"), event("act_2", LATER)):
        overview.record(db, row)
    assert [one.id for one in overview.notable(db, 9)] == ["act_2", "act_1"]
    assert [one.id for one in overview.notable(db, 9, before="act_2")] == ["act_1"]
    assert overview.notable(db, 9, since=LATER) == [event("act_2", LATER)]
    assert overview.notable(db, 9, until=LATER) == [event("act_1")]
    overview.put_summary(db, summary())
    assert (overview.find(db, "act_1"), overview.find(db, ADA)) == (event("act_1"), summary())
    assert overview.find(db, BOB) is None
    overview.delete(db, "act_1")
    with pytest.raises(RowNotFound):
        overview.delete(db, "act_1")
    db.executemany(
        "INSERT INTO notable_events VALUES (?, ?, 'decision', 'x', '[]', 2, ?)",
        [(f"act_0{number:06}", NOW, NOW) for number in range(NOTABLE_KEPT)],
    )
    overview.record(db, event("act_3"))
    [(count,)] = db.execute("SELECT count(*) FROM notable_events").fetchall()
    assert count == NOTABLE_KEPT and overview.find(db, "act_0000000") is None


def test_an_agent_is_due_by_its_new_messages_unless_it_is_alone(db: Connection) -> None:
    def say(position: str, session: str | None = None) -> None:
        db.execute(
            "INSERT INTO messages (id, agent_id, position, role, content, created_at, session_id, is_archived)"
            " VALUES (?1, ?2, ?1, 'user', 'x', ?3, ?4, ?4 IS NOT NULL)",
            (at(position), ADA, NOW, session),
        )

    def at(position: str) -> str:
        return position.zfill(19)

    for position in ("10", "11"):
        say(position)
    say("12", "ses_1")
    assert overview.due(db, "", 3) == []
    say("13")
    assert (overview.due(db, "", 3), overview.due(db, "", 3, only=BOB)) == ([ADA], [])
    assert overview.due(db, at("10"), 3) == []
    overview.put_summary(db, replace(summary(), up_to=at("12")))
    assert overview.due(db, "", 3) == []
    db.execute("UPDATE agents SET status = 'hibernated'")
    assert overview.due(db, "", 3) == [ADA]
    db.execute("UPDATE agents SET status = 'archived' WHERE id = ?", (ADA,))
    assert overview.due(db, "", 3) == []
    db.execute("UPDATE agents SET status = 'active'")
    db.execute("DELETE FROM agents WHERE id = ?", (BOB,))
    assert overview.due(db, "", 1) == []
