"""Chains of questions, and the newest message of a pair of agents."""

from __future__ import annotations

import pytest

from pattern_db.columns import to_json
from pattern_db.connection import Connection
from pattern_db.enums import Role
from pattern_db.journal import asks, group_runs, turns
from pattern_db.journal.asks import Waiting
from pattern_db.journal.turns import NewTurn, Started
from pattern_db.tables import groups
from pattern_db.tables.groups import GroupRow
from tests.pattern_db.conftest import LATER, NOW, MakeTurn, Say

ADA = Waiting("agt_ada", "ada", "user:usr_root")


def started(db: Connection, say: Say, key: int, tick: int, source: str, about: dict[str, object]) -> None:
    """Start a turn with a message of this origin."""
    row = say(tick, "?", role=Role.USER, source=source, source_metadata=about)
    turns.start(db, key, Started(row.position, 1, NOW, None))


@pytest.mark.parametrize(
    ("source", "about", "waits"),
    [
        ("agent", {"needs_response": True}, True),
        ("agent", {"needs_response": False}, False),
        ("agent", {}, False),  # as older versions stored it
        ("group", {}, True),
        ("schedule", {}, False),
    ],
)
def test_who_asked_waits(
    db: Connection, make_turn: MakeTurn, say: Say, source: str, about: dict[str, object], waits: bool
) -> None:
    first = make_turn("turn_a")
    second = make_turn("turn_b", parent_turn=first)
    started(db, say, second, 3, source, about)
    assert asks.chain(db, first, 9) == [ADA]
    assert asks.chain(db, second, 9) == [ADA, ADA][: 1 + waits]
    assert asks.chain(db, second, 1) == [ADA]


def test_a_group_waits_for_its_members_and_is_waited_for(db: Connection, make_turn: MakeTurn, say: Say) -> None:
    groups.create(db, GroupRow("group_desk", "desk", "parallel", NOW, NOW))
    asker = make_turn("turn_a")
    for number, needs in enumerate((True, False)):
        payload = to_json({"content": "?", "source_metadata": {"needs_response": needs}})
        new = NewTurn("group_desk", f"turn_g{number}", "agent:agt_ada", 1, NOW, asker, 1)
        key = group_runs.accept(db, new, payload)
        member = make_turn(f"turn_m{number}", parent_turn=key)
        started(db, say, member, 10 + number, "group", {})
        desk = Waiting("group_desk", "desk", "agent:agt_ada")
        assert asks.chain(db, member, 9) == [ADA, desk, ADA][: 2 + needs]


def test_the_newest_message_of_a_pair_is_in_the_conversation_or_waits(
    db: Connection, make_turn: MakeTurn, say: Say
) -> None:
    row = say(5, "look", role=Role.USER, source="agent", source_metadata={"agent_id": "agt_bob"})
    assert asks.newest(db, "agt_bob", "agt_ada", NOW, row.position) == row.created_at
    assert asks.newest(db, "agt_bob", "agt_ada", NOW, row.position + "0") is None
    assert asks.newest(db, "agt_cleo", "agt_ada", NOW, row.position) is None
    assert asks.newest(db, "agt_bob", "agt_cleo", NOW, row.position) is None
    payload = to_json({"content": "look", "source": "agent", "source_metadata": {"agent_id": "agt_bob"}})
    turns.put_message(db, turn=make_turn("turn_b"), agent_id="agt_ada", priority=1, payload=payload, created_at=LATER)
    assert asks.newest(db, "agt_bob", "agt_ada", NOW, row.position) == LATER
    assert asks.newest(db, "agt_bob", "agt_ada", LATER + "z", "9") is None
