"""Schemas of documents: parsed from the metadata of blocks, and written back; and the values of their fields.

A schema is stored in a block's metadata under `schema`, tagged by its kind: `"Text"` or `{"Map": {"fields": […]}}`.
Source: the block schemas of the memory design (Text, Map, List, Log, Composite).

Values are JSON in one canonical form: objects with sorted keys, whole numbers without a fraction, times in UTC. Equal
values are equal as text, on every copy of a document.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import date
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import AfterValidator, BeforeValidator, PlainValidator, TypeAdapter, ValidationInfo
from pydantic import Field as Checked

from pattern_core.errors import InvalidInput
from pattern_core.messages import check_text
from pattern_core.validation import read, without_null
from pattern_db.columns import Json, to_json
from pattern_db.columns import canonical as canonical_time

FIELDS_MAX = 100
SECTIONS_MAX = 50
LINE_MAX = 10**9  # of a viewport
ITEMS_MAX = 100_000  # the most that `max_items` may allow
DISPLAY_LIMIT_MAX = 1_000
NAME_CHARS_MAX = 64
TIMESTAMP, AGENT_ID = "timestamp", "agent_id"  # what the system stamps on the entries of a log
# A name begins a line, names a container and is part of JSON paths.
_NAME = re.compile(r"\w(?:[\w .-]*\w)?")
DEPTH_MAX = 32  # levels of lists and objects
WHOLE_MAX = 2**63 - 1  # whole numbers are stored in 64 bits
COUNT_MAX = 2**53  # counters are stored as floating point, which is exact up to here
_EXACT = 2**53
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_EXCERPT_CHARS = 60


class FieldType(StrEnum):
    """The type of a field, by the name under which it is stored."""

    TEXT = "Text"
    NUMBER = "Number"
    BOOLEAN = "Boolean"
    LIST = "List"
    TIMESTAMP = "Timestamp"
    COUNTER = "Counter"


def canonical(value: Json, depth: int = 0) -> Json:
    """Return a canonical copy of `value`.

    Raises:
        InvalidInput: it is not JSON, too deep, or has a number or a lone surrogate that cannot be stored.
    """
    if depth > DEPTH_MAX:
        raise InvalidInput(f"a value may have at most {DEPTH_MAX} levels of lists and objects; make it flatter")
    match value:
        case None | bool():
            return value
        case str():
            return check_text(value)
        case int():
            if abs(value) > WHOLE_MAX:
                raise InvalidInput("a whole number has at most 63 bits; write longer ones as text")
            return value
        case float():
            if not math.isfinite(value):
                raise InvalidInput("infinity and not-a-number cannot be stored; leave the value out")
            return int(value) if value.is_integer() and abs(value) < _EXACT else value
        case list() | tuple():
            return [canonical(one, depth + 1) for one in value]
        case Mapping():
            if not all(isinstance(key, str) for key in value):
                raise InvalidInput("the names in an object are text")
            return {check_text(key): canonical(value[key], depth + 1) for key in sorted(value)}
        case _:
            raise InvalidInput(f"{type(value).__name__} is not a JSON value; use text, numbers, lists and objects")


def readable(value: Json, depth: int = 0) -> Json:
    """Return a stored value as canonical JSON. Never refuses: other programs' values that are not JSON become null."""
    match value:
        case None | bool() | str() | int():
            return value
        case float() if math.isfinite(value):
            return int(value) if value.is_integer() and abs(value) < _EXACT else value
        case list() if depth <= DEPTH_MAX:
            return [readable(one, depth + 1) for one in value]
        case dict() if depth <= DEPTH_MAX:
            return {key: readable(value[key], depth + 1) for key in sorted(value)}
        case _:
            return None


