"""The rules of an agent at the moments of its turn: before a decision, before a call, before the end."""

from __future__ import annotations

from typing import Any

import pytest

from pattern_core.rules.facts import JudgedCall
from pattern_core.rules.rule import NOTHING_LEFT, AskedCall
from tests.pattern_core.rules.moments import (
    TOOLS,
    added,
    after,
    at_exit,
    call,
    check,
    ends_after,
    in_order,
    offer,
    ran,
    rules,
    specs,
    verdict,
)

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
    found = offer(rules(*given), after(*calls), specs(*TOOLS))
    assert ("".join(one.name for one in found.tools), found.forced) == (shown, forced)
    assert (NOTHING_LEFT in found.notes) is (shown == "")


def test_arguments_that_the_rules_give() -> None:
    found = offer(rules({**FIRST, "args": {"q": "x", "n": 2}}), after(), specs(*TOOLS))
    assert found.filled("a", {"n": 9, "k": 1}) == {"n": 2, "k": 1, "q": "x"}
    assert found.filled("b", {"n": 9}) == {"n": 9}
    assert found.notes == ("Before anything else in this turn call `a`.",)
    child = offer(rules(CHILD), after(ran("a")), specs(*TOOLS))
    assert (child.prefill, child.notes) == ({"b": {"n": 1}}, ("Now call `b`.",))
    # Of two rules that give arguments the one that is judged first wins; of first tools, each gives its own.
    firsts = rules(
        {**FIRST, "args": {"q": 1}, "message": "A."}, {**FIRST, "tool": "b", "args": {"q": 2}, "message": "B."}
    )
    both = offer(firsts, after(), specs(*TOOLS))
    assert (both.prefill, len(both.notes)) == ({"a": {"q": 1}, "b": {"q": 2}}, 1)
    twice = rules(CHILD, {**CHILD, "args": {"b": {"n": 2}}, "priority": 6})
    assert offer(twice, after(ran("a")), specs(*TOOLS)).prefill == {"b": {"n": 2}}


def test_the_third_time_a_first_tool_is_passed_over_it_is_called() -> None:
    given = rules({**FIRST, "args": {"q": 1}})
    refused = [call("b", "denied", step=1), call("c", "denied", step=1), call("b", "denied", step=2)]
    assert added(given, after(), ["b"]) == ()
    assert added(given, after(*refused[:2]), ["b"]) == ()
    assert added(given, after(*refused), ["b"]) == (AskedCall(tool="a", arguments={"q": 1}),)
    assert added(given, after(*refused), ["b", "a"]) == ()
    assert added(given, after(*refused), []) == ()
    assert added(given, after(*refused, call("a", "error", step=3, is_forced=True)), ["b"]) == ()
    either = rules({**FIRST, "tool": "gone", "alternatives": ["d"], "args": {"q": 1}})
    assert added(either, after(*refused), ["b"]) == (AskedCall(tool="d"),)


def test_consent_is_asked_last_and_once() -> None:
    given = rules(
        {"tool": "a", "type": "requires_consent", "scope": "mail", "priority": 200, "message": "It costs money."},
        {"tool": "a", "type": "max_calls", "count": 1},
    )
    found = check(given, after(), AskedCall(tool="a"))
    assert (found.kind, found.scope) == ("ask", "mail")
    assert found.text == "`a` needs a person's consent (mail). It costs money."
    assert check(given, after(), AskedCall(tool="a"), is_approved=True).kind == "run"
    assert check(given, after(), AskedCall(tool="a"), agreed=("mail",)).kind == "run"
    assert check(given, after(), AskedCall(tool="a"), agreed=(None, "money")).kind == "ask"
    assert check(given, after(), AskedCall(tool="b")).kind == "run"
    # Of several questions the first that is still open is asked.
    twice = rules(*({"tool": "a", "type": "requires_consent", "scope": scope} for scope in ("mail", "money")))
    assert check(twice, after(), AskedCall(tool="a")).scope == "mail"
    assert check(twice, after(), AskedCall(tool="a"), agreed=("mail",)).scope == "money"
    # Nobody is asked about what a rule refuses anyway, and consent is no leave to break the other rules.
    assert check(given, after(ran("a")), AskedCall(tool="a")).kind == "refuse"
    assert check(given, after(ran("a")), AskedCall(tool="a"), is_approved=True).kind == "refuse"
    # A denied consent was no call.
    assert check(given, after(call("a", "denied")), AskedCall(tool="a"), is_approved=True).kind == "run"


