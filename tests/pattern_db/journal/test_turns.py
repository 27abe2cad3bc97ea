from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import apsw
import pytest

from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import BatchType, Role, TrustLevel, TurnStatus
from pattern_db.errors import RowConflict, RowNotFound, translated
from pattern_db.journal import events, steps, turns, usage
from pattern_db.journal.steps import EffectRow
from pattern_db.journal.turns import InboxRow, NewTurn, Started
from pattern_db.journal.usage import UsageRow
from pattern_db.tables import agents, messages
from pattern_db.tables.messages import MessageRow
from tests.pattern_db.conftest import LATER, NOW, MakeTurn, PlanOf

STARTED = Started(batch_id="0000000000000000007", epoch=3, started_at=NOW, deadline_at=LATER)


def start(db: Connection, key: int) -> None:
    turns.start(db, key, STARTED)


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


def test_ids_and_idempotency_digests_are_taken_once(db: Connection, make_turn: MakeTurn) -> None:
    make_turn("turn_1", idempotency=b"i" * 16)
    for turn_id, columns in (
        ("turn_1", {}),
        ("turn_2", {"idempotency": b"i" * 16}),
        ("turn_2", {"agent": "none"}),
    ):
        with pytest.raises(RowConflict), translated():
            make_turn(turn_id, **columns)
    make_turn("turn_3")
    make_turn("turn_4")  # no digest is no digest in common


def in_status(db: Connection, make_turn: MakeTurn, status: str) -> int:
    """Store a turn that has come so far, and return its key."""
    key = make_turn(f"turn_{status}")
    if status != "queued":
        start(db, key)
    if status == "waiting":
        wait(db, key)
    if status == "completed":
        turns.end(db, key, status="completed", ended_at=NOW)
    return key


STATUSES = ("queued", "running", "waiting", "completed")
OPEN = {"queued", "running", "waiting"}


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize(
    ("change", "fits"),
    [
        (start, {"queued"}),
        (lambda db, key: turns.join(db, key, key, ended_at=LATER), {"queued"}),
        (lambda db, key: turns.resume(db, key, epoch=4, step=1), OPEN),
        (lambda db, key: wait(db, key), {"running"}),
        (lambda db, key: turns.go_on(db, key, deadline_at=NOW), {"waiting"}),
        (lambda db, key: turns.end(db, key, status="failed", ended_at=LATER, steps=3), OPEN),
    ],
)
def test_a_turn_changes_only_from_where_it_should_be(
    db: Connection, make_turn: MakeTurn, status: str, change: Callable[[Connection, int], None], fits: set[str]
) -> None:
    key = in_status(db, make_turn, status)
    before = turns.by_key(db, key)
    if status in fits:
        change(db, key)
        assert turns.by_key(db, key) != before
    else:
        with pytest.raises(RowConflict, match="no longer"):
            change(db, key)
        assert turns.by_key(db, key) == before
    with pytest.raises(RowConflict):
        change(db, key + 1)


def test_what_a_change_stores(db: Connection, make_turn: MakeTurn) -> None:
    key, joins = make_turn("turn_1"), make_turn("turn_2")

    def stored() -> tuple[object, ...]:
        row = turns.by_key(db, key)
        return row.status, row.deadline_at, row.time_left_ms

    start(db, key)
    row = turns.by_key(db, key)
    assert (row.batch_id, row.epoch, row.started_at) == (STARTED.batch_id, 3, NOW)
    assert stored() == ("running", LATER, None)
    wait(db, key)
    assert stored() == ("waiting", None, 1_500)
    turns.go_on(db, key, deadline_at=NOW)
    assert stored() == ("running", NOW, None)
    turns.join(db, joins, key, ended_at=LATER)
    assert (turns.by_key(db, joins).status, turns.by_key(db, joins).ended_at) == ("completed", LATER)
    assert fetch_all(db, "SELECT joined_turn FROM turn ORDER BY key") == [(None,), (key,)]
    turns.end(db, key, status="failed", ended_at=LATER, steps=3, error={"code": "x", "message": "naïve"})
    row = turns.by_key(db, key)
    assert (row.ended_at, row.steps, json.loads(row.error or "")) == (LATER, 3, {"code": "x", "message": "naïve"})
    assert stored() == ("failed", None, None)
    assert turns.unanswered(db, row.agent_id, STARTED.batch_id) == {STARTED.batch_id: "failed"}
    assert turns.unanswered(db, "agt_bob", "") == turns.unanswered(db, row.agent_id, "1") == {}


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
    assert not turns.request_cancel(db, key + 1, "no turn")


