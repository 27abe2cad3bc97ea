"""What earlier calls have used up: numbers of calls, groups, rests, and what is too late. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pattern_core.rules.rule import Cooldown, ExclusiveGroups, MaxCalls, RequiresFollowing, covers
from pattern_core.rules.ruleset import RuleSet
from pattern_core.rules.state import OPEN, USED, Call, CallState


def used(rule: MaxCalls, calls: Collection[Call]) -> int:
    """How many calls count against the rule: what ran, may have run, or is about to."""
    return sum(rule.covers(call.tool) and call.status in USED for call in calls)


def rest_s(rule: Cooldown, state: CallState) -> float:
    """Seconds for which the rule still refuses, 0 or less if it does not. A call that is under way counts from now."""
    starts = [at for tool, at in state.last_ms.items() if rule.covers(tool)]
    for call in state.calls:
        if rule.covers(call.tool) and (call.ran or call.status in OPEN):
            starts.append(state.now_ms if call.at_ms is None else call.at_ms)
    passed_s = [(state.now_ms - at) / 1000 for at in starts]
    # A start that lies further ahead than a rest is long was told by a clock that has been set back since.
    known_s = [one for one in passed_s if one > -rule.seconds]
    return rule.seconds - max(min(known_s), 0.0) if known_s else 0.0


def chosen(rule: ExclusiveGroups, tool: str, calls: Sequence[Call]) -> tuple[tuple[str, ...], str] | None:
    """The group that keeps the tool out, and the other one of it that was used; None if nothing does."""
    for group in rule.groups:
        if not any(covers(name, tool) for name in group):
            continue
        for call in calls:
            if call.tool != tool and call.status in USED and any(covers(name, call.tool) for name in group):
                return group, call.tool
    return None


def ran(name: str, calls: Sequence[Call]) -> bool:
    """Whether a tool of this name or pattern ran."""
    return any(call.ran and covers(name, call.tool) for call in calls)


def is_spent(rules: RuleSet, state: CallState, tool: str) -> bool:
    """Whether the tool cannot be called any more for now, whatever else is called before it."""
    for rule in rules.ordered:
        if not rule.covers(tool):
            continue
        match rule:
            case MaxCalls() if used(rule, state.calls) >= rule.count:
                return True
            case RequiresFollowing() if any(ran(name, state.calls) for name in rule.tools):
                return True
            case ExclusiveGroups() if chosen(rule, tool, state.calls) is not None:
                return True
            case Cooldown() if rest_s(rule, state) > 0:
                return True
    return False
