"""The rules of one agent, in the order in which they are judged, and what contradicts in them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import TypeVar

from pattern_core.errors import InvalidInput
from pattern_core.rules import conditions, reading
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
    RequiresFollowing,
    RequiresPreceding,
    Rule,
    StartConstraint,
    covers,
    is_pattern,
    named,
)
from pattern_db.columns import Json

R = TypeVar("R", bound=Rule)


@dataclass(frozen=True, slots=True)
class RuleSet:
    """An agent's tool rules. `rules` stand as stored; `ordered` is how they are judged: the highest priority first,
    then rules for one tool before patterns and those for all tools, then as stored.
    """

    rules: tuple[Rule, ...] = ()
    ordered: tuple[Rule, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ordered", tuple(sorted(self.rules, key=rank)))

    @classmethod
    def of(cls, stored: Json) -> RuleSet:
        """The rules of the column `agents.tool_rules`; None is no rules.

        Raises:
            InvalidInput: it is none of the formats that are known; the message names the rule and what it takes.
        """
        return cls(reading.read(stored))

    def to_json(self) -> list[dict[str, Json]]:
        """The rules in our format, as they are stored."""
        return [reading.to_json(rule) for rule in self.rules]

    def of_kind(self, kind: type[R], tool: str | None = None) -> Iterator[R]:
        """The rules of a kind, in the order of judging; with `tool`, those about that tool."""
        for rule in self.ordered:
            if isinstance(rule, kind) and (tool is None or rule.covers(tool)):
                yield rule

    def check_enabled(self, enabled: Collection[str]) -> None:
        """Pass if an agent with these tools enabled has all that its rules need.

        Raises:
            InvalidInput: it lacks a needed tool.
        """
        missing = sorted({rule.tool for rule in self.of_kind(Needed) if not _is_enabled(rule.tool, enabled)})
        if missing:
            raise InvalidInput(
                f"a tool rule needs {', '.join(missing)}: add it to enabled_tools, or remove the rule `needed`"
            )

    def timed(self, enabled: Collection[str]) -> tuple[str, ...]:
        """The enabled tools whose last use in any turn matters to a rule."""
        rules = [rule for rule in self.ordered if isinstance(rule, Cooldown | Periodic)]
        return tuple(tool for tool in enabled if any(rule.covers(tool) for rule in rules))

    def warnings(self, enabled: Collection[str] = ()) -> tuple[str, ...]:
        """What in the rules contradicts or can never be met, a sentence each; with `enabled`, also what they say of
        tools that the agent does not have.
        """
        found = [*_of_tools(self), *_of_loops(self), *_of_following(self), *_of_groups(self), *_of_times(self)]
        if enabled:
            found += _of_absent(self, enabled)
        return tuple(dict.fromkeys(found))


def rank(rule: Rule) -> tuple[int, int, int]:
    """What rules are judged by, the smallest first. Of rules that are otherwise equal, one that goes on goes before."""
    breadth = 2 if rule.tool == EVERY else int(is_pattern(rule.tool))
    return (-rule.priority, breadth, 0 if isinstance(rule, ContinueLoop) else 1)


def warnings_of(stored: Json, enabled: Collection[str]) -> tuple[str, ...]:
    """The warnings of stored rules; of rules that cannot be read, why."""
    try:
        return RuleSet.of(stored).warnings(enabled)
    except InvalidInput as error:
        return (error.message,)


def _of_tools(rules: RuleSet) -> Iterator[str]:
    yield from _of_order(rules)
    for limit in rules.of_kind(MaxCalls):
        if limit.count == 0:
            for tool in sorted(_wanted(rules)):
                if limit.covers(tool):
                    yield f"`{tool}` must run, but max_calls allows it no call"
    for tool in sorted({rule.tool for rule in rules.of_kind(AllowedOperations)}):
        sets = [set(rule.operations) for rule in rules.of_kind(AllowedOperations) if rule.tool == tool]
        if not set.intersection(*sets):
            yield f"the rules allowed_operations of `{tool}` have no operation in common, so it never runs"


def _of_order(rules: RuleSet) -> Iterator[str]:
    """What waits for itself, or for what comes later."""
    starters = _starters(rules)
    waits: dict[str, set[str]] = {}
    for before in rules.of_kind(RequiresPreceding):
        waits.setdefault(before.tool, set()).update(before.tools)
        if before.tool in starters:
            yield f"`{before.tool}` must run first, but may run only after {named(before.tools)}"
        for late in rules.of_kind(RequiresFollowing, before.tool):
            both = set(before.tools) & set(late.tools)
            if both:
                yield f"`{before.tool}` may run only after {named(sorted(both))}, and only before it: it never runs"
    for above in rules.of_kind(Parent):
        for tool in sorted(starters & set(above.children)):
            yield f"`{tool}` must run first, but may run only directly after `{above.tool}`"
    stuck = _stuck(waits)
    for tool in stuck:
        if tool in waits[tool]:
            yield f"`{tool}` may run only after itself, so it never runs"
    others = [tool for tool in stuck if tool not in waits[tool]]
    if others:
        yield f"{named(others)} wait for each other, so none of them ever runs"


def _stuck(waits: Mapping[str, Collection[str]]) -> list[str]:
    """The tools that wait in a circle, or for one that does."""
    left = {tool: set(names) & set(waits) for tool, names in waits.items()}
    while free := [tool for tool, names in left.items() if not names]:
        for tool in free:
            del left[tool]
        for names in left.values():
            names.difference_update(free)
    return sorted(left)


def _of_following(rules: RuleSet) -> Iterator[str]:
    """What must come directly after a tool, and cannot. What patterns mean depends on the tools: they pass."""
    exact = [rule for rule in rules.of_kind(Child) if not any(map(is_pattern, rule.children))]
    for first, second in combinations(exact, 2):
        if first.tool == second.tool and set(first.children).isdisjoint(second.children):
            both = f"{named(first.children)} and {named(second.children)}"
            yield f"directly after `{first.tool}` both {both} must follow, so nothing can"
    starts = {rule.tool for rule in rules.of_kind(StartConstraint) if not rule.alternatives}
    for rule in exact:
        late = sorted(starts - {rule.tool, *rule.children})
        if rule.tool in starts and late:
            yield f"`{rule.tool}` and {named(late)} must run first, but directly after `{rule.tool}` comes another tool"
    ending = {rule.tool for rule in rules.of_kind(ExitLoop)}
    for follow in rules.of_kind(Child):
        if follow.tool in ending:
            yield f"the turn ends after `{follow.tool}`, so {named(follow.children)} never can follow it"


def _starters(rules: RuleSet) -> set[str]:
    return {tool for rule in rules.of_kind(StartConstraint) for tool in rule.starters}


def _of_loops(rules: RuleSet) -> Iterator[str]:
    for leave in rules.of_kind(ExitLoop):
        for stay in rules.of_kind(ContinueLoop):
            if leave.tool == stay.tool:
                winner = "exit_loop" if rank(leave) < rank(stay) else "continue_loop"
                yield f"`{leave.tool}` both ends the turn and goes on; {winner} counts"


def _of_groups(rules: RuleSet) -> Iterator[str]:
    wanted = sorted(_wanted(rules))
    for rule in rules.of_kind(ExclusiveGroups):
        for group in rule.groups:
            inside = [tool for tool in wanted if any(covers(member, tool) for member in group)]
            for first, second in combinations(inside, 2):
                yield f"`{first}` and `{second}` must both run, but are in one exclusive group"
    starters = _starters(rules)
    for rule in rules.of_kind(ExclusiveGroups):
        for group in rule.groups:
            for tool in sorted(starters & set(group)):
                others = [member for member in group if member != tool]
                yield f"`{tool}` always runs first, so {named(others)} of its exclusive group never can"


def _of_times(rules: RuleSet) -> Iterator[str]:
    for due in rules.of_kind(Periodic):
        for rest in rules.of_kind(Cooldown, due.tool):
            if rest.seconds > due.seconds:
                yield f"`{due.tool}` should run every {due.seconds:g} s, but rests for {rest.seconds:g} s"


def _of_absent(rules: RuleSet, enabled: Collection[str]) -> Iterator[str]:
    for rule in rules.ordered:
        name = reading.name_of(rule)
        if not _is_enabled(rule.tool, enabled):
            if not isinstance(rule, Needed):
                yield f"the rule {name} is about `{rule.tool}`, which is not enabled"
            continue
        missing = [other for other in _others(rule) if not _is_enabled(other, enabled)]
        if not missing:
            continue
        are = "which is not enabled" if len(missing) == 1 else "which are not enabled"
        if isinstance(rule, RequiresPreceding):
            yield f"`{rule.tool}` may run only after {named(missing)}, {are}: it never runs"
        else:
            yield f"the rule {name} of `{rule.tool}` names {named(missing)}, {are}"


def _is_enabled(name: str, enabled: Collection[str]) -> bool:
    """Whether a tool of this name or pattern is enabled, be it with all tools of its server (`server__*`)."""
    if name in enabled:
        return True
    if is_pattern(name):
        return any(covers(name, tool) or covers(tool, name) for tool in enabled)
    return any(is_pattern(tool) and covers(tool, name) for tool in enabled)


def _others(rule: Rule) -> tuple[str, ...]:
    """The tools that a rule names beside its own."""
    match rule:
        case RequiresPreceding() | RequiresFollowing():
            return rule.tools
        case Child() | Parent():
            return rule.children
        case Conditional():
            return (*dict.fromkeys(rule.outputs.values()), *((rule.default,) if rule.default else ()))
        case StartConstraint():
            return rule.alternatives
        case RequiredBeforeExit() if rule.condition is not None:
            return conditions.tools_in(rule.condition)
    return ()


def _wanted(rules: RuleSet) -> set[str]:
    """The tools that a turn cannot end without."""
    required = {rule.tool for rule in rules.of_kind(RequiredBeforeExit) if rule.condition is None}
    return required | {rule.tool for rule in rules.of_kind(StartConstraint) if not rule.alternatives}
