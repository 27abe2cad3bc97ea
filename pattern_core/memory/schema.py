"""Shapes of documents: what a block's metadata says of its own, as data, and back.

A schema stands in a block's metadata under `schema`, tagged by its kind: `"Text"` or `{"Map": {"fields": […]}}`.
Source: the block schemas of the memory design (Text, Map, List, Log, Composite).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, assert_never

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


Schema = TextSchema | MapSchema | ListSchema | LogSchema | CompositeSchema
_WHOLE = (SchemaKind.LOG, SchemaKind.COMPOSITE)  # what stands only by itself


def parse_schema(stored: Json) -> Schema:
    """The schema that `stored` describes: a tag of any case, or an object of one tag and its parameters.

    Raises:
        InvalidInput: there is no such kind or parameter, or a parameter will not do; the message says what would.
    """
    kind, given = _tagged(stored)
    match kind:
        case SchemaKind.TEXT:
            schema: Schema = TextSchema(viewport=_viewport(given.take("viewport")))
        case SchemaKind.MAP:
            schema = MapSchema(fields=_fields(given.take("fields"), what="a Map"))
        case SchemaKind.LIST:
            schema = ListSchema(
                item_schema=_item_schema(given.take("item_schema")),
                max_items=_number(given.take("max_items"), "max_items", most=ITEMS_MAX),
            )
        case SchemaKind.LOG:
            limit = _number(given.take("display_limit"), "display_limit", most=DISPLAY_LIMIT_MAX)
            schema = _log(limit or DISPLAY_LIMIT, given.take("entry_schema"))
        case SchemaKind.COMPOSITE:
            schema = CompositeSchema(sections=_sections(given.take("sections")))
        case _:
            assert_never(kind)
    given.done()
    return schema


def to_metadata(schema: Schema) -> Json:
    """The schema as it is stored under `schema` in a block's metadata; `parse_schema` reads it back."""
    match schema:
        case TextSchema(viewport=None):
            return "Text"
        case TextSchema(viewport=Viewport() as port):
            return {"Text": {"viewport": {"start_line": port.start_line, "display_lines": port.display_lines}}}
        case MapSchema():
            return {"Map": {"fields": [_field_json(field) for field in schema.fields]}}
        case ListSchema():
            items = None if schema.item_schema is None else to_metadata(schema.item_schema)
            known = {"item_schema": items, "max_items": schema.max_items}
            return {"List": {name: value for name, value in known.items() if value is not None}}
        case LogSchema():
            entry = {
                TIMESTAMP: schema.has_timestamp,
                AGENT_ID: schema.has_agent,
                "fields": [_field_json(field) for field in schema.fields],
            }
            return {"Log": {"display_limit": schema.display_limit, "entry_schema": entry}}
        case CompositeSchema():
            return {"Composite": {"sections": [_section_json(section) for section in schema.sections]}}


def _tagged(stored: Json) -> tuple[SchemaKind, _Given]:
    if isinstance(stored, str):
        tag, inner = stored, None
    elif isinstance(stored, Mapping) and len(stored) == 1:
        tag, inner = next(iter(stored.items()))
    else:
        raise InvalidInput(
            f'a schema is a kind such as "Text", or an object such as {{"List": {{"max_items": 9}}}},'
            f" not {excerpt(stored)}"
        )
    kind: SchemaKind = _one_of(SchemaKind, tag, "block schema")
    return kind, _Given(kind.value, {} if inner is None else inner)


class _Given:
    """The parameters of a schema, taken one by one, so that what is left over can be refused."""

    def __init__(self, what: str, values: Json) -> None:
        if not isinstance(values, Mapping):
            raise InvalidInput(f"{what} is described by an object, not by {excerpt(values)}")
        self._what = what
        self._rest = dict(values)
        self._known: list[str] = []

    def take(self, name: str) -> Json:
        self._known.append(name)
        return self._rest.pop(name, None)

    def text(self, name: str) -> str:
        value = self.take(name)
        if not isinstance(value, str | None):
            raise InvalidInput(f"`{name}` of {self._what} is text, not {excerpt(value)}")
        return check_text(value or "")

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.take(name)
        if not isinstance(value, bool | None):
            raise InvalidInput(f"`{name}` of {self._what} is true or false, not {excerpt(value)}")
        return default if value is None else value

    def done(self) -> None:
        if self._rest:
            known = ", ".join(self._known) or "nothing"
            raise InvalidInput(f"{self._what} has no `{next(iter(self._rest))}`; it takes {known}")


def _one_of(kinds: type[SchemaKind] | type[FieldType], tag: Json, what: str) -> Json:
    for kind in kinds:
        if isinstance(tag, str) and tag.lower() == kind.value.lower():
            return kind
    raise InvalidInput(f"there is no {what} {excerpt(tag)}; there are: {', '.join(kind.value for kind in kinds)}")


