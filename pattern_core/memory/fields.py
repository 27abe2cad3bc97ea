"""Validation of values against a schema: types, required fields, items, entries. Pure; returns canonical values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from pattern_core.errors import InvalidInput
from pattern_core.memory.block import Attribution, short_name
from pattern_core.memory.schema import (
    AGENT_ID,
    TIMESTAMP,
    CompositeSchema,
    Field,
    FieldType,
    ListSchema,
    LogSchema,
    MapSchema,
    Schema,
    Section,
    TextSchema,
    canonical,
    excerpt,
    of_type,
    typed,
)
from pattern_core.messages import check_text
from pattern_db.columns import Json

Part = TypeVar("Part", Field, Section)
EMPTY: Mapping[FieldType, Json] = {FieldType.LIST: [], FieldType.COUNTER: 0}  # of fields that always have a value


@dataclass(frozen=True, slots=True)
class Written:
    """A value given as text, JSON or plain; how it is parsed depends on its place."""

    text: str


def empty_value(schema: Schema) -> Json:
    """Return the content of an empty document, without defaults."""
    match schema:
        case TextSchema():
            return ""
        case MapSchema():
            return {field.name: EMPTY.get(field.field_type) for field in schema.fields}
        case ListSchema() | LogSchema():
            return []
        case CompositeSchema():
            return {one.name: empty_value(one.schema) for one in schema.sections}


def fit(schema: Schema, value: Json) -> Json:
    """Return the whole content `value` in canonical form, with defaults for what it leaves out.

    Raises:
        InvalidInput: it is invalid; the message names the field, item or section and the valid values.
    """
    match schema:
        case TextSchema():
            if not isinstance(value, str):
                raise InvalidInput(f"the block is text, not {excerpt(value)}")
            return check_text(value)
        case MapSchema():
            return _fit_fields(schema.fields, value, "the block")
        case ListSchema():
            items = [fit_item(schema, one, number) for number, one in enumerate(_sequence(value, "a list"), 1)]
            check_count(schema, len(items))
            return items
        case LogSchema():
            return [_entry(schema, one, f"entry {number}") for number, one in enumerate(_sequence(value, "a log"), 1)]
        case CompositeSchema():
            given = _members(value, [one.name for one in schema.sections], "section", what="the block")
            return {one.name: _fit_section(one, given.get(one.name)) for one in schema.sections}


def _fit_section(section: Section, value: Json) -> Json:
    try:
        return fit(section.schema, empty_value(section.schema) if value is None else value)
    except InvalidInput as error:
        raise InvalidInput(f"in the section {section.name}: {error.message}") from None


def _fit_fields(fields: Sequence[Field], value: Json, what: str) -> dict[str, Json]:
    """Return the object `value` with every field, in the order of the schema."""
    given = _members(value, [field.name for field in fields], "field", what=what)
    return {field.name: fit_field(field, given.get(field.name)) for field in fields}


def fit_field(field: Field, value: Json) -> Json:
    """Return the value of one field; None, and texts that mean it, become the default.

    Raises:
        InvalidInput: it is invalid, or missing and the field is required.
    """
    try:
        if isinstance(value, Written):
            value = typed(value.text, field.field_type)
        if value is not None:
            return of_type(value, field.field_type)
    except InvalidInput as error:
        raise InvalidInput(f"the field {field.name} is invalid: {error.message}") from None
    if field.default is not None:
        return field.default
    if field.required:
        raise InvalidInput(f"the field {field.name} is required; give it a value")
    return empty_value(MapSchema(fields=(field,)))[field.name]


def check_count(schema: ListSchema, count: int) -> None:
    """Check that a list may have `count` items.

    Raises:
        InvalidInput: it may not.
    """
    if schema.max_items is not None and count > schema.max_items:
        raise InvalidInput(f"the list holds at most {schema.max_items} items, not {count}; delete one first")


def fit_item(schema: ListSchema, value: Json, number: int) -> Json:
    """Return one item; `number` is its number, from 1.

    Raises:
        InvalidInput: it is invalid.
    """
    what = f"item {number}"
    match schema.item_schema:
        case TextSchema():
            text = value.text if isinstance(value, Written) else value
            if not isinstance(text, str):
                raise InvalidInput(f"{what} is text, not {excerpt(text)}")
            return check_text(text)
        case MapSchema(fields=fields):
            return canonical(_object(fields, value, what))
        case None:
            return canonical(guessed(value))


def stamps_of(schema: LogSchema, by: Attribution, now: str) -> dict[str, Json]:
    """Return the stamps of a new entry: the time `now` and the author, as far as the schema has them."""
    wanted, stamps = schema.entry_schema, {TIMESTAMP: now, AGENT_ID: short_name(by.author)}
    return {name: value for name, value in stamps.items() if getattr(wanted, name)}


def fit_entry(schema: LogSchema, value: Json, stamps: Mapping[str, Json]) -> Json:
    """Return a new entry with its stamps.

    Raises:
        InvalidInput: the entry is invalid, or has its own stamps.
    """
    return canonical({**stamps, **_object(schema.fields, value, "the entry")})


def _entry(schema: LogSchema, value: Json, what: str) -> Json:
    """Return an entry with its stamps, if any."""
    if not isinstance(value, Mapping):
        return canonical(_object(schema.fields, value, what))
    stamps = {name: value[name] for name in (TIMESTAMP, AGENT_ID) if value.get(name) is not None}
    if not all(isinstance(one, str) for one in stamps.values()):
        raise InvalidInput(f"the stamps of {what} are text, not {excerpt(stamps)}")
    rest = {name: one for name, one in value.items() if name not in (TIMESTAMP, AGENT_ID)}
    return canonical(stamps | _object(schema.fields, rest, what))


def _object(fields: Sequence[Field], value: Json, what: str) -> dict[str, Json]:
    """Return an item or entry with these fields, without empty ones; plain text fills the first one."""
    value = guessed(value)
    if isinstance(value, str):
        value = {fields[0].name: Written(value)}
    try:
        found = _fit_fields(fields, value, what)
    except InvalidInput as error:
        raise InvalidInput(error.message if what in error.message else f"{what}: {error.message}") from None
    return {name: one for name, one in found.items() if one is not None and one != []}


def guessed(value: Json) -> Json:
    """Return the value of a `Written` if any type is valid: an object or a list if it is one, else text."""
    if not isinstance(value, Written):
        return value
    if value.text.lstrip()[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):
            return json.loads(value.text)
    return value.text


def _members(value: Json, names: Sequence[str], kind: str, *, what: str) -> Mapping[str, Json]:
    known = ", ".join(names)
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{what} is an object with the {kind}s {known}, not {excerpt(value)}")
    for name in value:
        if name not in names:
            raise InvalidInput(f"{what} has no {kind} {excerpt(name)}; there are: {known}")
    return value


def _sequence(value: Json, what: str) -> Sequence[Json]:
    if not isinstance(value, list | tuple):
        raise InvalidInput(f"the block is {what}; give it as [ … ], not {excerpt(value)}")
    return value


def named(parts: Sequence[Part], name: str, kind: str) -> Part:
    """Return the field or section of that name; `kind` is its name in messages.

    Raises:
        InvalidInput: there is none; the message lists the existing ones.
    """
    for part in parts:
        if part.name == name:
            return part
    known = ", ".join(part.name for part in parts)
    raise InvalidInput(f"the block has no {kind} {name!r}; there are: {known}")