def test_the_first_refusal_in_order_of_priority_tells() -> None:
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
    ],
)
def test_calls_run_side_by_side_unless_order_matters(rule: dict[str, Any], tools: list[str], wanted: bool) -> None:
    assert in_order(rules(rule), after(), tools) is wanted
    assert not in_order(rules(FIRST), after(ran("a")), ["c", "d"])


def test_no_rules_refuse_nothing() -> None:
    assert verdict(rules(), after(), "anything") == ("run", "")
    shown = specs(*TOOLS)
    assert offer(rules(), after(ran("a")), shown).tools == tuple(shown)
    assert at_exit(rules(), after(step=1)).ends and not in_order(rules(), after(), ["a", "b"])


LEAVE = {"tool": "a", "type": "exit_loop"}
STAY = {"tool": "b", "type": "continue_loop"}
REQUIRED = {"tool": "c", "type": "required_before_exit"}


def test_a_tool_that_ends_the_turn() -> None:
    assert ends_after(rules(LEAVE), after(ran("a")))
    assert not ends_after(rules(LEAVE), after(call("a", "error")))
    assert not ends_after(rules(LEAVE), after(ran("b")))
    assert not ends_after(rules(LEAVE), after(ran("a", is_forced=True)))
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
    assert first.notes[0].startswith("This turn is not finished: call `c`")
    assert first.notes[0].endswith("It is the diary.")
    second = at_exit(given, after(step=2))
    assert "still cannot end" in second.notes[0]
    assert (first.ends, second.ends, first.forced) == (False, False, ())
    third = at_exit(given, after(step=3))
    assert (third.ends, third.notes, third.forced) == (False, (), (AskedCall(tool="c"),))
    # However the forced call ended, the turn ends then.
    for status in ("done", "error", "denied", "timeout"):
        assert at_exit(given, after(call("c", status, step=3, is_forced=True))).ends
    assert not at_exit(given, after(call("c", "awaiting_approval", step=3, is_forced=True))).ends


def test_only_a_success_counts() -> None:
    given = rules(REQUIRED)
    assert at_exit(given, after(ran("c"), step=2)).ends
    failed = at_exit(given, after(call("c", "error"), step=2))
    assert "did not succeed" in failed.notes[0]


def test_what_cannot_be_called_keeps_nobody() -> None:
    assert at_exit(rules(REQUIRED), after(tools=("a",), step=1)).ends
    spent = {"tool": "c", "type": "max_calls", "count": 0}
    assert at_exit(rules(REQUIRED, spent), after(step=1)).ends
    group = {"tool": "*", "type": "exclusive_groups", "groups": [["c", "d"]]}
    assert at_exit(rules(REQUIRED, group), after(ran("d"), step=2)).ends


def test_a_condition() -> None:
    given = rules({"tool": "c", "type": "required_before_exit_if", "condition": {"tool_called": "a"}})
    assert at_exit(given, after(step=1)).ends
    assert at_exit(given, after(call("a", "error"), step=2)).ends
    asked = at_exit(given, after(ran("a"), step=2))
    assert "`c` is required because `a` ran." in asked.notes[0]
    assert at_exit(given, after(ran("a"), ran("c"), step=2)).ends


