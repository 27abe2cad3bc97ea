"""An agent's rules: as they are stored, by us and by others, and what in them contradicts or can never be met."""

from __future__ import annotations

from typing import Any

import pytest

from pattern_core.errors import InvalidInput
from pattern_core.rules.kinds import KINDS
from pattern_core.rules.ruleset import OTHER_NAMES, RULES_MAX, RuleSet, warnings_of
from tests.pattern_core.rules.moments import rules


def test_defaults_are_not_stored() -> None:
    assert RuleSet.of(None) == RuleSet.of([]) == RuleSet.of({}) == RuleSet()
    assert RuleSet().to_json() == []
    stored = [{"tool": "a", "type": "conditional", "outputs": {"x": "b"}, "strict": False, "priority": 5}]
    assert RuleSet.of(stored).to_json() == [{"tool": "a", "type": "conditional", "outputs": {"x": "b"}}]
    assert RuleSet.of([{"type": "exclusive_groups", "groups": [["a", "b"]]}]).to_json()[0]["tool"] == "*"


def test_no_name_means_two_kinds() -> None:
    assert len(OTHER_NAMES) == sum(1 + len(kind.aliases) for kind in KINDS.values())
    assert all(OTHER_NAMES[name] == name for name in KINDS)


# What others store of a rule for the tool `a`, and the same in our format.
OTHERS: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    # The Rust Pattern: its list and its TOML.
    (
        {"rule_type": {"type": "MaxCalls", "value": 3}, "conditions": [], "priority": 5, "metadata": None},
        {"type": "max_calls", "count": 3},
    ),
    ({"rule_type": {"MaxCalls": 3}}, {"type": "max_calls", "count": 3}),
    ({"rule_type": "ExitLoop", "priority": 8}, {"type": "exit_loop", "priority": 8}),
    (
        {"rule_type": {"type": "RequiresPrecedingTools"}, "conditions": ["b"]},
        {"type": "requires_preceding", "tools": ["b"]},
    ),
    (
        {"rule_type": {"type": "RequiresFollowingTools"}, "conditions": ["b"]},
        {"type": "requires_following", "tools": ["b"]},
    ),
    (
        {"rule_type": {"type": "ExclusiveGroups", "value": [["a", "b"]]}},
        {"tool": "*", "type": "exclusive_groups", "groups": [["a", "b"]]},
    ),
    (
        {"rule_type": {"type": "Cooldown", "value": {"secs": 60, "nanos": 500_000_000}}},
        {"type": "cooldown", "seconds": 60.5},
    ),
    ({"rule_type": {"type": "RequiresConsent", "value": {"scope": "x"}}}, {"type": "requires_consent", "scope": "x"}),
    (
        {"rule_type": {"type": "AllowedOperations", "value": ["load"]}},
        {"type": "allowed_operations", "operations": ["load"]},
    ),
    (
        {"rule_type": {"type": "RequiredBeforeExitIf"}, "conditions": ["b", "c"]},
        {"type": "required_before_exit_if", "condition": {"all": [{"tool_called": "b"}, {"tool_called": "c"}]}},
    ),
    # Letta.
    ({"type": "run_first", "args": {"q": 1}}, {"type": "start_constraint", "args": {"q": 1}}),
    ({"type": "InitToolRule"}, {"type": "start_constraint"}),
    ({"type": "exit_loop", "prompt_template": None}, {"type": "exit_loop"}),
    ({"type": "TerminalToolRule"}, {"type": "exit_loop"}),
    ({"type": "ContinueToolRule"}, {"type": "continue_loop"}),
    (
        {"type": "constrain_child_tools", "children": ["b"], "child_arg_nodes": [{"name": "b", "args": {"n": 1}}]},
        {"type": "child", "children": ["b"], "args": {"b": {"n": 1}}},
    ),
    ({"type": "ChildToolRule", "children": ["b"], "child_arg_nodes": None}, {"type": "child", "children": ["b"]}),
    ({"type": "parent_last_tool", "children": ["b"]}, {"type": "parent", "children": ["b"]}),
    (
        {
            "type": "conditional",
            "child_output_mapping": {"true": "b"},
            "default_child": "c",
            "require_output_mapping": True,
        },
        {"type": "conditional", "outputs": {"true": "b"}, "default": "c", "strict": True},
    ),
    ({"type": "max_count_per_step", "max_count_limit": 2}, {"type": "max_calls", "count": 2}),
    ({"type": "MaxCountPerStepToolRule", "max_count": 2}, {"type": "max_calls", "count": 2}),
    ({"type": "required_before_exit"}, {"type": "required_before_exit"}),
    ({"type": "requires_approval"}, {"type": "requires_consent"}),
)


