"""Edits, and their approval: an edit that needs approval waits as JSON and is made, once, when a person approves; the
agent continues. Pure.

Positions are Unicode code points. Lines end with a line feed; a carriage return before it belongs to the ending. Lines
and items are counted from 1. `memory.plan` computes the result of an edit.

Every edit may name a section of a composite; without one it applies to the whole block. A value may be a
`fields.Written`, which is text to be parsed.

As JSON an edit is `{"edit": "ReplaceText", "old": …, "new": …, …}`: the class and its fields. A `Written` is
stored under the field's name with a tilde: `"~value"`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import ClassVar, Literal, get_args

from pattern_core.approvals import ApprovalQuestion
from pattern_core.errors import InvalidInput, PermissionDenied
from pattern_core.memory.block import Attribution, Operation, short_name
from pattern_core.memory.fields import Written
from pattern_db.columns import Json, to_json
from pattern_db.enums import ApprovalKind

ReplaceMode = Literal["first", "all", "nth", "regex"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Edit:
    operation: ClassVar = Operation.OVERWRITE  # the operation for permissions
    section: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendText(_Edit):
    """Add at the end, as it is: no line end is added. In a list it is a new item, in a log a new entry."""

    operation: ClassVar = Operation.APPEND
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceText(_Edit):
    r"""Replace `old` by `new`.

    `first`, `all`: as plain text. `nth`: `old` is `"N: text"` (or `"N text"`), N from 1. `regex`: `old` is a pattern
    of Python's `re`, `new` may refer to its groups by `\1` or `\g<name>`; the first match is replaced.
    """

    old: str
    new: str
    mode: ReplaceMode = "first"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetText(_Edit):
    """Set the whole text, with the fewest changes; for other schemas the text from an editor (JSON)."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EditRange(_Edit):
    """Replace lines `first` to `last` (from 1, inclusive) by `text`; an empty text deletes them."""

    first: int
    last: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch(_Edit):
    """Apply a unified diff."""

    patch: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetField(_Edit):
    """Set a field of a map; None removes its value."""

    field: str
    value: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class ListAppend(_Edit):
    """Add an item at the end of a list field."""

    operation: ClassVar = Operation.APPEND
    field: str
    value: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class ListRemove(_Edit):
    """Remove the first item of a list field that is `value`."""

    field: str
    value: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Increment(_Edit):
    """Add to a counter field; below 0 subtracts."""

    field: str
    delta: Json = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertItem(_Edit):
    """Insert an item into a list as number `number`."""

    operation: ClassVar = Operation.APPEND
    number: int
    value: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class SetItem(_Edit):
    """Replace item `number` of a list."""

    number: int
    value: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteItem(_Edit):
    """Remove item `number` of a list."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetValue(_Edit):
    """Set the whole content, or that of a section, to this value, with the fewest changes."""

    value: Json


TextEdit = AppendText | ReplaceText | SetText | EditRange | Patch
FieldEdit = SetField | ListAppend | ListRemove | Increment
ItemEdit = InsertItem | SetItem | DeleteItem
BlockEdit = TextEdit | FieldEdit | ItemEdit | SetValue
_EDITS: Mapping[str, type[BlockEdit]] = {edit.__name__: edit for edit in get_args(BlockEdit)}
_WRITTEN = "~"


_RANGE = re.compile(r"\s*(\d{1,9})(?:\s*(?:-|\.\.)\s*(\d{1,9}))?[ \t]*(?:\r?\n|:(?:[ \t]*\r?\n| )?)(.*)", re.DOTALL)


def parse_range(content: str) -> EditRange:
    r"""Read `"START-END: text"`, `"START..END: text"` or the numbers on a line of their own above the text.

    One space after the colon separates; all further indentation belongs to the text.

    Raises:
        InvalidInput: it begins otherwise.
    """
    found = _RANGE.fullmatch(content)
    if found is None:
        raise InvalidInput("begin with the lines to replace, as in `2-4: new text` (from 1, both included)")
    first = int(found[1])
    return EditRange(first=first, last=int(found[2] or first), text=found[3])


def to_json_value(edit: BlockEdit) -> dict[str, Json]:
    """Return the edit as a JSON object, for `from_json_value`."""
    found: dict[str, Json] = {"edit": type(edit).__name__}
    for field in sorted(fields(edit), key=lambda field: field.name == "section"):  # last, as in stored approvals
        value = getattr(edit, field.name)
        if isinstance(value, Written):
            found[_WRITTEN + field.name] = value.text
        elif value != field.default:
            found[field.name] = value
    return found


def from_json_value(stored: Mapping[str, Json]) -> BlockEdit:
    """Return the edit that `to_json_value` wrote.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A requested edit, as it waits for approval: its block, label and author."""

    agent_id: str
    label: str
    block_id: str
    edit: BlockEdit
    by: Attribution


def question(proposal: Proposal, refusal: PermissionDenied) -> ApprovalQuestion:
    """Return the question to the person whom the block's permission requires. A grant is for exactly this edit, or for
    all of the agent's blocks with this label.
    """
    cause = dict(proposal.by.cause or {})
    edit = to_json_value(proposal.edit)
    request = {
        "agent_id": proposal.agent_id,
        "agent": short_name(proposal.by.author),
        "label": proposal.label,
        "block_id": proposal.block_id,
        "operation": proposal.edit.operation.value,
        "edit": edit,
        "author": proposal.by.author,
        "cause": cause,
        "subject": f"block:{proposal.label}",
        "digest": blake2b(to_json(edit).encode(), digest_size=16).hexdigest(),
    }
    return ApprovalQuestion(
        kind=ApprovalKind.MEMORY,
        request=request,
        audience=str(refusal.details["consent"]),
        turn_id=cause.get("turn"),
    )


def proposal_of(request: Json, approval_id: str, agreed: str) -> Proposal:
    """Return the edit of an approval; `agreed` is who approved it, and is stored in the edit's cause."""
    cause = {**request["cause"], "approval": approval_id, "approved_by": agreed}
    return Proposal(
        agent_id=request["agent_id"],
        label=request["label"],
        block_id=request["block_id"],
        edit=from_json_value(request["edit"]),
        by=Attribution(author=request["author"], cause=cause),
    )
