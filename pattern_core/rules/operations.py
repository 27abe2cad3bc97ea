"""`allowed_operations`: what a tool may be told to do, in its schema and in a call. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pattern_core.models.model import ToolSpec
from pattern_core.rules.rule import OPERATION_PARAMETERS, AllowedOperations
from pattern_core.rules.ruleset import RuleSet


def parameter_of(rule: AllowedOperations, parameters: Mapping[str, Any]) -> str | None:
    """The name of the argument that tells the operation, by the tool's JSON Schema; None if it has none."""
    properties = parameters.get("properties", {})
    if rule.parameter is not None:
        return rule.parameter if rule.parameter in properties else None
    return next((name for name in OPERATION_PARAMETERS if name in properties), None)


def _schema_of(name: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    schema = parameters["properties"][name]
    return schema if isinstance(schema, Mapping) else {}  # `true` is a schema too, of whatever one likes


def misfit(rule: AllowedOperations, arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> object | None:
    """The operation of a call if the rule does not allow it, None if it does or there is none to judge.

    An argument that is left out has the schema's default; if that says nothing either, the tool's own check tells.
    """
    name = parameter_of(rule, parameters)
    if name is None:
        return None
    operation = arguments.get(name, _schema_of(name, parameters).get("default"))
    return None if operation is None or operation in rule.operations else operation


def narrowed(rules: RuleSet, spec: ToolSpec) -> ToolSpec | None:
    """The tool as the model may see it: with the allowed operations only, None if none is left."""
    parameters: Mapping[str, Any] = spec.parameters
    changed = False
    for rule in rules.of_kind(AllowedOperations, spec.name):
        name = parameter_of(rule, parameters)
        if name is None:
            continue
        schema = _schema_of(name, parameters)
        there = schema.get("enum", [schema["const"]] if "const" in schema else rule.operations)
        left = [one for one in there if one in rule.operations]
        if not left:
            return None
        kept = {key: value for key, value in schema.items() if key != "const"}
        if kept.get("default") not in (None, *left):
            del kept["default"]
        properties = {**parameters["properties"], name: {**kept, "enum": left}}
        parameters, changed = {**parameters, "properties": properties}, True
    if not changed:
        return spec
    return ToolSpec(name=spec.name, description=spec.description, parameters=parameters)
