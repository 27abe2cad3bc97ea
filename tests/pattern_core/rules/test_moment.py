"""The rules of an agent at the moments of its turn: before a decision, before a call, before the end."""

from __future__ import annotations

from typing import Any

import pytest

from pattern_core.rules.facts import JudgedCall
from pattern_core.rules.rule import NOTHING_LEFT, Moment, RequestedCall
from tests.pattern_core.rules.moments import TOOLS, after, call, ran, rules, specs, under, verdict

FIRST = {"tool": "a", "type": "start_constraint"}
CHILD = {"tool": "a", "type": "child", "children": ["b"], "args": {"b": {"n": 1}}}
PARENT = {"tool": "a", "type": "parent", "children": ["b", "c"]}
ROUTED = {"tool": "a", "type": "conditional", "outputs": {"yes": "b"}}

CASES: tuple[tuple[list[dict[str, Any]], list[JudgedCall], str, str | None], ...] = (
    ([], [], "abcd", None),
    ([FIRST], [], "a", "a"),
    ([FIRST, {**FIRST, "tool": "b"}], [], "ab", "*"),
    ([FIRST, {**FIRST, "tool": "b"}], [ran("a")], "b", "b"),
    ([FIRST], [ran("a")], "abcd", None),
    ([CHILD], [], "abcd", None),
    ([CHILD], [ran("a")], "b", "b"),
    ([CHILD], [ran("a"), ran("b")], "abcd", None),
    ([{**CHILD, "children": ["b", "c"]}], [ran("a")], "bc", "*"),
    ([PARENT], [], "ad", None),
    ([PARENT], [ran("a")], "bc", "*"),
    ([ROUTED], [ran("a", "yes")], "b", "b"),
    ([ROUTED], [ran("a", "no")], "abcd", None),
    ([{**ROUTED, "strict": True}], [ran("a", "no")], "", None),
    ([{"tool": "a", "type": "max_calls", "count": 1}], [ran("a")], "bcd", None),
    ([{"tool": "*", "type": "max_calls", "count": 1}], [ran("a")], "", None),
    ([CHILD, {"tool": "b", "type": "max_calls", "count": 0}], [ran("a")], "", None),
    # "Not now" leaves a tool in view, so that the beginning of the prompt stays the same.
    ([{"tool": "b", "type": "requires_preceding", "tools": ["a"]}], [], "abcd", None),
    ([{"tool": "a", "type": "cooldown", "seconds": 60}], [ran("a")], "abcd", None),
)


@pytest.mark.parametrize(("given", "calls", "shown", "forced"), CASES)
def test_tools_in_view(given: list[dict[str, Any]], calls: list[JudgedCall], shown: str, forced: str | None) -> None:
    found = under(rules(*given), after(*calls)).offer(specs(*TOOLS))
    assert ("".join(one.name for one in found.tools), found.forced) == (shown, forced)
    assert (NOTHING_LEFT in found.notes) is (shown == "")


def test_arguments_that_the_rules_give() -> None:
    found = under(rules({**FIRST, "args": {"q": "x", "n": 2}}), after()).offer(specs(*TOOLS))
    assert (found.prefill, found.notes) == (
        {"a": {"n": 2, "q": "x"}},
        ("Before anything else in this turn call `a`.",),
    )
    child = under(rules(CHILD), after(ran("a"))).offer(specs(*TOOLS))
    assert (child.prefill, child.notes) == ({"b": {"n": 1}}, ("Now call `b`.",))
    # Of two rules that give arguments the one that is judged first wins; of first tools, each gives its own.
    firsts = rules(
        {**FIRST, "args": {"q": 1}, "message": "A."}, {**FIRST, "tool": "b", "args": {"q": 2}, "message": "B."}
    )
    both = under(firsts, after()).offer(specs(*TOOLS))
    assert (both.prefill, len(both.notes)) == ({"a": {"q": 1}, "b": {"q": 2}}, 1)
    twice = rules(CHILD, {**CHILD, "args": {"b": {"n": 2}}, "priority": 6})
    assert under(twice, after(ran("a"))).offer(specs(*TOOLS)).prefill == {"b": {"n": 2}}