def test_what_is_due() -> None:
    given = rules({"tool": "c", "type": "periodic", "seconds": 3600})
    assert not at_exit(given, after(step=1, now_ms=0)).ends
    hour_ago = {"c": 1_000}
    assert at_exit(given, after(step=1, now_ms=3_600_999, last_ms=hour_ago)).ends
    due = at_exit(given, after(step=1, now_ms=3_601_000, last_ms=hour_ago))
    assert "every 1 hour" in due.notes[0]
    assert at_exit(given, after(ran("c"), step=2, now_ms=9_000_000, last_ms=hour_ago)).ends
    assert offer(given, after(), specs("c")).notes == ("`c` is due in this turn: it should run every 1 hour.",)
    # The clock was a day ahead when the tool was used, and was set right since.
    assert not at_exit(given, after(step=1, now_ms=1_000, last_ms={"c": 86_401_000})).ends


def test_a_first_tool_that_was_never_called() -> None:
    given = rules({"tool": "c", "type": "start_constraint", "args": {"query": "x"}})
    assert not at_exit(given, after(step=1)).ends
    assert at_exit(given, after(step=3)).forced == (AskedCall(tool="c", arguments={"query": "x"}),)
    assert at_exit(given, after(ran("c"), step=2)).ends


def test_a_tool_is_forced_once_for_all_its_rules() -> None:
    given = rules({"tool": "c", "type": "start_constraint", "args": {"q": 1}, "priority": 9}, REQUIRED)
    assert at_exit(given, after(step=3)).forced == (AskedCall(tool="c", arguments={"q": 1}),)


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
    found = at_exit(rules(LEAVE, {**REQUIRED, "tool": "d"}), after(*calls, step=step))
    assert "".join(found.notes).startswith(says) and bool(found.forced) is (says == DONE)


def test_what_must_follow_directly_keeps_the_turn_open() -> None:
    """A vendor that cannot force a call, or a model that answers in words all the same."""
    given = rules(CHILD)
    first = at_exit(given, after(ran("a"), step=2))
    assert first.notes[0].endswith("Directly after `a` comes `b`.")
    third = at_exit(given, after(ran("a"), step=4))
    assert third.forced == (AskedCall(tool="b", arguments={"n": 1}),)
    for status in ("done", "error", "denied"):
        tried = call("b", status, step=4, is_forced=True)
        assert at_exit(given, after(ran("a"), tried)).ends
    assert at_exit(given, after(ran("b"), step=4)).ends


def test_which_of_several_follows_is_left_to_the_model() -> None:
    given = rules({**CHILD, "children": ["b", "c"]})
    assert at_exit(given, after(ran("a"), step=2)).notes == (
        "This turn is not finished: call one of `b`, `c` before you end it. Directly after `a` comes one of `b`, `c`.",
    )
    second = at_exit(given, after(ran("a"), step=3))
    assert "called for you" not in second.notes[0]
    assert at_exit(given, after(ran("a"), step=4)).ends


def test_what_a_result_leads_to_must_follow() -> None:
    given = rules({"tool": "a", "type": "conditional", "outputs": {"found": "b"}})
    assert at_exit(given, after(ran("a", "nothing"), step=2)).ends
    asked = at_exit(given, after(ran("a", "found"), step=2))
    assert asked.notes[0].endswith("What `a` returned leads to `b`.")


def test_what_follows_directly_is_forced_before_what_is_required() -> None:
    forced = at_exit(rules({**REQUIRED, "priority": 9}, CHILD), after(ran("a"), step=4)).forced
    assert [one.tool for one in forced] == ["b", "c"]


@pytest.mark.parametrize(
    "others",
    [
        [{"tool": "a", "type": "exit_loop"}],  # the turn ended with it
        [{"tool": "b", "type": "max_calls", "count": 0}],
        [{"type": "exclusive_groups", "groups": [["a", "b"]]}],
        [{"tool": "a", "type": "child", "children": ["c"]}],  # nothing can follow both
    ],
)
def test_what_cannot_follow_keeps_nobody(others: list[dict[str, object]]) -> None:
    assert at_exit(rules(CHILD, *others), after(ran("a"))).ends
