from __future__ import annotations

import apsw
import pytest

from pattern_db.connection import Connection
from pattern_db.errors import Conflict, translated
from pattern_db.journal import inbox, turns
from pattern_db.journal.inbox import InboxRow
from pattern_db.tables import agents
from tests.pattern_db.journal.conftest import LATER, NOW, MakeTurn, PlanOf


def put(db: Connection, turn: int, *, agent: str = "ada", priority: int = 1, payload: str = "{}") -> None:
    inbox.put(db, turn=turn, agent_id=f"agt_{agent}", priority=priority, payload=payload, created_at=NOW)


def test_messages_are_taken_by_priority_and_then_in_order(db: Connection, make_turn: MakeTurn) -> None:
    keys = [make_turn(f"turn_{number}") for number in range(5)]
    for key, priority in zip(keys, (1, 0, 3, 1, 3), strict=True):
        put(db, key, priority=priority)
    taken = []
    while (waiting := inbox.first(db, "agt_ada")) is not None:
        taken.append(keys.index(waiting.turn))
        inbox.take(db, waiting.turn)
    assert taken == [2, 4, 0, 3, 1]


def test_each_agent_has_its_own(db: Connection, make_turn: MakeTurn) -> None:
    ada, bob = make_turn("turn_1"), make_turn("turn_2", agent="bob")
    put(db, bob, agent="bob", priority=3)
    put(db, ada, payload='{"content":"hello"}')
    assert inbox.first(db, "agt_ada") == InboxRow(ada, '{"content":"hello"}')
    assert (inbox.count(db, "agt_ada"), inbox.count(db, "agt_bob"), inbox.count(db, "agt_none")) == (1, 1, 0)


def test_a_message_is_taken_once(db: Connection, make_turn: MakeTurn) -> None:
    key = make_turn()
    put(db, key)
    inbox.take(db, key)
    assert inbox.first(db, "agt_ada") is None
    with pytest.raises(Conflict, match="taken already"):
        inbox.take(db, key)


def test_only_the_next_message_is_taken_first(db: Connection, make_turn: MakeTurn) -> None:
    keys = [make_turn(f"turn_{number}") for number in range(3)]
    other = make_turn("turn_9", agent="bob")
    for key, priority in zip(keys, (1, 1, 3), strict=True):
        put(db, key, priority=priority)
    put(db, other, agent="bob")
    for key in (keys[0], keys[1], other):
        with pytest.raises(Conflict, match="goes before it"):
            inbox.take_first(db, "agt_ada", key)
    for key in (keys[2], keys[0], keys[1]):
        inbox.take_first(db, "agt_ada", key)
    with pytest.raises(Conflict):
        inbox.take_first(db, "agt_ada", keys[1])
    assert inbox.count(db, "agt_bob") == 1


def test_messages_that_join_are_found_whatever_their_priority(db: Connection, make_turn: MakeTurn) -> None:
    keys = [make_turn(f"turn_{number}") for number in range(4)]
    steers = '{"content":"x","policy":"steer"}'
    put(db, keys[0], payload='{"content":"steer"}')
    put(db, keys[1], payload=steers)
    put(db, keys[2], payload='{"content":"x","policy":"enqueue"}')
    put(db, keys[3], payload=steers, priority=3)
    assert inbox.steering(db, "agt_ada") == [InboxRow(keys[1], steers), InboxRow(keys[3], steers)]
    assert inbox.steering(db, "agt_bob") == []


def test_what_is_refused(db: Connection, make_turn: MakeTurn) -> None:
    key = make_turn()
    put(db, key)
    with pytest.raises(Conflict), translated():
        put(db, key)
    with pytest.raises(Conflict), translated():
        put(db, key + 1)
    other = make_turn("turn_2")
    for bad in ({"priority": 4}, {"priority": -1}, {"payload": "no json"}):
        with pytest.raises(apsw.ConstraintError):
            put(db, other, **bad)


def test_a_waiting_message_goes_with_its_agent(db: Connection, make_turn: MakeTurn) -> None:
    key = make_turn()
    put(db, key)
    turns.end(db, key, status="cancelled", ended_at=LATER)
    assert inbox.count(db, "agt_ada") == 1  # ending does not take; whoever ends it does
    agents.delete(db, "agt_ada")
    assert inbox.first(db, "agt_ada") is None


def test_the_next_message_is_found_without_sorting(db: Connection, plan_of: PlanOf) -> None:
    [step] = plan_of(lambda: inbox.first(db, "agt_ada"))  # a second line would be a sort
    assert "inbox_next (agent_id=?)" in step
    [step] = plan_of(lambda: inbox.count(db, "agt_ada"))
    assert "COVERING INDEX inbox_next (agent_id=?)" in step