@pytest.mark.parametrize(("theirs", "ours"), OTHERS)
def test_formats_of_others(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    assert RuleSet.of([{"tool_name": "a", **theirs}]).to_json() == [{"tool": "a", **ours}]


def test_maps_of_the_rust_command_line() -> None:
    stored = {"a": [{"type": "start-constraint"}, {"type": "cooldown", "params": "60", "conditions": []}], "b": []}
    assert RuleSet.of({**stored, "c": {"type": "max-calls", "value": 5}}).to_json() == [
        {"tool": "a", "type": "start_constraint"},
        {"tool": "a", "type": "cooldown", "seconds": 60},
        {"tool": "c", "type": "max_calls", "count": 5},
    ]


def test_of_lettas_first_tools_any_will_do() -> None:
    stored = [{"tool_name": name, "type": "run_first"} for name in ("a", "b")]
    ours = RuleSet.of([*stored, {"tool": "c", "type": "start_constraint"}]).to_json()
    assert [one.get("alternatives") for one in ours] == [["b"], ["a"], None]


def test_an_older_lettas_parents_stand_at_the_child() -> None:
    ours = RuleSet.of([{"tool_name": "c", "type": "ParentToolRule", "parents": ["a", "b"]}]).to_json()
    assert ours == [{"tool": tool, "type": "parent", "children": ["c"]} for tool in ("a", "b")]


MISFITS: tuple[tuple[Any, str], ...] = (
    (3, "a list of rules"),
    ("max_calls", "a list of rules"),
    ({"tool": "web", "type": "max_calls", "count": 3}, "put this one rule into brackets"),
    ([1], "rule 1: a rule is an object"),
    ({"a": "x"}, "rule 1: a rule is an object"),
    ([{"tool": "a"}], "rule 1: it has no `type`"),
    ([{"type": "exit_loop"}], "`exit_loop.tool` is missing"),
    ([{"tool": "a", "type": "exit_loop"}, {"tool": "a", "type": "jump"}], "rule 2: there is no type 'jump'"),
    ({"a": {"type": "max_calls"}}, "`max_calls.count` is missing"),
    ({"a": {"type": "max_calls", "count": -1}}, "`max_calls.count` must be at least 0"),
    ({"a": {"type": "max_calls", "count": True}}, "must be a whole number"),
    ({"a": {"type": "max_calls", "count": 1.5}}, "must be a whole number"),
    (
        {"a": {"type": "max_calls", "count": 3, "max": 4}},
        "`max_calls.max` is not known (known are: `tool`, `type`, `co",
    ),
    ({"a": {"type": "exit_loop", "value": 3}}, "`exit_loop.value` is not known"),
    ({"a": {"type": "cooldown", "seconds": 0}}, "`cooldown.seconds` must be more than 0"),
    ({"a": {"type": "cooldown", "seconds": float("nan")}}, "`cooldown.seconds` must be more than 0"),
    ({"a b": {"type": "exit_loop"}}, "not a tool's name"),
    ({"a*": {"type": "required_before_exit"}}, "here one must be named"),
    ({"a": {"type": "child", "children": ["b"], "args": {"c": {}}}}, "`args` names c"),
    ({"a": {"type": "child", "children": ["b"], "args": {"b": 1}}}, "`child.args.b` must be an object"),
    ([{"type": "exclusive_groups", "groups": [["a"]]}], "two different tools"),
    ([{"type": "exclusive_groups", "groups": [["a", "a"]]}], "two different tools"),
    ({"a": {"type": "required_before_exit_if", "condition": "x"}}, "_if.condition`: a condition is"),
    ({"a": {"type": "exit_loop", "priority": 256}}, "`exit_loop.priority` must be at most 255"),
    ({"a": {"type": "exit_loop", "message": 3}}, "`exit_loop.message` must be text"),
    ([{"tool": "a", "type": "exit_loop"}] * (RULES_MAX + 1), f"at most {RULES_MAX}"),
)


@pytest.mark.parametrize(("stored", "says"), MISFITS)
def test_a_refusal_says_what_is_wrong(stored: Any, says: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        RuleSet.of(stored)
    assert says in refused.value.message


FIRST = {"tool": "a", "type": "start_constraint"}
REQUIRED = {"tool": "b", "type": "required_before_exit"}
CHILD = {"tool": "a", "type": "child", "children": ["b"]}
EXIT = {"tool": "a", "type": "exit_loop"}
STAY = {"tool": "a", "type": "continue_loop"}


def ordered(pairs: str, kind: str = "requires_preceding") -> list[dict[str, Any]]:
    """Rules in which the first tool of each pair waits for the second."""
    return [{"tool": pair[0], "type": kind, "tools": [pair[1]]} for pair in pairs.split()]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([FIRST, *ordered("ab")], "must run first, but"),
        (ordered("aa"), "only after itself"),
        (ordered("ab ba"), "`a`, `b` wait for each other"),
        ([*ordered("ab"), *ordered("ab", "requires_following")], "it never runs"),
        (ordered("ab bc ca da"), "`a`, `b`, `c`, `d` wait for each other"),
        ([FIRST, {"tool": "b", "type": "parent", "children": ["a"]}], "only directly after `b`"),
        ([CHILD, EXIT], "so `b` never can follow it"),
        ([CHILD, {**CHILD, "children": ["c"]}], "both `b` and `c` must follow"),
        ([CHILD, FIRST, {**FIRST, "tool": "c"}], "`a` and `c` must run first, but"),
        ([REQUIRED, {"tool": "*", "type": "max_calls", "count": 0}], "allows it no call"),
        ([EXIT, STAY], "continue_loop counts"),
        ([{**EXIT, "priority": 9}, STAY], "exit_loop counts"),
        ([FIRST, REQUIRED, {"type": "exclusive_groups", "groups": [["a", "b"]]}], "must both run"),
        ([FIRST, {"type": "exclusive_groups", "groups": [["a", "c"]]}], "`a` always runs first, so `c`"),
        (
            [{"tool": "a", "type": "periodic", "seconds": 5}, {"tool": "*", "type": "cooldown", "seconds": 9}],
            "rests for 9 s",
        ),
        ([{"tool": "a", "type": "allowed_operations", "operations": [one]} for one in "xy"], "no operation in common"),
    ],
)
def test_contradictions_are_warned_of(given: list[dict[str, Any]], says: str) -> None:
    warnings = rules(*given).warnings()
    assert any(says in one for one in warnings), warnings
    assert all(rules(one).warnings() == () for one in given if "itself" not in says)


