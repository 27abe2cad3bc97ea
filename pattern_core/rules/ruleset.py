"""An agent's tool rules: read as they are stored, in our format or one that others wrote, and shown. Pure.

Others are: `agents.tool_rules` of the Rust Pattern (a list of `{tool_name, rule_type: {type, value}, conditions,
priority}` with PascalCase types, the same from its TOML, and a map `{tool: [{type, …}]}` from its command line), and
Letta (`{tool_name, type, …}` with its `type` values or class names such as `TerminalToolRule`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, product
from typing import TypeVar

from pydantic import TypeAdapter

from pattern_core.errors import InvalidInput
from pattern_core.rules import kinds
from pattern_core.rules.fields import EVERY, Names, covers, covers_any, is_pattern, named, tools_in
from pattern_core.rules.kinds import KINDS
from pattern_core.rules.rule import ToolRule
from pattern_core.validation import read
from pattern_db.columns import Json

RULES_MAX = 200
OTHER_NAMES: Mapping[str, str] = {alias: name for name, kind in KINDS.items() for alias in (name, *kind.aliases)}

R = TypeVar("R", bound=ToolRule)

_NAMES = TypeAdapter(Names)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(frozen=True)
class RuleSet:
    """An agent's tool rules as they are stored."""

    rules: tuple[ToolRule, ...] = ()

    @classmethod
    def of(cls, stored: Json) -> RuleSet:
        """Return the rules of the column `agents.tool_rules`, in its order; None means no rules.

        Raises:
            InvalidInput: its format is unknown; the message names the rule, its field and what is accepted.
        """
        if stored is None:
            return NO_RULES
        rules: list[ToolRule] = []
        firsts: list[ToolRule] = []  # of Letta's first tools any one will do
        for number, entry in enumerate(_entries(stored), 1):
            if number > RULES_MAX:
                raise InvalidInput(f"tool_rules holds at most {RULES_MAX} rules")
            try:
                theirs, made = _read(entry)
            except InvalidInput as error:
                raise InvalidInput(f"tool_rules, rule {number}: {error.message}") from None
            rules += made
            firsts += made if theirs in ("run_first", "init") else ()
        for place, rule in enumerate(rules):
            if isinstance(rule, kinds.StartConstraint) and any(rule is first for first in firsts):
                rules[place] = replace(rule, alternatives=tuple(one.tool for one in firsts if one.tool != rule.tool))
        return cls(tuple(rules))

    def to_json(self) -> list[dict[str, Json]]:
        """Return the rules in our format, as they are stored."""
        return [rule.to_json() for rule in self.rules]

    @cached_property
    def ordered(self) -> tuple[ToolRule, ...]:
        """The rules as they are judged, by rank."""
        return tuple(sorted(self.rules, key=lambda rule: rule.rank))

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """What the rules say in the prompt, in the order of judging, each sentence once."""
        return tuple(dict.fromkeys(rule.with_message(rule.in_words()) for rule in self.ordered))

    def timed(self, enabled: Collection[str]) -> tuple[str, ...]:
        """Return the enabled tools for which a rule needs the last use in any turn."""
        return tuple(tool for tool in enabled if any(rule.is_timed and rule.covers(tool) for rule in self.rules))

    def check_enabled(self, enabled: Collection[str]) -> None:
        """Check that an agent with these enabled tools has all that its rules need.

        Raises:
            InvalidInput: it lacks a needed tool.
        """
        needed = {rule.tool for rule in self.rules if rule.must_be_enabled}
        missing = sorted(tool for tool in needed if not _is_enabled(tool, enabled))
        if missing:
            raise InvalidInput(
                f"a tool rule needs {', '.join(missing)}: add it to enabled_tools, or remove the rule `needed`"
            )

    def warnings(self, enabled: Collection[str] = ()) -> tuple[str, ...]:
        """Return contradictions in the rules and rules that can never be met, a sentence each; with `enabled`, also
        rules about tools that the agent does not have.
        """
        return tuple(dict.fromkeys(_contradictions(self.ordered, enabled)))


NO_RULES = RuleSet()


def warnings_of(stored: Json, enabled: Collection[str]) -> tuple[str, ...]:
    """Return the warnings of stored rules; of rules that cannot be read, why."""
    try:
        return RuleSet.of(stored).warnings(enabled)
    except InvalidInput as error:
        return (error.message,)