def test_the_third_time_a_first_tool_is_passed_over_it_is_called() -> None:
    given = rules({**FIRST, "args": {"q": 1}})
    refused = [call("b", "denied", step=1), call("c", "denied", step=1), call("b", "denied", step=2)]
    assert under(given, after()).added(["b"]) == ()
    assert under(given, after(*refused[:2])).added(["b"]) == ()
    assert under(given, after(*refused)).added(["b"]) == (RequestedCall(tool="a", arguments={"q": 1}),)
    assert under(given, after(*refused)).added(["b", "a"]) == ()
    assert under(given, after(*refused)).added([]) == ()
    assert under(given, after(*refused, call("a", "error", step=3, is_forced=True))).added(["b"]) == ()
    either = rules({**FIRST, "tool": "gone", "alternatives": ["d"], "args": {"q": 1}})
    assert under(either, after(*refused)).added(["b"]) == (RequestedCall(tool="d"),)


def test_consent_is_asked_last_and_once() -> None:
    given = rules(
        {"tool": "a", "type": "requires_consent", "scope": "mail", "priority": 200, "message": "It costs money."},
        {"tool": "a", "type": "max_calls", "count": 1},
    )
    found = under(given, after()).check(RequestedCall(tool="a"))
    assert (found.kind, found.scope) == ("ask", "mail")
    assert found.text == "`a` needs a person's consent (mail). It costs money."
    assert under(given, after()).check(RequestedCall(tool="a"), is_approved=True).kind == "run"
    assert under(given, after()).check(RequestedCall(tool="a"), agreed=("mail",)).kind == "run"
    assert under(given, after()).check(RequestedCall(tool="a"), agreed=(None, "money")).kind == "ask"
    assert under(given, after()).check(RequestedCall(tool="b")).kind == "run"
    # Of several questions the first that is still open is asked.
    twice = rules(*({"tool": "a", "type": "requires_consent", "scope": scope} for scope in ("mail", "money")))
    assert under(twice, after()).check(RequestedCall(tool="a")).scope == "mail"
    assert under(twice, after()).check(RequestedCall(tool="a"), agreed=("mail",)).scope == "money"
    # Nobody is asked about what a rule refuses anyway, and consent is no leave to break the other rules.
    assert under(given, after(ran("a"))).check(RequestedCall(tool="a")).kind == "refuse"
    assert under(given, after(ran("a"))).check(RequestedCall(tool="a"), is_approved=True).kind == "refuse"
    # A denied consent was no call.
    assert under(given, after(call("a", "denied"))).check(RequestedCall(tool="a"), is_approved=True).kind == "run"


def test_the_refusal_of_the_highest_priority_is_given() -> None:
    low = {"tool": "a", "type": "max_calls", "count": 0, "priority": 1}
    high = {"tool": "a", "type": "requires_preceding", "tools": ["b"], "priority": 9, "message": "Ask B."}
    assert verdict(rules(low, high), after(), "a")[1] == "`b` must run first. Ask B."
    assert "at most" in verdict(rules({**low, "priority": 10}, high), after(), "a")[1]


def test_what_stands_behind_the_end_is_skipped() -> None:
    leave = {"tool": "a", "type": "exit_loop"}
    assert verdict(rules(leave), after(ran("a")), "b") == ("refuse", "the turn ended with the call before it.")
    assert verdict(rules(leave), after(call("a", "error")), "b")[0] == "run"
    assert verdict(rules(leave), after(ran("a"), step=2), "b")[0] == "run"
    # Something is still missing, so the turn did not end.
    required = {"tool": "b", "type": "required_before_exit"}
    assert verdict(rules(leave, required), after(ran("a")), "b")[0] == "run"
    assert verdict(rules(leave, required), after(ran("b"), ran("a")), "c")[0] == "refuse"


@pytest.mark.parametrize(
    ("rule", "tools", "wanted"),
    [
        ({"type": "requires_preceding", "tool": "b", "tools": ["a"]}, ["a", "b"], True),
        ({"type": "requires_preceding", "tool": "b", "tools": ["a"]}, ["b", "b"], False),
        ({"type": "requires_preceding", "tool": "b", "tools": ["a"]}, ["a", "c"], False),
        ({"type": "requires_preceding", "tool": "b", "tools": ["a"]}, ["b"], False),
        ({"type": "requires_following", "tool": "b", "tools": ["a"]}, ["b", "a"], True),
        (FIRST, ["a", "d"], True),
        (CHILD, ["b", "d"], True),
        (PARENT, ["a", "d"], True),
        (ROUTED, ["b", "c"], False),
        (ROUTED, ["a", "c"], True),
        ({"type": "exit_loop", "tool": "a"}, ["b", "a"], True),
        ({"type": "max_calls", "tool": "a", "count": 3}, ["a", "a"], False),
        ({"type": "allowed_operations", "tool": "a", "operations": ["read"]}, ["a", "a"], False),
        ({"type": "requires_consent", "tool": "a"}, ["a", "a"], False),
    ],
)
def test_calls_run_side_by_side_unless_order_matters(rule: dict[str, Any], tools: list[str], wanted: bool) -> None:
    assert under(rules(rule), after()).in_order(tools) is wanted
    assert not under(rules(FIRST), after(ran("a"))).in_order(["c", "d"])


