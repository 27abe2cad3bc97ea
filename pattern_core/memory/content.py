"""A block's content by its schema: its containers in a document, changes of these, and renderings.

Containers: a text is the text `content`. A map is the map `fields`, and per list field the list `list_<name>`, per
counter the counter `counter_<name>`. A list is the list `items`, a log the list `entries`. In a composite the same
names begin with `section_<name>_`. A change of one of these does not affect the others, so that changes of different
parts merge.
Source: the containers per block schema of the memory design; those of a section's lists and counters are ours.

Four renderings, because each has its own reader:

prompt    the model, under a heading that says what it may do; made of the plain text, which is stored, and the schema
plain     people, search and previews: every part begins a line, and its other lines are indented
raw       programs: a JSON value
editing   people in an editor, who see `raw` as JSON; `parse_editing` reads what they save

All of it is pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher

from pattern_core.errors import InvalidInput
from pattern_core.memory.block import BlockRow, schema_of, shown_schema
from pattern_core.memory.document import Count, Keys, Part, Splice, Spliced, State, Writes, cleaned, common_ends
from pattern_core.memory.fields import EMPTY
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
    TextSchema,
    Viewport,
    readable,
)
from pattern_core.untrusted import IN_ATTRIBUTE, escaped
from pattern_db.columns import TIME_CHARS, Json, to_json
from pattern_db.enums import Permission

ENTRIES = "entries"
COMPARED_MAX = 250_000  # pairs of items; a longer list with many changes is replaced between its common ends

_HEAD = re.compile(r"^(?==== .* ===$)", re.MULTILINE)  # a line that looks like the heading of a section
_INDENT = "  "
_READ_ONLY = " [read-only]"
_MAY = {  # what a heading says about a block that the agent may not write freely
    Permission.READ_ONLY: "read only",
    Permission.PARTNER: "changes need consent",
    Permission.HUMAN: "changes need consent",
    Permission.APPEND: "append only",
}
_TITLES = ("text", "title", "name", "task", "content")  # fields that serve as an object's title without a schema


def prefix_of(section: str) -> str:
    """Return the prefix of the names of a section's containers."""
    return f"section_{section}_"


def value_of(state: State, schema: Schema, prefix: str = "") -> Json:
    """Return the content in a document's state: a text, a list, or an object with every field or section of the schema.

    It is canonical. A field without a value has its default, else null; lists, texts and counters begin empty. Other
    containers of the document are left out.
    """
    match schema:
        case TextSchema():
            return state.get(f"{prefix}content", "")
        case MapSchema():
            return {field.name: _field_value(state, field, prefix) for field in schema.fields}
        case ListSchema():
            return readable(state.get(f"{prefix}items", []))
        case LogSchema():
            return readable(state.get(ENTRIES, []))
        case CompositeSchema():
            return {one.name: value_of(state, one.schema, prefix_of(one.name)) for one in schema.sections}


def _field_value(state: State, field: Field, prefix: str) -> Json:
    if field.field_type in EMPTY:
        return readable(state.get(_container(field, prefix), EMPTY[field.field_type]))
    value = readable(state.get(f"{prefix}fields", {}).get(field.name))
    return field.default if value is None else value


def _container(field: Field, prefix: str) -> str:
    """Return the container of a list field or a counter."""
    return f"{prefix}{field.field_type.lower()}_{field.name}"


def writes_between(schema: Schema, before: Json, after: Json, prefix: str = "") -> Writes:
    """Return the fewest changes from `before` to `after`, both canonical values of the schema."""
    return writes_to(_containers(schema, before, prefix), _containers(schema, after, prefix))


def _containers(schema: Schema, value: Json, prefix: str) -> State:
    """Return the document state of a value: the inverse of `value_of`."""
    match schema:
        case TextSchema():
            return {f"{prefix}content": value}
        case MapSchema():
            state: State = {f"{prefix}fields": {}}
            for one in schema.fields:
                if one.field_type in EMPTY:
                    state[_container(one, prefix)] = value[one.name]
                else:
                    state[f"{prefix}fields"][one.name] = value[one.name]
            return state
        case ListSchema():
            return {f"{prefix}items": value}
        case LogSchema():
            return {ENTRIES: value}
        case CompositeSchema():
            parts = [_containers(one.schema, value[one.name], prefix_of(one.name)) for one in schema.sections]
            return {name: held for part in parts for name, held in part.items()}


def writes_to(held: State, state: State) -> Writes:
    """Return the fewest changes to exactly `state` of a document with `held`.

    Equal parts are not touched, so that others' changes there survive the merge.
    """
    texts: dict[str, str] = {}
    parts: dict[str, Part] = {}
    for name in {**held, **state}:
        match state.get(name, held.get(name)):
            case str():
                if state.get(name, "") != held.get(name, ""):
                    texts[name] = state.get(name, "")
            case list():
                parts[name] = splices_between(held.get(name, []), state.get(name, []))
            case dict():
                before, after = held.get(name, {}), state.get(name, {})
                parts[name] = Keys({key: (before.get(key), after.get(key)) for key in {**before, **after}})
            case int() | float():
                parts[name] = Count(state.get(name, 0) - held.get(name, 0))
    return {**texts, **cleaned(parts)}