def _entries(stored: Json) -> list[Json]:
    """Return the rules in a list, those of a map with its key as their tool."""
    if isinstance(stored, dict):
        if isinstance(stored.get("type"), str) and isinstance(stored.get("tool"), str):
            raise InvalidInput("tool_rules is a list of rules: put this one rule into brackets, [{…}]")
        pairs = [(tool, one) for tool, some in stored.items() for one in (some if isinstance(some, list) else [some])]
        stored = [{"tool": tool, **one} if isinstance(one, dict) else one for tool, one in pairs]
    if not isinstance(stored, list):
        raise InvalidInput('tool_rules is a list of rules, such as [{"tool": "web", "type": "max_calls", "count": 3}]')
    return stored


def _read(entry: Json) -> tuple[str, list[ToolRule]]:
    """Return its author's name of the kind of a stored rule, in snake case, and the rules that it makes; its fields may
    be nested in several ways.
    """
    if not isinstance(entry, dict):
        raise InvalidInput("a rule is an object with `tool` and `type`")
    flat = dict(entry)
    if "tool_name" in flat:
        flat.setdefault("tool", flat.pop("tool_name"))
    kind = flat.pop("rule_type", None) or flat.get("type")
    flat.pop("type", None)
    if isinstance(kind, dict):
        inner = dict(kind)
        if "type" not in inner and len(inner) == 1:
            [(name, value)] = inner.items()
            inner = {"type": name, "value": value}
        kind = inner.pop("type", None)
        flat.update(inner)
    theirs = _HUMP.sub("_", kind).lower().replace("-", "_").removesuffix("_tool_rule") if isinstance(kind, str) else ""
    ours = OTHER_NAMES.get(theirs)
    if ours is None:
        known = ", ".join(KINDS)
        raise InvalidInput(f"there is no type {theirs!r}; there are {known}" if theirs else "it has no `type`")
    if theirs == "requires_consent" and isinstance(flat.get("value"), dict):
        flat.update(flat.pop("value"))
    if ours == "parent" and "parents" in flat:  # an older Letta: the tool may be called only after one of its parents
        child, parents = flat.pop("tool", None), read(_NAMES, flat.pop("parents"), lambda _place: (), place="parents")
        return theirs, [kinds.Parent.of({**flat, "tool": parent, "children": [child]}) for parent in parents]
    if ours == "exclusive_groups" and "groups" not in flat:
        flat["tool"] = EVERY  # the original names one tool of the groups, and means them all
    return theirs, [KINDS[ours].of(flat)]


def _contradictions(rules: Sequence[ToolRule], enabled: Collection[str]) -> Iterator[str]:
    """Yield what contradicts in rules that are in the order of judging.

    What a pattern means depends on the agent's tools, so most sentences are about rules that name the same tool.
    """
    firsts = _of_kind(rules, kinds.StartConstraint)
    starters = {tool for rule in firsts for tool in rule.starters}
    starts = {rule.tool for rule in firsts if not rule.alternatives}
    required = sorted(starts | {rule.tool for rule in _of_kind(rules, kinds.RequiredBeforeExit)})
    yield from _of_order(rules, starters)
    for limit, tool in product(_of_kind(rules, kinds.MaxCalls), required):
        if limit.count == 0 and limit.covers(tool):
            yield f"`{tool}` must run, but max_calls allows it no call"
    operations: dict[str, list[set[str]]] = {}
    for allowed in _of_kind(rules, kinds.AllowedOperations):
        operations.setdefault(allowed.tool, []).append({*allowed.operations})
    for tool, sets in sorted(operations.items()):
        if not set.intersection(*sets):
            yield f"the rules allowed_operations of `{tool}` have no operation in common, so it never runs"
    yield from _of_next(rules, starts)
    groups = [group for rule in _of_kind(rules, kinds.ExclusiveGroups) for group in rule.groups]
    for group in groups:
        for first, second in combinations([tool for tool in required if covers_any(group, (tool,))], 2):
            yield f"`{first}` and `{second}` must both run, but are in one exclusive group"
    for group in groups:
        for tool in sorted(starters & {*group}):
            others = named(member for member in group if member != tool)
            yield f"`{tool}` always runs first, so {others} of its exclusive group never can"
    for due, rest in product(_of_kind(rules, kinds.Periodic), _of_kind(rules, kinds.Cooldown)):
        if rest.covers(due.tool) and rest.seconds > due.seconds:
            yield f"`{due.tool}` should run every {due.seconds:g} s, but rests for {rest.seconds:g} s"
    if enabled:
        yield from _of_absent(rules, enabled)