LEAVE = {"tool": "a", "type": "exit_loop"}
STAY = {"tool": "b", "type": "continue_loop"}
REQUIRED = {"tool": "c", "type": "required_before_exit"}
EVERYTHING = {"tool": "*", "type": "exit_loop"}


@pytest.mark.parametrize(
    ("given", "calls", "wanted"),
    [
        ([LEAVE], [ran("a")], True),
        ([LEAVE], [call("a", "error")], False),
        ([LEAVE], [ran("b")], False),
        ([LEAVE], [ran("a", is_forced=True)], False),
        ([LEAVE], [ran("a", step=1), ran("b", step=2)], False),
        ([EVERYTHING], [ran("d")], True),
        ([LEAVE, STAY], [ran("a"), ran("b")], False),
        ([EVERYTHING, STAY], [ran("b")], False),  # what names the tool goes before what means all
        ([EVERYTHING, STAY], [ran("c")], True),
        ([{**EVERYTHING, "priority": 8}, STAY], [ran("b")], True),
        ([LEAVE, {**STAY, "tool": "a"}], [ran("a")], False),
    ],
)
def test_which_calls_end_the_turn(given: list[dict[str, Any]], calls: list[JudgedCall], wanted: bool) -> None:
    moment = under(rules(*given), after(*calls))
    assert moment.ends_after(moment.step) is wanted


DIARY = {**REQUIRED, "message": "It is the diary."}
CALL_C = (RequestedCall(tool="c"),)
IF_A = {"tool": "c", "type": "required_before_exit_if", "condition": {"tool_called": "a"}}
HOURLY = {"tool": "c", "type": "periodic", "seconds": 3600}
AGO = {"c": 1_000}
FIRST_C = {"tool": "c", "type": "start_constraint", "args": {"q": 1}}
SEVERAL = {**CHILD, "children": ["b", "c"]}
FOUND = {"tool": "a", "type": "conditional", "outputs": {"found": "b"}}
ENDS = "the turn ends"

