"""Stored tool rules as rules, from our format or one that others wrote. Pure.

Others are: `agents.tool_rules` of the Rust Pattern (a list of `{tool_name, rule_type: {type, value}, conditions,
priority}` with PascalCase types, the same from its TOML, and a map `{tool: [{type, …}]}` from its command line), and
Letta (`{tool_name, type, …}` with its `type` values or class names such as `TerminalToolRule`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pattern_core.errors import InvalidInput
from pattern_core.rules.fields import EVERY, FORMS, RuleField
from pattern_core.rules.kinds import KINDS, StartConstraint
from pattern_core.rules.rule import PRIORITY, PRIORITY_MAX, ToolRule, fields_of
from pattern_db.columns import Json

RULES_MAX = 200
OTHER_NAMES: Mapping[str, str] = {alias: name for name, kind in KINDS.items() for alias in (name, *kind.aliases)}

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# What others store beside a rule and we have no use for.
_IGNORED = frozenset({"metadata", "prompt_template", "id", "conditions"})


def read(stored: Json) -> tuple[ToolRule, ...]:
    """Return the rules of a stored value, in its order; None is no rules.

    Raises:
        InvalidInput: it is not a list of rules; the message names the rule, its field and what that takes.
    """
    rules: list[ToolRule] = []
    firsts: list[ToolRule] = []  # of Letta's first tools any one will do
    for number, entry in enumerate(_entries(stored), 1):
        if number > RULES_MAX:
            raise InvalidInput(f"tool_rules holds at most {RULES_MAX} rules")
        try:
            flat, theirs = _flat(entry)
            made = _rules_of(flat, theirs)
        except InvalidInput as error:
            raise InvalidInput(f"tool_rules, rule {number}: {error.message}") from None
        rules += made
        firsts += made if theirs in ("run_first", "init") else ()
    for place, rule in enumerate(rules):
        if isinstance(rule, StartConstraint) and any(rule is first for first in firsts):
            rules[place] = replace(rule, alternatives=tuple(one.tool for one in firsts if one.tool != rule.tool))
    return tuple(rules)


def _entries(stored: Json) -> Iterator[Mapping[str, Json]]:
    """Yield the rules one by one, those of a map with its key as their tool."""
    if stored is None:
        return
    if isinstance(stored, dict):
        if isinstance(stored.get("type"), str) and isinstance(stored.get("tool"), str):
            raise InvalidInput("tool_rules is a list of rules: put this one rule into brackets, [{…}]")
        pairs = [(tool, one) for tool, some in stored.items() for one in (some if isinstance(some, list) else [some])]
        stored = [{"tool": tool, **one} if isinstance(one, dict) else one for tool, one in pairs]
    if not isinstance(stored, list):
        raise InvalidInput('tool_rules is a list of rules, such as [{"tool": "web", "type": "max_calls", "count": 3}]')
    for number, entry in enumerate(stored, 1):
        if not isinstance(entry, dict):
            raise InvalidInput(f"tool_rules, rule {number}: a rule is an object with `tool` and `type`")
        yield entry


def _flat(entry: Mapping[str, Json]) -> tuple[dict[str, Json], str]:
    """Return a rule's fields as one object, in whichever way they were nested, and its author's name of the kind."""
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
    if theirs == "requires_consent" and isinstance(flat.get("value"), dict):
        flat.update(flat.pop("value"))
    return flat, theirs


def _rules_of(flat: dict[str, Json], theirs: str) -> list[ToolRule]:
    name = OTHER_NAMES.get(theirs)
    if name is None:
        known = ", ".join(KINDS)
        raise InvalidInput(f"there is no type {theirs!r}; there are {known}" if theirs else "it has no `type`")
    if name == "parent" and "parents" in flat:  # an older Letta: the tool may be called only after one of its parents
        child = flat.pop("tool", None)
        parents = RuleField(form="names").read(flat.pop("parents"))
        return [_rule_of({**flat, "tool": parent, "children": [child]}, KINDS[name]) for parent in parents]
    if name == "exclusive_groups" and "groups" not in flat:
        flat["tool"] = EVERY  # the original names one tool of the groups, and means them all
    return [_rule_of(flat, KINDS[name])]


def _rule_of(flat: Mapping[str, Json], kind: type[ToolRule]) -> ToolRule:
    left = {key: value for key, value in flat.items() if value is not None}  # null is as good as nothing
    if (tool := left.pop("tool", EVERY if kind.is_about_all else None)) is None:
        also = ", or a pattern such as *" if kind.takes_patterns else ""
        raise InvalidInput(f"{kind.name} needs `tool`: a tool's name{also}")
    given = {"tool": _value("tool", RuleField(form="name", takes_patterns=kind.takes_patterns), tool)}
    for name, field in fields_of(kind).items():
        found = next((key for key in (name, *field.aliases) if left.get(key, []) != []), None)
        if found is not None:
            given[name] = _value(name, field, left.pop(found))
        elif field.is_required:
            raise InvalidInput(f"{kind.name} needs `{name}`: {FORMS[field.form].wanted}")
        else:
            left.pop(name, None)
    priority = given["priority"] = left.pop("priority", PRIORITY)
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= PRIORITY_MAX:
        raise InvalidInput(f"`priority` is a whole number from 0 to {PRIORITY_MAX}, the highest first")
    if "message" in left:
        given["message"] = _value("message", RuleField(form="text"), left.pop("message"))
    if unknown := sorted(set(left) - _IGNORED):
        known = ", ".join(("tool", "type", *fields_of(kind), "priority", "message"))
        raise InvalidInput(f"{kind.name} has no field {', '.join(unknown)}; it has {known}")
    return kind(**given)


def _value(name: str, field: RuleField, value: Json) -> Any:  # Any: as the field's form says
    try:
        return field.read(value)
    except InvalidInput as error:
        raise InvalidInput(f"`{name}`: {error.message}") from None