def _of_kind(rules: Iterable[ToolRule], kind: type[R]) -> list[R]:
    """Return the rules of a kind, in their order."""
    return [rule for rule in rules if isinstance(rule, kind)]


def _of_order(rules: Sequence[ToolRule], starters: set[str]) -> Iterator[str]:
    """Yield what waits for itself, or for what comes later."""
    waits: dict[str, set[str]] = {}
    for before in _of_kind(rules, kinds.RequiresPreceding):
        waits.setdefault(before.tool, set()).update(before.tools)
        if before.tool in starters:
            yield f"`{before.tool}` must run first, but may run only after {named(before.tools)}"
        for late in _of_kind(rules, kinds.RequiresFollowing):
            if (both := sorted({*before.tools} & {*late.tools})) and late.covers(before.tool):
                yield f"`{before.tool}` may run only after {named(both)}, and only before it: it never runs"
    for above in _of_kind(rules, kinds.Parent):
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


def _of_next(rules: Sequence[ToolRule], starts: set[str]) -> Iterator[str]:
    """Yield what should come directly after a tool and cannot, and what both ends the turn and continues it."""
    exits, children = _of_kind(rules, kinds.ExitLoop), _of_kind(rules, kinds.Child)
    for leave, stay in product(exits, _of_kind(rules, kinds.ContinueLoop)):
        if leave.tool == stay.tool:
            winner = leave.name if leave.rank < stay.rank else stay.name
            yield f"`{leave.tool}` both ends the turn and continues it; {winner} counts"
    exact = [rule for rule in children if not any(map(is_pattern, rule.children))]
    for first, second in combinations(exact, 2):
        if first.tool == second.tool and {*first.children}.isdisjoint(second.children):
            both = f"{named(first.children)} and {named(second.children)}"
            yield f"directly after `{first.tool}` both {both} must follow, so nothing can"
    for rule in exact:
        late = sorted(starts - {rule.tool, *rule.children})
        if rule.tool in starts and late:
            yield f"`{rule.tool}` and {named(late)} must run first, but directly after `{rule.tool}` comes another tool"
    for rule in children:
        if rule.tool in {leave.tool for leave in exits}:
            yield f"the turn ends after `{rule.tool}`, so {named(rule.children)} never can follow it"


def _of_absent(rules: Sequence[ToolRule], enabled: Collection[str]) -> Iterator[str]:
    for rule in rules:
        if not _is_enabled(rule.tool, enabled):
            if not rule.must_be_enabled:
                yield f"the rule {rule.name} is about `{rule.tool}`, which is not enabled"
            continue
        missing = [tool for tool in _named_by(rule) if not _is_enabled(tool, enabled)]
        are = "which is not enabled" if len(missing) == 1 else "which are not enabled"
        if missing and isinstance(rule, kinds.RequiresPreceding):
            yield f"`{rule.tool}` may run only after {named(missing)}, {are}: it never runs"
        elif missing:
            yield f"the rule {rule.name} of `{rule.tool}` names {named(missing)}, {are}"


def _is_enabled(name: str, enabled: Collection[str]) -> bool:
    """Return whether a tool of this name or pattern is enabled, alone or with all tools of its server (`server__*`)."""
    return any(covers(name, tool) or covers(tool, name) for tool in enabled)


def _named_by(rule: ToolRule) -> Iterator[str]:
    """Yield the tools that the rule names in addition to its own."""
    for field in ("tools", "children", "alternatives"):
        yield from getattr(rule, field, ())
    if isinstance(rule, kinds.Conditional):
        yield from dict.fromkeys((*rule.outputs.values(), *filter(None, (rule.default,))))
    if isinstance(rule, kinds.RequiredBeforeExitIf):
        yield from tools_in(rule.condition)
