"""Each kind of rule, from its definition: how it is stored, what it says, what it means."""

from __future__ import annotations

from typing import Any

import pytest

from pattern_core.rules.facts import JudgedCall
from pattern_core.rules.kinds import KINDS
from pattern_core.rules.rule import RequestedCall, ToolRule, sentence
from pattern_core.rules.ruleset import RuleSet
from pattern_db.enums import EffectStatus, TrustLevel
from tests.pattern_core.rules.moments import after, call, ran, rules, spec, under, verdict

# Each kind as it is stored, with all its fields but the tool where it is `a`, and its line in the prompt.
OURS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"type": "continue_loop"}, "After `a` your turn continues."),
    (
        {"tool": "*", "type": "exit_loop", "priority": 0},
        "After any tool succeeded your turn ends, and calls that you put behind it are not run.",
    ),
    (
        {"type": "start_constraint", "args": {"q": [1]}, "alternatives": ["b"], "message": "First."},
        "In every turn call `a` or `b` first, before any other tool. First.",
    ),
    ({"type": "required_before_exit"}, "Call `a` before you end a turn."),
    (
        {"type": "required_before_exit_if", "condition": {"tool_not_called": "b"}},
        "Call `a` before you end a turn if `b` did not run.",
    ),
    (
        {"type": "requires_preceding", "tools": ["b", "web_*"]},
        "Call `a` only after `b`, `web_*` succeeded in the same turn.",
    ),
    (
        {"tool": "a*", "type": "requires_following", "tools": ["b"], "priority": 255},
        "Call any tool named like `a*` only before `b`, not after.",
    ),
    ({"type": "child", "children": ["b", "c"], "args": {"b": {"n": 1}}}, "Directly after `a` call one of `b`, `c`."),
    ({"type": "parent", "children": ["b"]}, "Call `b` only directly after `a`, and after it nothing else."),
    (
        {"type": "conditional", "outputs": {"yes": "b"}, "default": "c", "strict": True},
        "What `a` returns decides what you call next: “yes” to `b`, anything else to `c`.",
    ),
    (
        {"tool": "*", "type": "exclusive_groups", "groups": [["a", "b"], ["c", "d"]]},
        "In one turn use only one tool of each of these groups: `a`, `b`; `c`, `d`.",
    ),
    ({"tool": "*", "type": "max_calls", "count": 0}, "Call any tool together at most 0 times in a turn."),
    ({"type": "cooldown", "seconds": 0.5}, "Between two uses of `a` 0.5 seconds must pass."),
    ({"type": "periodic", "seconds": 3600}, "Call `a` every 1 hour; you are reminded when it is due."),
    (
        {"type": "requires_consent", "scope": "mail"},
        "A person must agree to each call of `a` (mail); you wait for the answer.",
    ),
    ({"type": "requires_trust", "levels": ["partner", "agent"]}, "Call `a` only if you act for a partner or agent."),
    ({"type": "allowed_operations", "operations": ["read"], "parameter": "mode"}, "With `a` you may only do: read."),
    ({"type": "needed"}, "`a` must stay available: other parts rely on it."),
)


def test_every_kind_is_here() -> None:
    assert {rule["type"] for rule, _ in OURS} == set(KINDS)


@pytest.mark.parametrize(("rule", "line"), OURS, ids=lambda one: one["type"] if isinstance(one, dict) else "")
def test_a_kind_is_stored_and_said(rule: dict[str, Any], line: str) -> None:
    stored = {"tool": "a", **rule}
    given = RuleSet.of([stored])
    assert given.to_json() == [stored]
    assert type(given.rules[0]) is KINDS[rule["type"]]
    assert given.lines == (line,)


def test_lines_stand_in_the_order_of_judging_and_equal_ones_once() -> None:
    lines = rules(*({"tool": "a", **rule} for rule, _ in OURS)).lines
    assert sorted(lines) == sorted(line for _, line in OURS)
    assert (lines[0], lines[-1]) == (OURS[6][1], OURS[1][1])
    group = {"tool": "a", "type": "exclusive_groups", "groups": [["a", "b"]]}
    assert rules(group, group).lines == (
        "In one turn use only one tool of each of these groups (this concerns `a`): `a`, `b`.",
    )


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
CASES: tuple[tuple[dict[str, Any], list[JudgedCall], str, str], ...] = (
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
    (FIRST, [call("a", "error")], "b", "must run first"),
    (FIRST, [call("a", "error", step=1), call("a", "error", step=2), call("a", "timeout", step=3)], "b", RUNS),
    (FIRST, [call("a", "error", is_forced=True)], "b", RUNS),
    ({**FIRST, "alternatives": ["c"]}, [ran("c")], "b", RUNS),
    ({**FIRST, "tool": "gone"}, [], "b", RUNS),
    (CHILD, [ran("a")], "d", "directly after `a` only `b`, `c`"),
    (CHILD, [call("a", "error")], "d", RUNS),
    (PARENT, [], "b", "only directly after `a`"),
    (PARENT, [ran("a")], "d", "directly after `a` only `b`"),
    (PARENT, [ran("a"), ran("c")], "b", "only directly after `a`"),
    (ROUTED, [ran("a", "yes")], "c", "only `b`"),
    (ROUTED, [ran("a", '{"message": true}')], "b", "only `c`"),
    (ROUTED, [ran("a", '{"message": "yes"}')], "c", "only `b`"),
    (ROUTED, [ran("a", "7.0")], "b", "only `d`"),
    (ROUTED, [ran("a", '"maybe"')], "c", RUNS),
    ({**ROUTED, "default": "d"}, [ran("a", "maybe")], "c", "only `d`"),
    ({**ROUTED, "strict": True}, [ran("a", "maybe")], "c", "only no tool"),
    (ROUTED, [ran("a", "yes"), ran("b")], "c", RUNS),
)


