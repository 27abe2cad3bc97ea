"""A file's passages: pieces of its text at natural borders, with their lines and headings.
They are stored with their file, in one transaction.

Splitting is pure and stable: a change in one place moves the borders near it only, since each heading, function and
page begins a passage.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import trio

from pattern_core.errors import Conflict, LimitReached
from pattern_core.files.disk import FILES_MAX, UnreadableFile
from pattern_core.files.reading import Document, Syntax, read_document
from pattern_core.unit_of_work import Storage
from pattern_db.connection import Connection
from pattern_db.errors import RowNotFound
from pattern_db.tables import files, passages
from pattern_db.tables.files import FileRow
from pattern_db.tables.passages import Piece

TARGET_CHARS = 1_000
CHARS_MAX = 1_500
CHARS_MIN = 300
PASSAGES_MAX = 5_000  # of one file: all of them are stored in one transaction
HEADING_CHARS_MAX = 200
# What is enough for a passage to end where there begins: 0 nothing, 1 a paragraph, 2 a heading or function, 3 a page.
_ENOUGH_CHARS = (CHARS_MAX, TARGET_CHARS, CHARS_MIN, 0)

_FENCE = re.compile(r"^ {0,3}(```|~~~)")
_HEADING = re.compile(r"^ {0,3}(#{1,6})[ \t]")
_DEFINITION = re.compile(
    r"^(?P<indent>[ \t]*)(?:@\w|(?:(?:export|default|public|private|protected|internal|static|final|abstract|async|pub"
    r"|pub\(crate\)|open|override|sealed|data|virtual|inline|const|unsafe)\s+)*"
    r"(?:def|class|function|func|fn|struct|enum|interface|trait|impl|type|module|namespace|package|object|record|mod"
    r"|macro_rules!|CREATE\s+(?:OR\s+REPLACE\s+)?(?:TABLE|VIEW|INDEX|TRIGGER|FUNCTION))\s+(?P<name>\w[\w.$]*))"
)
_SECTION = re.compile(r"^\[{1,2}(?P<name>[^\]]+)\]{1,2}\s*$")  # of TOML and INI files
_SENTENCE_END = re.compile(r"(?<=[.!?。！？;,])\s*|\s+")


def split(name: str, document: Document) -> list[Piece]:
    """Return the passages of a file, in order, at most `CHARS_MAX` characters each; every word of it is in one of them.

    A passage's heading is the file's name and the headings (in code: the definitions) that its first line is under.

    Raises:
        UnreadableFile: there are more than `PASSAGES_MAX`.
    """
    lines = document.text.split("\n")
    headed = list(_headed(lines, document.kind.syntax))
    strengths = [strength for strength, _path in headed]
    for line in document.pages:
        strengths[line - 1] = 3
    pieces: list[Piece] = []
    for first, last in _ranges(lines, strengths):
        heading = " › ".join((name, *headed[first][1]))[:HEADING_CHARS_MAX]
        page = bisect_right(document.pages, first + 1) or None
        pieces += _pieces(lines, first, last, heading, page)
        if len(pieces) > PASSAGES_MAX:
            raise UnreadableFile(f"the file makes more than {PASSAGES_MAX} passages; split it")
    return pieces


def _pieces(lines: Sequence[str], first: int, last: int, heading: str, page: int | None) -> Iterator[Piece]:
    """Yield the lines `first` to `last` (from 0, excluded) as one passage, or a line that is too long as several."""
    filled = [index for index in range(first, last) if lines[index].strip()]
    if filled:
        start, end = filled[0], filled[-1] + 1
        for part in _cut("\n".join(lines[start:end])):
            yield Piece(content=part, start_line=start + 1, end_line=end, heading=heading, page=page)


def _cut(text: str) -> Iterator[str]:
    """Yield a text as it is; a line of more than `CHARS_MAX` characters in pieces, cut after a sentence or word."""
    start = 0
    while len(text) - start > CHARS_MAX:
        window = text[start : start + CHARS_MAX]
        ends = [found.end() for found in _SENTENCE_END.finditer(window) if found.end() >= TARGET_CHARS]
        end = start + (ends[-1] if ends else CHARS_MAX)
        yield text[start:end]
        start = end
    if text[start:].strip():
        yield text[start:]


def _ranges(lines: Sequence[str], strengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of lines that make a passage each: from the first, to before the second."""
    chars = [0, *accumulate(len(line) + 1 for line in lines)]  # before each line, and in all
    start = 0
    for index, strength in enumerate(strengths):
        while index > start and (
            chars[index] - chars[start] >= _ENOUGH_CHARS[strength]
            or chars[index + 1] - chars[start] > CHARS_MAX + 1  # the last line's end does not count
        ):
            # Within a paragraph it ends at the last border that leaves it enough.
            borders = [] if strength else range(index - 1, start, -1)
            least = chars[start] + CHARS_MIN
            cut = next((line for line in borders if strengths[line] and chars[line] >= least), index)
            yield start, cut
            start = cut
    yield start, len(lines)