def splices_between(before: Sequence[Json], after: Sequence[Json]) -> Spliced:
    """Return the fewest splices from the list `before` to `after`."""
    splices: list[Splice] = []
    at = 0
    for low, high, begin, stop in differences([to_json(item) for item in before], [to_json(item) for item in after]):
        splices.append(Splice(low - at, tuple(before[low:high]), tuple(after[begin:stop])))
        at = high
    return Spliced(False, tuple(splices))


def differences(before: Sequence[str], after: Sequence[str]) -> list[tuple[int, int, int, int]]:
    """Return the differences in order: start and end in `before`, and start and end in `after`."""
    start, end = common_ends(before, after)
    old, new = before[start : len(before) - end], after[start : len(after) - end]
    if len(old) * len(new) > COMPARED_MAX:
        return [(start, start + len(old), start, start + len(new))]
    return [
        (start + low, start + high, start + begin, start + stop)
        for what, low, high, begin, stop in SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
        if what != "equal"
    ]


def prompt(row: BlockRow) -> str:
    """Return the block as prompts show it: a heading, then the content, which cannot forge another heading.

    `## human (120 of 5,000 characters): The person you talk with.`
    """
    content = row.content_preview or ""
    about = [f"lent by {row.lender.translate(IN_ATTRIBUTE)}"] if row.lender is not None else []
    if row.permission in _MAY:
        about.append(_MAY[row.permission])
    about.append(f"{len(content):,} of {row.char_limit:,} characters" if content.strip() else "nothing yet")
    what = f": {row.description.translate(IN_ATTRIBUTE)}" if row.description else ""
    head = f"## {row.label.translate(IN_ATTRIBUTE)} ({', '.join(about)}){what}"
    shown = escaped(prompt_content(content, shown_schema(row.metadata)))
    return f"{head}\n{shown}" if shown.strip() else head


def prompt_content(content: str, schema: Schema) -> str:
    """Return the part of the plain text `content` that prompts show: visible lines, newest entries, read-only marks."""
    match schema:
        case TextSchema(viewport=Viewport() as viewport):
            return _in_view(content, viewport)
        case MapSchema():
            return _marked_fields(content, schema)
        case LogSchema():
            return _newest(content, schema)
        case CompositeSchema():
            return _marked_sections(content, schema)
        case _:
            return content


def plain(value: Json, schema: Schema) -> str:
    """Return the content as text for people, search and previews."""
    match schema:
        case TextSchema():
            return str(value)
        case MapSchema():
            return "\n".join(_field_lines(one.name, one.field_type, value.get(one.name)) for one in schema.fields)
        case ListSchema():
            fields = schema.item_schema.fields if isinstance(schema.item_schema, MapSchema) else ()
            titles = tuple(one.name for one in fields) or _TITLES
            return "\n".join(f"{number}. {_continued(_item(one, titles))}" for number, one in enumerate(value, 1))
        case LogSchema():
            return "\n".join(entry_text(one, schema) for one in reversed(value))
        case CompositeSchema():
            return "\n".join(
                f"=== {one.name} ===\n{_HEAD.sub(' ', plain(value[one.name], one.schema))}" for one in schema.sections
            )


def rendered(row: BlockRow, state: State) -> str:
    """Return the plain rendering of a document by its block's schema.

    Raises:
        InvalidInput: the schema in the block's metadata is invalid.
    """
    schema = schema_of(row.metadata)
    return plain(value_of(state, schema), schema)


def entry_text(entry: Json, schema: LogSchema) -> str:
    """Return one entry of a log: `[time] (agent) text`, or `- text` without such stamps; other lines are indented."""
    if not isinstance(entry, Mapping):
        return "- " + _continued(_words(entry))
    head = ""
    if entry.get(TIMESTAMP) is not None:
        head += f"[{_second(str(entry[TIMESTAMP]))}] "
    if entry.get(AGENT_ID) is not None:
        head += f"({entry[AGENT_ID]}) "
    rest = {name: value for name, value in entry.items() if name not in (TIMESTAMP, AGENT_ID)}
    return _continued((head or "- ") + _object(rest, tuple(one.name for one in schema.fields)))


def fitted(schema: LogSchema, entries: Sequence[Json], limit: int) -> tuple[int, str]:
    """Return how many of the oldest `entries` must be removed so that the rest has at most `limit` characters as plain
    text, and that text.

    The newest one always stays, even if it alone is too long.
    """
    texts: list[str] = []
    room = limit + 1  # no line feed after the last
    for entry in reversed(entries):
        text = entry_text(entry, schema)
        room -= len(text) + 1
        if room < 0 and texts:
            break
        texts.append(text)
    return len(entries) - len(texts), "\n".join(texts)


