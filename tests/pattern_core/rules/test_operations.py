"""Operations in a tool's schema."""

from __future__ import annotations

from typing import Any

import pytest

from pattern_core.rules.operations import misfit, narrowed, parameter_of
from pattern_core.rules.rule import AllowedOperations
from tests.pattern_core.rules.moments import rules, spec

READ = {"tool": "file", "type": "allowed_operations", "operations": ["read", "append"]}


@pytest.mark.parametrize(
    ("schema", "left"),
    [
        ({"enum": ["read", "patch", "append"], "type": "string"}, {"enum": ["read", "append"], "type": "string"}),
        ({"enum": ["read", "patch"], "default": "patch"}, {"enum": ["read"]}),
        ({"enum": ["read", "patch"], "default": "read"}, {"enum": ["read"], "default": "read"}),
        ({"const": "read"}, {"enum": ["read"]}),
        ({"type": "string"}, {"type": "string", "enum": ["read", "append"]}),
        (True, {"enum": ["read", "append"]}),
        ({"enum": ["patch"]}, None),
    ],
)
def test_only_what_is_allowed_is_shown(schema: dict[str, Any] | bool, left: dict[str, Any] | None) -> None:
    given = spec("file", path={"type": "string"}, op=schema)
    found = narrowed(rules(READ), given)
    if left is None:
        assert found is None
    else:
        assert found is not None
        assert found.parameters == {"type": "object", "properties": {"path": {"type": "string"}, "op": left}}
        assert given.parameters["properties"]["op"] == schema  # type: ignore[index]  # JSON; the tool is as it was


def test_tools_without_operations_stay_as_they_are() -> None:
    plain = spec("file", path={"type": "string"})
    assert narrowed(rules(READ), plain) is plain
    other = spec("web", op={"enum": ["fetch"]})
    assert narrowed(rules(READ), other) is other


def test_several_rules_leave_what_all_allow() -> None:
    found = narrowed(rules(READ, {**READ, "tool": "*", "operations": ["read"]}), spec("file", op={"type": "string"}))
    assert found is not None
    assert found.parameters["properties"]["op"]["enum"] == ["read"]  # type: ignore[index]  # JSON


def test_which_argument_tells_the_operation() -> None:
    properties: dict[str, Any] = {"properties": {"command": {}, "operation": {}, "mode": {}}}
    assert parameter_of(AllowedOperations(tool="*", operations=("x",)), properties) == "operation"
    assert parameter_of(AllowedOperations(tool="*", operations=("x",), parameter="mode"), properties) == "mode"
    assert parameter_of(AllowedOperations(tool="*", operations=("x",), parameter="op"), properties) is None
    assert parameter_of(AllowedOperations(tool="*", operations=("x",)), {}) is None


def test_a_call_of_a_tool_whose_schema_says_nothing_is_judged() -> None:
    [rule] = rules(READ).of_kind(AllowedOperations)
    anything = spec("file", op=True).parameters
    assert misfit(rule, {"op": "patch"}, anything) == "patch"
    assert misfit(rule, {"op": "read"}, anything) is None
    assert misfit(rule, {}, anything) is None