def _headed(lines: Sequence[str], syntax: Syntax) -> Iterator[tuple[int, Sequence[str]]]:
    """Yield for each line what begins there, as a strength, and the headings that it is under."""
    match syntax:
        case "markdown":
            return _markdown(lines)
        case "code":
            return _code(lines)
        case "prose":
            return ((strength, ()) for strength in _paragraphs(lines))


def _paragraphs(lines: Sequence[str]) -> Iterator[int]:
    was_empty = False
    for line in lines:
        is_empty = not line.strip()
        yield 1 if was_empty and not is_empty else 0
        was_empty = is_empty


def _markdown(lines: Sequence[str]) -> Iterator[tuple[int, Sequence[str]]]:
    path: list[tuple[int, str]] = []
    fence = ""
    for line, paragraph in zip(lines, _paragraphs(lines), strict=True):
        strength = 0 if fence else paragraph
        mark, heading = _FENCE.match(line), _HEADING.match(line)
        if mark and fence in ("", mark[1]):
            fence = "" if fence else mark[1]
        elif heading and not fence:
            level = len(heading[1])
            title = line.strip(" \t#")[:HEADING_CHARS_MAX]
            path = [*((above, name) for above, name in path if above < level), (level, title)]
            strength = 2
        yield strength, [name for _level, name in path if name]


def _code(lines: Sequence[str]) -> Iterator[tuple[int, Sequence[str]]]:
    """Definitions after an empty line begin a passage; the path is that of the indentation."""
    path: list[tuple[int, str]] = []
    for line, paragraph in zip(lines, _paragraphs(lines), strict=True):
        strength = paragraph
        indent = len(line) - len(line.lstrip())
        if line.strip() and not line.lstrip().startswith((")", "]", "}")):
            path = [(above, name) for above, name in path if above < indent]
        if found := _DEFINITION.match(line) or _SECTION.match(line):
            path += [(indent, found["name"])] if found["name"] else []
            strength = 2 if paragraph or indent == 0 else 1
        yield strength, [name for _indent, name in path]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A file that was read: its row as that of a new file, its passages, and ids for those that are new."""

    row: FileRow
    pieces: Sequence[Piece] = ()
    passage_ids: Sequence[str] = ()


def hash_of(data: bytes) -> bytes:
    """Return what tells whether a file's bytes changed: their SHA-256."""
    return hashlib.sha256(data).digest()


def unread(storage: Storage, folder_id: str, name: str, size: int, error: str | None = None) -> FileRow:
    """Return the row of a new file of `size` bytes that was not read yet, or cannot be."""
    now = storage.now()
    return FileRow(
        id=storage.ids.new("file"),
        folder_id=folder_id,
        name=name,
        uploaded_at=now,
        status="unreadable",
        size_bytes=size,
        indexed_at=now,
        error=error,
    )


async def prepare(storage: Storage, folder_id: str, name: str, data: bytes, *, mtime_ns: int | None = None) -> Prepared:
    """Read `data`; what cannot be read comes back with its error."""
    row = replace(unread(storage, folder_id, name, len(data)), content_hash=hash_of(data), mtime_ns=mtime_ns)
    try:
        document = await read_document(name, data)
        pieces = await trio.to_thread.run_sync(split, name, document)
    except UnreadableFile as error:
        return Prepared(row=replace(row, error=error.message))
    row = replace(
        row,
        status="indexed",
        content_type=document.kind.content_type,
        line_count=document.text.count("\n") + (not document.text.endswith("\n")),
        passage_count=len(pieces),
    )
    return Prepared(row=row, pieces=pieces, passage_ids=[storage.ids.new("psg") for _piece in pieces])


def store(
    connection: Connection, prepared: Prepared, content: bytes | None = None, *, expected_hash: bytes | None = None
) -> tuple[FileRow, bool]:
    """Store a file of a folder and its passages; its row, and whether it is new. Passages with the same words keep
    their ids and vectors.

    `content` is kept for virtual folders only; with `expected_hash` the file must still be the one with these bytes.

    Raises:
        Conflict: the file is not the expected one any more.
        LimitReached: the folder is full.
        apsw.ConstraintError: the folder is gone (a `Conflict` once translated).
    """
    row = prepared.row
    try:
        known = files.find(connection, row.folder_id, row.name)
    except RowNotFound:
        known = None
    if expected_hash is not None and (known is None or known.content_hash != expected_hash):
        raise Conflict(f"{row.name} was changed by another writer; read it again")
    if known is None and files.count(connection, row.folder_id) >= FILES_MAX:
        raise LimitReached(f"the folder holds {FILES_MAX} files, which is all it may; remove some first")
    if known is not None:
        is_same = known.content_hash == row.content_hash
        row = replace(row, id=known.id, uploaded_at=known.uploaded_at if is_same else row.uploaded_at)
    files.put(connection, row, content)
    new_id = iter(prepared.passage_ids).__next__
    passages.replace(connection, row.id, prepared.pieces, new_id=new_id, now=prepared.row.uploaded_at)
    return row, known is None
