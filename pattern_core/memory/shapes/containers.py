"""Where in a document the parts of each schema stand, and what changes them there. Pure.

Text: the text `content`. Map: the map `fields`, and per list field the list `list_<name>`, per counter the counter
`counter_<name>`. List: the list `items`. Log: the list `entries`. Composite: per section the same under
`section_<name>_…`: `…_content`, `…_fields`, `…_list_<field>`, `…_counter_<field>`, `…_items`.

Whoever changes one of these leaves the others alone, so that changes of different parts merge.
Source: the containers per block schema of the memory design; those of a section's lists and counters are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from pattern_core.memory.document import TEXT, Document
from pattern_core.memory.shapes.schema import (
    CompositeSchema,
    Field,
    ListSchema,
    LogSchema,
    MapSchema,
    Schema,
    TextSchema,
)
from pattern_core.memory.shapes.values import FieldType, readable, same
from pattern_db.columns import Json, to_json

ENTRIES = "entries"
COMPARED_MAX = 250_000  # pairs of items; a longer list that changed all over is replaced between its common ends


@dataclass(frozen=True, slots=True, kw_only=True)
class SpliceText:
    """Replace `delete` code points of the text `container` from `at` on by `insert`."""

    container: str
    at: int
    delete: int
    insert: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateText:
    """Make the text `container` this one; the document finds the smallest difference."""

    container: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PutField:
    """Set `key` of the map `container`; None removes it."""

    container: str
    key: str
    value: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class SpliceItems:
    """Replace `delete` items of the list `container` from `at` (from 0) on by those of `insert`."""

    container: str
    at: int
    delete: int
    insert: tuple[Json, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddCount:
    """Add `delta` to the counter `container`."""

    container: str
    delta: int


Write = SpliceText | UpdateText | PutField | SpliceItems | AddCount


def apply(document: Document, writes: Sequence[Write]) -> None:
    """Make the changes, in their order.

    Raises:
        DocumentDamaged: they were made for another content. Drop the document.
    """
    for write in writes:
        match write:
            case SpliceText():
                document.splice(write.at, write.delete, write.insert, write.container)
            case UpdateText():
                document.set_text(write.text, write.container)
            case PutField():
                document.put_field(write.container, write.key, write.value)
            case SpliceItems():
                document.splice_items(write.container, write.at, write.delete, write.insert)
            case AddCount():
                document.add(write.container, write.delta)


def value_of(document: Document, schema: Schema, section: str | None = None) -> Json:
    """The content as a canonical JSON value: a text, a list, or an object with every field or section of the schema.

    A field without a value has its default, else null; lists, texts and counters begin empty. What stands in the
    document beside the schema's parts is left out.

    Raises:
        DocumentDamaged: the document cannot be read.
    """
    match schema:
        case TextSchema():
            return document.text_in(text_name(section))
        case MapSchema():
            stored = document.fields_in(fields_name(section))
            return {field.name: _field_value(document, field, stored, section) for field in schema.fields}
        case ListSchema():
            return readable(document.items_in(items_name(section)))
        case LogSchema():
            return readable(document.items_in(ENTRIES))
        case CompositeSchema():
            return {one.name: value_of(document, one.schema, one.name) for one in schema.sections}


def _field_value(document: Document, field: Field, stored: dict[str, Json], section: str | None) -> Json:
    match field.field_type:
        case FieldType.LIST:
            return readable(document.items_in(list_name(field, section)))
        case FieldType.COUNTER:
            return readable(document.count_in(counter_name(field, section)))
        case _:
            value = readable(stored.get(field.name))
            return field.default if value is None else value


def empty_value(schema: Schema) -> Json:
    """What `value_of` an empty document is, but for defaults."""
    match schema:
        case TextSchema():
            return ""
        case MapSchema():
            return {field.name: _EMPTY.get(field.field_type) for field in schema.fields}
        case ListSchema() | LogSchema():
            return []
        case CompositeSchema():
            return {one.name: empty_value(one.schema) for one in schema.sections}


def writes_between(schema: Schema, before: Json, after: Json, section: str | None = None) -> list[Write]:
    """The fewest changes that make `after` of `before`, both canonical values of the schema.

    What is the same in both is not touched, so that what others change there meanwhile survives the merge.
    """
    match schema:
        case TextSchema():
            return _text_writes(text_name(section), before, after)
        case MapSchema():
            return [
                write
                for field in schema.fields
                for write in field_writes(field, before[field.name], after[field.name], section)
            ]
        case ListSchema():
            return item_writes(items_name(section), before, after)
        case LogSchema():
            return item_writes(ENTRIES, before, after)
        case CompositeSchema():
            return [
                write
                for one in schema.sections
                for write in writes_between(one.schema, before[one.name], after[one.name], one.name)
            ]


def _text_writes(container: str, before: str, after: str) -> list[Write]:
    if before == after:
        return []
    if not before:  # nothing to compare with
        return [SpliceText(container=container, at=0, delete=0, insert=after)]
    return [UpdateText(container=container, text=after)]


def field_writes(field: Field, before: Json, after: Json, section: str | None = None) -> list[Write]:
    """The fewest changes that make the field's value `after` of `before`."""
    if same(before, after):
        return []
    match field.field_type:
        case FieldType.LIST:
            return item_writes(list_name(field, section), before, after)
        case FieldType.COUNTER:
            return [AddCount(container=counter_name(field, section), delta=after - before)]
        case _:
            return [PutField(container=fields_name(section), key=field.name, value=after)]


def item_writes(container: str, before: Sequence[Json], after: Sequence[Json]) -> list[Write]:
    """The fewest splices that make the list `after` of `before`, from the last place to the first."""
    old, new = [to_json(item) for item in before], [to_json(item) for item in after]
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    inner_old, inner_new = old[start : len(old) - end], new[start : len(new) - end]
    if len(inner_old) * len(inner_new) > COMPARED_MAX:
        changes = [("replace", 0, len(inner_old), 0, len(inner_new))]
    else:
        changes = list(SequenceMatcher(None, inner_old, inner_new, autojunk=False).get_opcodes())
    return [
        SpliceItems(
            container=container, at=start + low, delete=high - low, insert=tuple(after[start + begin : start + stop])
        )
        for what, low, high, begin, stop in reversed(changes)
        if what != "equal"
    ]


def text_name(section: str | None = None) -> str:
    """The container of the text, or of a section's."""
    return TEXT if section is None else f"section_{section}_content"


def fields_name(section: str | None = None) -> str:
    """The container of a map's plain fields."""
    return "fields" if section is None else f"section_{section}_fields"


def items_name(section: str | None = None) -> str:
    """The container of a list's items."""
    return "items" if section is None else f"section_{section}_items"


def list_name(field: Field, section: str | None = None) -> str:
    """The container of a list field."""
    return f"list_{field.name}" if section is None else f"section_{section}_list_{field.name}"


def counter_name(field: Field, section: str | None = None) -> str:
    """The container of a counter field."""
    return f"counter_{field.name}" if section is None else f"section_{section}_counter_{field.name}"


_EMPTY: dict[FieldType, Json] = {FieldType.LIST: [], FieldType.COUNTER: 0}