# rules, the moment, and what follows: the end, calls that are made, or words of the note
LEAVING: tuple[tuple[list[dict[str, Any]], Moment, str | tuple[RequestedCall, ...]], ...] = (
    ([DIARY], after(step=1), "This turn is not finished: call `c` before you end it."),
    ([DIARY], after(step=1), "It is the diary."),
    ([DIARY], after(step=2), "still cannot end"),
    ([DIARY], after(step=3), CALL_C),
    # However the forced call ended, the turn ends then.
    *(([DIARY], after(call("c", one, step=3, is_forced=True)), ENDS) for one in ("done", "error", "denied", "timeout")),
    ([DIARY], after(call("c", "awaiting_approval", step=3, is_forced=True)), CALL_C),
    # Only a success of the model's own call counts.
    ([REQUIRED], after(ran("c"), step=2), ENDS),
    ([REQUIRED], after(call("c", "error"), step=2), "did not succeed"),
    # What cannot be called does not keep a turn open.
    ([REQUIRED], after(tools=("a",), step=1), ENDS),
    ([REQUIRED, {"tool": "c", "type": "max_calls", "count": 0}], after(step=1), ENDS),
    ([REQUIRED, {"type": "exclusive_groups", "groups": [["c", "d"]]}], after(ran("d"), step=2), ENDS),
    ([IF_A], after(step=1), ENDS),
    ([IF_A], after(call("a", "error"), step=2), ENDS),
    ([IF_A], after(ran("a"), step=2), "`c` is required because `a` ran."),
    ([IF_A], after(ran("a"), ran("c"), step=2), ENDS),
    ([HOURLY], after(step=1, now_ms=0), "every 1 hour"),
    ([HOURLY], after(step=1, now_ms=3_600_999, last_ms=AGO), ENDS),
    ([HOURLY], after(step=1, now_ms=3_601_000, last_ms=AGO), "every 1 hour"),
    ([HOURLY], after(ran("c"), step=2, now_ms=9_000_000, last_ms=AGO), ENDS),
    # The clock was a day ahead when the tool was used, and was set right since.
    ([HOURLY], after(step=1, now_ms=1_000, last_ms={"c": 86_401_000}), "every 1 hour"),
    ([FIRST_C], after(step=1), "`c` comes first in every turn."),
    ([FIRST_C], after(step=3), (RequestedCall(tool="c", arguments={"q": 1}),)),
    ([FIRST_C], after(ran("c"), step=2), ENDS),
    # Once for both.
    ([{**FIRST_C, "priority": 9}, REQUIRED], after(step=3), (RequestedCall(tool="c", arguments={"q": 1}),)),
    # A vendor that cannot force what must follow directly, or a model that answers in words all the same.
    ([CHILD], after(ran("a"), step=2), "Directly after `a` comes `b`."),
    ([CHILD], after(ran("a"), step=4), (RequestedCall(tool="b", arguments={"n": 1}),)),
    *(([CHILD], after(ran("a"), call("b", one, step=4, is_forced=True)), ENDS) for one in ("done", "error", "denied")),
    ([CHILD], after(ran("b"), step=4), ENDS),
    ([FOUND], after(ran("a", "nothing"), step=2), ENDS),
    ([FOUND], after(ran("a", "found"), step=2), "What `a` returned leads to `b`."),
    # Which of several follows is left to the model.
    ([SEVERAL], after(ran("a"), step=2), "call one of `b`, `c` before you end it. Directly after `a` comes one of"),
    ([SEVERAL], after(ran("a"), step=3), "This turn should not end yet. Call one of `b`, `c` now. Directly"),
    ([SEVERAL], after(ran("a"), step=4), ENDS),
    # What follows directly is forced before what is required.
    (
        [{**REQUIRED, "priority": 9}, CHILD],
        after(ran("a"), step=4),
        (RequestedCall(tool="b", arguments={"n": 1}), *CALL_C),
    ),
    # What cannot follow does not keep a turn open: the turn ended with it, or nothing can follow both.
    ([CHILD, LEAVE], after(ran("a")), ENDS),
    ([CHILD, {"tool": "b", "type": "max_calls", "count": 0}], after(ran("a")), ENDS),
    ([CHILD, {"type": "exclusive_groups", "groups": [["a", "b"]]}], after(ran("a")), ENDS),
    ([CHILD, {**CHILD, "children": ["c"], "args": {}}], after(ran("a")), ENDS),
)


@pytest.mark.parametrize(("given", "moment", "follows"), LEAVING)
def test_what_follows_a_turn_that_wants_to_end(
    given: list[dict[str, Any]], moment: Moment, follows: str | tuple[RequestedCall, ...]
) -> None:
    found = under(rules(*given), moment).at_exit()
    assert found.ends is (follows == ENDS)
    if isinstance(follows, tuple):
        assert (found.forced, found.notes) == (follows, ())
    elif not found.ends:
        assert follows in found.notes[0] and not found.forced


def test_what_is_due_is_noted_from_the_beginning() -> None:
    notes = under(rules(HOURLY), after()).offer(specs("c")).notes
    assert notes == ("`c` is due in this turn: it should run every 1 hour.",)


ONCE, TWICE, DONE = "This turn is not finished", "This turn still cannot end", ""


@pytest.mark.parametrize(
    ("calls", "step", "says"),
    [
        ([], 0, ONCE),
        ([], 1, ONCE),
        ([ran("b", step=1)], 2, ONCE),
        ([ran("b", step=1)], 3, TWICE),
        ([ran("a", step=2)], 2, TWICE),  # nothing, then a tool that ends
        ([call("a", "error", step=1)], 2, ONCE),
        ([ran("c", step=3, is_forced=True)], 3, DONE),  # what a rule called is no answer of the model
    ],
)
def test_how_often_a_turn_wanted_to_end_follows_from_its_calls(calls: list[JudgedCall], step: int, says: str) -> None:
    found = under(rules(LEAVE, {**REQUIRED, "tool": "d"}), after(*calls, step=step)).at_exit()
    assert "".join(found.notes).startswith(says) and bool(found.forced) is (says == DONE)