def test_what_can_be_met_is_no_contradiction() -> None:
    assert rules(REQUIRED, {"tool": "*", "type": "max_calls", "count": 1}).warnings() == ()
    assert rules({**CHILD, "children": ["b*"]}, {**CHILD, "children": ["c"]}).warnings() == ()
    assert rules(CHILD, {**CHILD, "tool": "c", "children": ["d"]}).warnings() == ()
    assert rules(*({"tool": "a", "type": kind, "seconds": 5} for kind in ("periodic", "cooldown"))).warnings() == ()


def test_tools_that_wait_for_each_other_are_named_once() -> None:
    assert rules(*ordered("ab ba cc")).warnings() == (
        "`c` may run only after itself, so it never runs",
        "`a`, `b` wait for each other, so none of them ever runs",
    )


def test_rules_about_tools_that_are_not_there() -> None:
    given = rules(FIRST, *ordered("bx"))
    assert given.warnings(("b",)) == (
        "the rule start_constraint is about `a`, which is not enabled",
        "`b` may run only after `x`, which is not enabled: it never runs",
    )


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({**CHILD, "children": ["x", "b*", "y"]}, "child of `a` names `x`, `y`, which are not enabled"),
        ({"tool": "a", "type": "parent", "children": ["x"]}, "parent of `a` names `x`, which is not enabled"),
        ({"tool": "a", "type": "conditional", "outputs": {"1": "b"}, "default": "x"}, "names `x`"),
        ({"tool": "a", "type": "start_constraint", "alternatives": ["x"]}, "names `x`"),
        (
            {
                "tool": "a",
                "type": "required_before_exit_if",
                "condition": {"all": [{"not": {"tool_called": "x"}}, {"result_contains": "y"}]},
            },
            "required_before_exit_if of `a` names `x`, which is not enabled",
        ),
    ],
)
def test_rules_that_name_tools_that_are_not_there(rule: dict[str, Any], says: str) -> None:
    [warning] = rules(rule).warnings(("a", "b"))
    assert says in warning


def test_tools_of_a_server_are_enabled_with_it() -> None:
    given = rules({"tool": "git__log", "type": "child", "children": ["git__show"]})
    assert given.warnings(("git__*",)) == given.warnings(("git__log", "git__show")) == ()
    assert len(given.warnings(("hub__*",))) == 1


def test_what_an_agent_must_have_and_whose_past_matters() -> None:
    needed = rules({"tool": "calendar", "type": "needed"}, {"tool": "git__log", "type": "needed"})
    needed.check_enabled(("git__*", "calendar", "x"))
    with pytest.raises(InvalidInput, match="needs calendar: add it"):
        needed.check_enabled(("git__log",))
    timed = rules(
        {"tool": "web*", "type": "cooldown", "seconds": 5},
        {"tool": "diary", "type": "periodic", "seconds": 5},
        {"tool": "x", "type": "max_calls", "count": 1},
    )
    assert timed.timed(("x", "web_fetch", "diary", "web")) == ("web_fetch", "diary", "web")


def test_stored_rules_that_cannot_be_read_are_warned_of() -> None:
    assert warnings_of(None, ("a",)) == warnings_of([FIRST], ("a",)) == ()
    [warning] = warnings_of([FIRST, {"type": "sing"}], ("a",))
    assert warning.startswith("tool_rules, rule 2: there is no type 'sing'")
