"""What an edit comes to in a block: the one place where schema, read-only parts and the limit are looked at. Pure.

The block's permission was looked at before (`memory.permission`); what binds agents here does not bind people and the
system.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pattern_core.errors import InvalidInput, PermissionDenied
from pattern_core.memory.block import NewBlock
from pattern_core.memory.edits import structured
from pattern_core.memory.edits.edit import (
    AppendEntry,
    AppendText,
    BlockEdit,
    Change,
    DeleteItem,
    EditRange,
    Increment,
    InsertItem,
    ListAppend,
    ListRemove,
    Patch,
    PushItem,
    ReplaceText,
    SetField,
    SetItem,
    SetText,
    SetValue,
    change_of,
)
from pattern_core.memory.edits.structured import Outcome, Writer
from pattern_core.memory.shapes.containers import (
    ENTRIES,
    SpliceItems,
    SpliceText,
    UpdateText,
    Write,
    empty_value,
    text_name,
    writes_between,
)
from pattern_core.memory.shapes.fields import Written, fit, section_named
from pattern_core.memory.shapes.log import fitted
from pattern_core.memory.shapes.render import parse_editing, plain
from pattern_core.memory.shapes.schema import (
    CompositeSchema,
    ListSchema,
    LogSchema,
    MapSchema,
    Schema,
    TextSchema,
    check_size,
)
from pattern_core.memory.shapes.values import same
from pattern_db.columns import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """A block's content as an edit finds it: `value` is canonical, `limit` in code points of the plain rendering."""

    label: str
    schema: Schema
    value: Json
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What an edit comes to: the content after it, its plain rendering, words, and the changes in the document.

    Without changes nothing happens. `moved` are the entries of a log that have no room any more, oldest first.
    """

    value: Json
    plain: str
    note: str
    writes: tuple[Write, ...]
    moved: tuple[Json, ...] = ()


async def plan(content: Content, edit: BlockEdit, writer: Writer) -> Planned:
    """What `edit` by `writer` makes of `content`.

    Raises:
        InvalidInput: the edit does not fit the content or the schema, or the result not the limit.
        PermissionDenied: an agent would change what is read-only.
    """
    schema, before = content.schema, content.value
    if edit.section is None:
        outcome = await _outcome(schema, before, edit, writer, f"the block {content.label}")
        after = outcome.after
    else:
        if not isinstance(schema, CompositeSchema):
            raise InvalidInput(f"the block {content.label} is a {schema.kind.value} without sections; name none")
        section = section_named(schema, edit.section)
        if section.read_only and writer.is_agent:
            raise PermissionDenied(f"the section {section.name} of {content.label} is read-only", section=section.name)
        part = f"the section {section.name}"
        outcome = await _outcome(section.schema, before[section.name], edit, writer, part)
        after = before | {section.name: outcome.after}
    return _within_limit(content, after, outcome)


def plan_start(new: NewBlock, schema: Schema, limit: int, writer: Writer) -> Planned:
    """What a new block starts with; defaults stand for what `new` leaves out, read-only or not.

    Raises:
        InvalidInput: it does not fit the schema or the limit.
    """
    before = empty_value(schema)
    value = _starting(new.content, schema) if new.value is None else new.value
    start = structured.set_value(schema, before, SetValue(value=value), replace(writer, is_agent=False))
    content = Content(label=new.label, schema=schema, value=before, limit=limit)
    if not start.writes:
        return Planned(value=before, plain=plain(before, schema), note="", writes=())
    return _within_limit(content, start.after, start)


def plan_schema(content: Content, schema: Schema, before: Json) -> Planned:
    """What it takes that `content` has another schema of its kind. `before` is what that one finds in the document.

    Raises:
        InvalidInput: the content does not fit the new schema; the message says what to change first.
    """
    try:
        after = fit(schema, _carried(content.schema, schema, content.value))
    except InvalidInput as error:
        raise InvalidInput(
            f"the content of {content.label} does not fit the new schema: {error.message}; change the content first"
        ) from None
    writes = tuple(writes_between(schema, before, after))
    return Planned(value=after, plain=plain(after, schema), note="Changed the schema", writes=writes)


def _starting(content: str, schema: Schema) -> Json:
    if isinstance(schema, TextSchema):
        return content
    if not content.strip():
        return [] if isinstance(schema, ListSchema | LogSchema) else {}
    if isinstance(schema, ListSchema | LogSchema) and content.lstrip()[:1] != "[":
        return [Written(content)]
    return parse_editing(content, schema)


def _carried(old: Schema, new: Schema, value: Json) -> Json:
    """The content without what was empty anyway and has no place in the new schema."""
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


def _within_limit(content: Content, after: Json, outcome: Outcome) -> Planned:
    if not outcome.writes:
        return Planned(value=content.value, plain="", note="Nothing changed", writes=())
    schema, writes, note, moved = content.schema, outcome.writes, outcome.note, ()
    if isinstance(schema, LogSchema):
        count, text = fitted(schema, after, content.limit)
        if count:
            moved, after = tuple(after[:count]), after[count:]
            writes = (*writes, SpliceItems(container=ENTRIES, at=0, delete=count, insert=()))
            note += f"; moved the oldest {'entry' if count == 1 else f'{count} entries'} to the archive"
    else:
        text = plain(after, schema)
    size_before = len(plain(content.value, schema)) if len(text) > content.limit else 0
    check_size(content.label, size=len(text), before=size_before, limit=content.limit)
    return Planned(value=after, plain=text, note=note, writes=writes, moved=moved)


async def _outcome(schema: Schema, before: Json, edit: BlockEdit, writer: Writer, what: str) -> Outcome:
    """What the edit makes of a whole block or of one section."""
    match edit:
        case SetText() if not isinstance(schema, TextSchema):
            value = parse_editing(edit.text, schema)
            return structured.set_value(schema, before, SetValue(value=value, section=edit.section), writer)
        case SetValue() if isinstance(schema, TextSchema):
            if not isinstance(edit.value, str):
                raise InvalidInput(f"{what} is text; give its whole text")
            return _written(before, await change_of(before, SetText(text=edit.value)), edit.section)
        case SetValue():
            return structured.set_value(schema, before, edit, writer)
        case AppendText() if isinstance(schema, ListSchema):
            return structured.item(schema, before, PushItem(value=Written(edit.text), section=edit.section), writer)
        case AppendText() if isinstance(schema, LogSchema):
            return structured.entry(schema, before, AppendEntry(value=Written(edit.text)), writer)
        case AppendText() | ReplaceText() | SetText() | EditRange() | Patch():
            if not isinstance(schema, TextSchema):
                raise InvalidInput(f"{what} is {_instead(schema)}")
            return _written(before, await change_of(before, edit), edit.section)
        case SetField() | ListAppend() | ListRemove() | Increment():
            if not isinstance(schema, MapSchema):
                raise InvalidInput(f"{what} has no fields: it is {_instead(schema)}")
            return structured.field(schema, before, edit, writer)
        case PushItem() | InsertItem() | SetItem() | DeleteItem():
            if not isinstance(schema, ListSchema):
                raise InvalidInput(f"{what} has no items: it is {_instead(schema)}")
            return structured.item(schema, before, edit, writer)
        case AppendEntry():
            if not isinstance(schema, LogSchema):
                raise InvalidInput(f"{what} is no log: it is {_instead(schema)}")
            return structured.entry(schema, before, edit, writer)


def _written(before: str, change: Change, section: str | None) -> Outcome:
    if change.after == before:
        return Outcome(before, change.note, ())
    container = text_name(section)
    if change.splices is None:
        return Outcome(change.after, change.note, (UpdateText(container=container, text=change.after),))
    writes = [
        SpliceText(container=container, at=splice.at, delete=splice.delete, insert=splice.insert)
        for splice in change.splices
    ]
    return Outcome(change.after, change.note, tuple(writes))


def _instead(schema: Schema) -> str:
    """What a shape is, and how it is edited."""
    match schema:
        case TextSchema():
            return "text; use append, replace, patch or edit_range"
        case MapSchema():
            return f"a Map; use set_field with one of {_names([field.name for field in schema.fields])}"
        case ListSchema():
            return "a List; use append, insert_item, set_item or delete_item"
        case LogSchema():
            return "a Log, whose entries stay; use append to add one"
        case CompositeSchema():
            return f"a Composite; name one of its sections: {_names([one.name for one in schema.sections])}"


def _names(names: Sequence[str]) -> str:
    return ", ".join(names)
