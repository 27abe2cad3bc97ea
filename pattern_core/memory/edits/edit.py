"""Edits: what can be asked for, and what comes of it for a text. Pure, but for the regular expression's own process.

Positions are Unicode code points. Lines end with a line feed; a carriage return before it belongs to the ending. Lines
and items are counted from 1. What edits come to in blocks of other shapes is `memory.edits.plan`'s.

Every edit may name a section of a composite; without one it means the whole block. Where a value is asked for,
`fields.Written` stands for one that somebody wrote down.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, assert_never

from pattern_core.errors import InvalidInput
from pattern_core.memory.edits.patch import apply_patch, lines_of, with_endings
from pattern_core.memory.edits.regex import replace_first_match
from pattern_core.memory.permission import Operation
from pattern_core.memory.shapes.values import check_text
from pattern_db.columns import Json

ReplaceMode = Literal["first", "all", "nth", "regex"]
SPLICES_MAX = 1_000  # beyond this the document finds the difference itself: one slow edit is better than a stall


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendText:
    """Add at the end, as it is: no line end is added. In a list it is a new item, in a log a new entry."""

    text: str
    section: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceText:
    r"""Replace `old` by `new`.

    `first`, `all`: as plain text. `nth`: `old` is `"N: text"` (or `"N text"`), N from 1. `regex`: `old` is a pattern
    of Python's `re`, `new` may refer to its groups by `\1` or `\g<name>`; the first match is replaced.
    """

    old: str
    new: str
    mode: ReplaceMode = "first"
    section: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetText:
    """Make the whole text this one, by the fewest changes; for other shapes it is what an editor shows (JSON)."""

    text: str
    section: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EditRange:
    """Replace lines `first` to `last` (from 1, inclusive) by `text`; an empty text deletes them."""

    first: int
    last: int
    text: str
    section: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """Apply a unified diff."""

    patch: str
    section: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetField:
    """Set a field of a map; None takes its value away."""

    field: str
    value: Json
    section: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListAppend:
    """Add an item at the end of a list field."""

    field: str
    value: Json
    section: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListRemove:
    """Remove the first item of a list field that is `value`."""

    field: str
    value: Json
    section: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Increment:
    """Add to a counter field; below 0 takes away."""

    field: str
    delta: Json = 1
    section: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PushItem:
    """Add an item at the end of a list."""

    value: Json
    section: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertItem:
    """Put an item into a list, so that it becomes number `number`."""

    number: int
    value: Json
    section: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetItem:
    """Replace item `number` of a list."""

    number: int
    value: Json
    section: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteItem:
    """Remove item `number` of a list."""

    number: int
    section: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendEntry:
    """Add an entry to a log; the system stamps it."""

    value: Json
    section: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetValue:
    """Make the whole content, or that of a section, this value, by the fewest changes."""

    value: Json
    section: str | None = None


TextEdit = AppendText | ReplaceText | SetText | EditRange | Patch
FieldEdit = SetField | ListAppend | ListRemove | Increment
ItemEdit = PushItem | InsertItem | SetItem | DeleteItem
BlockEdit = TextEdit | FieldEdit | ItemEdit | AppendEntry | SetValue
_ADDING = (AppendText, ListAppend, PushItem, InsertItem, AppendEntry)


@dataclass(frozen=True, slots=True, kw_only=True)
class Splice:
    """Replace `delete` code points from `at` on by `insert`."""

    at: int
    delete: int
    insert: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What an edit comes to: the text after it, words about it, and the splices from the last place to the first.

    Without splices (None) the document finds the smallest difference itself.
    """

    after: str
    note: str
    splices: tuple[Splice, ...] | None = None


def operation_of(edit: BlockEdit) -> Operation:
    """What the edit does, as permissions see it."""
    return Operation.APPEND if isinstance(edit, _ADDING) else Operation.OVERWRITE


async def change_of(text: str, edit: TextEdit) -> Change:
    """What `edit` makes of `text`.

    Raises:
        InvalidInput: the edit does not fit this text; the message says what does.
    """
    match edit:
        case AppendText():
            check_text(edit.text)
            note = f"Appended {len(edit.text)} characters"
            return Change(
                after=text + edit.text, note=note, splices=(Splice(at=len(text), delete=0, insert=edit.text),)
            )
        case ReplaceText():
            check_text(edit.new)
            return await _replace(text, edit)
        case SetText():
            return Change(after=check_text(edit.text), note=f"Set the text to {len(edit.text)} characters")
        case EditRange():
            return _edit_range(text, edit)
        case Patch():
            after, note = apply_patch(text, check_text(edit.patch))
            return Change(after=after, note=note)
        case _:
            assert_never(edit)


