"""The result of an edit: the only place where schema, read-only parts and the limit are checked. Pure, except for the
process of regular expressions.

The block's permission was checked before (`block.require`); restrictions of agents here do not apply to people and the
system. An edit is a function of a value; the changes of the document follow from the difference, and contain only what
differs, so that edits of different fields and items merge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from pattern_core.errors import InvalidInput, PermissionDenied
from pattern_core.memory.block import Attribution, BlockRow, NewBlock, is_agent, schema_of, shown_schema
from pattern_core.memory.content import fitted, parse_editing, plain, prefix_of, value_of, writes_between
from pattern_core.memory.document import State, Writes, same
from pattern_core.memory.edits import (
    AppendText,
    BlockEdit,
    DeleteItem,
    FieldEdit,
    Increment,
    InsertItem,
    ItemEdit,
    ListAppend,
    ListRemove,
    SetField,
    SetItem,
    SetText,
    SetValue,
    TextEdit,
)
from pattern_core.memory.fields import (
    Written,
    check_count,
    empty_value,
    fit,
    fit_entry,
    fit_field,
    fit_item,
    guessed,
    named,
    stamps_of,
)
from pattern_core.memory.schema import (
    CompositeSchema,
    Field,
    FieldType,
    ListSchema,
    LogSchema,
    MapSchema,
    Schema,
    TextSchema,
    canonical,
    excerpt,
    of_type,
    typed,
)
from pattern_core.memory.text_edits import edit_text
from pattern_db.columns import Json, to_json
from pattern_db.enums import HistoryKind

_FIELD_TYPES: Mapping[type[FieldEdit], FieldType] = {
    ListAppend: FieldType.LIST,
    ListRemove: FieldType.LIST,
    Increment: FieldType.COUNTER,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A change of a block: the writes to the document, the plain rendering after it, and its line of history.

    Without writes nothing happens. `moved` are the entries of a log that no longer fit, oldest first. An undo
    or redo names the author (`stack`), the version that it `reverts`, and how many edits of that author can still be
    undone and redone after it.
    """

    writes: Writes
    note: str
    plain: str = ""
    moved: tuple[Json, ...] = ()
    kind: HistoryKind = HistoryKind.EDIT
    stack: str | None = None
    reverts: int | None = None
    undo_remaining: int = 0
    redo_remaining: int = 0


async def plan(row: BlockRow, state: State, edit: BlockEdit, by: Attribution, now: str) -> Planned:
    """Return the change of `edit` for the block with the document state `state`, at the stored time `now`.

    Raises:
        InvalidInput: the edit does not match the content or the schema, or the result exceeds the limit.
        PermissionDenied: an agent would change a read-only part.
    """
    whole = schema_of(row.metadata)
    value = value_of(state, whole)
    schema, before, prefix, what, section = whole, value, "", f"the block {row.label}", None
    if edit.section is not None:
        if not isinstance(schema, CompositeSchema):
            raise InvalidInput(f"the block {row.label} is a {schema.kind} without sections; name none")
        section = named(schema.sections, edit.section, "section")
        if section.read_only and is_agent(by.author):
            raise PermissionDenied(f"the section {section.name} of {row.label} is read-only", section=section.name)
        schema, before, prefix = section.schema, before[section.name], prefix_of(section.name)
        what = f"the section {section.name}"
    if isinstance(schema, TextSchema) and isinstance(edit, TextEdit | SetValue):
        after, note, write = await edit_text(before, edit, what)
        writes: Writes = {} if after == before else {f"{prefix}content": write}
    else:
        after, note = _edited(schema, before, edit, by, now, what)
        writes = writes_between(schema, before, after, prefix)
    if section is not None:
        after = value | {section.name: after}
    return _within_limit(row, whole, value, after, note, writes)


def _edited(schema: Schema, before: Json, edit: BlockEdit, by: Attribution, now: str, what: str) -> tuple[Json, str]:
    """Return the value after the edit of `before`, a whole block or one section, and a text about it."""
    match edit, schema:
        case SetValue(value=value), _:
            return _set_value(schema, before, value, by, now), "Set the content"
        case SetText(text=text), _:
            return _set_value(schema, before, parse_editing(text, schema), by, now), "Set the content"
        case AppendText(text=text), ListSchema():
            new = InsertItem(number=len(before) + 1, value=Written(text))
            return _edit_item(schema, before, new, by)[0], f"Added item {new.number}"
        case AppendText(text=text), LogSchema():
            entry = fit_entry(schema, Written(text), stamps_of(schema, by, now))
            _guard(schema.fields, None, entry, by)
            return [*before, entry], "Added an entry"
        case SetField() | ListAppend() | ListRemove() | Increment(), _:
            if isinstance(schema, MapSchema):
                return _edit_field(schema, before, edit, by)
            what += " has no fields: it"
        case InsertItem() | SetItem() | DeleteItem(), _:
            if isinstance(schema, ListSchema):
                return _edit_item(schema, before, edit, by)
            what += " has no items: it"
    raise InvalidInput(f"{what} is {_instead(schema)}")


