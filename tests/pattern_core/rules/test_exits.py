"""May the turn end."""

from __future__ import annotations

import pytest

from pattern_core.rules import Call, ForcedCall, at_exit, ends_after
from pattern_core.rules.exits import exit_attempts, pending
from tests.pattern_core.rules.moments import after, call, ran, rules

LEAVE = {"tool": "a", "type": "exit_loop"}
STAY = {"tool": "b", "type": "continue_loop"}
REQUIRED = {"tool": "c", "type": "required_before_exit"}


def test_a_tool_that_ends_the_turn() -> None:
    assert ends_after(rules(LEAVE), after(ran("a")))
    assert not ends_after(rules(LEAVE), after(call("a", "error")))
    assert not ends_after(rules(LEAVE), after(ran("b")))
    assert not ends_after(rules(LEAVE), after(ran("a", step=1), ran("b", step=2)))
    assert ends_after(rules({**LEAVE, "tool": "*"}), after(ran("d")))


def test_a_tool_that_goes_on() -> None:
    assert not ends_after(rules(LEAVE, STAY), after(ran("a"), ran("b")))
    everything = {"tool": "*", "type": "exit_loop"}
    assert not ends_after(rules(everything, STAY), after(ran("b")))  # what names the tool goes before what means all
    assert ends_after(rules(everything, STAY), after(ran("c")))
    assert ends_after(rules({**everything, "priority": 8}, STAY), after(ran("b")))
    assert not ends_after(rules(LEAVE, {**STAY, "tool": "a"}), after(ran("a")))


def test_two_reminders_and_then_it_is_done() -> None:
    given = rules({**REQUIRED, "message": "It is the diary."})
    first = at_exit(given, after(step=1))
    assert first.reminder is not None and first.reminder.startswith("This turn is not finished: call `c`")
    assert first.reminder.endswith("It is the diary.")
    second = at_exit(given, after(step=2))
    assert second.reminder is not None and "still cannot end" in second.reminder
    assert (first.may_end, second.may_end, first.forced_calls) == (False, False, ())
    third = at_exit(given, after(step=3))
    assert (third.may_end, third.reminder, third.forced_calls) == (False, None, (ForcedCall(tool="c"),))
    # However the forced call ended, the turn ends then.
    for status in ("done", "error", "denied", "timeout"):
        assert at_exit(given, after(call("c", status, step=3, is_forced=True))).may_end
    assert not at_exit(given, after(call("c", "awaiting_approval", step=3, is_forced=True))).may_end


def test_only_a_success_counts() -> None:
    given = rules(REQUIRED)
    assert at_exit(given, after(ran("c"), step=2)).may_end
    failed = at_exit(given, after(call("c", "error"), step=2))
    assert failed.reminder is not None and "did not succeed" in failed.reminder


def test_what_cannot_be_called_keeps_nobody() -> None:
    assert at_exit(rules(REQUIRED), after(tools=("a",), step=1)).may_end
    spent = {"tool": "c", "type": "max_calls", "count": 0}
    assert at_exit(rules(REQUIRED, spent), after(step=1)).may_end
    group = {"tool": "*", "type": "exclusive_groups", "groups": [["c", "d"]]}
    assert at_exit(rules(REQUIRED, group), after(ran("d"), step=2)).may_end


def test_a_condition() -> None:
    given = rules({"tool": "c", "type": "required_before_exit_if", "condition": {"tool_called": "a"}})
    assert at_exit(given, after(step=1)).may_end
    assert at_exit(given, after(call("a", "error"), step=2)).may_end
    asked = at_exit(given, after(ran("a"), step=2))
    assert asked.reminder is not None and "`c` is required because `a` ran." in asked.reminder
    assert at_exit(given, after(ran("a"), ran("c"), step=2)).may_end


def test_what_is_due() -> None:
    given = rules({"tool": "c", "type": "periodic", "seconds": 3600})
    assert not at_exit(given, after(step=1, now_ms=0)).may_end
    hour_ago = {"c": 1_000}
    assert at_exit(given, after(step=1, now_ms=3_600_999, last_ms=hour_ago)).may_end
    due = at_exit(given, after(step=1, now_ms=3_601_000, last_ms=hour_ago))
    assert due.reminder is not None and "every 1 hour" in due.reminder
    assert at_exit(given, after(ran("c"), step=2, now_ms=9_000_000, last_ms=hour_ago)).may_end
    # The clock was a day ahead when the tool was used, and was set right since.
    assert not at_exit(given, after(step=1, now_ms=1_000, last_ms={"c": 86_401_000})).may_end


