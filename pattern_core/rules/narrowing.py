"""Which tools the rules leave for the next call, each rule by itself. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pattern_core.rules.rule import Child, Conditional, MaxCalls, Parent, Rule, StartConstraint, covers
from pattern_core.rules.ruleset import RuleSet
from pattern_core.rules.spent import is_spent, used
from pattern_core.rules.state import REFUSED, Call, CallState

START_ATTEMPTS = 3  # decisions that may pass a first tool over, or fail with it, before it counts as tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowed:
    """What one rule leaves: the names of the enabled tools that may be called, and whether one of them must be;
    `prefill` are arguments per tool that override the model's.
    """

    rule: Rule
    tools: frozenset[str]
    is_forced: bool = False
    prefill: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def narrowings(rules: RuleSet, state: CallState) -> Iterator[Narrowed]:
    """What each rule that restricts the next call leaves, in the order of judging; the first tools all as one."""
    starts = waiting_starts(rules, state)
    for rule in rules.ordered:
        narrowed = _of_starts(rule, starts, state) if isinstance(rule, StartConstraint) else _of_rule(rule, state)
        if narrowed is not None:
            yield narrowed


def waiting_starts(rules: RuleSet, state: CallState) -> list[StartConstraint]:
    """The rules for first tools that are still to be met, and can be."""
    return [rule for rule in rules.of_kind(StartConstraint) if not _has_started(rules, rule, state)]


def passed_over(rule: StartConstraint, calls: Collection[Call]) -> int:
    """How many decisions called something else and were refused, while the rule was waiting."""
    return len({call.step for call in calls if call.status == REFUSED and call.tool not in rule.starters})


def _has_started(rules: RuleSet, rule: StartConstraint, state: CallState) -> bool:
    """Whether one of the tools ran, or was tried often enough; where none can be called, nothing waits for it."""
    calls = [call for call in state.calls if call.tool in rule.starters]
    if any(call.ran or (call.is_forced and call.has_ended) for call in calls):
        return True
    if len({call.step for call in calls if call.has_ended}) >= START_ATTEMPTS:
        return True
    return starter(rules, rule, state) is None


def starter(rules: RuleSet, rule: StartConstraint, state: CallState) -> str | None:
    """The first of the rule's tools that can be called, None if none can."""
    return next((tool for tool in rule.starters if tool in state.tools and not is_spent(rules, state, tool)), None)


def _of_starts(rule: StartConstraint, starts: list[StartConstraint], state: CallState) -> Narrowed | None:
    if not starts or rule is not starts[0]:
        return None
    return Narrowed(
        rule=rule,
        tools=_enabled({tool for start in starts for tool in start.starters}, state),
        is_forced=True,
        prefill={start.tool: start.args for start in starts if start.args},
    )


def _of_rule(rule: Rule, state: CallState) -> Narrowed | None:
    last = state.last
    is_next = last is not None and rule.covers(last.tool)
    match rule:
        case Child() if is_next:
            return Narrowed(rule=rule, tools=_enabled(rule.children, state), is_forced=True, prefill=rule.args)
        case Parent():
            children = _enabled(rule.children, state)
            return Narrowed(
                rule=rule, tools=children if is_next else frozenset(state.tools) - children, is_forced=is_next
            )
        case Conditional() if is_next and last is not None:
            return _of_output(rule, last, state)
        case MaxCalls() if used(rule, state.calls) >= rule.count:
            return Narrowed(rule=rule, tools=frozenset(tool for tool in state.tools if not rule.covers(tool)))
    return None


def _of_output(rule: Conditional, last: Call, state: CallState) -> Narrowed | None:
    output = _output(last.result)
    following = next((tool for value, tool in rule.outputs.items() if _matches(value, output)), rule.default)
    if following is not None:
        return Narrowed(rule=rule, tools=_enabled({following}, state), is_forced=True)
    return Narrowed(rule=rule, tools=frozenset()) if rule.strict else None


def _output(result: str) -> object:
    """What a result says: its JSON, of an object the `message`; a text that is no JSON as it is."""
    try:
        value: object = json.loads(result)
    except (ValueError, RecursionError):
        return result.strip()
    return value.get("message", value) if isinstance(value, dict) else value


def _matches(wanted: str, output: object) -> bool:
    if isinstance(output, bool):
        return wanted.strip().lower() == str(output).lower()
    if isinstance(output, int | float):
        try:
            return float(wanted) == output
        except ValueError:
            return False
    return isinstance(output, str) and wanted == output


def _enabled(names: Collection[str], state: CallState) -> frozenset[str]:
    return frozenset(tool for tool in state.tools if any(covers(name, tool) for name in names))
