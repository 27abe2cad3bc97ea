"""A moment of a turn."""

from __future__ import annotations

from dataclasses import replace

from pattern_core.rules import Call, CallState
from pattern_db.enums import EffectStatus
from tests.pattern_core.rules.moments import after, call, ran


def test_the_last_call_is_the_last_that_ran() -> None:
    assert CallState().last is None
    state = after(ran("a"), ran("b"), call("c", "error"), call("d", "planned"))
    assert state.last is not None and state.last.tool == "b"


def test_a_moment_grows() -> None:
    state = after(ran("a", step=1)).having(call("b", "planned", step=2))
    assert ([one.tool for one in state.calls], state.step) == (["a", "b"], 2)
    assert state.having(ran("c", step=1)).step == 2


def test_what_has_ended() -> None:
    ended = {status.value for status in EffectStatus if Call(tool="a", status=status.value).has_ended}
    assert ended == {"done", "error", "timeout", "cancelled", "denied", "in_doubt"}


def test_equal_calls_come_to_the_same() -> None:
    first = Call(tool="a", arguments={"x": 1, "y": [2]}, status="done", result="fine")
    assert first.outcome == replace(first, arguments={"y": [2], "x": 1}).outcome
    for other in ({"arguments": {"x": 2, "y": [2]}}, {"status": "error"}, {"result": "good"}):
        assert first.outcome != replace(first, **other).outcome
