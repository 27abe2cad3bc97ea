"""Stored tool rules, in our format or one that others wrote, as rules; and rules in our format. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

from pattern_core.errors import InvalidInput
from pattern_core.rules import conditions, values
from pattern_core.rules.kinds import KINDS, OTHER_NAMES, Field, Kind
from pattern_core.rules.rule import (
    EVERY,
    PRIORITY,
    PRIORITY_MAX,
    Child,
    ExclusiveGroups,
    RequiredBeforeExit,
    Rule,
    StartConstraint,
    covers,
)
from pattern_db.columns import Json

RULES_MAX = 200

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# What others store beside a rule and we have no use for.
_PASSED_OVER = frozenset({"metadata", "prompt_template", "id", "conditions"})
_MESSAGE = Field(what="text")


def read(stored: Json) -> tuple[Rule, ...]:
    """The rules of a stored value, in its order; None is no rules.

    Raises:
        InvalidInput: it is not a list of rules; the message names the rule, its field and what that takes.
    """
    rules: list[Rule] = []
    firsts: list[StartConstraint] = []
    for number, entry in enumerate(_entries(stored), 1):
        if number > RULES_MAX:
            raise InvalidInput(f"tool_rules holds at most {RULES_MAX} rules")
        try:
            flat, theirs = _flat(entry)
            made = _rules_of(flat, theirs)
        except InvalidInput as error:
            raise InvalidInput(f"tool_rules, rule {number}: {error.message}") from None
        rules.extend(made)
        if theirs in ("run_first", "init"):
            firsts.extend(rule for rule in made if isinstance(rule, StartConstraint))
    return tuple(_with_alternatives(rule, firsts) for rule in rules)


def _with_alternatives(rule: Rule, firsts: list[StartConstraint]) -> Rule:
    """Of Letta's first tools any one will do."""
    if not isinstance(rule, StartConstraint) or not any(rule is first for first in firsts):
        return rule
    return replace(rule, alternatives=tuple(first.tool for first in firsts if first.tool != rule.tool))


def _entries(stored: Json) -> Iterator[Mapping[str, Json]]:
    """The rules one by one, those of a map with its key as their tool."""
    if stored is None:
        return
    if isinstance(stored, dict):
        if isinstance(stored.get("type"), str) and isinstance(stored.get("tool"), str):
            raise InvalidInput("tool_rules is a list of rules: put this one rule into brackets, [{…}]")
        pairs = [(tool, several if isinstance(several, list) else [several]) for tool, several in stored.items()]
        stored = [{"tool": tool, **one} if isinstance(one, dict) else one for tool, several in pairs for one in several]
    if not isinstance(stored, list):
        raise InvalidInput('tool_rules is a list of rules, such as [{"tool": "web", "type": "max_calls", "count": 3}]')
    for number, entry in enumerate(stored, 1):
        if not isinstance(entry, dict):
            raise InvalidInput(f"tool_rules, rule {number}: a rule is an object with `tool` and `type`")
        yield entry


def _flat(entry: Mapping[str, Json]) -> tuple[dict[str, Json], str]:
    """A rule's fields as one object, whichever way they were nested, and its type as its author has it."""
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


def _rules_of(flat: dict[str, Json], theirs: str) -> list[Rule]:
    name = OTHER_NAMES.get(theirs)
    if name is None:
        raise InvalidInput(
            f"there is no type {theirs!r}; there are {', '.join(KINDS)}" if theirs else "it has no `type`"
        )
    kind = KINDS[name]
    if name == "parent" and "parents" in flat:  # an older Letta: the tool may be called only after one of its parents
        parents = values.read(Field(what="names"), flat.pop("parents"))
        return [
            _rule_of({**flat, "tool": parent, "children": [flat.get("tool")]}, "parent", kind) for parent in parents
        ]
    if name == "exclusive_groups" and "groups" not in flat:
        flat["tool"] = EVERY  # the original names one tool of the groups, and means them all
    return [_rule_of(flat, name, kind)]


def _rule_of(flat: Mapping[str, Json], name: str, kind: Kind) -> Rule:
    left = {key: value for key, value in flat.items() if value is not None}  # null is as good as nothing
    given: dict[str, Any] = {"tool": _tool(left.pop("tool", EVERY if kind.is_about_all else None), name, kind)}
    for field_name, field in kind.fields.items():
        found = next((key for key in (field_name, *field.aliases) if left.get(key, []) != []), None)
        if found is None:
            if field.is_required:
                raise InvalidInput(f"{name} needs `{field_name}`: {values.wanted(field)}")
            left.pop(field_name, None)
            continue
        given[field_name] = _value(field_name, field, left.pop(found))
    priority = left.pop("priority", PRIORITY)
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= PRIORITY_MAX:
        raise InvalidInput(f"`priority` is a whole number from 0 to {PRIORITY_MAX}, the highest first")
    given["priority"] = priority
    message = left.pop("message", None)
    if message is not None:
        given["message"] = _value("message", _MESSAGE, message)
    unknown = sorted(set(left) - _PASSED_OVER)
    if unknown:
        known = ", ".join(("tool", "type", *kind.fields, "priority", "message"))
        raise InvalidInput(f"{name} has no field {', '.join(unknown)}; it has {known}")
    rule = kind.make(**given)
    _check(rule)
    return rule


def _tool(value: Json, name: str, kind: Kind) -> str:
    if value is None:
        raise InvalidInput(f"{name} needs `tool`: a tool's name" + (", or a pattern such as *" * kind.takes_patterns))
    return cast("str", _value("tool", Field(what="name", takes_patterns=kind.takes_patterns), value))


def _value(field_name: str, field: Field, value: Json) -> Any:  # Any: as the field's kind says
    try:
        return values.read(field, value)
    except InvalidInput as error:
        raise InvalidInput(f"`{field_name}`: {error.message}") from None


def _check(rule: Rule) -> None:
    """What only several fields together tell.

    Raises:
        InvalidInput: they do not go together.
    """
    if isinstance(rule, Child):
        strange = [name for name in rule.args if not any(covers(child, name) for child in rule.children)]
        if strange:
            raise InvalidInput(f"`args` names {', '.join(strange)}, which is not among `children`")
    if isinstance(rule, ExclusiveGroups) and any(len(set(group)) < 2 for group in rule.groups):
        raise InvalidInput("`groups`: a group names at least two different tools")


def to_json(rule: Rule) -> dict[str, Json]:
    """The rule in our format, without what is at its default."""
    name = name_of(rule)
    result: dict[str, Json] = {"tool": rule.tool, "type": name}
    for field_name, field in KINDS[name].fields.items():
        value = getattr(rule, field_name)
        if not value and not field.is_required:
            continue
        result[field_name] = conditions.to_json(value) if field_name == "condition" else _plain(value)
    if rule.priority != PRIORITY:
        result["priority"] = rule.priority
    if rule.message is not None:
        result["message"] = rule.message
    return result


def _plain(value: Any) -> Json:  # Any: a field's value
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


def name_of(rule: Rule) -> str:
    """The name of the rule's kind, as its `type` says it."""
    if isinstance(rule, RequiredBeforeExit):
        return "required_before_exit" if rule.condition is None else "required_before_exit_if"
    return next(name for name, kind in KINDS.items() if kind.make is type(rule))
