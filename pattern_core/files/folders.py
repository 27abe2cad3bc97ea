"""Management of folders (create, fill, attach to agents, delete), and the indexing of their files.

Attached directories are scanned periodically, and changed files are read again. What a scan cannot see is not deleted:
if a directory is missing, suddenly empty (a disk that is not mounted) or cannot be opened, the folder becomes
unavailable, and its indexed text can still be found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath

import trio

from pattern_core.errors import Conflict, InvalidInput, LimitReached, NotFound, Unavailable, instead_of
from pattern_core.files import disk
from pattern_core.files.disk import FILE_BYTES_MAX, DiskEntry, Skipped, UnreadableFile, Walk, check_name, too_long
from pattern_core.files.passages import Prepared, hash_of, prepare, store, unread
from pattern_core.unit_of_work import Storage
from pattern_core.untrusted import check_plain
from pattern_db.connection import Connection
from pattern_db.enums import FolderAccess, PathType
from pattern_db.errors import RowConflict, RowNotFound
from pattern_db.tables import files, folders
from pattern_db.tables.files import FileRow
from pattern_db.tables.folders import FolderAttachment, FolderRow

FOLDERS_MAX = 1_000
FOLDER_NAME_CHARS_MAX = 100
DESCRIPTION_CHARS_MAX = 2_000
INTERVAL_S = 60.0
DISK_THREADS_MAX = 2  # of one constellation; a directory on a slow network must not take all threads
SETTLED_MS = 2_000  # a file changed later than so long ago may change again within the same tick of the file system
SKIPPED_MAX = 1_000  # named in one report

Folder = FolderRow
FolderFile = FileRow
Borrower = FolderAttachment


@dataclass(slots=True, kw_only=True)
class IndexReport:
    """The result of one scan of a folder, in files; `skipped` are files that were not read, with reasons."""

    indexed: int = 0
    unchanged: int = 0
    removed: int = 0
    skipped: list[Skipped] = field(default_factory=list)

    def note(self, row: FileRow, *, was_read: bool = False) -> None:
        """Count a checked file, which was read if it had changed."""
        if row.error is not None:
            self.skipped.append(Skipped(name=row.name, reason=row.error))
        elif was_read:
            self.indexed += 1
        else:
            self.unchanged += 1


class Folders:
    """The folders of one constellation, found by id or name.

    `await folders.run()` in another task keeps attached directories up to date; the rest works without it.
    `on_change` is called after passages were stored or removed, so that vectors follow; it must not raise or wait.
    A folder or file that does not exist is storage's `NotFound`.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        interval_s: float = INTERVAL_S,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._storage = storage
        self._database = storage.database
        self._interval_s = interval_s
        self._on_change = on_change
        # Abandoned when cancelled: a dead network file system must not delay the server's end.
        limiter = trio.CapacityLimiter(DISK_THREADS_MAX)
        self._on_thread = partial(trio.to_thread.run_sync, limiter=limiter, abandon_on_cancel=True)
        self._one_at_a_time = trio.Lock()
        self._wanted = trio.Event()

    async def create(
        self,
        name: str,
        *,
        embedding_model: str,
        path_type: PathType = PathType.VIRTUAL,
        description: str | None = None,
        root: Path | None = None,
    ) -> FolderRow:
        """Create a folder. `root` is a local one's directory, already checked by `disk.check_root`; its files are known
        after `index`.

        Raises:
            InvalidInput: the name is invalid, or it is neither a directory nor virtual.
            Conflict: there is a folder of that name.
            LimitReached: there are too many folders.
        """
        if path_type is PathType.REMOTE:
            raise InvalidInput("folders on other machines are not supported; mount it and make a local folder of it")
        row = FolderRow(
            id=self._storage.ids.new("fld"),
            name=_checked_name(name),
            description=_checked_description(description),
            path_type=path_type,
            path_value=None if root is None else str(root),
            embedding_model=embedding_model,
            created_at=self._storage.now(),
        )
        with instead_of(RowConflict, _taken(row.name)):
            await self._database.write(_create, row)
        return row

    async def get(self, id_or_name: str) -> FolderRow:
        """Return one folder."""
        return await self._database.read(folders.find, id_or_name)

    async def all(self) -> list[FolderRow]:
        """Return all folders, by name."""
        return await self._database.read(folders.list_all)

    async def change(self, id_or_name: str, *, name: str | None = None, description: str | None = None) -> FolderRow:
        """Rename or describe a folder; an empty description removes it.

        Raises:
            InvalidInput: the name is invalid.
            Conflict: another folder has it.
        """
        row = await self.get(id_or_name)
        changes = {
            "name": row.name if name is None else _checked_name(name),
            "description": row.description if description is None else _checked_description(description),
        }
        with instead_of(RowConflict, _taken(name or row.name)):
            await self._database.write(folders.change, row.id, changes)
        return await self.get(row.id)

    async def delete(self, id_or_name: str) -> None:
        """Delete a folder and its index. A directory's own files stay."""
        row = await self.get(id_or_name)
        await self._database.write(folders.delete, row.id)
        self._on_change()

    async def files(self, id_or_name: str, *, limit: int, after: str | None = None) -> list[FileRow]:
        """Files by name: the first `limit`, only those after the name `after`."""
        row = await self.get(id_or_name)
        return await self._database.read(files.list_in, row.id, limit=limit, after=after)

    async def put_file(self, id_or_name: str, name: str, data: bytes) -> tuple[FileRow, bool]:
        """Store a file in a virtual folder, in place of an earlier one, and make it searchable.

        Returns its row, and whether it is new.

        Raises:
            InvalidInput: the name is invalid, the folder is a directory, or the file is too long or no text.
            LimitReached: the folder is full.
        """
        row = await self.get(id_or_name)
        if row.path_type is not PathType.VIRTUAL:
            raise InvalidInput(f"{row.name} is a directory of the server's machine: put the file there and index it")
        if len(data) > FILE_BYTES_MAX:
            raise too_long(len(data))
        prepared = await prepare(self._storage, row.id, check_name(name), data)
        if prepared.row.error is not None:
            raise UnreadableFile(f"{prepared.row.name} was not stored: {prepared.row.error}")
        stored = await self._database.write(store, prepared, data)
        self._on_change()
        return stored

    async def content(self, id_or_name: str, name: str) -> tuple[FileRow, bytes]:
        """Return a file's row and its bytes, from the database or the disk.

        Raises:
            UnreadableFile: the file on the disk is too long, a link, or may not be read.
            Unavailable: the folder's directory is not there.
        """
        folder, row = await self._file(id_or_name, name)
        return row, await self._data(folder, row.name, row)

    async def delete_file(self, id_or_name: str, name: str) -> None:
        """Remove a file of a virtual folder.

        Raises:
            InvalidInput: the folder is a directory.
        """
        folder, row = await self._file(id_or_name, name)
        if folder.path_type is not PathType.VIRTUAL:
            raise InvalidInput(f"{folder.name} is a directory of the server's machine: remove the file there")
        await self._database.write(files.delete, row.id)
        self._on_change()

    async def attach(self, id_or_name: str, agent_id: str, access: FolderAccess) -> FolderAttachment:
        """Attach a folder to an agent, or change the agent's access; its directory is scanned soon.

        Raises:
            Conflict: (of storage) there is no such agent.
        """
        row = await self.get(id_or_name)
        new = FolderAttachment(folder_id=row.id, agent_id=agent_id, access=access, attached_at=self._storage.now())
        await self._database.write(folders.attach, new)
        self._wanted.set()
        found = await self._database.read(folders.attachments, row.id)
        return next((one for one in found if one.agent_id == agent_id), new)

    async def detach(self, id_or_name: str, agent_id: str) -> None:
        """Detach a folder from an agent.

        Raises:
            NotFound: it was not attached.
        """
        row = await self.get(id_or_name)
        with instead_of(RowNotFound, NotFound(f"the folder {row.name} is not attached to this agent")):
            await self._database.write(folders.detach, row.id, agent_id)

    async def attachments(self, id_or_name: str) -> Sequence[FolderAttachment]:
        """Return the attachments of a folder."""
        row = await self.get(id_or_name)
        return await self._database.read(folders.attachments, row.id)

    async def _file(self, id_or_name: str, name: str) -> tuple[FolderRow, FileRow]:
        folder = await self.get(id_or_name)
        with instead_of(RowNotFound, NotFound(f"there is no file {name!r} in the folder {folder.name}")):
            return folder, await self._database.read(files.find, folder.id, check_name(name))

    async def run(self) -> None:
        """Scan attached directories until cancelled: every `interval_s`, and when one is attached."""
        while True:
            self._wanted = trio.Event()
            attached = await self._database.read(folders.attached_local)
            for folder in attached:
                try:
                    await self.index(folder.id, is_asked=False)
                except (Unavailable, NotFound, RowNotFound):
                    continue  # noted on the folder, or the folder was deleted
            with trio.move_on_after(self._interval_s if attached else math.inf):
                await self._wanted.wait()

    async def index(self, id_or_name: str, *, again: bool = False, is_asked: bool = True) -> IndexReport:
        """Scan a folder now; with `again` files that seem unchanged are read, too.

        An unexpectedly empty directory is accepted only at a person's request.

        Raises:
            NotFound: it was deleted during the scan. Unavailable: its directory cannot be read now; nothing was
            removed.
        """
        folder = await self.get(id_or_name)
        async with self._one_at_a_time:
            try:
                return await self._look_through(folder, is_asked=is_asked, again=again)
            except Unavailable as error:
                await self._database.write(folders.note_unavailable, folder.id, error.message)
                raise
            except (RowNotFound, RowConflict):
                raise NotFound(f"the folder {folder.name} was deleted during its scan") from None

    async def _look_through(self, folder: FolderRow, *, is_asked: bool, again: bool) -> IndexReport:
        known = {row.name: row for row in await self._database.read_aside(files.list_in, folder.id)}
        report = IndexReport()
        if folder.path_type is PathType.LOCAL:
            root = Path(folder.path_value or "")
            walk = await self._on_thread(disk.walk, root)
            if not walk.entries and known and not walk.unseen and not is_asked:
                raise Unavailable(
                    f"the directory {root} is empty, and had {len(known)} files before; their text is kept."
                    " If that is right, index the folder by hand"
                )
            report.skipped = walk.skipped[:SKIPPED_MAX]
            for row in _gone(known, walk):  # first, to make room for what is new
                await self._database.write(files.delete, row.id)
                self._on_change()
                report.removed += 1
            entries = walk.entries
        else:
            entries = [DiskEntry(name=row.name, size=row.size_bytes or 0, mtime_ns=None) for row in known.values()]
        for entry in entries:
            await self._index_file(folder, entry, known.get(entry.name), report, again=again)
        await self._database.write(folders.note_indexed, folder.id, self._storage.now())
        return report

    async def _index_file(
        self, folder: FolderRow, entry: DiskEntry, known: FileRow | None, report: IndexReport, *, again: bool
    ) -> None:
        """Read a file if it changed: by its size and time, and if those differ by its bytes; with `again` always."""
        settled_ms = self._storage.clock.now_ms() - SETTLED_MS
        is_settled = entry.mtime_ns is not None and entry.mtime_ns // 1_000_000 < settled_ms
        mtime_ns = entry.mtime_ns if is_settled else None
        before = None if again else known
        if before is not None and _is_unchanged(before, entry):
            report.note(before)
            return
        try:
            data = await self._data(folder, entry.name, known)
        except UnreadableFile as error:
            prepared = Prepared(row=unread(self._storage, folder.id, entry.name, entry.size, error.message))
        except NotFound:
            return  # removed since the walk; the next one sees it
        else:
            if before is not None and before.content_hash == hash_of(data):
                if mtime_ns is not None:
                    await self._database.write(files.touch, before.id, mtime_ns)
                report.note(before)
                return
            prepared = await prepare(self._storage, folder.id, entry.name, data, mtime_ns=mtime_ns)
        expected = known.content_hash if known is not None and entry.mtime_ns is None else None
        try:
            await self._database.write(store, prepared, expected_hash=expected)
        except Conflict:
            report.unchanged += 1  # written to the database since, and read at that time
            return
        self._on_change()
        report.note(prepared.row, was_read=True)

    async def _data(self, folder: FolderRow, name: str, known: FileRow | None) -> bytes:
        """Return a file's bytes, from the database or the disk."""
        if known is not None and folder.path_type is PathType.VIRTUAL:
            return await self._database.read_aside(files.content, known.id)
        return await self._on_thread(disk.read_file, Path(folder.path_value or ""), name)


