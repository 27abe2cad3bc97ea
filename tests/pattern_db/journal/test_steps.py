from __future__ import annotations

from collections.abc import Callable

import pytest

from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import EffectClass, EffectStatus
from pattern_db.errors import RowConflict
from pattern_db.journal import events, steps, turns
from pattern_db.journal.steps import EffectRow, Key, StepRow
from pattern_db.journal.turns import Started
from pattern_db.tables.prompts import LoggedParts, ShownRow
from tests.pattern_db.conftest import LATER, NOW, MakeTurn, PlanOf, Say

SHOWN = ShownRow(9, LoggedParts(b"s" * 16, "{}"), LoggedParts(b"v" * 16, "{}"), "", 0, 0)


def step(turn: int, no: int = 1, attempt: int = 1) -> StepRow:
    return StepRow(turn, no, attempt, "open", "scripted", "script-1", "7", b"p" * 16, b"r" * 16, None, NOW)


def test_a_step_is_opened_and_closed_once(db: Connection, make_turn: MakeTurn) -> None:
    turn = make_turn()
    assert steps.latest(db, turn) is None
    steps.open_step(db, step(turn), SHOWN)
    assert steps.latest(db, turn) == step(turn)
    steps.close(db, (turn, 1, 1), status="done", ended_at=LATER, finish_reason="stop", request_id="req_1")
    assert steps.latest(db, turn) == step(turn)._replace(status="done", finish_reason="stop")
    assert fetch_all(db, "SELECT provider_request_id, ended_at FROM step") == [("req_1", LATER)]
    for key in ((turn, 1, 1), (turn, 1, 2), (turn, 2, 1), (turn + 1, 1, 1)):
        with pytest.raises(RowConflict, match="is not open"):
            steps.close(db, key, status="done", ended_at=LATER)


def test_the_latest_is_the_newest_attempt_of_the_newest_step(db: Connection, make_turn: MakeTurn) -> None:
    turn, other = make_turn("turn_1"), make_turn("turn_2")
    for no, attempt in ((1, 1), (2, 1), (1, 2), (2, 2), (1, 3)):
        steps.open_step(db, step(turn, no, attempt), SHOWN)
    steps.open_step(db, step(other, 9), SHOWN)
    assert steps.latest(db, turn) == step(turn, 2, 2)


def row(turn: int, call: int = 0, *, step: int = 1, effect_class: str = "unsafe") -> EffectRow:
    return EffectRow(turn, step, call, f"call_{call}", "mail", '{"to":"bob"}', b"a" * 16, effect_class, f"key_{call}")


def start(db: Connection, key: tuple[int, int, int]) -> None:
    steps.start_call(db, key, epoch=3, started_at=NOW, deadline_at=LATER)


def finish(db: Connection, key: tuple[int, int, int], status: str = "done") -> None:
    steps.finish_call(db, key, status=status, message_id="msg_1", ended_at=LATER)


def test_a_call_is_started_and_finished(db: Connection, make_turn: MakeTurn) -> None:
    turn = make_turn()
    planned = row(turn, effect_class="idempotent")
    steps.plan_calls(db, [planned])
    for _time in range(2):
        start(db, (turn, 1, 0))
    [started] = steps.calls_of_step(db, turn, 1)
    assert started == planned._replace(status="started", attempts=2, deadline_at=LATER)
    finish(db, (turn, 1, 0))
    [done] = steps.calls_of_turn(db, turn)
    assert done == started._replace(status="done", message_id="msg_1")
    assert fetch_all(db, "SELECT epoch, started_at, ended_at FROM effect") == [(3, NOW, LATER)]


@pytest.mark.parametrize(("stored", "kept"), [({"to": "bob"}, "null"), ({"to": "eve"}, '{"to":"bob"}')])
def test_arguments_are_kept_once(db: Connection, make_turn: MakeTurn, say: Say, stored: object, kept: str) -> None:
    turn = make_turn()
    steps.plan_calls(db, [row(turn)])
    result = say(1, "sent", tool_call_id="call_0", tool_name="mail", tool_args=stored)
    steps.finish_call(db, (turn, 1, 0), status="done", message_id=result.id, ended_at=LATER)
    assert fetch_all(db, "SELECT args FROM effect") == [(kept,)]
    assert [one.args for one in steps.calls_of_turn(db, turn)] == ['{"to":"bob"}']
    assert [one.args for one, *_ in steps.calls_with_results(db, turn, chars_max=9)] == ['{"to":"bob"}']


def approve(db: Connection, key: Key) -> None:
    steps.approve_call(db, key, args='{"to":"eve"}', args_hash=b"e" * 16)


@pytest.mark.parametrize("state", EffectStatus)
@pytest.mark.parametrize(
    ("change", "effect_class", "fits"),
    [
        (start, EffectClass.LOCAL, {"planned"}),
        (start, EffectClass.UNSAFE, {"planned"}),
        (start, EffectClass.IDEMPOTENT, {"planned", "started"}),
        (start, EffectClass.VERIFIABLE, {"planned", "started"}),
        (steps.ask_about_call, EffectClass.UNSAFE, {"planned", "started"}),
        (approve, EffectClass.UNSAFE, {"awaiting_approval"}),
        (steps.deny_call, EffectClass.UNSAFE, {"awaiting_approval"}),
        # A call within the file commits with its result, and is never started.
        (finish, EffectClass.UNSAFE, {"planned", "started", "awaiting_approval", "denied"}),
    ],
)
def test_a_call_changes_only_from_where_it_should_be(
    db: Connection,
    make_turn: MakeTurn,
    state: EffectStatus,
    change: Callable[[Connection, Key], None],
    effect_class: EffectClass,
    fits: set[str],
) -> None:
    key = (make_turn(), 1, 0)
    steps.plan_calls(db, [row(key[0], effect_class=effect_class)._replace(status=state)])
    before = steps.calls_of_turn(db, key[0])
    if state in fits:
        change(db, key)
        assert steps.calls_of_turn(db, key[0]) != before
    else:
        with pytest.raises(RowConflict, match="in another state"):
            change(db, key)
        assert steps.calls_of_turn(db, key[0]) == before
    for other in ((key[0], 1, 1), (key[0], 2, 0), (key[0] + 1, 1, 0)):
        with pytest.raises(RowConflict):
            change(db, other)


