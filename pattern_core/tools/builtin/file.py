"""The tools `file` and `file_save`: files in the folders that are attached to the agent.

`file_save` is a tool of its own, because its effect lies outside the database, and not enabled by default, because it
changes what belongs to a person. What a person changed since the agent read the file is kept: the text as the agent
knows it is stored when it reads or saves the file, and both changes of it are merged, by lines, as half a line of each
would be a line that no one wrote. Idempotent: a merge that the call made before a crash is recognised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from difflib import SequenceMatcher
from pathlib import Path
from typing import Annotated, Literal

import trio

from pattern_core.errors import Conflict, InvalidInput, NotFound, Unavailable
from pattern_core.files import disk
from pattern_core.files.access import AgentFiles, Located
from pattern_core.files.disk import UnreadableFile
from pattern_core.files.passages import Prepared, hash_of, prepare, store
from pattern_core.files.readers import read_text
from pattern_core.memory.document import common_ends
from pattern_core.messages import check_text
from pattern_core.search import SearchRequest
from pattern_core.tools.hits import clamp, excerpt
from pattern_core.tools.tool import ToolContext, done, needed, tool
from pattern_db.connection import Connection
from pattern_db.enums import EffectClass, FolderAccess, PathType, SearchKind
from pattern_db.tables import passages, tool_state

Operation = Literal["list", "read", "grep", "search", "write", "append", "replace"]
LINES_DEFAULT = 200
LINES_MAX = 1_000
WINDOW_CHARS_MAX = 16_000  # below what a result may hold, so that the JSON is never cut
LISTED_MAX = 200
MATCHES_DEFAULT = 50
MATCH_CHARS_MAX = 300
HITS_DEFAULT = 8
HIT_CHARS_MAX = 1_500
FILE_CHARS_MAX = 200_000  # of what an agent writes
SAVED = "file_save"
COMPARED_LINES_MAX = 2_000  # comparing takes quadratic time
KNOWN_MAX = 20  # files of which the text that an agent knows is stored
_DID = {"write": "Wrote", "append": "Added to", "replace": "Changed"}


@tool(effect=EffectClass.LOCAL, enabled_by_default=True, for_strangers=True)
async def file(
    context: ToolContext,
    op: Operation,
    path: str | None = None,
    folder: str | None = None,
    pattern: str | None = None,
    files: str | None = None,
    query: str | None = None,
    start_line: int = 1,
    lines: int = LINES_DEFAULT,
    ignore_case: bool = False,
    limit: int | None = None,
    content: str | None = None,
    old: str | None = None,
) -> dict[str, object]:
    """Files in the folders attached to you, as folder/path.

    list: folders, or files like `pattern` (*.md). read: `lines` of `path` from `start_line`. grep: lines that match
    `pattern`, in `path` or `files` (*.py). search: passages on `query`. write, append: `content`. replace: `old`, found
    once, by `content`.
    """
    access = AgentFiles(context.storage.database, context.agent_id, context.sees_only)
    match op:
        case "list":
            return await _list(access, folder, pattern)
        case "read":
            await _note_read(context, await access.locate(needed(path, "path", op)))
            return await _read(access, needed(path, "path", op), start_line, lines)
        case "grep":
            found = await access.grep(
                needed(pattern, "pattern", op),
                path=path,
                files_like=files,
                limit=clamp(limit or MATCHES_DEFAULT),
                ignore_case=ignore_case,
            )
            shown = [{"path": path, "line": line, "text": text[:MATCH_CHARS_MAX]} for path, line, text in found.lines]
            missing = f"; {found.left_out} more were not searched, narrow `files`" if found.left_out else ""
            return done(f"Found {len(shown)} lines in {found.files} files{missing}", matches=shown)
        case "search":
            chosen = await access.folders() if folder is None else [await access.folder(folder)]
            is_all = folder is None and context.sees_only is None
            only = None if is_all else [one.folder.name for one in chosen]
            return await _search(context, needed(query, "query", op), only, clamp(limit or HITS_DEFAULT))
        case "write" | "append" | "replace":
            place = await access.for_writing(needed(path, "path", op), PathType.VIRTUAL)
            before = b"" if op == "write" else await access.stored(place)
            gone = check_text(needed(old, "old", op)).encode() if op == "replace" else None
            added = check_text(needed(content, "content", op)).encode()
            after = before + added if gone is None else _replaced(place, before, gone, added)
            new = await prepared(context, place, after)
            # Its origin must still exist.
            context.work.store(store, new, after, expected_hash=hash_of(before) if before else None)
            return done(f"{_DID[op]} {place.path}", bytes=len(after), passages=len(new.pieces))


async def _list(access: AgentFiles, folder: str | None, pattern: str | None) -> dict[str, object]:
    if folder is None and pattern is None:
        attached = await access.folders()
        shown = [
            {
                "folder": one.folder.name,
                "description": one.folder.description,
                "access": one.access.value,
                "status": one.folder.status_reason or one.folder.status,
            }
            for one in attached
        ]
        if len(attached) != 1:
            return done(f"{len(attached)} folders are attached to you", folders=shown)
        folder = attached[0].folder.name
    found = await access.list(folder, pattern)
    names = [{"path": path, "lines": row.line_count, "error": row.error} for path, row in found[:LISTED_MAX]]
    names = [{key: value for key, value in one.items() if value is not None} for one in names]
    more = f"; the first {LISTED_MAX} are shown, narrow `pattern`" if len(found) > LISTED_MAX else ""
    return done(f"{len(found)} files{more}", files=names)


async def _read(access: AgentFiles, path: str, start_line: int, lines: int) -> dict[str, object]:
    if start_line < 1:
        raise InvalidInput(f"lines count from 1; there is no line {start_line}")
    wanted = min(max(lines, 1), LINES_MAX)
    window = await access.read(path, start_line=start_line, lines=wanted, chars_max=WINDOW_CHARS_MAX)
    words = f"Lines {window.first} to {window.last} of {window.total} of {window.path}"
    if window.is_cut:
        words += f"; line {window.first} is longer than what is shown"
    elif window.last < window.total:
        words += f"; continue with start_line {window.last + 1}"
    return done(words, content=window.text, start_line=window.first, end_line=window.last, total_lines=window.total)


async def _search(context: ToolContext, query: str, folders: Sequence[str] | None, limit: int) -> dict[str, object]:
    request = SearchRequest(
        query=query,
        kinds=[SearchKind.FILE],
        agents=[context.agent_id],
        tags=folders,  # a folder's name counts as a tag of its files
        limit=limit,
    )
    result = await context.toolbox.search(request)
    places = await context.storage.database.read(passages.places, [hit.id for hit in result.hits])
    shown: list[dict[str, object]] = []
    for hit in result.hits:
        place = places.get(hit.id)
        if place is None:
            continue
        entry: dict[str, object] = {
            "path": f"{place.folder}/{place.file}",
            "start_line": place.start_line,
            "end_line": place.end_line,
            "content": excerpt(hit.content, hit.snippet, HIT_CHARS_MAX),
            "score": round(hit.score, 3),
        }
        shown.append(entry if place.page is None else {**entry, "page": place.page})
    words = f"Found {len(shown)} passages" if shown else "Found no passage; try other words, or grep"
    return done(words + (f" ({result.notice})" if result.notice else ""), hits=shown)


def _replaced(place: Located, before: bytes, old: bytes, new: bytes) -> bytes:
    """Return the file with `old` replaced, which must occur in it exactly once: a guess could change another place."""
    count = before.count(old) if old else 0
    if count != 1:
        found = "is not in it" if count == 0 else f"occurs in it {count} times"
        raise InvalidInput(f"{place.path} was not changed: `old` {found}; read the file and give a text found once")
    return before.replace(old, new)


async def prepared(context: ToolContext, place: Located, data: bytes) -> Prepared:
    """Return a file that an agent writes, read so that it can be stored.

    Raises:
        InvalidInput: it is too long, or cannot be read as what its name says.
    """
    if len(data) > FILE_CHARS_MAX:
        raise InvalidInput(f"a file that you write has at most {FILE_CHARS_MAX} bytes, this one {len(data)}; split it")
    found = await prepare(context.storage, place.attached.folder.id, place.name, data)
    if found.row.error is not None:
        raise UnreadableFile(f"{place.path} was not written: {found.row.error}")
    return found


@tool(effect=EffectClass.IDEMPOTENT, for_strangers=True)
async def file_save(
    context: ToolContext,
    path: Annotated[str, "`folder/path` in a folder that is attached to you for writing."],
    content: Annotated[str, "The whole text of the file; read it before you change it."],
) -> dict[str, object]:
    """Write a text file into a directory of the machine that is attached to you for writing.

    What others changed since you read it is kept.
    """
    access = AgentFiles(context.storage.database, context.agent_id, context.sees_only)
    place = await access.for_writing(path, PathType.LOCAL)
    text = check_text(content).replace("\r\n", "\n")
    before = await trio.to_thread.run_sync(_now_at, place)
    state = await context.storage.database.read(tool_state.read, context.agent_id, SAVED)
    known, *merge = state.get(_key(place), [None])
    after = text
    if merge == [context.idempotency_key, hash_of(before).hex()]:  # before a crash, by this call
        after = read_text(before)
    elif before.strip():
        after = await trio.to_thread.run_sync(_merged, place, known, text, before)
    data = after.replace("\n", "\r\n" if b"\r\n" in before else "\n").encode()
    new = await prepared(context, place, data)
    if after != text:
        merge = [context.idempotency_key, hash_of(data).hex()]
        await context.storage.database.write(_note(context, place, known, *merge))
    # Not abandoned when cancelled: a half-known outcome would be worse than waiting for the disk.
    await trio.to_thread.run_sync(_put, place, before, data)
    context.work.store(store, new)
    context.work.store(_note(context, place, text))
    words = "" if after == text else "; what others changed since you read it is in it, too: read it again"
    return done(f"Wrote {place.path}{words}", bytes=len(data), passages=len(new.pieces))


async def _note_read(context: ToolContext, place: Located) -> None:
    """Store the text of a file that the agent may save, before it is shown: what changes later is merged."""
    folder, access = place.attached.folder, place.attached.access
    if folder.path_type is PathType.LOCAL and access is FolderAccess.READ_WRITE:
        with suppress(NotFound, Unavailable, UnreadableFile):
            text = await trio.to_thread.run_sync(lambda: read_text(_now_at(place)))
            if len(text) <= FILE_CHARS_MAX:
                context.work.store(_note(context, place, text))


def _note(context: ToolContext, place: Located, *known: str) -> Callable[[Connection], None]:
    """Return what stores the text of a file that an agent knows; with it, the call that merges it, and the result."""
    agent_id, name, now = context.agent_id, _key(place), context.storage.now()

    def note(connection: Connection) -> None:
        state = tool_state.read(connection, agent_id, SAVED)
        if len({*state, name}) > KNOWN_MAX:
            tool_state.clear(connection, agent_id, SAVED)
        if state.get(name) != [*known]:
            tool_state.put(connection, agent_id, SAVED, name, [*known], now=now, names_max=KNOWN_MAX)

    return note


def _key(place: Located) -> str:
    return f"{place.attached.folder.id}/{place.name}"


def _now_at(place: Located) -> bytes:
    """Return what is at a place on the disk; nothing if there is no file."""
    try:
        return disk.read_file(Path(place.attached.folder.path_value or ""), place.name)
    except NotFound:
        return b""


def _put(place: Located, before: bytes, data: bytes) -> None:
    if _now_at(place) != before:
        raise Conflict(f"{place.path} was changed at this moment; nothing was written, save it again")
    disk.write_file(Path(place.attached.folder.path_value or ""), place.name, data)


def _merged(place: Located, known: str | None, text: str, before: bytes) -> str:
    """Return the text that an agent made of the one that it knew, with what the file on the disk has of others.

    Raises:
        Conflict: the agent does not know the file, or both changed the same lines.
        UnreadableFile: the file is not a text.
    """
    now = read_text(before)
    if now in (known, text):
        return text
    if known is None:
        raise Conflict(f"{place.path} is there, and you do not know what is in it; nothing was written, read it first")
    lines, made, at, last = _lines(known), list[str](), 0, -1
    for start, end, new in sorted({*_changes(lines, text), *_changes(lines, now)}):
        if start < at or start == last:
            raise Conflict(f"others changed line {start + 1} of {place.path}, too; nothing was written, read it again")
        made += [*lines[at:start], *new]
        at, last = end, start
    return "\n".join([*made, *lines[at:]]) + "\n" * now.endswith("\n")


def _lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n")


def _changes(before: Sequence[str], text: str) -> Iterator[tuple[int, int, Sequence[str]]]:
    """Yield the ranges of lines that a text has others in place of; only one, if finding them would take long."""
    after = _lines(text)
    at, end = common_ends(before, after)
    old, new = before[at : len(before) - end], after[at : len(after) - end]
    if len(old) + len(new) > COMPARED_LINES_MAX:
        yield at, at + len(old), tuple(new)
        return
    for tag, start, stop, first, last in SequenceMatcher(None, old, new).get_opcodes():
        if tag != "equal":
            yield at + start, at + stop, tuple(new[first:last])
