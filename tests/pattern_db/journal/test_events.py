from __future__ import annotations

import apsw
import pytest

from pattern_db.connection import Connection
from pattern_db.journal import events, turns
from tests.pattern_db.conftest import NOW, MakeTurn


def store(db: Connection, *names: str, turn: int | None = None) -> int:
    return events.append(db, [(turn, name, '{"a":1}') for name in names], created_at=NOW)


def test_reading_is_bounded_and_may_be_of_one_turn(db: Connection, make_turn: MakeTurn) -> None:
    one, two = make_turn("turn_1"), make_turn("turn_2", agent="bob")
    for _time in range(3):
        store(db, "a", turn=one)
        store(db, "b", turn=two)
    assert [event.seq for event in events.after(db, 0, limit=4)] == [1, 2, 3, 4]
    assert [(event.seq, event.turn) for event in events.after(db, 2, limit=1, turn=two)] == [(4, two)]
    assert [event.seq for event in events.after(db, 2, limit=9, turn=one)] == [3, 5]
    assert events.after(db, 6, limit=9) == []


def test_a_turns_events_are_found_by_their_names(db: Connection, make_turn: MakeTurn) -> None:
    turn, other = make_turn(), make_turn("turn_2")
    store(db, "a", "b", "c", "a", turn=turn)
    store(db, "a", "b", turn=other)
    assert [(row.seq, row.name) for row in events.named(db, turn, ("a", "c"))] == [(1, "a"), (3, "c"), (4, "a")]
    assert events.named(db, turn, ()) == []


def test_what_was_rolled_back_leaves_no_gap(db: Connection) -> None:
    store(db, "a")
    with pytest.raises(apsw.ConstraintError), db:
        store(db, "b")
        events.append(db, [(None, "c", "no json")], created_at=NOW)
    assert store(db, "d") == 2


def test_pieces_are_pruned_and_no_number_is_given_twice(db: Connection, make_turn: MakeTurn) -> None:
    one, two = make_turn("turn_1"), make_turn("turn_2", agent="bob")
    store(db, "turn.started", "text.delta", "reasoning.delta", turn=one)
    store(db, "text.delta", turn=two)
    store(db, "message", "text.delta", turn=one)
    events.prune_deltas(db, one)
    assert [event.seq for event in events.after(db, 0, limit=9)] == [1, 4, 5, 6], "the newest holds the numbers"
    assert [store(db), store(db, "next"), store(db, "a", "b"), events.latest(db)] == [7, 7, 8, 9]


def test_of_a_turn_only_its_range_is_read(db: Connection, make_turn: MakeTurn) -> None:
    steps = 0

    def count() -> bool:
        nonlocal steps
        steps += 1
        return False

    store(db, *["before"] * 1_000)
    turn = make_turn()
    store(db, "turn.queued", "text.delta", turn=turn)
    store(db, "of another")
    turns.end(db, turn, status="failed", ended_at=NOW, error=None)
    store(db, "turn.failed", turn=turn)
    store(db, *["after"] * 1_000)
    db.set_progress_handler(count, 1)
    assert [row.seq for row in events.after(db, 0, limit=9, turn=turn)] == [1_001, 1_002, 1_004]
    assert [row.seq for row in events.named(db, turn, ["text.delta"])] == [1_002]
    events.prune_deltas(db, turn)
    assert [row.seq for row in events.after(db, 1_001, limit=9, turn=turn)] == [1_004]
    assert steps < 1_000