def wait(db: Connection, key: int) -> None:
    turns.wait(db, key, time_left_ms=1_500)


def awaiting(turn: int, call: int = 0) -> EffectRow:
    return EffectRow(turn, 1, call, f"c{call}", "mail", "{}", b"a" * 16, "unsafe", f"k{call}", "awaiting_approval")


def test_a_waiting_turn_is_taken_up_when_all_is_answered_or_it_is_cancelled(
    db: Connection, make_turn: MakeTurn
) -> None:
    first, second = make_turn("turn_1"), make_turn("turn_2")
    for key in (first, second):
        start(db, key)
        steps.plan_calls(db, [awaiting(key), awaiting(key, 1)])
        wait(db, key)
    assert turns.unfinished(db, "agt_ada") is None
    steps.deny_call(db, (second, 1, 0))
    assert turns.unfinished(db, "agt_ada") is None, "one question is still open"
    steps.approve_call(db, (second, 1, 1), args="{}", args_hash=b"a" * 16)
    assert turns.unfinished(db, "agt_ada") == turns.by_key(db, second)
    turns.request_cancel(db, first, "user")
    assert turns.unfinished(db, "agt_ada") == turns.by_key(db, first)
    third = make_turn("turn_3")
    start(db, third)
    assert turns.unfinished(db, "agt_ada") == turns.by_key(db, third), "what runs goes before what waited"


def test_a_turn_of_an_agent_at_rest_is_stored_as_running(db: Connection, make_turn: MakeTurn) -> None:
    waiting = make_turn()
    start(db, waiting)
    wait(db, waiting)
    new = NewTurn(id="turn_2", agent_id="agt_ada", sender="user:usr_root", seed=7, created_at=NOW)
    other = make_turn("turn_3", idempotency=b"i" * 16, fingerprint=b"f" * 16, parent_turn=waiting, depth=1)
    start(db, other)
    new = new._replace(idempotency=b"j" * 16, fingerprint=b"f" * 16, parent_turn=waiting, depth=1)
    assert turns.insert_started(db, new, STARTED) is None, "another turn is under way"
    expected = replace(turns.by_key(db, other), id="turn_2")
    turns.end(db, other, status="completed", ended_at=NOW)
    key = turns.insert_started(db, new, STARTED)
    assert key is not None
    assert turns.by_key(db, key) == replace(expected, key=key)
    assert fetch_all(db, "SELECT count(DISTINCT first_event) FROM turn") == [(1,)]


def test_an_agent_that_waits_for_a_person_is_not_busy(db: Connection, make_turn: MakeTurn) -> None:
    assert not turns.is_busy(db, "agt_ada")
    key = make_turn()
    assert turns.is_busy(db, "agt_ada"), "a message in line"
    assert turns.running(db, "agt_ada") is None
    start(db, key)
    assert turns.is_busy(db, "agt_ada")
    assert turns.running(db, "agt_ada") == turns.by_key(db, key)
    assert not turns.is_busy(db, "agt_bob")
    wait(db, key)
    assert not turns.is_busy(db, "agt_ada")
    assert turns.running(db, "agt_ada") is None
    assert turns.agents_with_work(db) == ["agt_ada"]
    assert turns.waiting_batches(db, "agt_ada") == ["0000000000000000007"]
    assert turns.waiting_batches(db, "agt_bob") == []
    turns.end(db, key, status="cancelled", ended_at=LATER)
    assert turns.waiting_batches(db, "agt_ada") == []


def test_everything_open_is_asked_to_stop_with_the_first_reason(db: Connection, make_turn: MakeTurn) -> None:
    keys = [make_turn(f"turn_{number}") for number in range(3)]
    start(db, keys[0])
    turns.end(db, keys[0], status="completed", ended_at=LATER)
    turns.request_cancel(db, keys[1], "user")
    turns.request_cancel_all(db, "moved")
    assert turns.unwanted(db) == [("turn_1", "user"), ("turn_2", "moved")]
    assert turns.by_key(db, keys[0]).cancel_reason is None


