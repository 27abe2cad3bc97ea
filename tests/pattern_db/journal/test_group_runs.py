from __future__ import annotations

import apsw
import pytest

from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import BatchType, Role
from pattern_db.errors import RowNotFound
from pattern_db.journal import events, group_runs, turns, usage
from pattern_db.journal.group_runs import AskRow, Branch, GroupSaid, MemberTurn, RunRow
from pattern_db.journal.turns import NewTurn, Started
from pattern_db.journal.usage import UsageRow
from pattern_db.tables import groups, messages
from pattern_db.tables.groups import GroupRow
from tests.pattern_db.conftest import LATER, NOW, MakeTurn, Say

GROUP = "group_desk"


@pytest.fixture
def run(db: Connection) -> int:
    """The key of a group's accepted turn."""
    groups.create(db, GroupRow(GROUP, "desk", "parallel", NOW, NOW))
    return group_runs.accept(db, NewTurn(GROUP, "turn_g", "user:usr_root", 7, NOW), '{"content": "Tea?"}')


def test_a_turn_is_an_agents_or_a_groups(db: Connection, run: int, make_turn: MakeTurn) -> None:
    make_turn("turn_a")
    row = turns.by_key(db, run)
    assert (row.agent_id, row.group_id, row.status, row.seed) == ("", GROUP, "queued", 7)
    assert (turns.by_id(db, "turn_a").agent_id, turns.by_id(db, "turn_a").group_id) == ("agt_ada", None)
    assert turns.agents_with_work(db) == ["agt_ada"]
    assert group_runs.groups_with_work(db) == [GROUP]
    assert [one.id for one in turns.newest(db, 9, group_id=GROUP)] == ["turn_g"]
    for wrong in ("agent_id = NULL, group_id = NULL", "agent_id = 'agt_ada'"):
        with pytest.raises(apsw.ConstraintError):
            db.execute(f"UPDATE turn SET {wrong} WHERE key = ?", (run,))


def test_runs_are_taken_in_order(db: Connection, run: int) -> None:
    later = group_runs.accept(db, NewTurn(GROUP, "turn_h", "user:usr_root", 8, LATER), '{"content": "Now?"}')
    assert group_runs.oldest_open(db, GROUP) == turns.by_key(db, run)
    assert group_runs.get(db, run) == RunRow(run, '{"content": "Tea?"}')
    assert group_runs.count_open(db, GROUP) == 2
    group_runs.start(db, run, Started("1", 1, NOW, None), '{"name": "desk"}')
    group_runs.set_answer(db, run, "Yes.")
    assert group_runs.get(db, run) == RunRow(run, '{"content": "Tea?"}', '{"name": "desk"}', "Yes.")
    for key in (run, later):
        turns.end(db, key, status="completed", ended_at=LATER)
    assert group_runs.oldest_open(db, GROUP) is None
    assert group_runs.groups_with_work(db) == []
    with pytest.raises(RowNotFound):
        group_runs.get(db, 99)


def test_what_a_run_caused_is_a_tree(db: Connection, run: int, make_turn: MakeTurn) -> None:
    asked = make_turn("turn_a", parent_turn=run)
    group_runs.ask(db, AskRow(run, "agt_ada:1", asked, "its turn"))
    turns.start(db, asked, Started("1", 1, LATER, None))
    make_turn("turn_c", parent_turn=make_turn("turn_b", parent_turn=asked))
    make_turn("turn_else")
    first = Branch("turn_a", "turn_g", "ada", "its turn", "running", NOW, LATER, None)
    found = group_runs.tree(db, run, 9)
    assert found[0] == first
    assert [(one.turn_id, one.parent_id, one.reason) for one in found[1:]] == [
        ("turn_b", "turn_a", None),
        ("turn_c", "turn_b", None),
    ]
    assert group_runs.tree(db, run, 1) == [first]


def test_what_members_said_is_read_from_their_turns(db: Connection, run: int, make_turn: MakeTurn, say: Say) -> None:
    asked = make_turn("turn_a", parent_turn=run)
    group_runs.ask(db, AskRow(run, "agt_ada:1", asked, "its turn"))
    assert group_runs.exchanges(db, run) == [
        MemberTurn(asked, "agt_ada:1", "turn_a", "agt_ada", "queued", None, None, None)
    ]
    assert group_runs.exchange(db, run, "agt_ada:1") == group_runs.exchanges(db, run)[0]
    assert group_runs.exchange(db, run, "agt_bob:1") is None
    assert (group_runs.member_turns(db, "turn_g"), group_runs.member_turns(db, "turn_a")) == ({"turn_a"}, set())
    with pytest.raises(apsw.ConstraintError):
        group_runs.ask(db, AskRow(run, "agt_ada:1", make_turn("turn_b"), None))
    first = say(7, "Tea?", role=Role.USER)
    turns.start(db, asked, Started(first.position, 1, NOW, None))
    db.execute("UPDATE messages SET batch_id = ?", (first.position,))
    answer = say(8, "Yes.", role=Role.ASSISTANT, batch_id=first.position, batch_type=BatchType.USER_REQUEST)
    assert group_runs.conversation(db, GROUP, 9) == [
        GroupSaid(run, "turn_g", "turn_g", None, NOW, "user:usr_root", "Tea?")
    ]
    events.append(db, [(asked, "memory.changed", '{"label": "plan"}'), (None, "memory.changed", "{}")], created_at=NOW)
    turns.end(db, asked, status="completed", ended_at=LATER)
    assert [(one.text, one.changed) for one in group_runs.exchanges(db, run)] == [("Yes.", "plan")]
    assert group_runs.conversation(db, GROUP, 9)[0] == GroupSaid(
        asked, "turn_a", "turn_g", "agt_ada", LATER, "user:usr_root", "Yes."
    )
    assert len(group_runs.conversation(db, GROUP, 1)) == 1
    assert [one.key for one in group_runs.conversation(db, GROUP, 9, before=asked)] == [run]
    assert group_runs.answers(db, run) == [messages.get(db, answer.id)]


def test_a_groups_turn_used_what_its_members_did(db: Connection, run: int, make_turn: MakeTurn) -> None:
    for place, turn in enumerate((make_turn("turn_a", parent_turn=run), make_turn("turn_b", parent_turn=run))):
        row = UsageRow(
            turn=turn,
            step=1,
            attempt=1,
            provider="p",
            model="m",
            input_tokens=10 + place,
            output_tokens=1,
            agent_id="agt_ada",
            at=NOW,
            cost_microdollars=5,
        )
        usage.add(db, row)
    assert usage.of_tree(db, run) == usage.UsageSum(21, 2, 0, 10, False)
    groups.delete(db, GROUP)
    assert fetch_all(db, "SELECT count(*) FROM turn") == [(2,)]