_RANGE = re.compile(r"\s*(\d{1,9})(?:\s*(?:-|\.\.)\s*(\d{1,9}))?[ \t]*(?:\r?\n|:(?:[ \t]*\r?\n| )?)(.*)", re.DOTALL)


def parse_range(content: str) -> EditRange:
    r"""Read `"START-END: text"`, `"START..END: text"` or the numbers on a line of their own above the text.

    One space after the colon separates; all further indentation belongs to the text.

    Raises:
        InvalidInput: it begins otherwise.
    """
    found = _RANGE.fullmatch(content)
    if found is None:
        raise InvalidInput("begin with the lines to replace, as in `2-4: new text` (from 1, both included)")
    first = int(found[1])
    return EditRange(first=first, last=int(found[2] or first), text=found[3])


async def _replace(text: str, edit: ReplaceText) -> Change:
    if not edit.old:
        raise InvalidInput("say in `old` which text to replace")
    if edit.mode == "regex":
        match = await replace_first_match(edit.old, edit.new, text)
        if match is None:
            raise InvalidInput(f"the pattern {edit.old!r} matches nothing in the block")
        return _spliced(text, [(match.start, match.end, check_text(match.text))], "Replaced the first match")
    number, old = _numbered(edit.old) if edit.mode == "nth" else (1, edit.old)
    places = _occurrences(text, old)
    if not places:
        raise InvalidInput(f"{_quoted(old)} is not in the block; load it and copy the text exactly")
    if edit.mode == "all":
        chosen, note = places, f"Replaced {len(places)} occurrence{'s' if len(places) > 1 else ''}"
    elif number <= len(places):
        chosen = [places[number - 1]]
        note = f"Replaced occurrence #{number} of {len(places)}" if len(places) > 1 else "Replaced the one occurrence"
    else:
        raise InvalidInput(f"{_quoted(old)} is in the block {len(places)} times, so there is no #{number}")
    return _spliced(text, [(at, at + len(old), edit.new) for at in chosen], note)


def _numbered(old: str) -> tuple[int, str]:
    found = re.fullmatch(r"\s*(\d{1,9})(?::[ ]?|\s)(.+)", old, re.DOTALL)
    if found is None or int(found[1]) < 1:
        raise InvalidInput("for mode nth write `old` as `N: text`, with N from 1, as in `2: foo`")
    return int(found[1]), found[2]


def _occurrences(text: str, old: str) -> list[int]:
    places, at = [], text.find(old)
    while at >= 0:
        places.append(at)
        at = text.find(old, at + len(old))
    return places


def _spliced(text: str, ranges: list[tuple[int, int, str]], note: str) -> Change:
    """Replace the ranges (ascending, apart) of `text`."""
    pieces, done = [], 0
    for start, end, new in ranges:
        pieces += [text[done:start], new]
        done = end
    splices = tuple(Splice(at=start, delete=end - start, insert=new) for start, end, new in reversed(ranges))
    after = "".join([*pieces, text[done:]])
    return Change(after=after, note=note, splices=splices if len(splices) <= SPLICES_MAX else None)


def _edit_range(text: str, edit: EditRange) -> Change:
    lines = lines_of(text) or [""]
    if not 1 <= edit.first <= edit.last:
        raise InvalidInput(f"the lines {edit.first}-{edit.last} are no range: count from 1, the smaller number first")
    if edit.first > len(lines):
        raise InvalidInput(
            f"the block has {len(lines)} line{'s' if len(lines) > 1 else ''}; line {edit.first} is past the end"
        )
    last = min(edit.last, len(lines))
    start = sum(len(line) for line in lines[: edit.first - 1])
    end = start + sum(len(line) for line in lines[edit.first - 1 : last])
    new = with_endings(check_text(edit.text), like=lines[edit.first - 1 : last])
    note = f"Replaced lines {edit.first}-{last}" if last > edit.first else f"Replaced line {last}"
    return _spliced(text, [(start, end, new)], note if new else note.replace("Replaced", "Deleted"))


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:80] + "…")
