"""Each kind of rule at the moment when a call is about to run, from its definition."""

from __future__ import annotations

from typing import Any

import pytest

from pattern_core.rules import Asked, Call, CallState, check, in_order
from pattern_db.enums import EffectStatus
from tests.pattern_core.rules.moments import after, call, ran, rules, verdict

NEEDS_A = {"tool": "b", "type": "requires_preceding", "tools": ["a"]}
BEFORE_A = {"tool": "b", "type": "requires_following", "tools": ["a"]}
GROUP = {"tool": "*", "type": "exclusive_groups", "groups": [["a", "b"], ["c", "d*"]]}
THREE = {"tool": "a", "type": "max_calls", "count": 3}
FIRST = {"tool": "a", "type": "start_constraint"}
CHILD = {"tool": "a", "type": "child", "children": ["b", "c"]}
PARENT = {"tool": "a", "type": "parent", "children": ["b"]}
ROUTED = {"tool": "a", "type": "conditional", "outputs": {"yes": "b", "true": "c", "7": "d"}}

RUNS = "run"
# rule, calls before, tool, what the refusal says ("run" if there is none)
CASES: tuple[tuple[dict[str, Any], list[Call], str, str], ...] = (
    (NEEDS_A, [], "b", "`a` must run first"),
    (NEEDS_A, [ran("a")], "b", RUNS),
    (NEEDS_A, [call("a", "error")], "b", "`a` must run first"),
    (NEEDS_A, [call("a", "planned")], "b", "`a` must run first"),
    (NEEDS_A, [], "c", RUNS),
    ({**NEEDS_A, "tools": ["a", "c"]}, [ran("a")], "b", "`c` must run first"),
    ({**NEEDS_A, "tools": ["web_*"]}, [ran("web_search")], "b", RUNS),
    ({**NEEDS_A, "tool": "*", "tools": ["a"]}, [], "c", "`a` must run first"),
    (BEFORE_A, [], "b", RUNS),
    (BEFORE_A, [ran("a")], "b", "before `a`"),
    (BEFORE_A, [call("a", "error")], "b", RUNS),
    (BEFORE_A, [ran("a")], "a", RUNS),
    (GROUP, [ran("a")], "b", "only one"),
    (GROUP, [ran("a")], "a", RUNS),
    (GROUP, [ran("a")], "c", RUNS),
    (GROUP, [call("a", "error")], "b", RUNS),
    (GROUP, [call("a", "started")], "b", "`a` was"),
    (GROUP, [ran("dig")], "c", "`dig` was"),
    (THREE, [ran("a"), ran("a")], "a", RUNS),
    (THREE, [ran("a"), ran("a"), ran("a")], "a", "`a` runs at most 3 times"),
    (THREE, [ran("a"), call("a", "planned"), call("a", "in_doubt")], "a", "at most 3"),
    (THREE, [ran("a"), ran("a"), call("a", "denied"), call("a", "error")], "a", RUNS),
    (THREE, [ran("a"), ran("a"), ran("a")], "b", RUNS),
    ({**THREE, "tool": "*"}, [ran("a"), ran("b"), ran("c")], "d", "tools run at most 3"),
    ({**THREE, "tool": "a?", "count": 1}, [ran("a1")], "a2", "`a?` runs at most once"),
    ({**THREE, "count": 0}, [], "a", "at most 0"),
    (FIRST, [], "b", "`a` must run first in a turn, before `b`"),
    (FIRST, [], "a", RUNS),
    (FIRST, [ran("a")], "b", RUNS),
    (FIRST, [call("a", "error")], "b", "must run first"),
    (FIRST, [call("a", "error", step=1), call("a", "error", step=2), call("a", "timeout", step=3)], "b", RUNS),
    (FIRST, [call("a", "error", is_forced=True)], "b", RUNS),
    ({**FIRST, "alternatives": ["c"]}, [ran("c")], "b", RUNS),
    ({**FIRST, "tool": "gone"}, [], "b", RUNS),
    (CHILD, [], "d", RUNS),
    (CHILD, [ran("a")], "b", RUNS),
    (CHILD, [ran("a")], "d", "directly after `a` only `b`, `c`"),
    (CHILD, [ran("a"), ran("b")], "d", RUNS),
    (CHILD, [call("a", "error")], "d", RUNS),
    (PARENT, [], "b", "only directly after `a`"),
    (PARENT, [], "d", RUNS),
    (PARENT, [ran("a")], "b", RUNS),
    (PARENT, [ran("a")], "d", "directly after `a` only `b`"),
    (PARENT, [ran("a"), ran("c")], "b", "only directly after `a`"),
    (ROUTED, [ran("a", "yes")], "c", "only `b`"),
    (ROUTED, [ran("a", '{"message": true}')], "c", RUNS),
    (ROUTED, [ran("a", '{"message": "yes"}')], "c", "only `b`"),
    (ROUTED, [ran("a", "7.0")], "d", RUNS),
    (ROUTED, [ran("a", '"maybe"')], "c", RUNS),
    ({**ROUTED, "default": "d"}, [ran("a", "maybe")], "c", "only `d`"),
    ({**ROUTED, "strict": True}, [ran("a", "maybe")], "c", "only no tool"),
    (ROUTED, [ran("a", "yes"), ran("b")], "c", RUNS),
)


