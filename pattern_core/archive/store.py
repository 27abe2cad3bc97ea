"""The archive as the API uses it: each change is one transaction with its event."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from pattern_core.archive import entries
from pattern_core.archive.entries import ArchiveEntry, NewEntry, Terms
from pattern_core.errors import Conflict
from pattern_core.events import Draft, Event, append
from pattern_core.ids import Clock, Ids, now_text
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.columns import Json
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.tables import archival

CHANGED = "archive.changed"
PAGE_CHARS_MAX = 1_000_000  # of all texts of one page; the first entry is shown whatever its length

CommitWork = Callable[[UnitOfWork], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """The entry that was asked for, and whether it is new or was there already, word for word."""

    entry: ArchiveEntry
    is_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryFilter:
    """Which entries to list: after (older than) which one, by its `created_at` and id; with which tag; and whether
    those that hold no more too.
    """

    after: tuple[str, str] | None = None
    tag: str | None = None
    include_superseded: bool = False


class Archive:
    """The entries of all agents of a constellation. An `owner` is an agent's id, or CONSTELLATION_OWNER."""

    def __init__(self, *, database: Database, clock: Clock, ids: Ids, commit: CommitWork) -> None:
        self._database = database
        self._clock = clock
        self._ids = ids
        self._commit = commit

    async def add(
        self, owner: str, new: NewEntry, *, author: str, supersedes: str | None = None, force: bool = False
    ) -> Added:
        """Store an entry, in place of the one that it `supersedes`; or find it, if it is there word for word.

        Raises:
            InvalidInput: it is empty, too long, malformed, or says what the entry to supersede says.
            SimilarEntry: an entry says nearly the same, and `force` is not set.
            NotFound: there is no entry to supersede.
            Conflict: that entry was superseded by another one.
            LimitReached: the archive is full.
        """
        new = entries.checked(new)
        new = replace(new, source={**(new.source or {}), "author": author})
        entry_id = self._ids.new("arch")
        terms = Terms(now=now_text(self._clock), supersedes=supersedes, force=force)
        added: list[Added] = []

        def store(connection: Connection) -> list[Event]:
            stored = entries.store(connection, owner, new, entry_id, terms)
            added.append(Added(entry=entries.find(connection, owner, stored.entry_id), is_new=stored.is_new))
            if not stored.is_new and supersedes is None:
                return []
            return append(connection, None, [changed(owner, stored.entry_id, terms.supersedes)], created_at=terms.now)

        await self._store(store)
        return added[-1]

    async def get(self, owner: str, entry_id: str) -> ArchiveEntry:
        """One entry, whole.

        Raises:
            NotFound: there is none, or it is another owner's.
        """
        return await self._database.read(entries.find, owner, entry_id)

    async def page(self, owner: str, wanted: EntryFilter, limit: int) -> tuple[list[ArchiveEntry], bool]:
        """The newest entries, newest first, at most `limit` and about 1,000,000 characters; and whether more follow."""
        return await self._database.read(_page, owner, wanted, limit, now_text(self._clock))

    async def versions(self, owner: str, entry_id: str) -> list[ArchiveEntry]:
        """The entry with all that it superseded and that superseded it, oldest first.

        Raises:
            NotFound: there is no such entry, or it is another owner's.
        """
        return await self._database.read(_versions, owner, entry_id)

    async def change(self, owner: str, entry_id: str, changes: Mapping[str, Json]) -> ArchiveEntry:
        """Change tags, metadata, workspace or the times between which the entry holds; its text stays.

        Raises:
            InvalidInput: a value does not fit.
            NotFound: there is no such entry, or it is another owner's.
            Conflict: the end of a superseded entry is when its successor took its place.
        """
        cleaned = entries.checked_fields(changes)
        now = now_text(self._clock)
        found: list[ArchiveEntry] = []

        def store(connection: Connection) -> list[Event]:
            entry = entries.find(connection, owner, entry_id)
            if "valid_to" in cleaned and entry.superseded_by is not None:
                raise Conflict(f"the entry {entry.id} ended when {entry.superseded_by} took its place; change that one")
            entries.checked_fields({"valid_from": entry.valid_from, "valid_to": entry.valid_to, **cleaned})
            archival.update(connection, entry.id, cleaned)
            found.append(entries.find(connection, owner, entry.id))
            return append(connection, None, [changed(owner, entry.id)], created_at=now)

        await self._store(store)
        return found[-1]

    async def delete(self, owner: str, entry_id: str) -> None:
        """Remove an entry for good. What it superseded stays, and stays ended.

        Raises:
            NotFound: there is no such entry, or it is another owner's.
        """
        now = now_text(self._clock)

        def store(connection: Connection) -> list[Event]:
            entry = entries.find(connection, owner, entry_id)
            archival.delete(connection, entry.id)
            return append(connection, None, [changed(owner, entry.id, is_deleted=True)], created_at=now)

        await self._store(store)

    async def _store(self, fn: Callable[[Connection], list[Event]]) -> None:
        work = UnitOfWork()
        work.store_and_tell(fn)
        await self._commit(work)


def changed(owner: str, entry_id: str, supersedes: str | None = None, *, is_deleted: bool = False) -> Draft:
    """The event that an archive changed."""
    data: dict[str, Json] = {"agent_id": owner, "entry_id": entry_id}
    if supersedes is not None:
        data["supersedes"] = supersedes
    if is_deleted:
        data["is_deleted"] = True
    return Draft(CHANGED, data)


def _page(
    connection: Connection, owner: str, wanted: EntryFilter, limit: int, now: str
) -> tuple[list[ArchiveEntry], bool]:
    rows = archival.list_for_agent(
        connection,
        owner,
        limit + 1,
        before=wanted.after,
        tag=wanted.tag,
        valid_at=None if wanted.include_superseded else now,
    )
    shown: list[ArchiveEntry] = []
    chars = 0
    for row in rows[:limit]:
        entry = entries.whole(connection, [row])[0]
        chars += len(entry.content)
        if shown and chars > PAGE_CHARS_MAX:
            break
        shown.append(entry)
    return shown, len(shown) < len(rows)


def _versions(connection: Connection, owner: str, entry_id: str) -> list[ArchiveEntry]:
    entry = entries.find(connection, owner, entry_id)
    return entries.whole(connection, archival.versions(connection, entry.id, entries.VERSIONS_MAX))
