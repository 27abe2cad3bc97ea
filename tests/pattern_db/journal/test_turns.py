from __future__ import annotations

import json

import pytest

from pattern_db.connection import Connection
from pattern_db.errors import Conflict, NotFound, translated
from pattern_db.journal import turns
from pattern_db.tables import agents
from tests.pattern_db.journal.conftest import LATER, NOW, MakeTurn, PlanOf


def start(db: Connection, key: int) -> None:
    turns.start(db, key, batch_id="0000000000000000007", epoch=3, started_at=NOW, deadline_at=LATER)


def test_a_turn_is_stored_as_queued(db: Connection, make_turn: MakeTurn) -> None:
    parent = make_turn("turn_0")
    key = make_turn(
        "turn_1", agent="bob", parent_turn=parent, depth=2, idempotency=b"i" * 16, fingerprint=b"f" * 16, seed=2**62
    )
    row = turns.by_id(db, "turn_1")
    assert row == turns.by_key(db, key) == turns.by_idempotency(db, b"i" * 16)
    assert (row.key, row.agent_id, row.parent_turn, row.depth, row.seed) == (key, "agt_bob", parent, 2, 2**62)
    assert (row.status, row.batch_id, row.epoch, row.started_at, row.ended_at) == ("queued", None, None, None, None)
    assert (row.sender, row.created_at, row.fingerprint) == ("user:usr_root", NOW, b"f" * 16)
    assert (row.steps, row.resumes, row.cancel_reason, row.error) == (0, 0, None, None)


def test_what_is_not_there(db: Connection) -> None:
    with pytest.raises(NotFound, match="no turn 9"):
        turns.by_key(db, 9)
    with pytest.raises(NotFound, match="no turn turn_9"):
        turns.by_id(db, "turn_9")
    assert turns.by_idempotency(db, b"x" * 16) is None
    assert turns.unfinished(db, "agt_ada") is None
    assert turns.agents_with_work(db) == []


def test_ids_and_idempotency_digests_are_taken_once(db: Connection, make_turn: MakeTurn) -> None:
    make_turn("turn_1", idempotency=b"i" * 16)
    with pytest.raises(Conflict), translated():
        make_turn("turn_1")
    with pytest.raises(Conflict), translated():
        make_turn("turn_2", idempotency=b"i" * 16)
    with pytest.raises(Conflict), translated():
        make_turn("turn_2", agent="nobody")
    make_turn("turn_3")
    make_turn("turn_4")  # no digest is no digest in common


def test_a_turn_starts_once(db: Connection, make_turn: MakeTurn) -> None:
    key = make_turn()
    start(db, key)
    row = turns.by_key(db, key)
    assert (row.status, row.batch_id, row.epoch) == ("running", "0000000000000000007", 3)
    assert (row.started_at, row.deadline_at) == (NOW, LATER)
    with pytest.raises(Conflict, match="not queued any more"):
        start(db, key)
    with pytest.raises(Conflict):
        start(db, key + 1)


def test_a_turn_ends_once(db: Connection, make_turn: MakeTurn) -> None:
    key = make_turn()
    start(db, key)
    turns.end(db, key, status="failed", ended_at=LATER, steps=3, error={"code": "x", "message": "naïve"})
    row = turns.by_key(db, key)
    assert (row.status, row.ended_at, row.steps) == ("failed", LATER, 3)
    assert json.loads(row.error or "") == {"code": "x", "message": "naïve"}
    with pytest.raises(Conflict, match="not open any more"):
        turns.end(db, key, status="completed", ended_at=LATER)
    with pytest.raises(Conflict):
        turns.resume(db, key, epoch=4, step=1)
    with pytest.raises(Conflict):
        start(db, key)
    assert turns.by_key(db, key).status == "failed"


def test_resuming_counts_per_step(db: Connection, make_turn: MakeTurn) -> None:
    key = make_turn()
    start(db, key)
    counts = []
    for epoch, step in ((4, 1), (5, 1), (6, 1), (7, 2), (8, 2)):
        turns.resume(db, key, epoch=epoch, step=step)
        row = turns.by_key(db, key)
        assert (row.epoch, row.steps) == (epoch, step)
        counts.append(row.resumes)
    assert counts == [1, 2, 3, 1, 2]


def test_the_first_wish_to_cancel_stays(db: Connection, make_turn: MakeTurn) -> None:
    key = make_turn()
    assert turns.request_cancel(db, key, "user")
    assert turns.request_cancel(db, key, "timeout")
    assert turns.by_key(db, key).cancel_reason == "user"
    turns.end(db, key, status="cancelled", ended_at=LATER)
    assert not turns.request_cancel(db, key, "late")
    assert not turns.request_cancel(db, key + 1, "nobody's")


def test_work_that_is_left(db: Connection, make_turn: MakeTurn) -> None:
    first, second, _third = make_turn("turn_1"), make_turn("turn_2"), make_turn("turn_3", agent="bob")
    assert turns.agents_with_work(db) == ["agt_ada", "agt_bob"]
    assert turns.unfinished(db, "agt_ada") is None  # queued ones wait in the inbox
    start(db, second)
    found = turns.unfinished(db, "agt_ada")
    assert found is not None
    assert found.key == second
    assert turns.open_turns(db, "agt_ada") == ["turn_1", "turn_2"]
    turns.end(db, second, status="completed", ended_at=LATER)
    assert turns.unfinished(db, "agt_ada") is None
    turns.end(db, first, status="cancelled", ended_at=LATER)
    assert turns.agents_with_work(db) == ["agt_bob"]
    assert turns.open_turns(db, "agt_ada") == []


def test_turns_go_with_their_agent_and_children_forget_their_parent(db: Connection, make_turn: MakeTurn) -> None:
    parent = make_turn("turn_1")
    child = make_turn("turn_2", agent="bob", parent_turn=parent)
    agents.delete(db, "agt_ada")
    with pytest.raises(NotFound):
        turns.by_key(db, parent)
    assert turns.by_key(db, child).parent_turn is None


def test_finding_work_reads_no_ended_turns(db: Connection, plan_of: PlanOf) -> None:
    for call in (lambda: turns.unfinished(db, "agt_ada"), lambda: turns.open_turns(db, "agt_ada")):
        [step] = plan_of(call)  # a second line would be a sort
        assert "turn_open (agent_id=?)" in step
    [step] = plan_of(lambda: turns.agents_with_work(db))
    assert "turn_open" in step  # which holds open turns only


def test_a_repeated_request_is_found_by_its_index(db: Connection, plan_of: PlanOf) -> None:
    [step] = plan_of(lambda: turns.by_idempotency(db, b"i" * 16))
    assert "turn_idempotency (idempotency=?)" in step
