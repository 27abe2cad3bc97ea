"""What in an agent's rules contradicts or can never be met, a sentence each. Pure.

What a pattern means depends on the agent's tools, so most sentences are about rules that name the same tool.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import TypeVar

from pattern_core.rules import kinds
from pattern_core.rules.fields import FORMS, covers, covers_any, is_pattern, named
from pattern_core.rules.rule import ToolRule, fields_of

R = TypeVar("R", bound=ToolRule)


def find(rules: Sequence[ToolRule], enabled: Collection[str]) -> Iterator[str]:
    """Yield what contradicts in rules that are in the order of judging; with `enabled`, also what they say of tools
    that the agent does not have.
    """
    firsts = list(of_kind(rules, kinds.StartConstraint))
    starters = {tool for rule in firsts for tool in rule.starters}
    starts = {rule.tool for rule in firsts if not rule.alternatives}
    required = sorted(starts | {rule.tool for rule in of_kind(rules, kinds.RequiredBeforeExit)})
    yield from _of_order(rules, starters)
    yield from _of_limits(rules, required)
    yield from _of_next(rules, starts)
    yield from _of_groups(rules, starters, required)
    for due in of_kind(rules, kinds.Periodic):
        for rest in of_kind(rules, kinds.Cooldown, due.tool):
            if rest.seconds > due.seconds:
                yield f"`{due.tool}` should run every {due.seconds:g} s, but rests for {rest.seconds:g} s"
    if enabled:
        yield from _of_absent(rules, enabled)


def of_kind(rules: Iterable[ToolRule], kind: type[R], tool: str | None = None) -> Iterator[R]:
    """Yield the rules of a kind, in their order; with `tool`, those about that tool."""
    return (rule for rule in rules if isinstance(rule, kind) and (tool is None or rule.covers(tool)))


def _of_order(rules: Sequence[ToolRule], starters: set[str]) -> Iterator[str]:
    """Yield what waits for itself, or for what comes later."""
    waits: dict[str, set[str]] = {}
    for before in of_kind(rules, kinds.RequiresPreceding):
        waits.setdefault(before.tool, set()).update(before.tools)
        if before.tool in starters:
            yield f"`{before.tool}` must run first, but may run only after {named(before.tools)}"
        for late in of_kind(rules, kinds.RequiresFollowing, before.tool):
            if both := sorted({*before.tools} & {*late.tools}):
                yield f"`{before.tool}` may run only after {named(both)}, and only before it: it never runs"
    for above in of_kind(rules, kinds.Parent):
        for tool in sorted(starters & {*above.children}):
            yield f"`{tool}` must run first, but may run only directly after `{above.tool}`"
    stuck = _stuck(waits)
    for tool in stuck:
        if tool in waits[tool]:
            yield f"`{tool}` may run only after itself, so it never runs"
    if others := [tool for tool in stuck if tool not in waits[tool]]:
        yield f"{named(others)} wait for each other, so none of them ever runs"


def _stuck(waits: Mapping[str, Collection[str]]) -> list[str]:
    """Return the tools that wait in a circle, or for one that does."""
    left = {tool: {*names} & {*waits} for tool, names in waits.items()}
    while free := {tool for tool, names in left.items() if not names}:
        left = {tool: names - free for tool, names in left.items() if names}
    return sorted(left)


def _of_limits(rules: Sequence[ToolRule], required: Sequence[str]) -> Iterator[str]:
    """Yield what must run and may not, and what both ends the turn and continues it."""
    for limit in of_kind(rules, kinds.MaxCalls):
        for tool in required:
            if limit.count == 0 and limit.covers(tool):
                yield f"`{tool}` must run, but max_calls allows it no call"
    operations: dict[str, list[set[str]]] = {}
    for allowed in of_kind(rules, kinds.AllowedOperations):
        operations.setdefault(allowed.tool, []).append({*allowed.operations})
    for tool, sets in sorted(operations.items()):
        if not set.intersection(*sets):
            yield f"the rules allowed_operations of `{tool}` have no operation in common, so it never runs"
    for leave in of_kind(rules, kinds.ExitLoop):
        for stay in of_kind(rules, kinds.ContinueLoop):
            if leave.tool == stay.tool:
                winner = leave if leave.rank < stay.rank else stay
                yield f"`{leave.tool}` both ends the turn and goes on; {winner.name} counts"


def _of_next(rules: Sequence[ToolRule], starts: set[str]) -> Iterator[str]:
    """Yield what must come directly after a tool, and cannot."""
    children = list(of_kind(rules, kinds.Child))
    exact = [rule for rule in children if not any(map(is_pattern, rule.children))]
    for first, second in combinations(exact, 2):
        if first.tool == second.tool and {*first.children}.isdisjoint(second.children):
            both = f"{named(first.children)} and {named(second.children)}"
            yield f"directly after `{first.tool}` both {both} must follow, so nothing can"
    for rule in exact:
        late = sorted(starts - {rule.tool, *rule.children})
        if rule.tool in starts and late:
            yield f"`{rule.tool}` and {named(late)} must run first, but directly after `{rule.tool}` comes another tool"
    ending = {rule.tool for rule in of_kind(rules, kinds.ExitLoop)}
    for rule in children:
        if rule.tool in ending:
            yield f"the turn ends after `{rule.tool}`, so {named(rule.children)} never can follow it"


def _of_groups(rules: Sequence[ToolRule], starters: set[str], required: Sequence[str]) -> Iterator[str]:
    groups = [group for rule in of_kind(rules, kinds.ExclusiveGroups) for group in rule.groups]
    for group in groups:
        for first, second in combinations([tool for tool in required if covers_any(group, (tool,))], 2):
            yield f"`{first}` and `{second}` must both run, but are in one exclusive group"
    for group in groups:
        for tool in sorted(starters & {*group}):
            others = named(member for member in group if member != tool)
            yield f"`{tool}` always runs first, so {others} of its exclusive group never can"


def _of_absent(rules: Sequence[ToolRule], enabled: Collection[str]) -> Iterator[str]:
    for rule in rules:
        if not is_enabled(rule.tool, enabled):
            if not rule.must_be_enabled:
                yield f"the rule {rule.name} is about `{rule.tool}`, which is not enabled"
            continue
        values = ((one.form, getattr(rule, name)) for name, one in fields_of(type(rule)).items())
        others = (tool for form, value in values if value is not None for tool in FORMS[form].tools(value))
        missing = [tool for tool in others if not is_enabled(tool, enabled)]
        are = "which is not enabled" if len(missing) == 1 else "which are not enabled"
        if missing and isinstance(rule, kinds.RequiresPreceding):
            yield f"`{rule.tool}` may run only after {named(missing)}, {are}: it never runs"
        elif missing:
            yield f"the rule {rule.name} of `{rule.tool}` names {named(missing)}, {are}"


def is_enabled(name: str, enabled: Collection[str]) -> bool:
    """Return whether a tool of this name or pattern is enabled, alone or with all tools of its server (`server__*`)."""
    if is_pattern(name):
        return any(covers(name, tool) or covers(tool, name) for tool in enabled)
    return covers_any(enabled, (name,))