def _edit_field(schema: MapSchema, before: Json, edit: FieldEdit, by: Attribution) -> tuple[Json, str]:
    one = named(schema.fields, edit.field, "field")
    if one.read_only and is_agent(by.author):
        raise PermissionDenied(f"the field {one.name} is read-only; a person sets it", field=one.name)
    held, wanted = before[one.name], _FIELD_TYPES.get(type(edit), one.field_type)
    if one.field_type is not wanted:
        raise InvalidInput(f"the field {one.name} is a {one.field_type.value}, not a {wanted.value}; use set_field")
    match edit:
        case SetField(value=value):
            new, note = fit_field(one, value), f"Set {one.name}"
        case ListAppend(value=value):
            new, note = [*held, canonical(guessed(value))], f"Added to {one.name}"
        case ListRemove(value=value):
            at = _place(one, held, value)
            new, note = [*held[:at], *held[at + 1 :]], f"Removed from {one.name}"
        case Increment(delta=delta):
            more = typed(delta.text, FieldType.COUNTER) if isinstance(delta, Written) else delta
            new = of_type(held + of_type(more, FieldType.COUNTER), FieldType.COUNTER)
            note = f"{one.name} is {new} now"
        case _:
            assert_never(edit)
    return before | {one.name: new}, note


def _edit_item(schema: ListSchema, before: Sequence[Json], edit: ItemEdit, by: Attribution) -> tuple[Json, str]:
    adds, count = isinstance(edit, InsertItem), len(before)
    if not 1 <= edit.number <= count + adds:
        there = f"items are counted from 1 to {count + adds}" if count + adds else "the list is empty"
        raise InvalidInput(f"there is no item {edit.number}; {there}")
    at = edit.number - 1
    if isinstance(edit, DeleteItem):
        return [*before[:at], *before[at + 1 :]], f"Deleted item {edit.number}"
    new = fit_item(schema, edit.value, edit.number)
    if adds:
        check_count(schema, count + 1)
    if isinstance(schema.item_schema, MapSchema):
        _guard(schema.item_schema.fields, None if adds else before[at], new, by)
    after = [*before[:at], new, *before[at + (not adds) :]]
    return after, f"{'Inserted' if adds else 'Set'} item {edit.number}"


def _set_value(schema: Schema, before: Json, value: Json, by: Attribution, now: str) -> Json:
    """Return the whole content of a block or section after setting `before` to `value`.

    Read-only parts that an agent leaves out stay unchanged; all other missing parts are emptied.

    Raises:
        InvalidInput: the value does not match the schema. PermissionDenied: an agent would change a read-only part, or
        rewrite a log.
    """
    value = guessed(value)
    if not is_agent(by.author):
        return _stamped(schema, before, fit(schema, value), by, now)
    after = fit(schema, _kept(schema, before, value))
    _guard_all(schema, before, after, by)
    return after


def _stamped(schema: Schema, before: Json, after: Json, by: Attribution, now: str) -> Json:
    """Return the content `after`; in a log, entries that are not in `before` get stamps."""
    if not isinstance(schema, LogSchema):
        return after
    known = {to_json(each) for each in before}
    stamps = stamps_of(schema, by, now)
    return [each if to_json(each) in known else canonical(stamps | each) for each in after]


def _place(one: Field, held: Sequence[Json], value: Json) -> int:
    wanted = canonical(guessed(value))
    texts = [to_json(each) for each in held]
    # A number in a list also matches its digits: as text it may mean either.
    words = value.text.strip() if isinstance(value, Written) else None
    for at, each in enumerate(texts):
        if each in (to_json(wanted), words):
            return at
    raise InvalidInput(f"the field {one.name} has no value {excerpt(wanted)}; it has {excerpt(list(held))}")


def _guard(fields: Sequence[Field], before: Json, after: Mapping[str, Json], by: Attribution) -> None:
    """Refuse an agent read-only fields of an item or entry."""
    held = before if isinstance(before, Mapping) else {}
    for one in fields:
        first = held.get(one.name, one.default)
        if one.read_only and is_agent(by.author) and not same(first, after.get(one.name)):
            raise PermissionDenied(f"the field {one.name} is read-only; leave it out", field=one.name)


def _kept(schema: Schema, before: Json, value: Json) -> Json:
    """Return `value` with the read-only parts that it leaves out."""
    match schema, value:
        case MapSchema(), Mapping():
            return {one.name: before[one.name] for one in schema.fields if one.read_only} | dict(value)
        case CompositeSchema(), Mapping():
            kept = {one.name: before[one.name] for one in schema.sections if one.read_only}
            given = [one for one in schema.sections if one.name in value]
            return {
                **kept,
                **value,
                **{one.name: _kept(one.schema, before[one.name], value[one.name]) for one in given},
            }
        case _:
            return value