def raw(value: Json, schema: Schema) -> Json:
    """Return the content (`value_of`) as a JSON value: its items and entries in the order of the schema, too."""
    match schema:
        case ListSchema(item_schema=MapSchema(fields=fields)):
            return [_in_order(one, [each.name for each in fields]) for one in value]
        case LogSchema():
            return [_in_order(one, [TIMESTAMP, AGENT_ID, *(each.name for each in schema.fields)]) for one in value]
        case CompositeSchema():
            return {one.name: raw(value[one.name], one.schema) for one in schema.sections}
        case _:
            return value


def parse_editing(text: str, schema: Schema) -> Json:
    """Return the value of a text from an editor; the edit checks it against the schema.

    Raises:
        InvalidInput: the schema is not text and this is not JSON; the message names the place.
    """
    if isinstance(schema, TextSchema):
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InvalidInput(f"a {schema.kind} is written as JSON; at {where}: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"a {schema.kind} is written as JSON, and this is not JSON: {error}") from None


def _in_order(value: Json, names: Sequence[str]) -> Json:
    """Return an object with these members first, in this order."""
    if not isinstance(value, Mapping):
        return value
    return {name: value[name] for name in names if name in value} | dict(value)


def _in_view(content: str, viewport: Viewport) -> str:
    lines = content.split("\n")
    first = viewport.start_line
    if first > len(lines):
        return f"[line {first} is past the end; the text has {len(lines)} lines]"
    shown = lines[first - 1 : first - 1 + viewport.display_lines]
    return "\n".join([f"[lines {first}-{first + len(shown) - 1} of {len(lines)}]", *shown])


def _newest(content: str, schema: LogSchema) -> str:
    lines = content.split("\n")
    heads = [at for at, line in enumerate(lines) if line and not line.startswith(" ")]
    if len(heads) <= schema.display_limit:
        return content
    older = len(heads) - schema.display_limit
    note = f"[{older} older {'entry' if older == 1 else 'entries'} not shown; load the block or search to read them]"
    return "\n".join([*lines[: heads[schema.display_limit]], note])


def _marked_fields(content: str, schema: MapSchema) -> str:
    marked = {one.name for one in schema.fields if one.read_only}
    if not marked:
        return content
    lines = content.split("\n")
    for at, line in enumerate(lines):
        name = line.partition(":")[0]
        if name in marked and not line.startswith(" "):
            lines[at] = f"{name}{_READ_ONLY}{line[len(name) :]}"
    return "\n".join(lines)


def _marked_sections(content: str, schema: CompositeSchema) -> str:
    known = {f"=== {one.name} ===": one for one in schema.sections}
    parts: list[str] = []
    inner: list[str] = []
    current = None
    for line in [*content.split("\n"), None]:
        if line is not None and line not in known:
            inner.append(line)
            continue
        if current is not None:
            parts.append(prompt_content("\n".join(inner), current.schema))
        if line is not None:
            current, inner = known[line], []
            parts.append(f"=== {current.name}{_READ_ONLY if current.read_only else ''} ===")
    return "\n".join(parts)


def _field_lines(name: str, kind: FieldType, value: Json) -> str:
    if isinstance(value, list) and kind is FieldType.LIST:
        return "\n".join([f"{name}:", *(f"{_INDENT}- {_continued(_words(one), _INDENT * 2)}" for one in value)])
    text = "" if value is None else _continued(_words(value))
    return f"{name}: {text}".rstrip(" ")


def _item(item: Json, titles: Sequence[str]) -> str:
    if isinstance(item, Mapping) and isinstance(item.get("done"), bool):
        rest = {name: value for name, value in item.items() if name != "done"}
        return f"[{'x' if item['done'] else ' '}] {_object(rest, titles)}"
    return _object(item, titles) if isinstance(item, Mapping) else _words(item)


def _object(value: Mapping[str, Json], titles: Sequence[str]) -> str:
    """Return an object as text: its title, and the rest in parentheses."""
    known = [name for name in titles if name in value]
    names = known + [name for name in value if name not in known]
    title = next((name for name in names if name in titles), None)
    rest = [f"{name}: {_words(value[name])}" for name in names if name != title]
    if title is None:
        return ", ".join(rest)
    return _words(value[title]) + (f" ({', '.join(rest)})" if rest else "")


def _words(value: Json) -> str:
    match value:
        case str():
            return value
        case bool():
            return "yes" if value else "no"
        case None:
            return ""
        case list() if not any(isinstance(one, list | dict) for one in value):
            return ", ".join(_words(one) for one in value)
        case _:
            return json.dumps(value, ensure_ascii=False)


def _continued(text: str, indent: str = _INDENT) -> str:
    return text.replace("\n", f"\n{indent}")


def _second(moment: str) -> str:
    """Return a stored time without its milliseconds."""
    return f"{moment[:19]}Z" if len(moment) == TIME_CHARS and moment.endswith("Z") else moment
