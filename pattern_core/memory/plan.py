"""What an edit comes to in a block: the one place where schema, read-only parts and the limit are looked at. Pure, but
for the regular expression's own process.

The block's permission was looked at before (`block.require`); what binds agents here does not bind people and the
system.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from pattern_core.errors import InvalidInput, PermissionDenied
from pattern_core.memory.block import NewBlock
from pattern_core.memory.content import ENTRIES, fitted, parse_editing, plain, prefix_of, value_of, writes_between
from pattern_core.memory.document import SpliceItems, SpliceText, State, UpdateText, Write, same
from pattern_core.memory.edits import (
    AppendText,
    BlockEdit,
    Editor,
    EditOutcome,
    EditRange,
    Patch,
    ReplaceText,
    SetText,
    SetValue,
    TextEdit,
)
from pattern_core.memory.fields import Written, empty_value, fit, section_named
from pattern_core.memory.schema import CompositeSchema, ListSchema, LogSchema, MapSchema, Schema, TextSchema
from pattern_core.memory.structured_edits import set_value, structured_outcome
from pattern_core.memory.text_edits import Ranges, apply_patch, line_range, replaced
from pattern_core.messages import check_text
from pattern_db.columns import Json
from pattern_db.enums import HistoryKind
from pattern_db.tables.memory_blocks import BlockRow

SPLICES_MAX = 1_000  # beyond this the document finds the difference itself: one slow edit is better than a stall


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """A block's content as an edit finds it: `value` is canonical, `limit` in code points of the plain rendering."""

    label: str
    schema: Schema
    value: Json
    limit: int


def content_of(row: BlockRow, schema: Schema, state: State) -> Content:
    """The content of a block whose document holds `state`, as `schema` has it."""
    return Content(label=row.label, schema=schema, value=value_of(state, schema), limit=row.char_limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What an edit comes to: the content after it, its plain rendering, words, and the changes in the document.

    Without changes nothing happens. `moved` are the entries of a log that have no room any more, oldest first. The rest
    is what its line of history says.
    """

    value: Json
    plain: str
    note: str
    writes: tuple[Write, ...]
    moved: tuple[Json, ...] = ()
    kind: HistoryKind = HistoryKind.EDIT
    stack: str | None = None
    reverts: int | None = None


async def plan(content: Content, edit: BlockEdit, editor: Editor) -> Planned:
    """What `edit` by `editor` makes of `content`.

    Raises:
        InvalidInput: the edit does not fit the content or the schema, or the result not the limit.
        PermissionDenied: an agent would change what is read-only.
    """
    schema, before, prefix, what = content.schema, content.value, "", f"the block {content.label}"
    section = None
    if edit.section is not None:
        if not isinstance(schema, CompositeSchema):
            raise InvalidInput(f"the block {content.label} is a {schema.kind.value} without sections; name none")
        section = section_named(schema, edit.section)
        if section.read_only and editor.is_agent:
            raise PermissionDenied(f"the section {section.name} of {content.label} is read-only", section=section.name)
        schema, before, prefix = section.schema, before[section.name], prefix_of(section.name)
        what = f"the section {section.name}"
    if isinstance(schema, TextSchema) and isinstance(edit, TextEdit | SetValue):
        outcome = await text_outcome(before, edit, prefix, what)
    else:
        outcome = structured_outcome(schema, before, edit, editor, prefix, what)
    after = outcome.after if section is None else content.value | {section.name: outcome.after}
    return _within_limit(content, after, outcome)


async def text_outcome(
    before: str, edit: TextEdit | SetValue, prefix: str = "", what: str = "the block"
) -> EditOutcome:
    """What an edit of the text `before` comes to. What it replaces is changed alone, so that other edits merge; where
    it says only what the text shall be, or replaces very much, the document finds the smallest difference itself.

    Raises:
        InvalidInput: the edit does not fit this text; the message says what does.
    """
    ranges: Ranges | None = None
    after: Json = None
    match edit:
        case AppendText():
            ranges, note = [(len(before), len(before), check_text(edit.text))], f"Appended {len(edit.text)} characters"
        case ReplaceText():
            ranges, note = await replaced(before, edit)
        case EditRange():
            ranges, note = line_range(before, edit)
        case Patch():
            after, note = apply_patch(before, check_text(edit.patch))
        case SetText(text=after) | SetValue(value=after):
            if not isinstance(after, str):
                raise InvalidInput(f"{what} is text; give its whole text")
            note = f"Set the text to {len(check_text(after))} characters"
        case _:
            assert_never(edit)
    if ranges is not None:
        pieces, done = [], 0
        for start, end, new in ranges:
            pieces += [before[done:start], new]
            done = end
        after = "".join([*pieces, before[done:]])
    container = f"{prefix}content"
    if after == before:
        writes: list[Write] = []
    elif ranges is None or len(ranges) > SPLICES_MAX:
        writes = [UpdateText(container=container, text=after)]
    else:
        writes = [
            SpliceText(container=container, at=start, delete=end - start, insert=new)
            for start, end, new in reversed(ranges)
        ]
    return EditOutcome(after, note, tuple(writes))


def plan_start(new: NewBlock, schema: Schema, limit: int, editor: Editor) -> Planned:
    """What a new block starts with; defaults stand for what `new` leaves out. `editor` is no agent here, whoever asked:
    read-only parts have to begin as something.

    Raises:
        InvalidInput: it does not fit the schema or the limit.
    """
    before = empty_value(schema)
    value = _starting(new.content, schema) if new.value is None else new.value
    start = set_value(schema, before, value, editor)
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


def _within_limit(content: Content, after: Json, outcome: EditOutcome) -> Planned:
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
    if len(text) > content.limit:
        check_size(content.label, size=len(text), before=len(plain(content.value, schema)), limit=content.limit)
    return Planned(value=after, plain=text, note=note, writes=writes, moved=moved)


def check_size(label: str, *, size: int, before: int, limit: int) -> None:
    """Refuse what would not fit. Sizes and `limit` are Unicode code points.

    A block that is over its limit already (the limit was lowered) may shrink step by step.

    Raises:
        InvalidInput: `size` is above `limit` and not below `before`; the message names all three.
    """
    if size > limit and size >= before:
        raise InvalidInput(
            f"the block {label} holds at most {limit} characters; it has {before} and would have {size}. "
            "Shorten it first, or store the details with recall",
            limit=limit,
            size=before,
            wanted=size,
        )