def _number(value: Json, name: str, *, most: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidInput(f"`{name}` is a whole number from 1 to {most}, not {excerpt(value)}")
    return value


def _list(value: Json, name: str, *, most: int) -> Sequence[Json]:
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        raise InvalidInput(f"`{name}` is a list, not {excerpt(value)}")
    if len(value) > most:
        raise InvalidInput(f"`{name}` has {len(value)} members; at most {most} are taken")
    return value


def _name(given: _Given, what: str) -> str:
    name = given.text("name")
    if len(name) > NAME_CHARS_MAX or _NAME.fullmatch(name) is None:
        raise InvalidInput(
            f"{excerpt(name)} cannot be the name of {what}: 1 to {NAME_CHARS_MAX} letters, digits and _,"
            " with spaces, dots and dashes only inside"
        )
    return name


def _apart(names: Iterable[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidInput(f"{what} has two parts named {name!r}; rename one")
        seen.add(name)


def _viewport(value: Json) -> Viewport | None:
    if value is None:
        return None
    given = _Given("viewport", value)
    start = _number(given.take("start_line"), "start_line", most=10**9)
    lines = _number(given.take("display_lines"), "display_lines", most=10**9)
    given.done()
    if lines is None:
        raise InvalidInput("a viewport says in `display_lines` how many lines are shown")
    return Viewport(start_line=start or 1, display_lines=lines)


def _fields(value: Json, *, what: str, only_values: bool = False) -> tuple[Field, ...]:
    fields = tuple(_field(one) for one in _list(value, "fields", most=FIELDS_MAX))
    _apart((field.name for field in fields), what)
    if what != "an entry" and not fields:
        raise InvalidInput(f'{what} needs `fields`, such as [{{"name": "mood", "field_type": "Text"}}]')
    for field in fields:
        if only_values and field.field_type is FieldType.COUNTER:
            raise InvalidInput(f"{what} cannot hold the counter {field.name!r}; make it a Number")
    return fields


def _field(value: Json) -> Field:
    given = _Given("a field", value)
    name = _name(given, "a field")
    given_type = given.take("field_type")
    kind: FieldType = FieldType.TEXT if given_type is None else _one_of(FieldType, given_type, "field type")
    default = given.take("default")
    if default is not None:
        try:
            default = of_type(default, kind)
        except InvalidInput as error:
            raise InvalidInput(f"the default of the field {name} will not do: {error.message}") from None
    field = Field(
        name=name,
        description=given.text("description"),
        field_type=kind,
        required=given.flag("required"),
        default=default,
        read_only=given.flag("read_only"),
    )
    given.done()
    return field


def _item_schema(value: Json) -> TextSchema | MapSchema | None:
    if value is None:
        return None
    kind, given = _tagged(value)  # looked at first: what nests without end must not be followed
    match kind:
        case SchemaKind.TEXT:
            schema: TextSchema | MapSchema = TextSchema()
        case SchemaKind.MAP:
            schema = MapSchema(fields=_fields(given.take("fields"), what="an item", only_values=True))
        case _:
            raise InvalidInput(f"the items of a List are a Text or a Map each; {kind.value} does not nest")
    given.done()
    return schema


def _log(display_limit: int, value: Json) -> LogSchema:
    given = _Given("entry_schema", {} if value is None else value)
    has_timestamp, has_agent = given.flag(TIMESTAMP, True), given.flag(AGENT_ID, True)
    fields = _fields(given.take("fields"), what="an entry", only_values=True)
    given.done()
    for field in fields:
        if field.name in (TIMESTAMP, AGENT_ID):
            raise InvalidInput(f"the system keeps `{field.name}` of an entry by itself; give the field another name")
    return LogSchema(
        display_limit=display_limit,
        has_timestamp=has_timestamp,
        has_agent=has_agent,
        fields=fields or LogSchema().fields,
    )


def _sections(value: Json) -> tuple[Section, ...]:
    sections = tuple(_section(one) for one in _list(value, "sections", most=SECTIONS_MAX))
    if not sections:
        raise InvalidInput('a Composite needs `sections`, such as [{"name": "notes", "schema": "Text"}]')
    _apart((section.name for section in sections), "a Composite")
    for one in sections:
        for other in sections:
            # The containers of one section's lists and counters could be another section's own.
            if other.name.startswith((f"{one.name}_list_", f"{one.name}_counter_")):
                raise InvalidInput(f"the section names {one.name!r} and {other.name!r} are too alike; rename one")
    return sections


def _section(value: Json) -> Section:
    given = _Given("a section", value)
    name = _name(given, "a section")
    stored = given.take("schema")
    kind = SchemaKind.TEXT if stored is None else _tagged(stored)[0]
    schema = TextSchema() if stored is None or kind in _WHOLE else parse_schema(stored)
    if kind in _WHOLE or not isinstance(schema, TextSchema | MapSchema | ListSchema):
        raise InvalidInput(f"the section {name} is a Text, a Map or a List; {kind.value} does not nest")
    section = Section(
        name=name, schema=schema, description=given.text("description"), read_only=given.flag("read_only")
    )
    given.done()
    return section


def _field_json(field: Field) -> Json:
    known: dict[str, Json] = {"name": field.name, "field_type": field.field_type.value}
    optional = {
        "description": field.description or None,
        "required": field.required or None,
        "default": field.default,
        "read_only": field.read_only or None,
    }
    return known | {name: value for name, value in optional.items() if value is not None}


def _section_json(section: Section) -> Json:
    known: dict[str, Json] = {"name": section.name, "schema": to_metadata(section.schema)}
    optional = {"description": section.description or None, "read_only": section.read_only or None}
    return known | {name: value for name, value in optional.items() if value is not None}
