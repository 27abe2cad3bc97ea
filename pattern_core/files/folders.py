"""Folders as people manage them: made, filled, attached to agents, looked through, deleted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from pattern_core.errors import Conflict, InvalidInput, LimitReached, NotFound
from pattern_core.files import disk
from pattern_core.files.disk import FILE_BYTES_MAX, UnreadableFile, too_long
from pattern_core.files.indexing import INTERVAL_S, FolderIndexer, IndexReport
from pattern_core.files.names import check_name
from pattern_core.files.storing import Stored, prepare, put_of, store
from pattern_core.ids import Clock, Ids, now_text
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.enums import FolderAccess, PathType
from pattern_db.errors import Conflict as RowConflict
from pattern_db.errors import NotFound as RowNotFound
from pattern_db.tables import files, folders
from pattern_db.tables.files import FileRow
from pattern_db.tables.folders import FolderAttachment, FolderRow

FOLDERS_MAX = 1_000
FOLDER_NAME_CHARS_MAX = 100
DESCRIPTION_CHARS_MAX = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFolder:
    """A folder to make. `root` is a local one's directory, already checked by `disk.check_root`."""

    name: str
    path_type: PathType
    embedding_model: str
    description: str | None = None
    root: Path | None = None


class Folders:
    """The folders of one constellation.

    `await folders.run()` beside it keeps attached directories in step; everything else works without that, too.
    `on_change` is called after passages were stored or removed, so that vectors follow; it must not raise or wait.
    """

    def __init__(
        self,
        *,
        database: Database,
        clock: Clock,
        ids: Ids,
        interval_s: float = INTERVAL_S,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._database = database
        self._clock = clock
        self._ids = ids
        self._on_change = on_change
        self._indexer = FolderIndexer(
            database=database, clock=clock, ids=ids, interval_s=interval_s, on_change=on_change
        )

    async def run(self) -> None:
        """Keep attached directories in step until cancelled."""
        await self._indexer.run()

    async def create(self, new: NewFolder) -> FolderRow:
        """Make a folder. A directory's files are known after `index`.

        Raises:
            InvalidInput: the name does not fit, or it is neither a directory nor virtual.
            Conflict: there is a folder of that name.
            LimitReached: there are too many folders.
        """
        if new.path_type is PathType.REMOTE:
            raise InvalidInput("folders on other machines are not supported; mount it and make a local folder of it")
        if (new.path_type is PathType.LOCAL) != (new.root is not None):
            raise InvalidInput("a local folder needs the path of its directory, and a virtual one has none")
        row = FolderRow(
            id=self._ids.new("fld"),
            name=_checked_name(new.name),
            description=_checked_description(new.description),
            path_type=new.path_type,
            path_value=None if new.root is None else str(new.root),
            embedding_model=new.embedding_model,
            created_at=now_text(self._clock),
        )
        try:
            await self._database.write(_create, row)
        except RowConflict:
            raise _taken(row.name) from None
        return row

    async def get(self, id_or_name: str) -> FolderRow:
        """One folder.

        Raises:
            NotFound: there is none of this id or name.
        """
        try:
            return await self._database.read(folders.find, id_or_name)
        except RowNotFound as error:
            raise NotFound(error.message) from None

    async def all(self) -> list[FolderRow]:
        """All folders, by name."""
        return await self._database.read(folders.list_all)

    async def change(self, id_or_name: str, *, name: str | None = None, description: str | None = None) -> FolderRow:
        """Give a folder another name or description; an empty description removes it.

        Raises:
            NotFound: there is no such folder.
            InvalidInput: the name does not fit.
            Conflict: another folder has it.
        """
        row = await self.get(id_or_name)
        try:
            await self._database.write(
                folders.change,
                row.id,
                name=row.name if name is None else _checked_name(name),
                description=row.description if description is None else _checked_description(description),
            )
        except RowConflict:
            raise _taken(name or row.name) from None
        return await self.get(row.id)

    async def delete(self, id_or_name: str) -> None:
        """Remove a folder and all that was read from it. A directory's own files stay as they are.

        Raises:
            NotFound: there is no such folder.
        """
        row = await self.get(id_or_name)
        await self._database.write(folders.delete, row.id)
        self._on_change()

    async def files(self, id_or_name: str, *, limit: int, after: str | None = None) -> list[FileRow]:
        """Files by name: the first `limit`, only those after the name `after`.

        Raises:
            NotFound: there is no such folder.
        """
        row = await self.get(id_or_name)
        return await self._database.read(files.list_in, row.id, limit=limit, after=after)

    async def put_file(self, id_or_name: str, name: str, data: bytes) -> Stored:
        """Store a file in a virtual folder, in place of an earlier one, and make it searchable.

        Raises:
            NotFound: there is no such folder.
            InvalidInput: the name does not fit, the folder is a directory, or the file is too long or no text.
            LimitReached: the folder is full.
        """
        row = await self.get(id_or_name)
        if row.path_type is not PathType.VIRTUAL:
            raise InvalidInput(f"{row.name} is a directory of the server's machine: put the file there and index it")
        if len(data) > FILE_BYTES_MAX:
            raise too_long(len(data))
        prepared = await prepare(check_name(name), data)
        if prepared.error is not None:
            raise UnreadableFile(f"{prepared.name} was not stored: {prepared.error}")
        put = put_of(prepared, folder_id=row.id, ids=self._ids, now=now_text(self._clock), content=data)
        try:
            stored = await self._database.write(store, put)
        except RowConflict:
            raise NotFound(f"the folder {row.name} was deleted meanwhile") from None
        self._on_change()
        return stored

    async def content(self, id_or_name: str, name: str) -> tuple[FileRow, bytes]:
        """A file's row and its bytes, from the database or the disk.

        Raises:
            NotFound: there is no such folder or file.
            UnreadableFile: the file on the disk is too long, a link, or may not be read.
            Unavailable: the folder's directory is not there.
        """
        folder, row = await self._file(id_or_name, name)
        if folder.path_type is PathType.VIRTUAL:
            return row, await self._database.read_aside(files.content, row.id)
        read = partial(disk.read_file, Path(folder.path_value or ""), row.name)
        return row, (await trio.to_thread.run_sync(read, abandon_on_cancel=True)).data

    async def delete_file(self, id_or_name: str, name: str) -> None:
        """Remove a file of a virtual folder.

        Raises:
            NotFound: there is no such folder or file.
            InvalidInput: the folder is a directory.
        """
        folder, row = await self._file(id_or_name, name)
        if folder.path_type is not PathType.VIRTUAL:
            raise InvalidInput(f"{folder.name} is a directory of the server's machine: remove the file there")
        await self._database.write(files.delete, row.id)
        self._on_change()

    async def index(self, id_or_name: str, *, again: bool = False) -> IndexReport:
        """Look through a folder now; with `again` also files that seem unchanged are read.

        Raises:
            NotFound: there is no such folder.
            Unavailable: its directory cannot be read now; what is known of it stays.
        """
        return await self._indexer.index_now(id_or_name, again=again)

    async def attach(self, id_or_name: str, agent_id: str, access: FolderAccess) -> FolderAttachment:
        """Let an agent use a folder, or change what it may do there.

        Raises:
            NotFound: there is no such folder or agent.
        """
        row = await self.get(id_or_name)
        attachment = FolderAttachment(
            folder_id=row.id, agent_id=agent_id, access=access, attached_at=now_text(self._clock)
        )
        try:
            await self._database.write(folders.attach, attachment)
        except RowConflict:
            raise NotFound(f"there is no agent {agent_id!r}, or the folder {row.name} was deleted meanwhile") from None
        self._indexer.wake()
        found = await self._database.read(folders.attachments, row.id)
        return next((one for one in found if one.agent_id == agent_id), attachment)

    async def detach(self, id_or_name: str, agent_id: str) -> None:
        """Take a folder away from an agent.

        Raises:
            NotFound: there is no such folder, or it was not attached.
        """
        row = await self.get(id_or_name)
        try:
            await self._database.write(folders.detach, row.id, agent_id)
        except RowNotFound:
            raise NotFound(f"the folder {row.name} is not attached to this agent") from None

    async def attachments(self, id_or_name: str) -> Sequence[FolderAttachment]:
        """Who may use a folder.

        Raises:
            NotFound: there is no such folder.
        """
        row = await self.get(id_or_name)
        return await self._database.read(folders.attachments, row.id)

    async def _file(self, id_or_name: str, name: str) -> tuple[FolderRow, FileRow]:
        folder = await self.get(id_or_name)
        try:
            return folder, await self._database.read(files.find, folder.id, check_name(name))
        except RowNotFound:
            raise NotFound(f"there is no file {name!r} in the folder {folder.name}") from None


def _create(connection: Connection, row: FolderRow) -> None:
    if len(folders.list_all(connection)) >= FOLDERS_MAX:
        raise LimitReached(f"a constellation has at most {FOLDERS_MAX} folders; delete one first")
    folders.create(connection, row)


def _taken(name: str) -> Conflict:
    return Conflict(f"there is a folder named {name!r} already; choose another name")


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
    return description or None