def of_type(value: Json, kind: FieldType) -> Json:
    """Return `value` in canonical form, if it is valid for a field of that kind.

    Raises:
        InvalidInput: it is not; the message names valid values.
    """
    types, words = _TAKES[kind]
    if not isinstance(value, types) or (isinstance(value, bool) and kind is not FieldType.BOOLEAN):
        raise InvalidInput(f"it must be {words}, not {excerpt(value)}")
    if kind is FieldType.TIMESTAMP:
        return _time(value)
    found = canonical(value)
    if kind is FieldType.COUNTER and (not isinstance(found, int) or abs(found) > COUNT_MAX):
        raise InvalidInput(f"a counter counts in whole numbers up to 2^53, not {excerpt(value)}")
    return found


def typed(text: str, kind: FieldType) -> Json:
    """Return the value of `text` for a field of that kind; `null` means none.

    Raises:
        InvalidInput: it is not a value of that kind.
    """
    if text.strip() == "null":
        return None
    if kind in (FieldType.TEXT, FieldType.TIMESTAMP):
        return of_type(text, kind)
    try:
        value = json.loads(text.strip().lower() if kind is FieldType.BOOLEAN else text)
    except (ValueError, RecursionError):
        raise InvalidInput(f"it must be {_TAKES[kind][1]}, not {excerpt(text)}") from None
    return of_type(value, kind)


def excerpt(value: Json) -> str:
    """Return a value for an error message: as JSON, shortened."""
    try:
        text = to_json(value)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= _EXCERPT_CHARS else text[:_EXCERPT_CHARS] + "…"


def _time(text: str) -> str:
    """Return a date unchanged, a time in UTC with milliseconds."""
    try:
        return date.fromisoformat(text).isoformat() if _DAY.fullmatch(text) else canonical_time(text)
    except ValueError:
        raise InvalidInput(f"it must be {_TAKES[FieldType.TIMESTAMP][1]}, not {excerpt(text)}") from None


# The Python type of such a value, and its name in messages.
_TAKES: Mapping[FieldType, tuple[Any, str]] = {
    FieldType.TEXT: (str, "text"),
    FieldType.NUMBER: (int | float, "a number"),
    FieldType.BOOLEAN: (bool, "true or false"),
    FieldType.LIST: (list | tuple, 'a list such as ["one", "two"]'),
    FieldType.TIMESTAMP: (str, "a day such as 2026-11-21 or a moment with its offset such as 2026-11-21T22:24:40Z"),
    FieldType.COUNTER: (int | float, "a whole number"),
}


def _named(kinds: Iterable[str], tag: Json, what: str) -> str:
    """Return the kind that `tag` names, in any case."""
    for kind in kinds:
        if isinstance(tag, str) and tag.lower() == kind.lower():
            return kind
    raise InvalidInput(f"there is no {what} {excerpt(tag)}; there are: {', '.join(kinds)}")


def _name(given: str) -> str:
    if len(given) > NAME_CHARS_MAX or _NAME.fullmatch(given) is None:
        raise InvalidInput(
            f"{excerpt(given)} cannot be the name of a field or section: 1 to {NAME_CHARS_MAX} letters, digits and _,"
            " with spaces, dots and dashes only inside"
        )
    return given


def _default(value: Json, info: ValidationInfo) -> Json:
    try:
        return None if value is None else of_type(value, info.data["field_type"])
    except InvalidInput as error:
        name = info.data.get("name")
        raise InvalidInput(f"the default of the field {name} is invalid: {error.message}") from None


def _distinct(parts: Sequence[Any]) -> Sequence[Any]:
    names = [part.name for part in parts]
    for name in names:
        if names.count(name) > 1:
            raise InvalidInput(f"there are two parts named {name!r}; rename one")
    return parts


def _without_counters(given: Sequence[Field]) -> None:
    for one in given:
        if one.field_type is FieldType.COUNTER:
            raise InvalidInput(f"items and entries cannot hold the counter {one.name!r}; make it a Number")