@pytest.mark.parametrize(("rule", "calls", "tool", "says"), CASES)
def test_a_rule_means_what_it_says(rule: dict[str, Any], calls: list[JudgedCall], tool: str, says: str) -> None:
    kind, text = verdict(rules(rule), after(*calls), tool)
    assert (kind, says in text or says == RUNS) == ("run" if says == RUNS else "refuse", True), text


def test_first_tools_are_one_choice_and_a_resting_one_is_not_waited_for() -> None:
    either = {**FIRST, "alternatives": ["b"]}
    third = {"tool": "c", "type": "start_constraint"}
    assert verdict(rules(either, third), after(), "d")[1] == "`a`, `b`, `c` must run first in a turn, before `d`."
    assert verdict(rules(either, third), after(ran("b")), "a")[1] == "`c` must run first in a turn, before `a`."
    assert verdict(rules(either, third), after(ran("b"), ran("c")), "d")[0] == "run"
    rest = {"tool": "a", "type": "cooldown", "seconds": 60}
    resting = after(now_ms=1_000, last_ms={"a": 0})
    assert verdict(rules(FIRST, rest), resting, "d")[0] == "run"
    assert verdict(rules(FIRST, rest), after(now_ms=61_000, last_ms={"a": 0}), "d")[0] == "refuse"
    assert verdict(rules(either, rest), resting, "d")[0] == "refuse"
    assert verdict(rules(either), after(tools=("d",)), "d")[0] == "run"


def test_a_cooldown_reaches_across_turns() -> None:
    given = rules({"tool": "a", "type": "cooldown", "seconds": 60})
    assert verdict(given, after(now_ms=100_000), "a")[0] == "run"
    rested = after(now_ms=100_000, last_ms={"a": 75_000, "b": 99_000})
    assert verdict(given, rested, "a") == ("refuse", "it rests after each use; call it again in 35 seconds.")
    assert verdict(given, rested, "b")[0] == "run"
    almost = after(now_ms=134_999, last_ms={"a": 75_000})
    assert verdict(given, almost, "a") == ("refuse", "it rests after each use; call it again in 1 second.")
    assert verdict(given, after(now_ms=135_000, last_ms={"a": 75_000}), "a")[0] == "run"
    assert verdict(given, after(ran("a", at_ms=30_000), now_ms=100_000), "a")[0] == "run"
    assert verdict(given, after(ran("a", at_ms=90_000), now_ms=100_000), "a")[0] == "refuse"
    assert verdict(given, after(call("a", "planned"), now_ms=100_000), "a")[0] == "refuse"
    assert verdict(given, after(call("a", "error", at_ms=99_000), now_ms=100_000), "a")[0] == "run"
    # A clock that was set back makes no rest longer than the rule says.
    assert "1 minute" in verdict(given, after(now_ms=1_000, last_ms={"a": 51_000}), "a")[1]
    assert verdict(given, after(now_ms=1_000, last_ms={"a": 75_000}), "a")[0] == "run"
    many = rules({"tool": "a*", "type": "cooldown", "seconds": 10})
    ahead = {"a": 90_000_000, "ab": 44_000}
    assert "in 4 seconds" in verdict(many, after(now_ms=50_000, last_ms=ahead), "a")[1]
    shared = rules({"tool": "web*", "type": "cooldown", "seconds": 60})
    assert verdict(shared, after(now_ms=100_000, last_ms={"web_fetch": 99_000}), "web_search")[0] == "refuse"


READ = {"tool": "file", "type": "allowed_operations", "operations": ["read", "append"]}