def _is_unchanged(known: FileRow, entry: DiskEntry) -> bool:
    """Return whether a file need not be read: one in the database was read when it was stored, if it has a hash."""
    if entry.mtime_ns is None:
        return known.content_hash is not None
    return (known.size_bytes, known.mtime_ns) == (entry.size, entry.mtime_ns)


def _gone(known: dict[str, FileRow], walk: Walk) -> list[FileRow]:
    """Return rows of files that certainly no longer exist."""
    if not walk.is_complete:
        return []
    there = {entry.name for entry in walk.entries}
    missing = [row for name, row in known.items() if name not in there]
    return [row for row in missing if not any(map(PurePosixPath(row.name).is_relative_to, walk.unseen))]


def _create(connection: Connection, row: FolderRow) -> None:
    if len(folders.list_all(connection)) >= FOLDERS_MAX:
        raise LimitReached(f"a constellation has at most {FOLDERS_MAX} folders; delete one first")
    folders.create(connection, row)


def _taken(name: str) -> Conflict:
    return Conflict(f"a folder named {name!r} already exists; choose another name")


def _checked_name(name: str) -> str:
    checked = check_name(name)
    if "/" in checked:
        raise InvalidInput("a folder's name has no slash; choose a name such as handbook")
    if len(checked) > FOLDER_NAME_CHARS_MAX or checked.strip() != checked:
        raise InvalidInput(f"a folder's name has at most {FOLDER_NAME_CHARS_MAX} characters and no spaces around them")
    return checked


def _checked_description(description: str | None) -> str | None:
    if description is not None and len(description) > DESCRIPTION_CHARS_MAX:
        raise InvalidInput(f"a description has at most {DESCRIPTION_CHARS_MAX} characters")
    return check_plain(description or "", "the folder's description") or None