@pytest.mark.parametrize(
    ("call", "index"),
    [
        (lambda db: turns.unfinished(db, "agt_ada"), "turn_open (agent_id=?)"),
        (lambda db: turns.open_turns(db, "agt_ada"), "turn_open (agent_id=?)"),
        (turns.agents_with_work, "turn_open"),  # which holds open turns only
        (lambda db: turns.by_idempotency(db, b"i" * 16), "turn_idempotency (idempotency=?)"),
        (lambda db: turns.first_message(db, "agt_ada"), "inbox_next (agent_id=?)"),
        (lambda db: turns.count_messages(db, "agt_ada"), "COVERING INDEX inbox_next (agent_id=?)"),
    ],
)
def test_work_is_found_by_an_index_without_sorting(
    db: Connection, plan_of: PlanOf, call: Callable[[Connection], object], index: str
) -> None:
    step, *inner = plan_of(lambda: call(db))
    assert index in step
    assert not any("TEMP B-TREE" in line or "SCAN" in line for line in inner)


def test_the_newest_turns_come_first_by_status_and_agent(db: Connection, make_turn: MakeTurn) -> None:
    keys = {status: in_status(db, make_turn, status) for status in STATUSES}
    bobs = make_turn("turn_bob", agent="bob")
    assert [row.key for row in turns.newest(db, 10)] == [bobs, *reversed(keys.values())]
    assert [row.key for row in turns.newest(db, 2, before=bobs)] == [keys["completed"], keys["waiting"]]
    assert [row.id for row in turns.newest(db, 10, agent_id="agt_bob")] == ["turn_bob"]
    for status in STATUSES:
        found = turns.newest(db, 10, status=TurnStatus(status), agent_id="agt_ada")
        assert [row.key for row in found] == [keys[status]]
    assert [row.id for row in turns.newest(db, 10, status=TurnStatus.QUEUED)] == ["turn_bob", "turn_queued"]


@pytest.mark.parametrize(
    ("which", "indexes"),
    [
        ({}, ["turn_open", "INTEGER PRIMARY KEY (rowid<?)"]),
        # From the newest on: 37 ms for an agent with three among 100,000. An index would cost each turn a WAL frame.
        ({"agent_id": "agt_ada"}, ["turn_open (agent_id=?)", "INTEGER PRIMARY KEY (rowid<?)"]),
        ({"agent_id": "agt_ada", "status": TurnStatus.WAITING}, ["turn_open (agent_id=?)"]),
        ({"status": TurnStatus.RUNNING}, ["turn_open"]),
        ({"status": TurnStatus.FAILED}, ["turn_failed (status=? AND rowid<?)"]),
        (
            {"status": TurnStatus.COMPLETED},
            ["INTEGER PRIMARY KEY (rowid<?)"],
        ),  # most of them are
    ],
)
def test_turns_are_listed_by_an_index(
    db: Connection, plan_of: PlanOf, which: dict[str, Any], indexes: list[str]
) -> None:
    plan = plan_of(lambda: turns.newest(db, 50, **which))
    found = [line for line in plan if "TEMP B-TREE" not in line]
    assert len(found) == len(indexes), plan
    assert all(index in line for index, line in zip(indexes, found, strict=True)), plan


def put(db: Connection, turn: int, *, agent: str = "ada", priority: int = 1, payload: str = "{}") -> None:
    turns.put_message(db, turn=turn, agent_id=f"agt_{agent}", priority=priority, payload=payload, created_at=NOW)


