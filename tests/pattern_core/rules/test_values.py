"""What a field's value may be."""

from __future__ import annotations

from typing import Any

import pytest

from pattern_core.errors import InvalidInput
from pattern_core.rules import values
from pattern_core.rules.conditions import Ran, Several
from pattern_core.rules.kinds import Field


@pytest.mark.parametrize(
    ("what", "value", "read"),
    [
        ("names", ["a", "b"], ("a", "b")),
        ("texts", ["read", "a b"], ("read", "a b")),
        ("count", "7", 7),
        ("seconds", 60.0, 60),
        ("seconds", {"secs": 1, "nanos": 5e8}, 1.5),
        ("child_args", [{"name": "b", "args": None}], {"b": {}}),
        ("outputs", {"x": "b"}, {"x": "b"}),
        ("groups", [["a", "b*"]], (("a", "b*"),)),
        ("yes_no", False, False),
        ("condition", ["a"], Several((Ran("a"),), is_all=True)),
    ],
)
def test_what_fits(what: Any, value: Any, read: Any) -> None:
    assert values.read(Field(what=what), value) == read


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("name", 3),
        ("name", "a*"),
        ("names", []),
        ("names", ["a", ""]),
        ("names", ["a"] * 101),
        ("text", ""),
        ("text", "x" * 1001),
        ("texts", [1]),
        ("args", [1]),
        ("child_args", [3]),
        ("outputs", {}),
        ("groups", ["ab"]),
        ("count", "x"),
        ("count", 10**400),
        ("seconds", {"hours": 1}),
        ("seconds", -1),
        ("yes_no", 1),
        ("condition", []),
    ],
)
def test_what_does_not(what: Any, value: Any) -> None:
    with pytest.raises(InvalidInput):
        values.read(Field(what=what), value)