def test_what_a_person_answers_is_stored(db: Connection, make_turn: MakeTurn) -> None:
    turn = make_turn()
    steps.plan_calls(db, [row(turn, 0), row(turn, 1)])
    for call in range(2):
        steps.ask_about_call(db, (turn, 1, call))
    approve(db, (turn, 1, 0))
    steps.deny_call(db, (turn, 1, 1))
    first, second = steps.calls_of_turn(db, turn)
    assert (first.status, first.args, first.args_hash) == ("planned", '{"to":"eve"}', b"e" * 16)
    assert (second.status, second.args) == ("denied", '{"to":"bob"}')


def test_calls_that_wait_are_known_while_their_turn_does(db: Connection, make_turn: MakeTurn) -> None:
    turn, other = make_turn("turn_1"), make_turn("turn_2", agent="bob")
    for key in (turn, other):
        steps.plan_calls(db, [row(key), row(key, 1)])
        turns.start(db, key, Started(batch_id="1", epoch=3, started_at=NOW, deadline_at=LATER))
        steps.ask_about_call(db, (key, 1, 1))
    assert steps.waiting_calls(db, "agt_ada") == set(), "the turn still runs"
    turns.wait(db, turn, time_left_ms=1)
    assert steps.waiting_calls(db, "agt_ada") == {"call_1"}
    assert steps.waiting_calls(db, "agt_bob") == set()
    steps.deny_call(db, (turn, 1, 1))
    assert steps.waiting_calls(db, "agt_ada") == set()


def test_the_last_successful_use_of_a_tool_is_kept(db: Connection, make_turn: MakeTurn, plan_of: PlanOf) -> None:
    turn, other = make_turn("turn_1"), make_turn("turn_2", agent="bob")
    steps.plan_calls(db, [row(turn, call) for call in range(3)])
    steps.plan_calls(db, [row(other)])
    assert steps.last_used(db, "agt_ada", ["mail"]) == {}
    start(db, (turn, 1, 0))
    finish(db, (turn, 1, 0), "error")
    assert steps.last_used(db, "agt_ada", ["mail"]) == {}
    finish(db, (turn, 1, 1))  # without a start it began as it ended
    assert steps.last_used(db, "agt_ada", ["mail", "web"]) == {"mail": LATER}
    start(db, (turn, 1, 2))
    finish(db, (turn, 1, 2))  # started earlier than the last: the latest start stays
    assert steps.last_used(db, "agt_ada", ["mail"]) == {"mail": LATER}
    assert steps.last_used(db, "agt_ada", []) == steps.last_used(db, "agt_bob", ["mail"]) == {}
    assert not any("SCAN tool_use" in line for line in plan_of(lambda: steps.last_used(db, "agt_ada", ["mail"])))


def test_the_calls_of_a_turn_with_what_came_of_them(db: Connection, make_turn: MakeTurn) -> None:
    turn = make_turn()
    steps.plan_calls(db, [row(turn, 1), row(turn, 0), row(turn, 0, step=2)])
    start(db, (turn, 1, 1))
    finish(db, (turn, 1, 1), "timeout")
    found = steps.calls_with_results(db, turn, chars_max=10)
    assert [(one.step, one.call_id, one.status, *came_of_it) for one, *came_of_it in found] == [
        (1, "call_0", "planned", None, None),
        (1, "call_1", "timeout", NOW, None),  # its message is gone
        (2, "call_0", "planned", None, None),
    ]


def test_equal_calls_have_equal_digests() -> None:
    one = steps.hash_call("mail", '{"to":"bob"}')
    assert (len(one), steps.hash_call("mail", '{"to":"bob"}')) == (16, one)
    assert len({one, steps.hash_call("mai", 'l{"to":"bob"}'), steps.hash_call("mail", "{}")}) == 3


def test_what_has_ended_with_its_times(db: Connection, make_turn: MakeTurn, say: Say) -> None:
    turn = make_turn()
    steps.open_step(db, step(turn), SHOWN)
    steps.plan_calls(db, [row(turn), row(turn, 1)])
    assert (steps.ended_steps(db, turn), steps.ended_calls(db, turn)) == ([], [])
    steps.close(db, (turn, 1, 1), status="done", ended_at=LATER)
    assert steps.ended_steps(db, turn) == [(step(turn)._replace(status="done"), LATER)]
    start(db, row(turn).key)
    finish(db, row(turn).key)
    data = '{"step": 1, "call": 0, "duration_ms": 7}'
    events.append(db, [(turn, "tool.result", data), (turn, "tool.call", data)], created_at=LATER)
    [(call, ended_at, lasted_ms)] = steps.ended_calls(db, turn)
    assert (call.key, call.status, ended_at, lasted_ms) == ((turn, 1, 0), "done", LATER, 7)
