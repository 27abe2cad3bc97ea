"""Why a call may not run: each rule by itself. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pattern_core.rules import operations
from pattern_core.rules.durations import in_words, times
from pattern_core.rules.narrowing import Narrowed, narrowings
from pattern_core.rules.rule import (
    EVERY,
    AllowedOperations,
    Cooldown,
    ExclusiveGroups,
    MaxCalls,
    Parent,
    RequiresFollowing,
    RequiresPreceding,
    Rule,
    StartConstraint,
    named,
)
from pattern_core.rules.ruleset import RuleSet
from pattern_core.rules.spent import chosen, ran, rest_s
from pattern_core.rules.state import CallState


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A call to judge: the tool's name, its arguments, and the JSON Schema of the tool's parameters."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)


def refusals(rules: RuleSet, state: CallState, asked: Asked) -> Iterator[tuple[Rule, str]]:
    """Each rule that refuses a call with why, in the order of judging."""
    narrowed = {id(one.rule): one for one in narrowings(rules, state)}
    for rule in rules.ordered:
        if id(rule) in narrowed and asked.tool not in narrowed[id(rule)].tools:
            yield rule, _narrowed_text(narrowed[id(rule)], asked.tool, state)
        text = _refusal(rule, state, asked) if rule.covers(asked.tool) else None
        if text is not None:
            yield rule, text


def _refusal(rule: Rule, state: CallState, asked: Asked) -> str | None:
    match rule:
        case RequiresPreceding():
            missing = [name for name in rule.tools if not ran(name, state.calls)]
            return f"{named(missing)} must run first." if missing else None
        case RequiresFollowing():
            there = [name for name in rule.tools if ran(name, state.calls)]
            return f"it belongs before {named(there)}, which ran already in this turn." if there else None
        case ExclusiveGroups():
            taken = chosen(rule, asked.tool, state.calls)
            return None if taken is None else f"of {named(taken[0])} only one is used in a turn, and `{taken[1]}` was."
        case Cooldown():
            left_s = rest_s(rule, state)
            return f"it rests after each use; call it again in {in_words(math.ceil(left_s))}." if left_s > 0 else None
        case AllowedOperations():
            operation = operations.misfit(rule, asked.arguments, asked.parameters)
            allowed = ", ".join(rule.operations)
            return None if operation is None else f"{operation!r} is not allowed; allowed are: {allowed}."
    return None


def _narrowed_text(narrowed: Narrowed, tool: str, state: CallState) -> str:
    there = named(sorted(narrowed.tools)) or "no tool"
    match narrowed.rule:
        case StartConstraint():
            return f"{there} must run first in a turn, before `{tool}`."
        case MaxCalls(count=count) as rule:
            what = "tools run" if rule.tool == EVERY else f"`{rule.tool}` runs"
            return f"{what} at most {times(count)} in a turn."
        case Parent() as rule if state.last is None or not rule.covers(state.last.tool):
            return f"it may be called only directly after `{rule.tool}`."
        case rule:
            return f"directly after `{state.last.tool if state.last else rule.tool}` only {there} may be called."
