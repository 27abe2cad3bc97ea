from __future__ import annotations

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_db import template
from pattern_db.connection import Connection, fetch_all
from pattern_db.journal import events, turns
from pattern_db.journal.turns import NewTurn
from pattern_db.migrate import migrations_of
from pattern_db.tables import agents
from tests.pattern_db.conftest import make_agent
from tests.pattern_db.journal.conftest import NOW, MakeTurn


def tell(db: Connection, *names: str, turn: int | None = None) -> int:
    return events.append(db, [(turn, name, '{"a":1}') for name in names], created_at=NOW)


def test_reading_is_bounded_and_may_be_of_one_turn(db: Connection, make_turn: MakeTurn) -> None:
    one, two = make_turn("turn_1"), make_turn("turn_2", agent="bob")
    for _time in range(3):
        tell(db, "a", turn=one)
        tell(db, "b", turn=two)
    assert [event.seq for event in events.after(db, 0, limit=4)] == [1, 2, 3, 4]
    assert [(event.seq, event.turn) for event in events.after(db, 2, limit=1, turn=two)] == [(4, two)]
    assert [event.seq for event in events.after(db, 2, limit=9, turn=one)] == [3, 5]
    assert events.after(db, 6, limit=9) == []


def test_a_turns_events_are_had_by_their_names(db: Connection, make_turn: MakeTurn) -> None:
    turn, other = make_turn(), make_turn("turn_2")
    tell(db, "a", "b", "c", "a", turn=turn)
    tell(db, "a", "b", turn=other)
    assert [(row.seq, row.name) for row in events.named(db, turn, ("a", "c"))] == [(1, "a"), (3, "c"), (4, "a")]
    assert events.named(db, turn, ()) == []


def test_what_was_rolled_back_leaves_no_gap(db: Connection) -> None:
    tell(db, "a")
    with pytest.raises(apsw.ConstraintError), db:
        tell(db, "b")
        events.append(db, [(None, "c", "no json")], created_at=NOW)
    assert tell(db, "d") == 2


def test_pieces_are_pruned_when_the_whole_is_stored(db: Connection, make_turn: MakeTurn) -> None:
    one, two = make_turn("turn_1"), make_turn("turn_2", agent="bob")
    tell(db, "turn.started", "text.delta", "reasoning.delta", turn=one)
    tell(db, "text.delta", turn=two)
    tell(db, "message", "turn.completed", turn=one)
    events.prune_deltas(db, one)
    assert [event.seq for event in events.after(db, 0, limit=9)] == [1, 4, 5, 6]
    assert tell(db, "next") == 7


def test_of_a_turn_only_its_range_is_read(db: Connection, make_turn: MakeTurn) -> None:
    steps = 0

    def count() -> bool:
        nonlocal steps
        steps += 1
        return False

    tell(db, *["before"] * 1_000)
    turn = make_turn()
    tell(db, "turn.queued", "text.delta", turn=turn)
    tell(db, "of another")
    turns.end(db, turn, status="failed", ended_at=NOW, error=None)
    tell(db, "turn.failed", turn=turn)
    tell(db, *["after"] * 1_000)
    db.set_progress_handler(count, 1)
    assert [row.seq for row in events.after(db, 0, limit=9, turn=turn)] == [1_001, 1_002, 1_004]
    assert [row.seq for row in events.named(db, turn, ["text.delta"])] == [1_002]
    events.prune_deltas(db, turn)
    assert [row.seq for row in events.after(db, 1_001, limit=9, turn=turn)] == [1_004]
    assert steps < 1_000


Batch = tuple[int, list[str]]  # of which turn, 0 for none; the names


@given(st.lists(st.tuples(st.integers(0, 2), st.lists(st.sampled_from(["x", "text.delta"]), max_size=3)), max_size=12))
def test_numbers_rise_by_one_whatever_is_pruned_between(batches: list[Batch]) -> None:
    connection = template.in_memory(migrations_of("constellation"), now=NOW)
    agents.create(connection, make_agent("ada"))
    keys = [
        turns.insert(connection, NewTurn(id=f"turn_{n}", agent_id="agt_ada", sender="system", seed=0, created_at=NOW))
        for n in range(2)
    ]
    given_numbers: list[int] = []
    for of, names in batches:
        first = tell(connection, *names, turn=keys[of - 1] if of else None)
        given_numbers.extend(range(first, first + len(names)))
        if of and len(names) == 3:
            events.prune_deltas(connection, keys[of - 1])
    assert given_numbers == list(range(1, len(given_numbers) + 1))
    stored = [seq for (seq,) in fetch_all(connection, "SELECT seq FROM event ORDER BY seq")]
    assert set(stored) <= set(given_numbers)
    assert events.latest(connection) == len(given_numbers)
    connection.close()
