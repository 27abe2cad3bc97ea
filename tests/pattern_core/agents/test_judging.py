"""What rules and detectors say of a turn, from its calls alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pattern_core.agents.active import ActiveTurn, Finished
from pattern_core.agents.history import History
from pattern_core.agents.judging import (
    Border,
    TurnStopped,
    at_border,
    exit_of,
    judge,
    note_finished,
    note_planned,
    note_refused,
    offer_of,
    state_of,
    wants_to_end,
)
from pattern_core.errors import LimitReached
from pattern_core.rules.refusals import Asked
from pattern_core.rules.ruleset import RuleSet
from pattern_core.rules.state import FORCED_PREFIX, RESULT_CHARS_MAX
from pattern_db.journal.effects import EffectRow
from tests.pattern_core.agents.rig import ADA, DEADLINE
from tests.support import USER, note, shout

NOW_MS = 1_000


def turn_with(*rules: dict[str, Any], step: int = 1) -> ActiveTurn:
    return ActiveTurn(
        key=1,
        id="turn_1",
        agent=ADA,
        seed=7,
        sender=USER,
        depth=0,
        batch_id="",
        deadline=300.0,
        deadline_at=DEADLINE,
        history=History(),
        tools=["note", "shout"],
        rules=RuleSet.of(list(rules)),
        step=step,
    )


def row(tool: str, call: int = 0, *, step: int = 1, is_forced: bool = False) -> EffectRow:
    call_id = f"{FORCED_PREFIX if is_forced else 'call_'}{step}_{call}"
    return EffectRow(1, step, call, call_id, tool, "{}", b"h" * 16, "pure", f"key_{step}_{call}")


def planned(turn: ActiveTurn, *rows: EffectRow, arguments: Sequence[object] | None = None) -> None:
    turn.step = rows[0].step
    note_planned(turn, rows, [{} for _row in rows] if arguments is None else arguments)


def ended(turn: ActiveTurn, one: EffectRow, content: str = "ok", status: str = "done") -> None:
    note_finished(turn, Finished(row=one, status=status, content=content), NOW_MS)


def test_a_call_is_judged_by_those_before_it() -> None:
    turn = turn_with()
    first, second = row("note"), row("shout", 1)
    planned(turn, first, second)
    assert [call.tool for call in state_of(turn, NOW_MS, before=second).calls] == ["note"]
    assert state_of(turn, NOW_MS, before=first).calls == ()
    whole = state_of(turn, NOW_MS)
    assert [call.tool for call in whole.calls] == ["note", "shout"]
    assert (whole.tools, whole.step, whole.now_ms) == (("note", "shout"), 1, NOW_MS)


def test_calls_are_noted_where_they_stand() -> None:
    turn = turn_with()
    planned(turn, row("note"))
    planned(turn, row("note", step=2), row("shout", 1, step=2), arguments=[{"text": "x"}, '{"broken'])
    ended(turn, row("shout", 1, step=2), "y" * (RESULT_CHARS_MAX + 1), "error")
    first, second, third = turn.log
    assert (first.status, second.status, third.status) == ("planned", "planned", "error")
    assert (len(third.result), third.at_ms, third.arguments) == (RESULT_CHARS_MAX, NOW_MS, {"invalid": '{"broken'})
    note_refused(turn, row("note", step=2))
    assert [call.status for call in turn.log] == ["planned", "denied", "error"]


def test_a_rule_refuses_asks_or_lets_run() -> None:
    turn = turn_with(
        {"tool": "shout", "type": "requires_preceding", "tools": ["note"]}, {"tool": "note", "type": "requires_consent"}
    )
    both = row("note"), row("shout", 1)
    planned(turn, *both)
    asked = [Asked(tool=one.tool) for one in both]
    assert judge(turn, both[0], asked[0], NOW_MS, is_approved=False).kind == "ask"
    assert judge(turn, both[0], asked[0], NOW_MS, is_approved=True).kind == "run"
    verdict = judge(turn, both[1], asked[1], NOW_MS, is_approved=False)
    assert (verdict.kind, "`note` must run first" in verdict.text) == ("refuse", True)
    ended(turn, both[0])
    assert judge(turn, both[1], asked[1], NOW_MS, is_approved=False).kind == "run"


def test_a_decision_is_offered_what_earlier_steps_left() -> None:
    turn = turn_with({"tool": "note", "type": "start_constraint"})
    specs = [note.spec, shout.spec]
    first = offer_of(turn, specs, NOW_MS, step=1)
    assert (first.forced, [spec.name for spec in first.tools]) == ("note", ["note"])
    planned(turn, row("note"))
    ended(turn, row("note"))
    assert offer_of(turn, specs, NOW_MS, step=2).forced is None
    assert offer_of(turn, specs, NOW_MS, step=1).forced == "note", "the step's own calls come after its offer"


def test_a_turn_wants_to_end_when_nothing_was_called_or_a_call_ends_it() -> None:
    turn = turn_with({"tool": "note", "type": "exit_loop"})
    assert wants_to_end(turn, NOW_MS)
    planned(turn, row("note"))
    assert not wants_to_end(turn, NOW_MS)
    ended(turn, row("note"))
    assert wants_to_end(turn, NOW_MS)
    assert at_border(turn, NOW_MS) == Border(ends=True)
    planned(turn, row("note", step=2))
    ended(turn, row("note", step=2), status="error")
    assert not wants_to_end(turn, NOW_MS)
    turn.step = 3
    planned(turn, row("note", step=3, is_forced=True))
    assert wants_to_end(turn, NOW_MS), "what a rule called is no decision of the model"


def test_what_is_missing_is_said_twice_and_then_called() -> None:
    turn = turn_with({"tool": "note", "type": "required_before_exit"})
    assert not exit_of(turn, NOW_MS).may_end
    for step in (1, 2):
        turn.step = step
        border = at_border(turn, NOW_MS)
        assert (border.ends, list(border.forced)) == (False, [])
        assert "`note`" in border.notes[0]
    turn.step = 3
    border = at_border(turn, NOW_MS)
    assert [call.tool for call in border.forced] == ["note"]
    planned(turn, row("note", step=3, is_forced=True))
    ended(turn, row("note", step=3, is_forced=True), status="error")
    assert at_border(turn, NOW_MS) == Border(ends=True), "it is called once, however that ends"


def test_circles_are_told_and_then_stopped() -> None:
    turn = turn_with()
    borders: list[Border] = []
    with pytest.raises(LimitReached) as stopped:
        for step in range(1, 20):
            planned(turn, row("shout", step=step))
            ended(turn, row("shout", step=step), "X")
            borders.append(at_border(turn, NOW_MS))
    warned = [border for border in borders if border.notes]
    assert len(warned) == 1
    assert "shout" in warned[0].notes[0]
    assert stopped.value.details["detector"] == "identical"


def test_room_that_was_made_for_the_next_step_already_hides_no_circle() -> None:
    turn = turn_with()
    for step in (1, 2, 3):
        one = row("shout", step=step)
        planned(turn, one)
        ended(turn, one)
    turn.compactions = [4]  # a process died between making room and asking
    assert "`shout` was called 3 times" in at_border(turn, NOW_MS).notes[0]


def test_a_wish_to_stop_comes_before_everything() -> None:
    turn = turn_with()
    turn.wishes.stop = "superseded"
    with pytest.raises(TurnStopped) as stopped:
        at_border(turn, NOW_MS)
    assert stopped.value.reason == "superseded"