@pytest.mark.parametrize(
    ("schema", "left"),
    [
        ({"enum": ["read", "patch", "append"], "type": "string"}, {"enum": ["read", "append"], "type": "string"}),
        ({"enum": ["read", "patch"], "default": "patch"}, {"enum": ["read"]}),
        ({"enum": ["read", "patch"], "default": "read"}, {"enum": ["read"], "default": "read"}),
        ({"const": "read"}, {"enum": ["read"]}),
        ({"type": "string"}, {"type": "string", "enum": ["read", "append"]}),
        (True, {"enum": ["read", "append"]}),
        ({"enum": ["patch"]}, None),
    ],
)
def test_only_what_is_allowed_is_shown(schema: dict[str, Any] | bool, left: dict[str, Any] | None) -> None:
    given = spec("file", path={"type": "string"}, op=schema)
    shown = under(rules(READ), after(tools=("file",))).offer([given]).tools
    assert len(shown) == (left is not None)
    for found in shown:
        assert found.parameters == {"type": "object", "properties": {"path": {"type": "string"}, "op": left}}
        assert given.parameters["properties"]["op"] == schema  # type: ignore[index]  # JSON; the tool is as it was


def test_tools_without_operations_stay_as_they_are() -> None:
    plain, other = spec("file", path={"type": "string"}), spec("web", op={"enum": ["fetch"]})
    assert under(rules(READ), after(tools=("file", "web"))).offer([plain, other]).tools == (plain, other)


FILE = {"properties": {"op": {"enum": ["read", "append", "patch"], "default": "patch"}, "path": {"type": "string"}}}


@pytest.mark.parametrize(
    ("arguments", "parameters", "named", "is_refused"),
    [
        ({"op": "read"}, FILE, None, False),
        ({"op": "patch"}, FILE, None, True),
        ({}, FILE, None, True),  # the default is what it would do
        ({"op": "patch"}, {"properties": {"path": {}}}, None, False),
        ({"operation": "save", "command": "read"}, {"properties": {"command": {}, "operation": {}}}, None, True),
        ({"command": "read"}, {"properties": {"command": {}}}, None, False),
        ({}, {"properties": {"op": {}}}, None, False),
        ({"op": "patch"}, {"properties": {"op": True}}, None, True),
        ({"op": ["read"]}, FILE, None, True),
        ({"op": "patch"}, FILE, "path", False),
        ({"op": "read", "path": "patch"}, FILE, "path", True),
        ({"mode": "patch"}, FILE, "mode", False),  # no such argument
    ],
)
def test_operations(arguments: dict[str, Any], parameters: dict[str, Any], named: str | None, is_refused: bool) -> None:
    asked = RequestedCall(tool="file", arguments=arguments, parameters=parameters)
    found = under(rules({**READ, "parameter": named}), after()).check(asked)
    assert found.kind == ("refuse" if is_refused else "run")
    assert not is_refused or "allowed are: read, append" in found.text


@pytest.mark.parametrize("status", list(EffectStatus))
def test_every_status_is_judged(status: EffectStatus) -> None:
    used = {"planned", "awaiting_approval", "started", "done", "timeout", "in_doubt"}
    given = rules({"tool": "a", "type": "max_calls", "count": 1})
    assert (verdict(given, after(call("a", status.value)), "a")[0] == "refuse") is (status.value in used)


@pytest.mark.parametrize(
    ("left_out", "named"),
    [("name", "name"), ("in_words", "in_words"), ("objection", "any of judge, objection, narrow, lack, show, precede")],
)
def test_a_kind_that_leaves_something_out_cannot_be_defined(left_out: str, named: str) -> None:
    body = {"name": "forgetful", "in_words": sentence("Forget {tool}."), "objection": lambda *_: None}
    del body[left_out]
    with pytest.raises(TypeError, match=f"Forgetful does not define {named}"):
        type("Forgetful", (ToolRule,), body)


def test_rules_are_judged_by_rank() -> None:
    given = rules(
        *({"tool": tool, "type": "max_calls", "count": number} for number, tool in enumerate(["*", "a*", "ab", "c"])),
        {"tool": "*", "type": "max_calls", "count": 9, "priority": 6},
        {"tool": "a", "type": "max_calls", "count": 8, "priority": 0},
    )
    assert [rule.to_json()["count"] for rule in given.ordered] == [9, 2, 3, 1, 0, 8]


@pytest.mark.parametrize("trust", TrustLevel)
def test_trust_is_required_and_nobody_known_has_none(trust: TrustLevel) -> None:
    given = rules({"tool": "a", "type": "requires_trust"}, {"tool": "b", "type": "requires_trust", "levels": ["agent"]})
    assert (verdict(given, after(trust=trust), "a")[0] == "run") == (trust is TrustLevel.PARTNER)
    assert (verdict(given, after(trust=trust), "b")[0] == "run") == (trust is TrustLevel.AGENT)
    assert verdict(given, after(), "a") == ("refuse", "it needs the trust level partner, and this turn has source.")
    assert verdict(given, after(), "c")[0] == "run"
