"""The rules in plain words, for the part of the prompt that stays the same. Pure."""

from __future__ import annotations

from pattern_core.rules import conditions
from pattern_core.rules.durations import in_words, times
from pattern_core.rules.rule import (
    EVERY,
    AllowedOperations,
    Child,
    Conditional,
    ContinueLoop,
    Cooldown,
    ExclusiveGroups,
    ExitLoop,
    MaxCalls,
    Needed,
    Parent,
    Periodic,
    RequiredBeforeExit,
    RequiresConsent,
    RequiresFollowing,
    RequiresPreceding,
    Rule,
    StartConstraint,
    is_pattern,
    named,
)
from pattern_core.rules.ruleset import RuleSet


def words(rules: RuleSet) -> list[str]:
    """One line per rule, in the order of judging. They depend on nothing but the rules."""
    lines = [
        line if rule.message is None else f"{line} {rule.message}" for rule in rules.ordered for line in [_line(rule)]
    ]
    return list(dict.fromkeys(lines))


def _line(rule: Rule) -> str:
    tool = _name(rule.tool)
    match rule:
        case ContinueLoop():
            return f"After {tool} your turn goes on."
        case ExitLoop():
            return f"After {tool} succeeded your turn ends, and calls that you put behind it are not run."
        case StartConstraint():
            first = " or ".join(_name(one) for one in rule.starters)
            return f"In every turn call {first} first, before any other tool."
        case RequiredBeforeExit(condition=None):
            return f"Call {tool} before you end a turn."
        case RequiredBeforeExit(condition=condition) if condition is not None:
            return f"Call {tool} before you end a turn if {conditions.in_words(condition)}."
        case RequiresPreceding():
            return f"Call {tool} only after {named(rule.tools)} succeeded in the same turn."
        case RequiresFollowing():
            return f"Call {tool} only before {named(rule.tools)}, not after."
        case Child():
            return f"Directly after {tool} call {_one_of(rule.children)}."
        case Parent():
            return f"Call {named(rule.children)} only directly after {tool}, and after it nothing else."
    return _limit_line(rule, tool)


def _limit_line(rule: Rule, tool: str) -> str:
    match rule:
        case Conditional():
            ways = ", ".join(f"“{output}” to `{following}`" for output, following in rule.outputs.items())
            other = f", anything else to `{rule.default}`" if rule.default else ""
            return f"What {tool} returns decides what you call next: {ways}{other}."
        case ExclusiveGroups():
            groups = "; ".join(named(group) for group in rule.groups)
            among = "" if rule.tool == EVERY else f" (this concerns {tool})"
            return f"In one turn use only one tool of each of these groups{among}: {groups}."
        case MaxCalls():
            together = " together" if is_pattern(rule.tool) else ""
            return f"Call {tool}{together} at most {times(rule.count)} in a turn."
        case Cooldown():
            return f"Between two uses of {tool} {in_words(rule.seconds)} must pass."
        case Periodic():
            return f"Call {tool} every {in_words(rule.seconds)}; you are told when it is due."
        case RequiresConsent():
            scope = f" ({rule.scope})" if rule.scope else ""
            return f"A person must agree to each call of {tool}{scope}; you wait for the answer."
        case AllowedOperations():
            return f"With {tool} you may only do: {', '.join(rule.operations)}."
        case Needed():
            return f"{tool} must stay available: other parts rely on it."
    raise AssertionError(type(rule))


def _name(tool: str) -> str:
    if tool == EVERY:
        return "any tool"
    return f"any tool named like `{tool}`" if is_pattern(tool) else f"`{tool}`"


def _one_of(tools: tuple[str, ...]) -> str:
    return named(tools) if len(tools) == 1 else f"one of {named(tools)}"
