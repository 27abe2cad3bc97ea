"""Edits of maps, lists and logs: what they make of a value, and the changes in the document. Pure.

Changes name only what is edited, so that edits of different fields and items merge. Permissions of blocks and sections,
and limits, are looked at in `memory.plan`; read-only fields here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never

from pattern_core.errors import InvalidInput, PermissionDenied
from pattern_core.memory.block import short_name
from pattern_core.memory.content import ENTRIES, field_writes, parse_editing, writes_between
from pattern_core.memory.document import AddCount, SpliceItems, Write, same
from pattern_core.memory.edits import (
    AppendEntry,
    AppendText,
    BlockEdit,
    DeleteItem,
    Editor,
    EditOutcome,
    FieldEdit,
    Increment,
    InsertItem,
    ItemEdit,
    ListAppend,
    ListRemove,
    PushItem,
    SetField,
    SetItem,
    SetText,
    SetValue,
)
from pattern_core.memory.fields import Written, check_count, field_named, fit, fit_entry, fit_field, fit_item, guessed
from pattern_core.memory.schema import (
    AGENT_ID,
    TIMESTAMP,
    CompositeSchema,
    Field,
    ListSchema,
    LogSchema,
    MapSchema,
    Schema,
    TextSchema,
)
from pattern_core.memory.values import FieldType, canonical, excerpt, of_type, typed
from pattern_db.columns import Json, to_json


def structured_outcome(
    schema: Schema, before: Json, edit: BlockEdit, editor: Editor, prefix: str, what: str
) -> EditOutcome:
    """What the edit makes of a whole block or of one section, whose containers' names begin with `prefix`.

    Raises:
        InvalidInput: it does not fit the shape, or the content; the message says what to do instead with `what`.
        PermissionDenied: an agent would change what is read-only.
    """
    match edit, schema:
        case SetValue(), _:
            return set_value(schema, before, edit.value, editor, prefix)
        case SetText(), _:
            return set_value(schema, before, parse_editing(edit.text, schema), editor, prefix)
        case AppendText(), ListSchema():
            return edit_item(schema, before, PushItem(value=Written(edit.text)), editor, prefix)
        case AppendText(), LogSchema():
            return add_entry(schema, before, AppendEntry(value=Written(edit.text)), editor)
        case SetField() | ListAppend() | ListRemove() | Increment(), _:
            if isinstance(schema, MapSchema):
                return edit_field(schema, before, edit, editor, prefix)
            what += " has no fields: it"
        case PushItem() | InsertItem() | SetItem() | DeleteItem(), _:
            if isinstance(schema, ListSchema):
                return edit_item(schema, before, edit, editor, prefix)
            what += " has no items: it"
        case AppendEntry(), _:
            if isinstance(schema, LogSchema):
                return add_entry(schema, before, edit, editor)
            what += " is no log: it"
    raise InvalidInput(f"{what} is {_instead(schema)}")


def edit_field(schema: MapSchema, before: Json, edit: FieldEdit, editor: Editor, prefix: str = "") -> EditOutcome:
    """What an edit of one field makes of the map `before`.

    Raises:
        InvalidInput: there is no such field, it is of another type, or the value does not fit it.
        PermissionDenied: an agent may not set it.
    """
    one = field_named(schema.fields, edit.field, what="the block")
    if one.read_only and editor.is_agent:
        raise PermissionDenied(f"the field {one.name} is read-only; a person sets it", field=one.name)
    held = before[one.name]
    match edit:
        case SetField():
            new = fit_field(one, edit.value)
            note = f"Set {one.name}"
            writes: Sequence[Write] = field_writes(one, held, new, prefix)
        case ListAppend():
            _demand(one, FieldType.LIST)
            item = _loose(edit.value)
            new, note = [*_list(held), item], f"Added to {one.name}"
            writes = [SpliceItems(container=f"{prefix}list_{one.name}", at=len(new) - 1, delete=0, insert=(item,))]
        case ListRemove():
            _demand(one, FieldType.LIST)
            at = _place(one, _list(held), edit.value)
            new, note = [*held[:at], *held[at + 1 :]], f"Removed from {one.name}"
            writes = [SpliceItems(container=f"{prefix}list_{one.name}", at=at, delete=1, insert=())]
        case Increment():
            _demand(one, FieldType.COUNTER)
            delta = _delta(edit.delta)
            new = of_type(held + delta, FieldType.COUNTER)
            note = f"{one.name} is {new} now"
            writes = [AddCount(container=f"{prefix}counter_{one.name}", delta=delta)] if delta else []
        case _:
            assert_never(edit)
    return EditOutcome(before | {one.name: new}, note, tuple(writes))


def edit_item(
    schema: ListSchema, before: Sequence[Json], edit: ItemEdit, editor: Editor, prefix: str = ""
) -> EditOutcome:
    """What an edit of one item makes of the list `before`.

    Raises:
        InvalidInput: there is no such item, the new one does not fit, or the list is full.
        PermissionDenied: an agent may not set one of the item's fields.
    """
    container, count = f"{prefix}items", len(before)
    match edit:
        case PushItem():
            at, deleted, note = count, 0, f"Added item {count + 1}"
        case InsertItem():
            at, deleted, note = _index(edit.number, count + 1), 0, f"Inserted item {edit.number}"
        case SetItem():
            at, deleted, note = _index(edit.number, count), 1, f"Set item {edit.number}"
        case DeleteItem():
            at = _index(edit.number, count)
            writes = (SpliceItems(container=container, at=at, delete=1, insert=()),)
            return EditOutcome([*before[:at], *before[at + 1 :]], f"Deleted item {edit.number}", writes)
        case _:
            assert_never(edit)
    new = fit_item(schema, edit.value, at + 1)
    if not deleted:
        check_count(schema, count + 1)
    if isinstance(schema.item_schema, MapSchema):
        _guard(schema.item_schema.fields, before[at] if deleted else None, new, editor)
    if deleted and same(before[at], new):
        return EditOutcome(before, note, ())
    after = [*before[:at], new, *before[at + deleted :]]
    return EditOutcome(after, note, (SpliceItems(container=container, at=at, delete=deleted, insert=(new,)),))


def add_entry(schema: LogSchema, before: Sequence[Json], edit: AppendEntry, editor: Editor) -> EditOutcome:
    """What a new entry makes of the log `before`.

    Raises:
        InvalidInput: the entry does not fit.
        PermissionDenied: an agent may not set one of its fields.
    """
    new = fit_entry(schema, edit.value, now=editor.now, agent=short_name(editor.author))
    _guard(schema.fields, None, new, editor)
    writes = (SpliceItems(container=ENTRIES, at=len(before), delete=0, insert=(new,)),)
    return EditOutcome([*before, new], "Added an entry", writes)


def set_value(schema: Schema, before: Json, value: Json, editor: Editor, prefix: str = "") -> EditOutcome:
    """What makes `value` of the whole content `before` of a block or section, by the fewest changes.

    What an agent leaves out stays as it is where it is read-only; everything else that is left out is emptied.

    Raises:
        InvalidInput: the value does not fit the schema.
        PermissionDenied: an agent would change what is read-only, or rewrite a log.
    """
    value = guessed(value) if isinstance(value, Written) else value
    if editor.is_agent:
        value = _kept(schema, before, value)
    after = fit(schema, value)
    if isinstance(schema, LogSchema):
        if editor.is_agent:
            raise PermissionDenied("the entries of a log stay as they are; append one instead")
        after = _stamped(schema, before, after, editor)
    if editor.is_agent:
        _guard_all(schema, before, after, editor)
    return EditOutcome(after, "Set the content", tuple(writes_between(schema, before, after, prefix)))


def _demand(one: Field, kind: FieldType) -> None:
    if one.field_type is not kind:
        raise InvalidInput(f"the field {one.name} is a {one.field_type.value}, not a {kind.value}; use set_field")


def _loose(value: Json) -> Json:
    return canonical(guessed(value) if isinstance(value, Written) else value)


def _list(held: Json) -> Sequence[Json]:
    return held if isinstance(held, list) else []


def _place(one: Field, held: Sequence[Json], value: Json) -> int:
    wanted = _loose(value)
    texts = [to_json(each) for each in held]
    # A number in a list is found by its digits, too: whoever writes it down cannot say which of both is meant.
    words = value.text.strip() if isinstance(value, Written) else None
    for at, each in enumerate(texts):
        if each in (to_json(wanted), words):
            return at
    raise InvalidInput(f"the field {one.name} holds no {excerpt(wanted)}; it holds {excerpt(list(held))}")


def _delta(value: Json) -> int:
    found = typed(value.text, FieldType.COUNTER) if isinstance(value, Written) else value
    return int(of_type(found, FieldType.COUNTER))


def _index(number: int, count: int) -> int:
    if not 1 <= number <= count:
        there = f"items are counted from 1 to {count}" if count else "the list is empty"
        raise InvalidInput(f"there is no item {number}; {there}")
    return number - 1


def _guard(fields: Sequence[Field], before: Json, after: Mapping[str, Json], editor: Editor) -> None:
    """Refuse an agent what is read-only in an item or entry."""
    held = before if isinstance(before, Mapping) else {}
    for one in fields:
        first = held.get(one.name, one.default)
        if one.read_only and editor.is_agent and not same(first, after.get(one.name)):
            raise PermissionDenied(f"the field {one.name} is read-only; leave it out", field=one.name)


def _kept(schema: Schema, before: Json, value: Json) -> Json:
    """`value` with the read-only parts that it leaves out."""
    if not isinstance(value, Mapping):
        return value
    match schema:
        case MapSchema():
            kept = {one.name: before[one.name] for one in schema.fields if one.read_only}
            return {**kept, **value}
        case CompositeSchema():
            kept = {one.name: before[one.name] for one in schema.sections if one.read_only}
            inner = {
                one.name: _kept(one.schema, before[one.name], value[one.name])
                for one in schema.sections
                if one.name in value
            }
            return {**kept, **value, **inner}
        case _:
            return value


def _guard_all(schema: Schema, before: Json, after: Json, editor: Editor) -> None:
    """Refuse an agent a change of anything read-only."""
    match schema:
        case MapSchema():
            _guard(schema.fields, before, after, editor)
        case ListSchema(item_schema=MapSchema(fields=fields)) if any(one.read_only for one in fields):
            known = {to_json(each) for each in before}
            for each in after:
                if to_json(each) not in known:
                    _guard(fields, None, each, editor)
        case CompositeSchema():
            for one in schema.sections:
                if one.read_only and not same(before[one.name], after[one.name]):
                    raise PermissionDenied(f"the section {one.name} is read-only; leave it out", section=one.name)
                _guard_all(one.schema, before[one.name], after[one.name], editor)


def _stamped(schema: LogSchema, before: Sequence[Json], after: Sequence[Json], editor: Editor) -> list[Json]:
    """The entries, of which the new ones get the stamps that they do not bring."""
    known = {to_json(each) for each in before}
    stamps: dict[str, Json] = {}
    if schema.has_timestamp:
        stamps[TIMESTAMP] = editor.now
    if schema.has_agent:
        stamps[AGENT_ID] = short_name(editor.author)
    return [each if to_json(each) in known else canonical(stamps | each) for each in after]


def _instead(schema: Schema) -> str:
    """What a shape is, and how it is edited."""
    match schema:
        case TextSchema():
            return "text; use append, replace, patch or edit_range"
        case MapSchema():
            return f"a Map; use set_field with one of {', '.join(field.name for field in schema.fields)}"
        case ListSchema():
            return "a List; use append, insert_item, set_item or delete_item"
        case LogSchema():
            return "a Log, whose entries stay; use append to add one"
        case CompositeSchema():
            return f"a Composite; name one of its sections: {', '.join(one.name for one in schema.sections)}"
