"""Edits as JSON, so that one can wait in the file until a person agrees to it. Pure.

`{"edit": "ReplaceText", "old": …, "new": …, …}`: the class and its fields. A value that somebody wrote down (and that
the block's schema is still to read) stands under the field's name with a tilde: `"~value"`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import get_args

from pattern_core.memory.edits.edit import BlockEdit
from pattern_core.memory.shapes.fields import Written
from pattern_db.columns import Json

_EDITS: Mapping[str, type[BlockEdit]] = {edit.__name__: edit for edit in get_args(BlockEdit)}
_WRITTEN = "~"


def to_json_value(edit: BlockEdit) -> dict[str, Json]:
    """The edit as a JSON object, for `from_json_value`."""
    found: dict[str, Json] = {"edit": type(edit).__name__}
    for field in fields(edit):
        value = getattr(edit, field.name)
        if isinstance(value, Written):
            found[_WRITTEN + field.name] = value.text
        elif value != field.default:
            found[field.name] = value
    return found


def from_json_value(stored: Mapping[str, Json]) -> BlockEdit:
    """The edit that `to_json_value` wrote.

    Raises:
        KeyError: it is of a kind that this version does not know.
        TypeError: it lacks a field, or has one too many.
    """
    given: dict[str, Json] = {}
    for name, value in stored.items():
        if name.startswith(_WRITTEN):
            given[name.removeprefix(_WRITTEN)] = Written(value)
        elif name != "edit":
            given[name] = value
    return _EDITS[stored["edit"]](**given)
