"""The places in a text that an edit changes: words, lines, a diff's hunks, a match. Pure, except for the process of
regular expressions.

Unified diffs are applied strictly: every context and removed line must exist, or nothing is changed. Only line numbers
may be wrong, because models miscount lines: a hunk is applied at the nearest matching place, and the answer says how
far it moved. The text's line endings, and whether its last line has one, stay.
Source: GNU diffutils manual, "Detailed Description of Unified Format".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from pattern_core.errors import InvalidInput
from pattern_core.memory.document import Splice, Spliced
from pattern_core.memory.edits import AppendText, EditRange, Patch, ReplaceText, SetText, SetValue, TextEdit
from pattern_core.messages import check_text
from pattern_core.patterns import first_match
from pattern_db.columns import Json

Ranges: TypeAlias = "list[tuple[int, int, str]]"  # start and end in a text, ascending and disjoint, and the replacement
HUNKS_MAX = 200
SPLICES_MAX = 1_000  # beyond this the document finds the difference itself, which is faster for many splices

_HEADER = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@.*")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")


async def edit_text(before: str, edit: TextEdit | SetValue, what: str) -> tuple[str, str, Spliced | str]:
    """Return the text after an edit of `before`, a text about it, and the writes for the document. Only the replaced
    parts are written, so that other edits merge; for a whole text, or many replacements, the document finds the
    smallest difference itself.

    Raises:
        InvalidInput: the edit does not match this text, which error messages call `what`; the message says what does.
    """
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
            return after, note, after
        case SetText(text=after) | SetValue(value=after):
            if not isinstance(after, str):
                raise InvalidInput(f"{what} is text; give its whole text")
            return after, f"Set the text to {len(check_text(after))} characters", after
        case _:
            assert_never(edit)
    pieces: list[str] = []
    splices: list[Splice] = []
    at = 0
    for start, end, new in ranges:
        pieces += before[at:start], new
        splices.append(Splice(start - at, before[start:end], new))
        at = end
    after = "".join([*pieces, before[at:]])
    return after, note, after if len(ranges) > SPLICES_MAX else Spliced(True, tuple(splices))


async def replaced(text: str, edit: ReplaceText) -> tuple[Ranges, str]:
    """Return what the edit replaces in `text`, and a text about it.

    Raises:
        InvalidInput: it does not occur; the message explains what to do.
    """
    check_text(edit.new)
    if not edit.old:
        raise InvalidInput("say in `old` which text to replace")
    if edit.mode == "regex":
        match = await first_match(edit.old, edit.new, text)
        if match is None:
            raise InvalidInput(f"the pattern {edit.old!r} matches nothing in the block")
        return [(*match[:2], check_text(match[2]))], "Replaced the first match"
    number, old = _numbered(edit.old) if edit.mode == "nth" else (1, edit.old)
    places = [match.start() for match in re.finditer(re.escape(old), text)]
    if not places:
        raise InvalidInput(f"{_quoted(old)} is not in the block; load it and copy the text exactly")
    if edit.mode == "all":
        chosen, note = places, f"Replaced {len(places)} occurrence{'s' if len(places) > 1 else ''}"
    elif number <= len(places):
        chosen = [places[number - 1]]
        note = f"Replaced occurrence #{number} of {len(places)}" if len(places) > 1 else "Replaced the one occurrence"
    else:
        raise InvalidInput(f"{_quoted(old)} is in the block {len(places)} times, so there is no #{number}")
    return [(at, at + len(old), edit.new) for at in chosen], note


def _numbered(old: str) -> tuple[int, str]:
    found = re.fullmatch(r"\s*(\d{1,9})(?::[ ]?|\s)(.+)", old, re.DOTALL)
    if found is None or int(found[1]) < 1:
        raise InvalidInput("for mode nth write `old` as `N: text`, with N from 1, as in `2: foo`")
    return int(found[1]), found[2]


def line_range(text: str, edit: EditRange) -> tuple[Ranges, str]:
    """Return the place of the lines in `text` with their replacement, and a text about it.

    Raises:
        InvalidInput: there are no such lines.
    """
    lines = lines_of(text) or [""]
    if not 1 <= edit.first <= edit.last:
        raise InvalidInput(
            f"the lines {edit.first}-{edit.last} are not a range: count from 1, the smaller number first"
        )
    if edit.first > len(lines):
        raise InvalidInput(
            f"the block has {len(lines)} line{'s' if len(lines) > 1 else ''}; line {edit.first} is past the end"
        )
    last = min(edit.last, len(lines))
    start = sum(len(line) for line in lines[: edit.first - 1])
    end = start + sum(len(line) for line in lines[edit.first - 1 : last])
    new = with_endings(check_text(edit.text), like=lines[edit.first - 1 : last])
    note = f"Replaced lines {edit.first}-{last}" if last > edit.first else f"Replaced line {last}"
    return [(start, end, new)], note if new else note.replace("Replaced", "Deleted")


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:80] + "…")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hunk:
    """`at` is the index of the first old line, from 0; `body` holds ' ', '-' or '+' and the bare line."""

    at: int
    body: tuple[tuple[str, str], ...]

    @property
    def old(self) -> list[str]:
        return [line for mark, line in self.body if mark != "+"]


def lines_of(text: str) -> list[str]:
    """Return the lines of `text` with their endings; only a line feed ends a line, so that offsets are correct."""
    return _LINE.findall(text)


def with_endings(text: str, *, like: list[str]) -> str:
    """Return `text` with the line endings of the replaced lines, including the last one's; an empty text stays
    empty.
    """
    if not text:
        return text
    crlf = like[0].endswith("\r\n")
    bare = (text.replace("\r\n", "\n") if crlf else text).removesuffix("\n")
    if like[-1].endswith("\n"):
        bare += "\n"
    return bare.replace("\n", "\r\n") if crlf else bare


def apply_patch(text: str, patch: str) -> tuple[str, str]:
    """Return the text after the patch, and a text about it: `Applied 2 hunks (hunk 2 found 3 lines further down)`.

    Raises:
        InvalidInput: the patch is malformed, or the lines of a hunk are not in the text; nothing is changed.
    """
    hunks = _parse(patch)
    lines = lines_of(text)
    bare = [line.removesuffix("\n").removesuffix("\r") for line in lines]
    crlf = bool(lines) and lines[0].endswith("\r\n")
    moved: list[str] = []
    result: list[str] = []
    done = shift = 0
    for number, hunk in enumerate(hunks, 1):
        at = _place(bare, hunk, number, expected=hunk.at + shift, earliest=done)
        if at != hunk.at + shift:
            off = at - hunk.at - shift
            way = "down" if off > 0 else "up"
            moved.append(f"hunk {number} found {abs(off)} line{'s' if abs(off) > 1 else ''} further {way}")
            shift += off
        result += lines[done:at]
        done = at
        for mark, line in hunk.body:
            if mark == "+":
                result.append(line + ("\r\n" if crlf else "\n"))
                continue
            if mark == " ":
                result.append(lines[done])
            done += 1
    result += lines[done:]
    note = f"Applied {len(hunks)} hunk{'s' if len(hunks) > 1 else ''}" + (f" ({'; '.join(moved)})" if moved else "")
    return _joined(result, lines, crlf=crlf), note


def _parse(patch: str) -> list[_Hunk]:
    lines = patch.replace("\r\n", "\n").removesuffix("\n").split("\n")
    first = next((index for index, line in enumerate(lines) if line.startswith("@@")), None)
    if first is None:
        raise InvalidInput("this is not a unified diff: it has no hunk header such as `@@ -1,3 +1,3 @@`")
    hunks: list[_Hunk] = []
    index = first
    while index < len(lines):
        if not lines[index].strip():
            index += 1
            continue
        if len(hunks) >= HUNKS_MAX:
            raise InvalidInput(f"the patch has more than {HUNKS_MAX} hunks; set the whole text instead")
        hunk, index = _parse_hunk(lines, index, len(hunks) + 1)
        hunks.append(hunk)
    return hunks


def _parse_hunk(lines: list[str], index: int, number: int) -> tuple[_Hunk, int]:
    header = _HEADER.fullmatch(lines[index])
    if header is None:
        raise InvalidInput(f"hunk {number} begins with {lines[index]!r}, not with a header such as `@@ -1,3 +1,3 @@`")
    start, old_wanted, new_wanted = int(header[1]), int(header[2] or 1), int(header[4] or 1)
    body: list[tuple[str, str]] = []
    old = new = 0
    index += 1
    while index < len(lines) and (old, new) != (old_wanted, new_wanted):
        mark, line = lines[index][:1] or " ", lines[index][1:]
        if mark not in " +-\\":
            break
        if mark != "\\":
            body.append((mark, line))
            old += mark != "+"
            new += mark != "-"
        index += 1
    while index < len(lines) and lines[index].startswith("\\"):
        index += 1
    if (old, new) != (old_wanted, new_wanted):
        raise InvalidInput(
            f"hunk {number} says {old_wanted} old and {new_wanted} new lines but has {old} and {new}; "
            "each line begins with a space, - or +"
        )
    # Without old lines the number is that of the line before.
    return _Hunk(at=start if old_wanted == 0 else max(start - 1, 0), body=tuple(body)), index


def _place(bare: list[str], hunk: _Hunk, number: int, *, expected: int, earliest: int) -> int:
    """Return the index of the hunk's old lines, nearest to `expected` and not before `earliest`."""
    old = hunk.old
    last = len(bare) - len(old)
    if not old:
        if not earliest <= expected <= len(bare):
            raise InvalidInput(f"hunk {number} inserts after line {expected}, but the block has {len(bare)} lines")
        return expected
    found = [at for at in range(earliest, last + 1) if bare[at] == old[0] and bare[at : at + len(old)] == old]
    found.sort(key=lambda at: abs(at - expected))
    if not found:
        raise InvalidInput(_mismatch(bare, old, number, expected))
    if len(found) > 1 and abs(found[0] - expected) == abs(found[1] - expected):
        raise InvalidInput(f"the lines of hunk {number} occur at lines {found[0] + 1} and {found[1] + 1}; add context")
    return found[0]


def _mismatch(bare: list[str], old: list[str], number: int, expected: int) -> str:
    for offset, line in enumerate(old):
        at = expected + offset
        here = bare[at] if 0 <= at < len(bare) else None
        if here != line:
            stands = "the block ends before it" if here is None else f"there is {here[:120]!r}"
            return f"hunk {number} does not match: it expects {line[:120]!r} at line {at + 1}, {stands}"
    return f"hunk {number} overlaps the hunk before it"


def _joined(result: list[str], before: list[str], *, crlf: bool) -> str:
    """Return the lines as one text: each inner one with an ending, the last one ending as the old last line did."""
    ending = "\r\n" if crlf else "\n"
    whole = [line if line.endswith("\n") else line + ending for line in result]
    text = "".join(whole)
    return text if not before or before[-1].endswith("\n") else text.removesuffix("\n").removesuffix("\r")