@pytest.mark.parametrize(("rule", "calls", "tool", "says"), CASES)
def test_a_rule_means_what_it_says(rule: dict[str, Any], calls: list[Call], tool: str, says: str) -> None:
    kind, text = verdict(rules(rule), after(*calls), tool)
    assert (kind, says in text or says == RUNS) == ("run" if says == RUNS else "refuse", True), text


def test_a_cooldown_reaches_across_turns() -> None:
    given = rules({"tool": "a", "type": "cooldown", "seconds": 60})
    assert verdict(given, after(now_ms=100_000), "a")[0] == "run"
    rested = after(now_ms=100_000, last_ms={"a": 75_000, "b": 99_000})
    assert verdict(given, rested, "a") == ("refuse", "it rests after each use; call it again in 35 seconds.")
    assert verdict(given, rested, "b")[0] == "run"
    assert verdict(given, after(now_ms=135_000, last_ms={"a": 75_000}), "a")[0] == "run"
    assert verdict(given, after(ran("a", at_ms=30_000), now_ms=100_000), "a")[0] == "run"
    assert verdict(given, after(ran("a", at_ms=90_000), now_ms=100_000), "a")[0] == "refuse"
    assert verdict(given, after(call("a", "planned"), now_ms=100_000), "a")[0] == "refuse"
    assert verdict(given, after(call("a", "error", at_ms=99_000), now_ms=100_000), "a")[0] == "run"
    # A clock that was set back makes no rest longer than the rule says.
    assert "1 minute" in verdict(given, after(now_ms=1_000, last_ms={"a": 51_000}), "a")[1]
    assert verdict(given, after(now_ms=1_000, last_ms={"a": 75_000}), "a")[0] == "run"
    shared = rules({"tool": "web*", "type": "cooldown", "seconds": 60})
    assert verdict(shared, after(now_ms=100_000, last_ms={"web_fetch": 99_000}), "web_search")[0] == "refuse"


def test_consent_is_asked_last_and_once() -> None:
    given = rules(
        {"tool": "a", "type": "requires_consent", "scope": "mail", "priority": 200, "message": "It costs money."},
        {"tool": "a", "type": "max_calls", "count": 1},
    )
    found = check(given, after(), Asked(tool="a"))
    assert (found.kind, found.scope) == ("ask", "mail")
    assert found.text == "`a` needs a person's consent (mail). It costs money."
    assert check(given, after(), Asked(tool="a"), is_approved=True).kind == "run"
    assert check(given, after(), Asked(tool="b")).kind == "run"
    # Nobody is asked about what a rule refuses anyway, and consent is no leave to break the other rules.
    assert check(given, after(ran("a")), Asked(tool="a")).kind == "refuse"
    assert check(given, after(ran("a")), Asked(tool="a"), is_approved=True).kind == "refuse"
    # A denied consent was no call.
    assert check(given, after(call("a", "denied")), Asked(tool="a"), is_approved=True).kind == "run"


FILE = {"properties": {"op": {"enum": ["read", "append", "patch"], "default": "patch"}, "path": {"type": "string"}}}


@pytest.mark.parametrize(
    ("arguments", "parameters", "is_refused"),
    [
        ({"op": "read"}, FILE, False),
        ({"op": "patch"}, FILE, True),
        ({}, FILE, True),  # the default is what it would do
        ({"op": "patch"}, {"properties": {"path": {}}}, False),
        ({"operation": "save", "command": "read"}, {"properties": {"command": {}, "operation": {}}}, True),
        ({"command": "read"}, {"properties": {"command": {}}}, False),
        ({}, {"properties": {"op": {}}}, False),
        ({"op": ["read"]}, FILE, True),
    ],
)
def test_operations(arguments: dict[str, Any], parameters: dict[str, Any], is_refused: bool) -> None:
    given = rules({"tool": "file", "type": "allowed_operations", "operations": ["read", "append"]})
    asked = Asked(tool="file", arguments=arguments, parameters=parameters)
    found = check(given, after(), asked)
    assert found.kind == ("refuse" if is_refused else "run")
    assert not is_refused or "allowed are: read, append" in found.text


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
        (NEEDS_A, ["a", "b"], True),
        (NEEDS_A, ["b", "b"], False),
        (NEEDS_A, ["b"], False),
        (FIRST, ["a", "d"], True),
        (CHILD, ["c", "d"], True),
        (PARENT, ["a", "d"], True),
        (ROUTED, ["b", "c"], False),
        (ROUTED, ["a", "c"], True),
        ({"tool": "a", "type": "exit_loop"}, ["b", "a"], True),
        (THREE, ["a", "a"], False),
        (BEFORE_A, ["b", "a"], True),
    ],
)
def test_calls_run_side_by_side_unless_order_matters(rule: dict[str, Any], tools: list[str], wanted: bool) -> None:
    assert in_order(rules(rule), after(), tools) is wanted


def test_after_the_first_tool_nothing_waits_for_it() -> None:
    assert not in_order(rules(FIRST), after(ran("a")), ["c", "d"])


@pytest.mark.parametrize("status", list(EffectStatus))
def test_every_status_is_judged(status: EffectStatus) -> None:
    used = {"planned", "awaiting_approval", "started", "done", "timeout", "in_doubt"}
    given = rules({"tool": "a", "type": "max_calls", "count": 1})
    assert (verdict(given, after(call("a", status.value)), "a")[0] == "refuse") is (status.value in used)


def test_no_rules_refuse_nothing() -> None:
    assert verdict(rules(), CallState(), "anything") == ("run", "")
