"""What the model is shown before a decision."""

from __future__ import annotations

from typing import Any

import pytest

from pattern_core.rules import Call, ForcedCall, added, offer
from pattern_core.rules.offer import NOTHING_LEFT
from tests.pattern_core.rules.moments import TOOLS, after, call, ran, rules, spec, specs

FIRST = {"tool": "a", "type": "start_constraint"}
CHILD = {"tool": "a", "type": "child", "children": ["b"], "args": {"b": {"n": 1}}}
PARENT = {"tool": "a", "type": "parent", "children": ["b", "c"]}
ROUTED = {"tool": "a", "type": "conditional", "outputs": {"yes": "b"}}

CASES: tuple[tuple[list[dict[str, Any]], list[Call], str, str | None], ...] = (
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
def test_tools_in_view(given: list[dict[str, Any]], calls: list[Call], shown: str, forced: str | None) -> None:
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
    # Of two rules that give arguments the one that is judged first wins.
    twice = rules(CHILD, {**CHILD, "args": {"b": {"n": 2}}, "priority": 6})
    assert offer(twice, after(ran("a")), specs(*TOOLS)).prefill == {"b": {"n": 2}}


def test_what_is_due_is_told() -> None:
    given = rules({"tool": "a", "type": "periodic", "seconds": 120})
    assert offer(given, after(), specs("a")).notes == ("`a` is due in this turn: it should run every 2 minutes.",)
    assert offer(given, after(ran("a")), specs("a")).notes == ()


def test_operations_are_filtered() -> None:
    given = rules({"tool": "file", "type": "allowed_operations", "operations": ["read"]})
    file, other = spec("file", op={"enum": ["read", "save"]}), spec("other")
    shown = offer(given, after(tools=("file", "other")), [file, other]).tools
    assert shown[0].parameters["properties"]["op"]["enum"] == ["read"]  # type: ignore[index]  # JSON
    assert shown[1] is other
    none = rules({"tool": "file", "type": "allowed_operations", "operations": ["burn"]})
    assert [one.name for one in offer(none, after(tools=("file", "other")), [file, other]).tools] == ["other"]


def test_the_third_time_a_first_tool_is_passed_over_it_is_called() -> None:
    given = rules({**FIRST, "args": {"q": 1}})
    refused = [call("b", "denied", step=1), call("c", "denied", step=1), call("b", "denied", step=2)]
    assert added(given, after(), ["b"]) == ()
    assert added(given, after(*refused[:2]), ["b"]) == ()
    assert added(given, after(*refused), ["b"]) == (ForcedCall(tool="a", arguments={"q": 1}),)
    assert added(given, after(*refused), ["b", "a"]) == ()
    assert added(given, after(*refused), []) == ()
    assert added(given, after(*refused, call("a", "error", step=3, is_forced=True)), ["b"]) == ()
    either = rules({**FIRST, "tool": "gone", "alternatives": ["d"], "args": {"q": 1}})
    assert added(either, after(*refused), ["b"]) == (ForcedCall(tool="d"),)
