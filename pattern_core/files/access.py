"""Files as one agent may use them: only in folders attached to it, by `folder/path`, in windows of lines.

Lines are those of the text that was read from the file. They come from its passages, so that a PDF is not parsed again
for every access, and an unavailable directory can still be read; a text on disk that changed is read again.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path, PurePosixPath

import trio

from pattern_core.agent_settings import settings_of
from pattern_core.errors import InvalidInput, NotFound, PermissionDenied, Unavailable
from pattern_core.files import disk
from pattern_core.files.disk import UnreadableFile, check_name, matches
from pattern_core.files.reading import read_document
from pattern_core.patterns import matching_lines
from pattern_db.database import Database
from pattern_db.enums import FolderAccess, PathType
from pattern_db.errors import RowNotFound
from pattern_db.tables import agents, files, folders, passages
from pattern_db.tables.files import FileRow
from pattern_db.tables.folders import AttachedFolder
from pattern_db.tables.passages import PassageRow

GREP_CHARS_MAX = 4_000_000  # searched by one call
GREP_FILES_MAX = 500
RECEIVED = "fld_of_"  # how the ids of folders with files that came in a session begin


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """A place in an attached folder; the file may not exist."""

    attached: AttachedFolder
    name: str

    @property
    def path(self) -> str:
        """As an agent names it: `folder/path`."""
        return f"{self.attached.folder.name}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Lines `first` to `last` (from 1, both included) of a text with `total` lines. `is_cut`: the last one has more."""

    path: str
    first: int
    last: int
    total: int
    text: str
    is_cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLines:
    """Matching lines as `folder/path`, number and text; `left_out` files were not searched."""

    lines: Sequence[tuple[str, int, str]]
    files: int
    left_out: int


