"""Shapes of documents: what a block's metadata says of its own, as data, and back.

A schema stands in a block's metadata under `schema`, tagged by its kind: `"Text"` or `{"Map": {"fields": […]}}`.
Source: the block schemas of the memory design (Text, Map, List, Log, Composite).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import ClassVar, TypeAlias, TypeVar, assert_never

from pattern_core.errors import InvalidInput
from pattern_core.memory.values import FieldType, excerpt, of_type
from pattern_core.messages import check_text
from pattern_db.columns import Json

FIELDS_MAX = 100
SECTIONS_MAX = 50
ITEMS_MAX = 100_000  # the most that `max_items` may allow
DISPLAY_LIMIT = 10  # entries of a log that the prompt shows unless its schema says otherwise
DISPLAY_LIMIT_MAX = 1_000
NAME_CHARS_MAX = 64
TIMESTAMP, AGENT_ID = "timestamp", "agent_id"  # what the system stamps on the entries of a log
# A name begins a line, names a container and stands in JSON paths.
_NAME = re.compile(r"\w(?:[\w .-]*\w)?")


class SchemaKind(StrEnum):
    """The kinds of documents, by the tag under which they are stored."""

    TEXT = "Text"
    MAP = "Map"
    LIST = "List"
    LOG = "Log"
    COMPOSITE = "Composite"


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewport:
    """Which lines of a text the prompt shows: `display_lines` of them from `start_line` (from 1) on."""

    start_line: int
    display_lines: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a map, an item or an entry. `default` stands in where nothing else does; None is none.

    `read_only` binds agents; people and the system may set it.
    """

    name: str
    description: str = ""
    field_type: FieldType = FieldType.TEXT
    required: bool = False
    default: Json = None
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSchema:
    """One text."""

    kind: ClassVar = SchemaKind.TEXT
    viewport: Viewport | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MapSchema:
    """Named fields; none besides those."""

    kind: ClassVar = SchemaKind.MAP
    fields: tuple[Field, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListSchema:
    """Items in order: any JSON value each, or texts, or objects with the fields of a map. None is no bound."""

    kind: ClassVar = SchemaKind.LIST
    item_schema: TextSchema | MapSchema | None = None
    max_items: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSchema:
    """Entries in order of time, which the system stamps. The prompt shows the newest `display_limit`."""

    kind: ClassVar = SchemaKind.LOG
    display_limit: int = DISPLAY_LIMIT
    has_timestamp: bool = True
    has_agent: bool = True
    fields: tuple[Field, ...] = (Field(name="text", required=True),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One named part of a composite."""

    name: str
    schema: TextSchema | MapSchema | ListSchema
    description: str = ""
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CompositeSchema:
    """Named sections, each with a shape of its own."""

    kind: ClassVar = SchemaKind.COMPOSITE
    sections: tuple[Section, ...] = ()


Part = TypeVar("Part", Field, Section)
Schema = TextSchema | MapSchema | ListSchema | LogSchema | CompositeSchema
_WHOLE = (SchemaKind.LOG, SchemaKind.COMPOSITE)  # what stands only by itself


def parse_schema(stored: Json) -> Schema:
    """Return the schema that `stored` describes: a tag of any case, or an object of one tag and its parameters.

    Raises:
        InvalidInput: there is no such kind or parameter, or a parameter will not do; the message says what would.
    """
    kind, values = _tagged(stored)
    match kind:
        case SchemaKind.TEXT:
            return TextSchema(**_read(kind, values, {"viewport": _viewport}))
        case SchemaKind.MAP:
            return MapSchema(**_read(kind, values, {"fields": _fields_of("a Map")}))
        case SchemaKind.LIST:
            return ListSchema(**_read(kind, values, {"item_schema": _item_schema, "max_items": _number(ITEMS_MAX)}))
        case SchemaKind.LOG:
            parts = {"display_limit": _number(DISPLAY_LIMIT_MAX, DISPLAY_LIMIT), "entry_schema": _entry_schema}
            found = _read(kind, values, parts)
            return LogSchema(display_limit=found["display_limit"], **found["entry_schema"])
        case SchemaKind.COMPOSITE:
            return CompositeSchema(**_read(kind, values, {"sections": _sections}))
        case _:
            assert_never(kind)


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
            stamps = {TIMESTAMP: schema.has_timestamp, AGENT_ID: schema.has_agent}
            entry = stamps | {"fields": _fields_json(schema.fields)}
            return {"Log": {"display_limit": schema.display_limit, "entry_schema": entry}}
        case CompositeSchema():
            sections = [_other_than_default(one) | {"schema": to_metadata(one.schema)} for one in schema.sections]
            return {"Composite": {"sections": sections}}


def _fields_json(given: Sequence[Field]) -> Json:
    return [{"name": one.name, "field_type": one.field_type.value} | _other_than_default(one) for one in given]


def _other_than_default(part: Field | Section | ListSchema) -> dict[str, Json]:
    return {one.name: value for one in fields(part) if (value := getattr(part, one.name)) != one.default}


def _tagged(stored: Json) -> tuple[SchemaKind, Json]:
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
    return _one_of(SchemaKind, tag, "block schema"), {} if inner is None else inner


# A reader makes a parameter of what is given for it (None: nothing); `name` is its name and `what` has it.
Reader: TypeAlias = "Callable[[Json, str, str], Json]"


def _read(what: str, values: Json, parts: Mapping[str, Reader]) -> dict[str, Json]:
    """Return the parameters of `what`, each by its reader; others are refused."""
    if not isinstance(values, Mapping):
        raise InvalidInput(f"{what} is described by an object, not by {excerpt(values)}")
    found = {name: read(values.get(name), name, what) for name, read in parts.items()}
    for name in values:
        if name not in parts:
            raise InvalidInput(f"{what} has no `{name}`; it takes {', '.join(parts)}")
    return found


def _text(value: Json, name: str, what: str) -> str:
    if not isinstance(value, str | None):
        raise InvalidInput(f"`{name}` of {what} is text, not {excerpt(value)}")
    return check_text(value or "")


def _flag(default: bool) -> Reader:
    def read(value: Json, name: str, what: str) -> bool:
        if not isinstance(value, bool | None):
            raise InvalidInput(f"`{name}` of {what} is true or false, not {excerpt(value)}")
        return default if value is None else value

    return read


def _number(most: int, default: int | None = None) -> Reader:
    def read(value: Json, name: str, _what: str) -> int | None:
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise InvalidInput(f"`{name}` is a whole number from 1 to {most}, not {excerpt(value)}")
        return value

    return read


def _name(value: Json, name: str, what: str) -> str:
    given = _text(value, name, what)
    if len(given) > NAME_CHARS_MAX or _NAME.fullmatch(given) is None:
        raise InvalidInput(
            f"{excerpt(given)} cannot be the name of {what}: 1 to {NAME_CHARS_MAX} letters, digits and _,"
            " with spaces, dots and dashes only inside"
        )
    return given


def _one_of(kinds: type[SchemaKind] | type[FieldType], tag: Json, what: str) -> Json:
    for kind in kinds:
        if isinstance(tag, str) and tag.lower() == kind.value.lower():
            return kind
    raise InvalidInput(f"there is no {what} {excerpt(tag)}; there are: {', '.join(kind.value for kind in kinds)}")


def _parts(value: Json, name: str, most: int, what: str, read: Callable[[Json], Part]) -> tuple[Part, ...]:
    """Return the fields or sections of `what`, each of another name."""
    if not isinstance(value, list | tuple | None):
        raise InvalidInput(f"`{name}` is a list, not {excerpt(value)}")
    if value is not None and len(value) > most:
        raise InvalidInput(f"`{name}` has {len(value)} members; at most {most} are taken")
    parts = tuple(read(one) for one in value or ())
    for at, part in enumerate(parts):
        if part.name in [other.name for other in parts[:at]]:
            raise InvalidInput(f"{what} has two parts named {part.name!r}; rename one")
    return parts


def _viewport(value: Json, name: str, _what: str) -> Viewport | None:
    if value is None:
        return None
    found = _read(name, value, {"start_line": _number(10**9, 1), "display_lines": _number(10**9)})
    if found["display_lines"] is None:
        raise InvalidInput("a viewport says in `display_lines` how many lines are shown")
    return Viewport(**found)


def _fields_of(owner: str) -> Reader:
    def read(value: Json, name: str, _what: str) -> tuple[Field, ...]:
        found = _parts(value, name, FIELDS_MAX, owner, _field)
        if owner != "an entry" and not found:
            raise InvalidInput(f'{owner} needs `fields`, such as [{{"name": "mood", "field_type": "Text"}}]')
        for one in found:
            if owner != "a Map" and one.field_type is FieldType.COUNTER:
                raise InvalidInput(f"{owner} cannot hold the counter {one.name!r}; make it a Number")
        return found

    return read


def _field(value: Json) -> Field:
    found = _read("a field", value, _FIELD)
    if found["default"] is not None:
        try:
            found["default"] = of_type(found["default"], found["field_type"])
        except InvalidInput as error:
            raise InvalidInput(f"the default of the field {found['name']} will not do: {error.message}") from None
    return Field(**found)


_FIELD: Mapping[str, Reader] = {
    "name": _name,
    "field_type": lambda value, _name, _what: (
        FieldType.TEXT if value is None else _one_of(FieldType, value, "field type")
    ),
    "default": lambda value, _name, _what: value,
    "description": _text,
    "required": _flag(False),
    "read_only": _flag(False),
}


def _item_schema(value: Json, _name: str, _what: str) -> TextSchema | MapSchema | None:
    if value is None:
        return None
    kind, values = _tagged(value)  # looked at first: what nests without end must not be followed
    match kind:
        case SchemaKind.TEXT:
            return TextSchema(**_read(kind, values, {}))
        case SchemaKind.MAP:
            return MapSchema(**_read(kind, values, {"fields": _fields_of("an item")}))
        case _:
            raise InvalidInput(f"the items of a List are a Text or a Map each; {kind.value} does not nest")


def _entry_schema(value: Json, name: str, _what: str) -> dict[str, Json]:
    parts = {TIMESTAMP: _flag(True), AGENT_ID: _flag(True), "fields": _fields_of("an entry")}
    found = _read(name, {} if value is None else value, parts)
    for one in found["fields"]:
        if one.name in (TIMESTAMP, AGENT_ID):
            raise InvalidInput(f"the system keeps `{one.name}` of an entry by itself; give the field another name")
    entry = {"fields": found["fields"]} if found["fields"] else {}
    return {"has_timestamp": found[TIMESTAMP], "has_agent": found[AGENT_ID], **entry}


def _sections(value: Json, name: str, _what: str) -> tuple[Section, ...]:
    sections = _parts(value, name, SECTIONS_MAX, "a Composite", _section)
    if not sections:
        raise InvalidInput('a Composite needs `sections`, such as [{"name": "notes", "schema": "Text"}]')
    for one in sections:
        for other in sections:
            # The containers of one section's lists and counters could be another section's own.
            if other.name.startswith((f"{one.name}_list_", f"{one.name}_counter_")):
                raise InvalidInput(f"the section names {one.name!r} and {other.name!r} are too alike; rename one")
    return sections


def _section(value: Json) -> Section:
    def schema(stored: Json, _name: str, _what: str) -> Json:
        kind = SchemaKind.TEXT if stored is None else _tagged(stored)[0]
        if kind in _WHOLE:  # looked at first: what nests without end must not be followed
            raise InvalidInput(f"a section is a Text, a Map or a List; {kind.value} does not nest")
        return TextSchema() if stored is None else parse_schema(stored)

    parts: Mapping[str, Reader] = {
        "name": _name,
        "schema": schema,
        "description": _text,
        "read_only": _flag(False),
    }
    return Section(**_read("a section", value, parts))
