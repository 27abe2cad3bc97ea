"""Management of folders (create, fill, attach to agents, delete), and the indexing of their files.

Attached directories are scanned periodically, and changed files are read again. What a scan cannot see is not deleted:
if a directory is missing, suddenly empty (a disk that is not mounted) or cannot be opened, the folder becomes
unavailable, and its indexed text can still be found.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TypeAlias

import trio

from pattern_core.errors import Conflict, InvalidInput, LimitReached, NotFound, Unavailable, instead_of
from pattern_core.files import disk
from pattern_core.files.disk import FILE_BYTES_MAX, DiskEntry, Skipped, UnreadableFile, Walk, check_name, too_long
from pattern_core.files.passages import Prepared, hash_of, prepare, store, unread
from pattern_core.unit_of_work import Storage
from pattern_core.untrusted import check_plain
from pattern_db.columns import iso
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
REMOTE_INTERVAL_S = 900.0
DISK_THREADS_MAX = 2  # of one constellation; a directory on a slow network must not take all threads
SETTLED_MS = 2_000  # a file changed later than so long ago may change again within the same tick of the file system
SKIPPED_MAX = 1_000  # named in one report

Folder = FolderRow
FolderFile = FileRow
Borrower = FolderAttachment

Read: TypeAlias = Callable[[str], Awaitable[bytes]]
"""Returns the bytes of a file. Raises `NotFound` if it is not there any more, `UnreadableFile`, `Unavailable`."""
Scan: TypeAlias = Callable[[str], Awaitable[tuple[Walk, Read]]]
"""The files at the address of a remote folder. Raises `Unavailable` if they cannot be listed now."""


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
        scan: Scan,
        *,
        interval_s: float = INTERVAL_S,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._storage = storage
        self._database = storage.database
        self._scan = scan
        self._interval_s = interval_s
        self._on_change = on_change
        # Abandoned when cancelled: a dead network file system must not delay the server's end.
        limiter = trio.CapacityLimiter(DISK_THREADS_MAX)
        self._on_thread = partial(trio.to_thread.run_sync, limiter=limiter, abandon_on_cancel=True)
        self._one_at_a_time = {kind: trio.Lock() for kind in PathType}
        self._wanted = {kind: trio.Event() for kind in PathType}

    async def create(
        self,
        name: str,
        *,
        embedding_model: str,
        path_type: PathType = PathType.VIRTUAL,
        description: str | None = None,
        path: str | None = None,
    ) -> FolderRow:
        """Create a folder. `path` is a local one's directory, already checked by `disk.check_root`, or a remote one's
        address, checked by `remote_files.check_address`; its files are known after `index`.

        Raises:
            InvalidInput: the name is invalid.
            Conflict: there is a folder of that name.
            LimitReached: there are too many folders.
        """
        row = FolderRow(
            id=self._storage.ids.new("fld"),
            name=_checked_name(name),
            description=_checked_description(description),
            path_type=path_type,
            path_value=path,
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
            InvalidInput: the name is invalid, the folder is elsewhere, or the file is too long or no text.
            LimitReached: the folder is full.
        """
        row = await self.get(id_or_name)
        if row.path_type is not PathType.VIRTUAL:
            raise InvalidInput(f"the files of {row.name} are in {row.path_value}: put the file there and index it")
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
        if folder.path_type is not PathType.LOCAL:
            return row, await self._database.read_aside(files.content, row.id)
        return row, await self._on_thread(disk.read_file, Path(folder.path_value or ""), row.name)

    async def delete_file(self, id_or_name: str, name: str) -> None:
        """Remove a file of a virtual folder.

        Raises:
            InvalidInput: the folder is elsewhere.
        """
        folder, row = await self._file(id_or_name, name)
        if folder.path_type is not PathType.VIRTUAL:
            raise InvalidInput(f"the files of {folder.name} are in {folder.path_value}: remove the file there")
        await self._database.write(files.delete, row.id)
        self._on_change()

    async def attach(self, id_or_name: str, agent_id: str, access: FolderAccess) -> FolderAttachment:
        """Attach a folder to an agent, or change the agent's access; if it is elsewhere, it is scanned soon.

        Raises:
            InvalidInput: no one can write in it.
            Conflict: (of storage) there is no such agent.
        """
        row = await self.get(id_or_name)
        if row.path_type is PathType.REMOTE and access is not FolderAccess.READ:
            raise InvalidInput(f"{row.name} is on another machine, and only read; attach it for reading")
        new = FolderAttachment(folder_id=row.id, agent_id=agent_id, access=access, attached_at=self._storage.now())
        await self._database.write(folders.attach, new)
        self._wanted[row.path_type].set()
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
        """Scan attached folders until cancelled: directories every `interval_s`, remote folders every quarter of an
        hour, both when one is attached.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow, PathType.LOCAL, self._interval_s)
            nursery.start_soon(self._follow, PathType.REMOTE, REMOTE_INTERVAL_S)

    async def _follow(self, kind: PathType, interval_s: float) -> None:
        while True:
            self._wanted[kind] = trio.Event()
            attached = await self._database.read(folders.attached, kind)
            long_ago = iso(self._storage.clock.now_ms() - round(interval_s * 1000))
            for folder in attached:
                if kind is PathType.REMOTE and folder.status == "ready" and (folder.indexed_at or "") > long_ago:
                    continue  # the constellation was woken, or another one was attached
                try:
                    await self.index(folder.id, is_asked=False)
                except (Unavailable, NotFound, RowNotFound):
                    continue  # noted on the folder, or the folder was deleted
            with trio.move_on_after(interval_s if attached else math.inf):
                await self._wanted[kind].wait()

    async def index(self, id_or_name: str, *, again: bool = False, is_asked: bool = True) -> IndexReport:
        """Scan a folder now; with `again` files that seem unchanged are read, too.

        One that is unexpectedly empty is accepted only at a person's request.

        Raises:
            NotFound: it was deleted during the scan. Unavailable: it cannot be read now; what cannot be seen was not
            removed.
        """
        folder = await self.get(id_or_name)
        async with self._one_at_a_time[folder.path_type]:
            try:
                return await self._look_through(folder, is_asked=is_asked, again=again)
            except Unavailable as error:
                await self._database.write(folders.note_unavailable, folder.id, error.message)
                raise
            except (RowNotFound, RowConflict):
                raise NotFound(f"the folder {folder.name} was deleted during its scan") from None

    async def _look_through(self, folder: FolderRow, *, is_asked: bool, again: bool) -> IndexReport:
        known = {row.name: row for row in await self._database.read_aside(files.list_in, folder.id)}
        walk, read = await self._found(folder, known)
        if not walk.entries and known and not walk.unseen and not is_asked:
            raise Unavailable(
                f"{folder.path_value} is empty, and had {len(known)} files before; their text is kept."
                " If that is right, index the folder by hand"
            )
        report = IndexReport()
        for row in _gone(known, walk):  # first, to make room for what is new
            await self._database.write(files.delete, row.id)
            self._on_change()
            report.removed += 1
        for entry in walk.entries:
            await self._index_file(folder, entry, known.get(entry.name), read, report, again=again)
        report.skipped = [*walk.skipped, *report.skipped][:SKIPPED_MAX]
        await self._database.write(folders.note_indexed, folder.id, self._storage.now())
        return report

    async def _found(self, folder: FolderRow, known: Mapping[str, FileRow]) -> tuple[Walk, Read]:
        """Return the files that are in a folder now, and what reads one."""
        match folder.path_type:
            case PathType.LOCAL:
                root = Path(folder.path_value or "")
                return await self._on_thread(disk.walk, root), partial(self._on_thread, disk.read_file, root)
            case PathType.REMOTE:
                return await self._scan(folder.path_value or "")
            case PathType.VIRTUAL:
                entries = [DiskEntry(name=row.name, size=row.size_bytes or 0, mtime_ns=None) for row in known.values()]
                return Walk(entries=entries), lambda name: self._database.read_aside(files.content, known[name].id)

    async def _index_file(
        self,
        folder: FolderRow,
        entry: DiskEntry,
        known: FileRow | None,
        read: Read,
        report: IndexReport,
        *,
        again: bool,
    ) -> None:
        """Read a file if it changed: by its size and time, and if those differ by its bytes; with `again` always."""
        settled_ms = self._storage.clock.now_ms() - SETTLED_MS
        is_settled = entry.mtime_ns is not None and entry.mtime_ns // 1_000_000 < settled_ms
        mtime_ns = entry.mtime_ns if is_settled else None
        data, is_kept = b"", folder.path_type is PathType.REMOTE
        before = None if again else known
        if before is not None and _is_unchanged(before, entry):
            report.note(before)
            return
        try:
            data = await read(entry.name)
        except UnreadableFile as error:
            if is_kept and known is not None and known.content_hash is not None:
                await self._database.write(files.delete, known.id)  # with its bytes, which are old
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
            content = data if is_kept and prepared.row.content_hash is not None else None
            await self._database.write(store, prepared, content, expected_hash=expected)
        except Conflict:
            report.unchanged += 1  # written to the database since, and read at that time
            return
        except LimitReached as error:  # what cannot be seen now is kept, and has its place
            report.skipped.append(Skipped(name=entry.name, reason=error.message))
            return
        self._on_change()
        report.note(prepared.row, was_read=True)


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


def check_directories(connection: Connection, kept_out: Sequence[Path]) -> None:
    """Check that no local folder of a database shows files of `kept_out`; its directory need not exist.

    Raises:
        InvalidInput: one does.
    """
    for folder in folders.list_all(connection):
        if folder.path_type is PathType.LOCAL and folder.path_value:
            disk.check_kept_out(Path(folder.path_value), kept_out)


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