class AgentFiles:
    """The files that one agent may use. With `sees_only`, a session, not those that came in other sessions."""

    def __init__(self, database: Database, agent_id: str, sees_only: str | None = None) -> None:
        self._database = database
        self._agent_id = agent_id
        self._sees_only = sees_only

    async def folders(self) -> list[AttachedFolder]:
        """Return the folders attached to the agent, by name."""
        found, only = await self._database.read(folders.of_agent, self._agent_id), self._sees_only
        hidden = RECEIVED if only is not None else ()
        return [one for one in found if one.folder.id == received_in(only) or not one.folder.id.startswith(hidden)]

    async def folder(self, name: str) -> AttachedFolder:
        """Return one of them.

        Raises:
            NotFound: no folder of this name is attached.
        """
        attached = await self.folders()
        if found := _named(attached, name):
            return found
        known = ", ".join(one.folder.name for one in attached) or "none is"
        raise NotFound(f"no folder {name!r} is attached to you; attached: {known}")

    async def locate(self, path: str) -> Located:
        """Return the place of `folder/path`; if only one folder is attached, its name may be left out. A path from the
        root of the machine is found in the directory that it is below.

        Raises:
            NotFound: no such folder is attached.
            InvalidInput: the path leads out of the folder.
        """
        first, _, rest = path.partition("/")
        attached = await self.folders()
        if rest and (found := _named(attached, first)):
            return Located(attached=found, name=check_name(rest))
        for one in attached:
            root = one.folder.path_value
            if root is not None and PurePosixPath(path).is_relative_to(root):
                return Located(attached=one, name=check_name(PurePosixPath(path).relative_to(root).as_posix()))
        if len(attached) == 1:
            return Located(attached=attached[0], name=check_name(path))
        known = ", ".join(f"{one.folder.name}/" for one in attached) or "none, ask the person you work for"
        raise NotFound(f"{path!r} begins with none of your folders ({known})")

    async def for_writing(self, path: str, wanted: PathType) -> Located:
        """Return the place that `path` means, if the agent may write there.

        Raises:
            NotFound: no such folder is attached.
            PermissionDenied: it is attached for reading only, or a rule of the agent says so of the file.
            InvalidInput: the path leads out of the folder, or the folder is of the other kind.
        """
        found = await self.locate(path)
        folder = found.attached.folder
        if found.attached.access is not FolderAccess.READ_WRITE or folder.path_type is PathType.REMOTE:
            raise PermissionDenied(f"the folder {folder.name} is attached to you for reading only")
        config = (await self._database.read(agents.find, self._agent_id)).config
        rule = next((one for one in settings_of(config).files if _is_of(one.pattern, found.name)), None)
        if rule is not None and rule.access is not FolderAccess.READ_WRITE:
            raise PermissionDenied(f"you may only read {path}: files like {rule.pattern} are not written to")
        if folder.path_type is not wanted:
            other = "file" if folder.path_type is PathType.VIRTUAL else "file_save"
            raise InvalidInput(f"files in the folder {folder.name} are written by the tool {other}")
        return found

    async def list(self, folder: str | None = None, pattern: str | None = None) -> list[tuple[str, FileRow]]:
        """Return files with their `folder/path`, sorted; only those with a path (or its end) that matches `pattern`
        (`*`, `?`).

        Raises:
            NotFound: no such folder is attached.
        """
        chosen = await self.folders() if folder is None else [await self.folder(folder)]
        found: list[tuple[str, FileRow]] = []
        for one in chosen:
            rows = await self._database.read(files.list_in, one.folder.id)
            found += [(f"{one.folder.name}/{row.name}", row) for row in rows if _fits(row.name, pattern)]
        return found

    async def row(self, place: Located) -> FileRow:
        """Return the row of the file at a place.

        Raises:
            NotFound: there is no such file.
        """
        try:
            return await self._database.read(files.find, place.attached.folder.id, place.name)
        except RowNotFound:
            raise NotFound(f"there is no file {place.path!r}; list the folder to see what there is") from None

    async def stored(self, place: Located) -> bytes:
        """Return the bytes of a file of a virtual folder; none if there is no such file yet."""
        try:
            return await self._database.read(files.content, (await self.row(place)).id)
        except (NotFound, RowNotFound):
            return b""

    async def data(self, place: Located) -> bytes:
        """Return the bytes of a file, from the database or the disk.

        Raises:
            NotFound: there is no such file.
            UnreadableFile: the file on the disk is too long, a link, or may not be read.
            Unavailable: the folder's directory is not there.
        """
        folder = place.attached.folder
        if folder.path_type is not PathType.LOCAL:
            return await self._database.read_aside(files.content, (await self.row(place)).id)
        return await trio.to_thread.run_sync(
            disk.read_file, Path(folder.path_value or ""), place.name, abandon_on_cancel=True
        )

    async def read(self, path: str, *, start_line: int, lines: int, chars_max: int) -> Window:
        """Return a window of a file's text: at most `lines` lines and `chars_max` characters from `start_line` on.

        Raises:
            NotFound: there is no such file, or it does not have so many lines.
            InvalidInput: the path leads out of the folder.
            UnreadableFile: the file cannot be read as text.
        """
        place = await self.locate(path)
        row = await self.row(place)
        fresh = await self._changed_text(place, row)
        last = start_line + lines - 1
        if fresh is not None:
            every = fresh.removesuffix("\n").split("\n")
            total, wanted = len(every), every[start_line - 1 : last]
        elif row.error is not None:
            raise UnreadableFile(f"{place.path} cannot be read: {row.error}")
        else:
            total = row.line_count
            rows = await self._database.read(passages.of_file, row.id, first_line=start_line, last_line=last)
            wanted = lines_of(rows, start_line, min(last, total))
        if start_line > total:
            raise NotFound(f"{place.path} has {total} lines; there is no line {start_line}")
        return _window(place.path, start_line, total, wanted, chars_max)

    async def _changed_text(self, place: Located, row: FileRow) -> str | None:
        """Return the text of a file on disk that changed since it was indexed; None if unchanged or unavailable."""
        folder = place.attached.folder
        if folder.path_type is not PathType.LOCAL:
            return None
        root = Path(folder.path_value or "")
        try:
            now = await trio.to_thread.run_sync(disk.look, root, place.name, abandon_on_cancel=True)
            if (now.size, now.mtime_ns) == (row.size_bytes, row.mtime_ns):
                return None
            data = await trio.to_thread.run_sync(disk.read_file, root, place.name, abandon_on_cancel=True)
        except (NotFound, Unavailable):
            return None
        try:
            return (await read_document(place.name, data)).text
        except UnreadableFile as error:
            raise UnreadableFile(f"{place.path} cannot be read: {error.message}") from None

    async def grep(
        self, pattern: str, *, path: str | None, files_like: str | None, limit: int, ignore_case: bool
    ) -> FoundLines:
        """Return the first `limit` lines that match, in one file (`path`), or in all with a path that matches
        `files_like`.

        Raises:
            NotFound: there is no such file, or no such folder is attached.
            InvalidInput: the pattern or the path is invalid, or matching is too slow.
        """
        if not pattern:
            raise InvalidInput("the pattern is empty, so that every line would match; read the file instead")
        if path is not None:
            place = await self.locate(path)
            candidates = [(place.path, await self.row(place))]
        else:
            candidates = [(name, row) for name, row in await self.list(None, files_like) if row.error is None]
        texts: list[list[tuple[int, str]]] = []
        chars = 0
        for _name, row in candidates[:GREP_FILES_MAX]:
            rows = await self._database.read_aside(passages.of_file, row.id)
            chars += sum(len(passage.content) for passage in rows)
            if chars > GREP_CHARS_MAX and texts:
                break
            texts.append([(passage.start_line, passage.content) for passage in rows])
        found = await matching_lines(pattern, texts, limit=limit, ignore_case=ignore_case)
        lines = [(candidates[number][0], line, text) for number, line, text in found]
        return FoundLines(lines=lines, files=len(texts), left_out=len(candidates) - len(texts))


def received_in(session_id: str | None) -> str:
    """Return the id of the folder with the files that came in a session."""
    return f"{RECEIVED}{session_id}"


def lines_of(rows: Sequence[PassageRow], first: int, last: int) -> list[str]:
    """Return lines `first` to `last` (from 1, both included), put together from the passages that hold them."""
    found = dict.fromkeys(range(first, last + 1), "")  # lines between passages are empty
    for row in rows:
        # A line too long for one passage is several passages of that one line.
        parts = row.content.split("\n")
        for number, text in enumerate(parts, start=row.start_line):
            if number in found:
                found[number] += text
    return list(found.values())


def _window(path: str, first: int, total: int, wanted: Sequence[str], chars_max: int) -> Window:
    count = sum(chars <= chars_max for chars in accumulate(len(line) + 1 for line in wanted))
    if count or not wanted:
        text = "\n".join(wanted[:count])
        return Window(path=path, first=first, last=first + count - 1, total=total, text=text)
    return Window(path=path, first=first, last=first, total=total, text=wanted[0][:chars_max], is_cut=True)


def _fits(name: str, pattern: str | None) -> bool:
    folded, wanted = name.casefold(), "*" if pattern is None else pattern.casefold()
    return any(fnmatch.fnmatchcase(part, wanted) for part in (folded, folded.rpartition("/")[2]))


def _is_of(pattern: str, name: str) -> bool:
    return matches(pattern, name if "/" in pattern else name.rpartition("/")[2])


def _named(attached: Sequence[AttachedFolder], name: str) -> AttachedFolder | None:
    return next((one for one in attached if name in (one.folder.name, one.folder.id)), None)
