"""Every edit survives being written down."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from typing import Any, get_args

import pytest

from pattern_core.memory.edits.edit import BlockEdit, PushItem, SetField, SetValue
from pattern_core.memory.edits.edit_json import from_json_value, to_json_value
from pattern_core.memory.shapes.fields import Written

EDITS: tuple[type[BlockEdit], ...] = get_args(BlockEdit)


def example(kind: type[BlockEdit]) -> BlockEdit:
    """An edit of a kind, with something in every field that needs something."""
    values: dict[str, Any] = {
        field.name: 3 if field.type == "int" else "3" for field in fields(kind) if field.default is MISSING
    }
    return kind(**values)


@pytest.mark.parametrize("kind", EDITS)
def test_every_kind_reads_back(kind: type[BlockEdit]) -> None:
    edit = example(kind)
    assert from_json_value(json.loads(json.dumps(to_json_value(edit)))) == edit


@pytest.mark.parametrize(
    "edit",
    [
        SetField(field="age", value=Written("41"), section="profile"),
        SetField(field="age", value="41"),
        SetField(field="age", value=None),
        PushItem(value={"written": "a field of that name", "done": False}),
        SetValue(value={"a": [1, None, "é"]}),
    ],
)
def test_values_read_back(edit: BlockEdit) -> None:
    assert from_json_value(json.loads(json.dumps(to_json_value(edit)))) == edit


def test_an_unknown_edit_is_an_error() -> None:
    with pytest.raises(KeyError, match="Explode"):
        from_json_value({"edit": "Explode"})