def test_only_the_next_message_is_taken_first(db: Connection, make_turn: MakeTurn) -> None:
    keys = [make_turn(f"turn_{number}") for number in range(5)]
    other = make_turn("turn_9", agent="bob")
    for key, priority in zip(keys, (1, 0, 3, 1, 3), strict=True):
        put(db, key, priority=priority)
    put(db, other, agent="bob")
    for key in (keys[0], keys[4], other):
        with pytest.raises(RowConflict, match="comes first"):
            turns.take_first_message(db, "agt_ada", key)
    for number in (2, 4, 0, 3, 1):  # by priority, and then in order
        assert turns.first_message(db, "agt_ada") == InboxRow(keys[number], "{}")
        turns.take_first_message(db, "agt_ada", keys[number])
    with pytest.raises(RowConflict):
        turns.take_first_message(db, "agt_ada", keys[1])
    turns.take_message(db, other)
    with pytest.raises(RowConflict, match="already started"):
        turns.take_message(db, other)


def test_messages_that_join_are_found_whatever_their_priority(db: Connection, make_turn: MakeTurn) -> None:
    keys = [make_turn(f"turn_{number}") for number in range(4)]
    steers = '{"content":"x","policy":"steer"}'
    put(db, keys[0], payload='{"content":"steer"}')
    put(db, keys[1], payload=steers)
    put(db, keys[2], payload='{"content":"x","policy":"enqueue"}')
    put(db, keys[3], payload=steers, priority=3)
    assert turns.steering_messages(db, "agt_ada") == [InboxRow(keys[1], steers), InboxRow(keys[3], steers)]
    assert turns.steering_messages(db, "agt_bob") == []


def test_what_is_refused(db: Connection, make_turn: MakeTurn) -> None:
    key = make_turn()
    put(db, key)
    for turn in (key, key + 1):
        with pytest.raises(RowConflict), translated():
            put(db, turn)
    other = make_turn("turn_2")
    for bad in ({"priority": 4}, {"priority": -1}, {"payload": "no json"}):
        with pytest.raises(apsw.ConstraintError):
            put(db, other, **bad)


def test_a_waiting_message_goes_with_its_agent(db: Connection, make_turn: MakeTurn) -> None:
    key = make_turn()
    put(db, key)
    turns.end(db, key, status="cancelled", ended_at=LATER)
    assert turns.count_messages(db, "agt_ada") == 1  # ending a turn does not take its message
    agents.delete(db, "agt_ada")
    assert turns.first_message(db, "agt_ada") is None


def test_only_ended_turns_are_at_rest(db: Connection, make_turn: MakeTurn) -> None:
    key = make_turn("turn_1")
    turns.require_rest(db, "agt_bob")
    with pytest.raises(RowConflict, match="turn_1 of agt_ada has not ended"):
        turns.require_rest(db, "agt_ada")
    turns.end(db, key, status="cancelled", ended_at=NOW)
    turns.require_rest(db, "agt_ada")


def test_the_levels_of_a_turns_messages_stand_for_who_led_to_it(db: Connection, make_turn: MakeTurn) -> None:
    first = make_turn("turn_1", sender="user:u")
    second = make_turn("turn_2", parent_turn=first, sender="agent:agt_ada")
    assert turns.origins(db, second) == [("agent:agt_ada", True, []), ("user:u", False, [])]
    turns.start(db, first, Started("1" * 19, 1, NOW, None))
    said = MessageRow(f"msg_{'1' * 19}", "agt_ada", "1" * 19, Role.USER, NOW, batch_id="1" * 19)
    late = said._replace(id=f"msg_{'3' * 19}", position="3" * 19, batch_type=BatchType.CONTINUATION)
    between = said._replace(id=f"msg_{'2' * 19}", position="2" * 19, batch_id="2" * 19)
    messages.append(db, [said._replace(trust=TrustLevel.PARTNER), between, late._replace(trust=TrustLevel.AGENT)])
    assert [sorted(one.trusts) for one in turns.origins(db, second)] == [[], ["agent", "partner"]]
    assert turns.origins(db, 99) == []


def test_a_message_is_found_by_its_turn(db: Connection, make_turn: MakeTurn) -> None:
    key = make_turn("turn_1")
    with pytest.raises(RowNotFound):
        turns.message_of(db, key)
    turns.put_message(db, turn=key, agent_id="agt_ada", priority=1, payload="{}", created_at=NOW)
    assert turns.message_of(db, key) == InboxRow(key, "{}")