def _guard_all(schema: Schema, before: Json, after: Json, by: Attribution) -> None:
    """Refuse an agent's change of read-only parts and of a log's entries."""
    match schema:
        case MapSchema():
            _guard(schema.fields, before, after, by)
        case ListSchema(item_schema=MapSchema(fields=fields)):
            known = {to_json(each) for each in before}
            for each in after:
                if to_json(each) not in known:
                    _guard(fields, None, each, by)
        case LogSchema():
            raise PermissionDenied("the entries of a log cannot be changed; append one instead")
        case CompositeSchema():
            for one in schema.sections:
                if one.read_only and not same(before[one.name], after[one.name]):
                    raise PermissionDenied(f"the section {one.name} is read-only; leave it out", section=one.name)
                _guard_all(one.schema, before[one.name], after[one.name], by)


def _instead(schema: Schema) -> str:
    """Return what a schema is, and how it is edited."""
    match schema:
        case TextSchema():
            return "text; use append, replace, patch or edit_range"
        case MapSchema():
            return f"a Map; use set_field with one of {', '.join(field.name for field in schema.fields)}"
        case ListSchema():
            return "a List; use append, insert_item, set_item or delete_item"
        case LogSchema():
            return "a Log with permanent entries; use append to add one"
        case CompositeSchema():
            return f"a Composite; name one of its sections: {', '.join(one.name for one in schema.sections)}"


def plan_start(row: BlockRow, new: NewBlock, by: Attribution) -> Planned:
    """Return the initial content of the new block `row`, with defaults for what `new` leaves out. Agents may set
    read-only parts here, because these need an initial value.

    Raises:
        InvalidInput: it does not match the schema or exceeds the limit.
    """
    schema = schema_of(row.metadata)
    before = empty_value(schema)
    value = _starting(new.content, schema) if new.value is None else new.value
    after = _stamped(schema, before, fit(schema, guessed(value)), by, row.created_at)
    planned = _within_limit(row, schema, before, after, "", writes_between(schema, before, after))
    return replace(planned, note="Created", kind=HistoryKind.CREATE)


def plan_schema(row: BlockRow, state: State, schema: Schema) -> Planned:
    """Return the change of the block, with the document state `state`, to another schema of its kind.

    Raises:
        InvalidInput: the content does not match the new schema; the message says what to change first.
    """
    old = shown_schema(row.metadata)
    try:
        after = fit(schema, _carried(old, schema, value_of(state, old)))
    except InvalidInput as error:
        raise InvalidInput(
            f"the content of {row.label} does not match the new schema: {error.message}; change the content first"
        ) from None
    writes = writes_between(schema, value_of(state, schema), after)
    return Planned(writes=writes, note="Changed the schema", plain=plain(after, schema))


def _starting(content: str, schema: Schema) -> Json:
    if isinstance(schema, TextSchema):
        return content
    if not content.strip():
        return [] if isinstance(schema, ListSchema | LogSchema) else {}
    if isinstance(schema, ListSchema | LogSchema) and content.lstrip()[:1] != "[":
        return [Written(content)]
    return parse_editing(content, schema)


def _carried(old: Schema, new: Schema, value: Json) -> Json:
    """Return the content without empty parts that the new schema does not have."""
    if isinstance(old, MapSchema) and isinstance(new, MapSchema):
        names, empty = {one.name for one in new.fields}, empty_value(old)
        return {name: one for name, one in value.items() if name in names or not same(one, empty[name])}
    if isinstance(old, CompositeSchema) and isinstance(new, CompositeSchema):
        parts, empty = {one.name: one.schema for one in new.sections}, empty_value(old)
        return {
            one.name: _carried(one.schema, parts[one.name], value[one.name]) if one.name in parts else value[one.name]
            for one in old.sections
            if not same(value[one.name], empty[one.name])
        }
    return value


def _within_limit(row: BlockRow, schema: Schema, before: Json, after: Json, note: str, writes: Writes) -> Planned:
    moved: list[Json] = []
    if not writes:
        return Planned(writes={}, note="Nothing changed", plain=plain(before, schema))
    if isinstance(schema, LogSchema):
        count, text = fitted(schema, after, row.char_limit)
        if count:
            moved, after = after[:count], after[count:]
            writes = writes_between(schema, before, after)
            note += f"; moved the oldest {'entry' if count == 1 else f'{count} entries'} to the archive"
    else:
        text = plain(after, schema)
    if len(text) > row.char_limit:
        check_size(row, size=len(text), before=len(plain(before, schema)))
    return Planned(writes=writes, note=note, plain=text, moved=tuple(moved))


def check_size(row: BlockRow, *, size: int, before: int) -> None:
    """Refuse content that exceeds the block's limit. Sizes are in Unicode code points.

    A block that already exceeds its limit (the limit was lowered) may shrink step by step.

    Raises:
        InvalidInput: `size` is above the block's limit and not below `before`; the message names all three.
    """
    if size > row.char_limit and size >= before:
        raise InvalidInput(
            f"the block {row.label} holds at most {row.char_limit} characters; it has {before} and would have {size}. "
            "Shorten it first, or store the details with recall",
            limit=row.char_limit,
            size=before,
            wanted=size,
        )
