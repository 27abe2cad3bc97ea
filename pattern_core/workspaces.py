"""Workspaces: which project a row is about, and which one a folder belongs to.

A folder belongs to the workspace with the longest root that contains its real path; else to the one of its git
repository, known by the common directory, which sub-folders, linked worktrees and bare repositories have in common.
A workspace is only created by what writes into it.

Git's own files are read, never its program: a repository's configuration can make that run anything. Source of their
format: gitrepository-layout(5).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TypeVar

import trio

from pattern_core.errors import InvalidInput, NotFound
from pattern_core.unit_of_work import Storage, UnitOfWork, given_or_alone
from pattern_core.untrusted import check_plain
from pattern_db.connection import Connection
from pattern_db.errors import RowConflict, RowNotFound
from pattern_db.tables import workspaces

WORKSPACES_MAX = 1_000  # of one constellation
NAMED_MAX = 200  # roots of one workspace, and aliases
NAME_CHARS_MAX = 500
PATH_CHARS_MAX = 4_096
GIT_FILE_BYTES_MAX = 8_192  # of `.git`, `commondir` and `HEAD`
GIT = "git"  # its aliases are common directories
CHANGED = "workspace.changed"

T = TypeVar("T")

Workspace = workspaces.WorkspaceRow
WorkspaceAlias = workspaces.WorkspaceAlias
WorkspaceRoot = workspaces.WorkspaceRoot


@dataclass(frozen=True, slots=True)
class Place:
    """A folder as it was found on the disk: its real path, the common directory of its repository, if it lies in one,
    and the branch that is checked out, if any.
    """

    path: str
    common: str | None = None
    branch: str | None = None

    @property
    def name(self) -> str:
        """What a workspace made for it is called: as the folder of the repository, or as the folder itself."""
        folder = Path(self.common or self.path)
        return (folder.parent if folder.name == ".git" else folder).name.removesuffix(".git") or "root"


def locate(path: str) -> Place:
    """Look at a folder on the disk, which need not exist. It blocks.

    Raises:
        InvalidInput: the path is not absolute, or cannot be one.
    """
    try:
        if not path.startswith("/") or len(path) > PATH_CHARS_MAX:
            raise InvalidInput(f"a folder is named by its whole path, which begins with / and is not {path[:100]!r}")
        place = _located(Path(os.path.realpath(path)))
        f"{place.path}{place.common}".encode()  # what no database can store
    except (ValueError, OSError) as error:
        raise InvalidInput(f"this cannot be the path of a folder: {error}") from None
    return place


def _located(real: Path) -> Place:
    for folder in (real, *real.parents):
        link = folder / ".git"
        for own in (link, _pointed(link, "gitdir:"), folder):
            if own is not None and _first_line(own / "HEAD") is not None:
                shared = _pointed(own / "commondir") or own
                if (shared / "objects").is_dir():
                    head = _first_line(own / "HEAD") or ""
                    branch = head.removeprefix("ref: refs/heads/") if head.startswith("ref: refs/heads/") else None
                    return Place(str(real), os.path.realpath(shared), branch)
    return Place(str(real))


def _first_line(path: Path) -> str | None:
    """Return the first line of a small file; None if there is none to read."""
    try:
        if not path.is_file():  # a pipe would block
            return None
        with path.open(encoding="utf-8", errors="surrogateescape") as file:
            return file.read(GIT_FILE_BYTES_MAX).partition("\n")[0].strip()
    except OSError:
        return None


def _pointed(path: Path, prefix: str = "") -> Path | None:
    """Return the path that a file of git points to, relative to its own folder."""
    line = _first_line(path)
    return path.parent / line.removeprefix(prefix).strip() if line and line.startswith(prefix) else None


def root_of(connection: Connection, path: str) -> WorkspaceRoot | None:
    """Return the longest registered root that contains the folder's real path; None if none does.

    Raises:
        InvalidInput: the path is not absolute, or cannot be one.
    """
    real = Path(locate(path).path)
    return workspaces.longest_root(connection, [str(real), *map(str, real.parents)])


def _of_place(connection: Connection, place: Place) -> str | None:
    folder = Path(place.path)
    root = workspaces.longest_root(connection, [place.path, *map(str, folder.parents)])
    if root is not None or place.common is None:
        return None if root is None else root.workspace_id
    return workspaces.called(connection, GIT, place.common)


class Workspaces:
    """The workspaces of one constellation. They are named by id, by name, or by the path of a folder."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def page(self, limit: int, *, after: str | None = None) -> list[Workspace]:
        """Return workspaces by name, those after a name, if given."""
        return await self._storage.database.read(workspaces.page, limit, after=after)

    async def find(self, given: str) -> Workspace:
        """Return the workspace with this id or name, or of the folder with this absolute path.

        Raises:
            NotFound: there is none.
            InvalidInput: the path cannot be one.
        """
        place = await self._place(given)
        known = given if place is None else await self._storage.database.read(_of_place, place)
        try:
            return await self._storage.database.read(workspaces.find, known or "")
        except RowNotFound:
            raise NotFound(f"there is no workspace {given!r}; it is made when something is stored in it") from None

    async def called(self, alias: WorkspaceAlias) -> str | None:
        """Return the id of the workspace that another system calls so; None if it calls none so."""
        return await self._storage.database.read(workspaces.called, alias.system, alias.alias)

    async def ensure(self, given: str, *, author: str) -> Workspace:
        """Return the workspace as `find` does; if there is none it is created, for whatever will be stored in it.

        Raises:
            InvalidInput: the name or the path is invalid.
            Conflict: there are too many workspaces.
        """
        try:
            return await self.find(given)
        except NotFound:
            place = await self._place(given)
        name = given if place is None else place.name
        if not 1 <= len(check_plain(name, "a workspace's name")) <= NAME_CHARS_MAX or name != name.strip():
            raise InvalidInput(f"a workspace's name has 1 to {NAME_CHARS_MAX} characters, none of them blank at an end")
        now = self._storage.now()
        row = Workspace(self._storage.ids.new("ws"), name, now, now)
        async with given_or_alone(None, self._storage.commit) as work:
            work.store(_create, row, place)
            work.event(CHANGED, {"workspace_id": row.id, "by": author})
        return await self.find(given)

    async def add_root(self, workspace: str, path: str, *, author: str) -> Workspace:
        """Add a folder to a workspace (its id, name or a folder): what lies in it belongs to the workspace.

        Raises:
            NotFound: there is no such workspace.
            InvalidInput: the path is not absolute, or cannot be one.
            Conflict: it is another workspace's, or there are too many.
        """
        place = await trio.to_thread.run_sync(locate, path)
        return await self._change(workspace, workspaces.add_root, place.path, author)

    async def remove_root(self, workspace: str, path: str, *, author: str) -> Workspace:
        """Take a folder, which need not exist any more, from a workspace; what is stored in the workspace stays.

        Raises:
            InvalidInput: the path cannot be one.
            NotFound: there is no such workspace, or it is not a root of it.
        """
        place, found = await trio.to_thread.run_sync(locate, path), await self.find(workspace)
        given = path if path in found.roots else place.path  # a link may lead elsewhere than it did
        return await self._change(found.id, workspaces.remove_root, given, author)

    async def show_in_prompts(self, workspace: str, is_shown: bool, *, author: str) -> Workspace:
        """Say whether turns of the workspace's sessions show a map and decisions of it."""
        return await self._change(workspace, workspaces.show_in_prompts, is_shown, author)

    async def add_alias(
        self, workspace: str, alias: WorkspaceAlias, *, author: str, work: UnitOfWork | None = None
    ) -> Workspace:
        """Add what another system calls a workspace.

        Raises:
            InvalidInput: the system or the alias is empty or too long.
            Conflict: the system calls another workspace so, or there are too many.
        """
        if not all(1 <= len(check_plain(text, "an alias")) <= PATH_CHARS_MAX for text in (alias.system, alias.alias)):
            raise InvalidInput(f"a system and an alias have 1 to {PATH_CHARS_MAX} characters")
        return await self._change(workspace, workspaces.add_alias, alias, author, work)

    async def _change(
        self,
        workspace: str,
        change: Callable[[Connection, str, T], None],
        given: T,
        author: str,
        work: UnitOfWork | None = None,
    ) -> Workspace:
        workspace_id = (await self.find(workspace)).id

        def store(connection: Connection) -> None:
            change(connection, workspace_id, given)
            row = workspaces.find(connection, workspace_id)
            if max(len(row.roots), len(row.aliases)) > NAMED_MAX:
                raise RowConflict(f"a workspace has at most {NAMED_MAX} roots and aliases")

        async with given_or_alone(work, self._storage.commit) as unit:
            unit.store(store)
            unit.event(CHANGED, {"workspace_id": workspace_id, "by": author})
        return await self.find(workspace_id)

    async def merge(self, old: str, new: str, *, author: str) -> Workspace:
        """Let everything of the workspace `old` belong to `new`, and delete it.

        Raises:
            InvalidInput: they are the same.
            NotFound: there is no such workspace.
            Conflict: both have a value under the same key.
        """
        old_id, new_id = (await self.find(old)).id, (await self.find(new)).id
        if old_id == new_id:
            raise InvalidInput("a workspace cannot be merged into itself; name another one")
        async with given_or_alone(None, self._storage.commit) as work:
            work.store(workspaces.merge, old_id, new_id, self._storage.now())
            work.event("workspace.merged", {"workspace_id": old_id, "into": new_id, "by": author})
        return await self.find(new_id)

    async def _place(self, given: str) -> Place | None:
        return await trio.to_thread.run_sync(locate, given) if given.startswith("/") else None


def _create(connection: Connection, row: Workspace, place: Place | None) -> None:
    """Add a workspace; of a folder it gets a free name, and is found again by its repository or by its path."""
    name, numbers = row.name, count(2)
    while (is_used := workspaces.count(connection, "WHERE name = ?", (name,))) and place is not None:
        name = f"{row.name}-{next(numbers)}"
    if is_used or (place is not None and _of_place(connection, place) is not None):  # made in this moment
        return
    workspaces.create(connection, replace(row, name=name))
    if workspaces.count(connection) > WORKSPACES_MAX:
        raise RowConflict(f"a constellation has at most {WORKSPACES_MAX} workspaces; merge some")
    if place is not None and place.common is not None:
        workspaces.add_alias(connection, row.id, WorkspaceAlias(GIT, place.common))
    elif place is not None:
        workspaces.add_root(connection, row.id, place.path)
