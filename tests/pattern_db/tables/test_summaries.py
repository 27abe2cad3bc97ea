"""Summaries in their order, the chain that a prompt shows, and the full-text index beside them."""

from __future__ import annotations

import apsw
import pytest

from pattern_db import search
from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import SearchKind
from pattern_db.errors import NotFound
from pattern_db.search import Filters, Row
from pattern_db.search_terms import parse
from pattern_db.tables import agents, summaries
from pattern_db.tables.summaries import SummaryRow

DAY = "2026-11-{:02d}T10:00:00.000Z"


def add(
    db: Connection, number: int, text: str = "tea", *, depth: int = 0, agent: str = "agt_ada", before: str | None = None
) -> SummaryRow:
    row = SummaryRow(
        id=f"sum_{agent}_{number}",
        agent_id=agent,
        summary=text,
        start_position=f"{number:019d}",
        end_position=f"{number + 5:019d}",
        message_count=number,
        strategy="sliding_window",
        started_at=DAY.format(number),
        ended_at=DAY.format(number + 1),
        created_at=DAY.format(28),
        previous_summary_id=before,
        depth=depth,
        is_stub=number % 2 == 0,
        model="scripted/m",
        tokens=7,
    )
    summaries.insert(db, row)
    return row


def test_a_summary_comes_back_as_it_was_stored(db: Connection) -> None:
    first = add(db, 1)
    second = add(db, 2, before=first.id)
    assert summaries.get(db, second.id) == second
    assert summaries.newest(db, "agt_ada") == second
    assert summaries.newest(db, "agt_bob") is None
    with pytest.raises(NotFound):
        summaries.get(db, "sum_none")
    with pytest.raises(apsw.ConstraintError):
        add(db, 3, agent="agt_nobody")


def test_recent_is_newest_first_and_pages(db: Connection) -> None:
    rows = [add(db, number) for number in (3, 1, 2)]
    add(db, 9, agent="agt_bob")
    assert summaries.recent(db, "agt_ada", 2) == [rows[2], rows[1]]
    assert summaries.recent(db, "agt_ada", 9, before=rows[1].id) == [rows[0]]


def test_the_chain_goes_back_to_the_last_that_stands_for_all_before(db: Connection) -> None:
    assert summaries.chain(db, "agt_ada", head=2, tail=2) == summaries.Chain()
    rows = [add(db, number, depth=1 if number == 3 else 0) for number in range(1, 10)]
    add(db, 12, agent="agt_bob")
    chain = summaries.chain(db, "agt_ada", head=2, tail=3)
    assert list(chain.head) == rows[2:4]
    assert list(chain.tail) == rows[6:]
    assert (chain.left_out, chain.left_out_messages) == (2, 5 + 6)
    whole = summaries.chain(db, "agt_ada", head=4, tail=8)
    assert [*whole.head, *whole.tail] == rows[2:]
    assert (whole.left_out, whole.left_out_messages) == (0, 0)


def found(db: Connection, query: str, **filters: object) -> list[Row]:
    chosen = Filters(**filters)  # type: ignore[arg-type]  # as the test names them
    kind = SearchKind.SUMMARY
    numbers = {row for term in parse(query).terms for row in search.rows_of(db, kind, term, 500, filters=chosen)}
    return list(search.rows(db, kind, sorted(numbers), chosen).values())


def test_summaries_are_found_by_words_time_and_agent(db: Connection) -> None:
    first = add(db, 1, "They drank green tea.")
    second = add(db, 5, "About teas and 我喜欢猫.", agent="agt_bob")
    assert [row.id for row in found(db, "tea")] == [first.id, second.id]
    assert [row.id for row in found(db, "喜欢")] == [second.id]
    assert [row.id for row in found(db, "tea", agents=["agt_bob"])] == [second.id]
    assert [row.id for row in found(db, "tea", since=DAY.format(2))] == [first.id, second.id]  # it ends on that day
    assert [row.id for row in found(db, "tea", since=DAY.format(3))] == [second.id]
    assert [row.id for row in found(db, "tea", until=DAY.format(2))] == [first.id]  # it began before
    assert found(db, "tea", until=DAY.format(1)) == []
    for filters in ({"tags": ["x"]}, {"sessions": ["s"]}, {"workspace": "w"}):
        assert found(db, "tea", **filters) == []
    (row,) = found(db, "green")
    assert (row.kind, row.agent_id, row.created_at) == (SearchKind.SUMMARY, "agt_ada", first.ended_at)


def test_the_index_follows_its_table(db: Connection) -> None:
    add(db, 1, "They drank green tea.")
    search.rebuild(db)
    db.execute("INSERT INTO summary_fts(summary_fts) VALUES ('integrity-check')")
    db.execute("UPDATE archive_summaries SET summary = 'coffee'")
    assert found(db, "tea") == []
    assert len(found(db, "coffee")) == 1
    agents.delete(db, "agt_ada")
    assert fetch_all(db, "SELECT count(*) FROM archive_summaries")[0][0] == 0
    db.execute("INSERT INTO summary_fts(summary_fts) VALUES ('integrity-check')")
    assert found(db, "coffee") == []