def _of_entry(given: tuple[Field, ...]) -> tuple[Field, ...]:
    _without_counters(given)
    for one in given:
        if one.name in (TIMESTAMP, AGENT_ID):
            raise InvalidInput(f"the system sets `{one.name}` of an entry itself; give the field another name")
    return given or WORDS


# Endless nesting must not be followed, so the kind is checked first.


def _item_schema(stored: Json) -> TextSchema | MapSchema | None:
    if stored is None:
        return None
    if _tagged(stored)[0] in ("Text", "Map"):
        match parse_schema(stored):
            case MapSchema(fields=given) as schema:
                _without_counters(given)
                return schema
            case TextSchema(viewport=None) as schema:
                return schema
    raise InvalidInput(f"the items of a List are each a Text without viewport, or a Map; not {excerpt(stored)}")


def _section_schema(stored: Json) -> TextSchema | MapSchema | ListSchema:
    if _tagged(stored)[0] in ("Text", "Map", "List"):
        match parse_schema(stored):
            case TextSchema() | MapSchema() | ListSchema() as schema:
                return schema
    raise InvalidInput(f"a section is a Text, a Map or a List; not {excerpt(stored)}")


Name: TypeAlias = Annotated[str, AfterValidator(_name)]
Line: TypeAlias = Annotated[int, Checked(ge=1, le=LINE_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewport:
    """Which lines of a text the prompt shows: `display_lines` of them from `start_line` (from 1) on."""

    start_line: Line = 1
    display_lines: Line


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a map, an item or an entry. `default` is used where there is no value; None: no default.

    `read_only` applies to agents; people and the system may set it.
    """

    name: Name
    description: str = ""
    field_type: Annotated[FieldType, PlainValidator(lambda tag: FieldType(_named(FieldType, tag, "field type")))] = (
        FieldType.TEXT
    )
    required: bool = False
    default: Annotated[Json, AfterValidator(_default)] = None
    read_only: bool = False


WORDS = (Field(name="text", required=True),)  # the fields of an entry if its schema names none
Fields: TypeAlias = Annotated[
    tuple[Annotated[Field, BeforeValidator(without_null)], ...],
    Checked(max_length=FIELDS_MAX),
    AfterValidator(_distinct),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSchema:
    """One text."""

    kind: ClassVar = "Text"
    viewport: Annotated[Viewport | None, BeforeValidator(without_null)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MapSchema:
    """Named fields; none besides those."""

    kind: ClassVar = "Map"
    fields: Fields = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListSchema:
    """Items in order: any JSON value each, or texts, or objects with the fields of a map. None means no bound."""

    kind: ClassVar = "List"
    item_schema: Annotated[TextSchema | MapSchema | None, PlainValidator(_item_schema)] = None
    max_items: Annotated[int, Checked(ge=1, le=ITEMS_MAX)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EntrySchema:
    """The stamps that the system adds to a log's entries, and their fields."""

    timestamp: bool = True
    agent_id: bool = True
    fields: Annotated[Fields, AfterValidator(_of_entry)] = WORDS


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSchema:
    """Entries in order of time, with stamps by the system. The prompt shows the newest `display_limit`."""

    kind: ClassVar = "Log"
    display_limit: Annotated[int, Checked(ge=1, le=DISPLAY_LIMIT_MAX)] = 10
    entry_schema: EntrySchema = EntrySchema()

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields of an entry, besides its stamps."""
        return self.entry_schema.fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One named part of a composite."""

    name: Name
    schema: Annotated[TextSchema | MapSchema | ListSchema, PlainValidator(_section_schema)] = TextSchema()
    description: str = ""
    read_only: bool = False


def _apart(sections: Sequence[Section]) -> Sequence[Section]:
    for one in sections:
        for other in sections:
            # The containers of one section's lists and counters could have the names of another's.
            if other.name.startswith((f"{one.name}_list_", f"{one.name}_counter_")):
                raise InvalidInput(f"the section names {one.name!r} and {other.name!r} are too alike; rename one")
    return sections


@dataclass(frozen=True, slots=True, kw_only=True)
class CompositeSchema:
    """Named sections, each with its own schema."""

    kind: ClassVar = "Composite"
    sections: Annotated[
        tuple[Annotated[Section, BeforeValidator(without_null)], ...],
        Checked(max_length=SECTIONS_MAX),
        AfterValidator(_distinct),
        AfterValidator(_apart),
    ] = ()


Schema = TextSchema | MapSchema | ListSchema | LogSchema | CompositeSchema
_SCHEMAS: Mapping[str, type[Schema]] = {
    one.kind: one for one in (TextSchema, MapSchema, ListSchema, LogSchema, CompositeSchema)
}
_OBJECTS: Mapping[str, type[Any]] = {
    "viewport": Viewport,
    "fields": Field,
    "entry_schema": EntrySchema,
    "sections": Section,
}


@cache
def _reader(kind: str) -> TypeAdapter[Any]:
    """Return the parser of a kind, created on first use: that costs some milliseconds, and most blocks are text."""
    return TypeAdapter(_SCHEMAS[kind])


def parse_schema(stored: Json) -> Schema:
    """Return the schema that `stored` describes: a tag of any case, or an object of one tag and its parameters.

    Raises:
        InvalidInput: there is no such kind or parameter, or a parameter is invalid; the message names what is valid.
    """
    kind, values = _tagged(stored)

    def known(place: Sequence[Any]) -> Collection[str]:
        names = [step for step in place if isinstance(step, str)]
        return [one.name for one in fields(_OBJECTS[names[-1]] if names else _SCHEMAS[kind])]

    schema: Schema = read(_reader(kind), without_null(values), known, place=kind)
    match schema:
        case MapSchema(fields=()):
            raise InvalidInput('a Map needs `fields`, such as [{"name": "mood", "field_type": "Text"}]')
        case CompositeSchema(sections=()):
            raise InvalidInput('a Composite needs `sections`, such as [{"name": "notes", "schema": "Text"}]')
    return schema


def to_metadata(schema: Schema) -> Json:
    """Return the schema as it is stored under `schema` in a block's metadata; `parse_schema` reads it back."""
    match schema:
        case TextSchema():
            return "Text" if schema.viewport is None else {"Text": {"viewport": asdict(schema.viewport)}}
        case MapSchema():
            return {"Map": {"fields": _fields_json(schema.fields)}}
        case ListSchema():
            items = {} if schema.item_schema is None else {"item_schema": to_metadata(schema.item_schema)}
            return {"List": _other_than_default(schema) | items}
        case LogSchema():
            entry = asdict(schema.entry_schema) | {"fields": _fields_json(schema.fields)}
            return {"Log": {"display_limit": schema.display_limit, "entry_schema": entry}}
        case CompositeSchema():
            sections = [_other_than_default(one) | {"schema": to_metadata(one.schema)} for one in schema.sections]
            return {"Composite": {"sections": sections}}


def _fields_json(given: Sequence[Field]) -> Json:
    return [{"name": one.name, "field_type": one.field_type.value} | _other_than_default(one) for one in given]


def _other_than_default(part: Field | Section | ListSchema) -> dict[str, Json]:
    return {one.name: value for one in fields(part) if (value := getattr(part, one.name)) != one.default}


def _tagged(stored: Json) -> tuple[str, Json]:
    """Return the kind that `stored` names, and its parameters as they are given."""
    if isinstance(stored, str):
        tag, inner = stored, None
    elif isinstance(stored, Mapping) and len(stored) == 1:
        tag, inner = next(iter(stored.items()))
    else:
        raise InvalidInput(
            f'a schema is a kind such as "Text", or an object such as {{"List": {{"max_items": 9}}}},'
            f" not {excerpt(stored)}"
        )
    return _named(_SCHEMAS, tag, "block schema"), {} if inner is None else inner