def test_open_turns_of_a_session(db: Connection) -> None:
    for number, session_id in enumerate(["ses_1", None, "ses_2", "ses_1"]):
        turns.insert(db, NewTurn("agt_ada", f"turn_s{number}", "user:u", 1, NOW, session_id=session_id))
    assert turns.open_in_session(db, "ses_1") == ["turn_s0", "turn_s3"]
    turns.end(db, turns.by_id(db, "turn_s0").key, status="cancelled", ended_at=NOW)
    assert turns.open_in_session(db, "ses_1") == ["turn_s3"]


def test_the_turn_of_a_session_is_the_newest_or_that_of_an_event(db: Connection, plan_of: PlanOf) -> None:
    for number, session_id in enumerate(["ses_1", "ses_2", "ses_1"]):  # with the events 1 and 2, 3 and 4, 5 and 6
        key = turns.insert(db, NewTurn("agt_ada", f"turn_{number}", "user:u", 1, NOW, session_id=session_id))
        events.append(db, [(key, "turn.queued", "{}"), (key, "turn.cancelled", "{}")], created_at=NOW)

    def found(session_id: str, event: int | None = None, *, was_over: bool = False) -> str | None:
        row = turns.in_session(db, session_id, event, was_over=was_over)
        return None if row is None else row.id

    assert (found("ses_1"), found("ses_2"), found("ses_3")) == ("turn_2", "turn_1", None)
    assert [found("ses_1", event) for event in (1, 2, 4, 5, 9)] == ["turn_0", *["turn_0"] * 2, "turn_2", "turn_2"]
    assert (found("ses_1", 2, was_over=True), found("ses_1", 6, was_over=True)) == ("turn_2", None)
    assert "turn_session (session_id=?)" in plan_of(lambda: found("ses_1"))[0]


def test_who_steers_joins_a_turn_of_its_own_session(db: Connection) -> None:
    keys = []
    for number, session_id in enumerate(["ses_1", None]):
        key = turns.insert(db, NewTurn("agt_ada", f"turn_s{number}", "user:u", 1, NOW, session_id=session_id))
        keys.append(key)
        payload = json.dumps({"content": "x", "policy": "steer", **({"session_id": session_id} if session_id else {})})
        turns.put_message(db, turn=key, agent_id="agt_ada", priority=1, payload=payload, created_at=NOW)
    assert [row.turn for row in turns.steering_messages(db, "agt_ada", "ses_1")] == keys[:1]
    assert [row.turn for row in turns.steering_messages(db, "agt_ada")] == keys[1:]


def test_a_repeated_request_is_found_among_the_last_turns(db: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        turn = NewTurn(
            "agt_ada", f"turn_{number}", "user:u", 1, NOW, fingerprint=b"f" * 16 if number < 2 else b"g" * 16
        )
        turns.insert(db, turn)
    found = turns.repeated(db, b"f" * 16, NOW)
    assert found is not None and found.id == "turn_1"
    assert turns.repeated(db, b"f" * 16, LATER) is None, "it was accepted before"
    assert turns.repeated(db, b"h" * 16, NOW) is None
    monkeypatch.setattr(turns, "REPEATED_AMONG", 1)
    assert turns.repeated(db, b"f" * 16, NOW) is None


def test_the_options_of_a_turn_are_gone_with_its_end(db: Connection) -> None:
    key = turns.insert(db, NewTurn("agt_ada", "turn_1", "user:u", 1, NOW, options='["Be short.", {}, [], null]'))
    assert turns.by_key(db, key).options == '["Be short.", {}, [], null]'
    turns.end(db, key, status="completed", ended_at=NOW)
    assert turns.by_key(db, key).options is None


def test_the_usage_of_some_steps_of_a_turn(db: Connection, make_turn: MakeTurn) -> None:
    key = make_turn()
    for step in (1, 2, 3):
        more = {"provider": "p", "model": "m", "at": NOW, "input_tokens": 10**step, "output_tokens": step}
        usage.add(db, UsageRow(turn=key, step=step, attempt=1, agent_id="agt_ada", **more))  # type: ignore[arg-type]  # as named
    found = [usage.of_steps(db, key, after, last) for after, last in ((0, 1), (1, 3), (3, 9))]
    assert [(one.input_tokens, one.output_tokens) for one in found] == [(10, 1), (1100, 5), (0, 0)]