def test_a_first_tool_that_was_never_called() -> None:
    given = rules({"tool": "c", "type": "start_constraint", "args": {"query": "x"}})
    assert not at_exit(given, after(step=1)).may_end
    assert at_exit(given, after(step=3)).forced_calls == (ForcedCall(tool="c", arguments={"query": "x"}),)
    assert at_exit(given, after(ran("c"), step=2)).may_end


def test_a_tool_is_forced_once_for_all_its_rules() -> None:
    given = rules({"tool": "c", "type": "start_constraint", "args": {"q": 1}, "priority": 9}, REQUIRED)
    assert [one.tool for one in pending(given, after(step=3))] == ["c", "c"]
    assert at_exit(given, after(step=3)).forced_calls == (ForcedCall(tool="c", arguments={"q": 1}),)


@pytest.mark.parametrize(
    ("calls", "step", "attempts"),
    [
        ([], 0, 0),
        ([], 1, 1),
        ([ran("b", step=1)], 1, 0),
        ([ran("b", step=1)], 3, 2),
        ([ran("a", step=2)], 2, 2),  # nothing, then a tool that ends
        ([call("a", "error", step=1)], 1, 0),
        ([ran("c", step=3, is_forced=True)], 3, 3),  # what a rule called is no answer of the model
    ],
)
def test_attempts_follow_from_the_calls(calls: list[Call], step: int, attempts: int) -> None:
    assert exit_attempts(rules(LEAVE), after(*calls, step=step)) == attempts


CHILD = {"tool": "a", "type": "child", "children": ["b"], "args": {"b": {"q": 1}}}


def test_what_must_follow_directly_keeps_the_turn_open() -> None:
    """A vendor that cannot force a call, or a model that answers in words all the same."""
    given = rules(CHILD)
    first = at_exit(given, after(ran("a"), step=2))
    assert first.reminder is not None and first.reminder.endswith("Directly after `a` comes `b`.")
    third = at_exit(given, after(ran("a"), step=4))
    assert third.forced_calls == (ForcedCall(tool="b", arguments={"q": 1}),)
    for status in ("done", "error", "denied"):
        tried = call("b", status, step=4, is_forced=True)
        assert at_exit(given, after(ran("a"), tried)).may_end
    assert at_exit(given, after(ran("b"), step=4)).may_end


def test_which_of_several_follows_is_left_to_the_model() -> None:
    given = rules({**CHILD, "children": ["b", "c"]})
    assert at_exit(given, after(ran("a"), step=2)).reminder == (
        "This turn is not finished: call one of `b`, `c` before you end it. Directly after `a` comes one of `b`, `c`."
    )
    second = at_exit(given, after(ran("a"), step=3))
    assert second.reminder is not None and "called for you" not in second.reminder
    assert at_exit(given, after(ran("a"), step=4)).may_end


def test_what_a_result_leads_to_must_follow() -> None:
    given = rules({"tool": "a", "type": "conditional", "outputs": {"found": "b"}})
    assert at_exit(given, after(ran("a", "nothing"), step=2)).may_end
    asked = at_exit(given, after(ran("a", "found"), step=2))
    assert asked.reminder is not None and asked.reminder.endswith("What `a` returned leads to `b`.")


def test_what_follows_directly_is_forced_before_what_is_required() -> None:
    forced = at_exit(rules({**REQUIRED, "priority": 9}, CHILD), after(ran("a"), step=4)).forced_calls
    assert [one.tool for one in forced] == ["b", "c"]


@pytest.mark.parametrize(
    "others",
    [
        [{"tool": "a", "type": "exit_loop"}],  # the turn ended with it
        [{"tool": "b", "type": "max_calls", "count": 0}],
        [{"tool": "a", "type": "child", "children": ["c"]}],  # nothing can follow both
    ],
)
def test_what_cannot_follow_keeps_nobody(others: list[dict[str, object]]) -> None:
    assert at_exit(rules(CHILD, *others), after(ran("a"))).may_end
