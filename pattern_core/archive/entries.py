"""The archive of a constellation: checking, storing and superseding entries. Each change is one transaction with its
event.

An entry's text never changes. What is no longer true is superseded: the old entry stays, with the time until which it
was true and the entry that replaced it. The same text is not stored twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from pattern_core.archive.texts import (
    COMPARED_CHARS_MAX,
    LENGTH_RATIO_MIN,
    content_hash,
    is_near,
    split,
    telling_groups,
)
from pattern_core.errors import Conflict, InvalidInput, LimitReached, NotFound
from pattern_core.events import Draft, Event, append
from pattern_core.limits import ARCHIVE_ENTRY_CHARS_MAX, ARCHIVE_ROWS_MAX
from pattern_core.messages import check_text
from pattern_core.unit_of_work import Storage, UnitOfWork
from pattern_core.validation import column_time
from pattern_db.columns import Json, to_json
from pattern_db.connection import Connection
from pattern_db.tables import archival
from pattern_db.tables.archival import ArchivalRow

CHANGED = "archive.changed"
PAGE_CHARS_MAX = 1_000_000  # of all texts of one page; the first entry is shown whatever its length
TAGS_MAX, TAG_CHARS_MAX = 32, 100
DETAILS_CHARS_MAX = 20_000  # of metadata and of source, as JSON
CANDIDATES_MAX = 10  # entries that a new one is compared with
VERSIONS_MAX = 1_000
SHOWN_CHARS_MAX = 200  # of an entry that an error quotes


class SimilarEntry(Conflict):
    """An entry has nearly the same text; `details` name it as `entry_id` and show its `content`."""

    code = "similar_entry"
    remedy = "Supersede the existing entry, or store the new one with `force`."


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEntry:
    """An entry to store. Times are RFC 3339 with an offset; `source` is an object with links to its origin, such as
    `{"message": "msg_…", "file": "notes/a.md", "url": "https://…"}`, `workspace` the id of one.
    """

    content: str
    tags: Sequence[str] = ()
    metadata: Mapping[str, Json] | None = None
    workspace: str | None = None
    source: Mapping[str, Json] | None = None
    valid_from: str | None = None
    valid_to: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveEntry(NewEntry):
    """A complete entry. It is true from `valid_from` (None: since it was stored) until `valid_to` (None: until now)."""

    id: str
    agent_id: str
    created_at: str
    metadata: Json = None  # any JSON: older or other programs may have written it
    superseded_by: str | None
    chunks: int


_AS_STORED = {field.name for field in fields(ArchiveEntry)} - {"content", "tags", "chunks"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How to store: the time, the entry to supersede, and whether to store in spite of a similar entry. An event is
    stored whatever there is: what happened twice is there twice.
    """

    now: str
    supersedes: str | None = None
    force: bool = False
    is_event: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEntry:
    """The result of storing: the entry's id, and whether it is new or already existed."""

    entry_id: str
    is_new: bool


def checked(new: NewEntry) -> NewEntry:
    """Return `new` in its stored form: tags without duplicates, times as stored.

    Raises:
        InvalidInput: a field is empty, too long or malformed; the message names it.
    """
    if not new.content.strip():
        raise InvalidInput("there is nothing to store: `content` is empty")
    if len(_storable(new.content)) > ARCHIVE_ENTRY_CHARS_MAX:
        raise InvalidInput(
            f"an entry has at most {ARCHIVE_ENTRY_CHARS_MAX} characters, this one {len(new.content)}; split it, or"
            " keep it as a file in a folder"
        )
    _check_details("source", new.source)
    return replace(new, **checked_fields({name: getattr(new, name) for name in archival.CHANGEABLE}))


def checked_fields(fields: Mapping[str, Json]) -> dict[str, Json]:
    """Return given tags (trimmed, without duplicates), metadata, workspace and times in their stored form.

    Raises:
        InvalidInput: a field is too long or malformed; the message names it.
    """
    cleaned = dict(fields)
    if "tags" in cleaned:
        tags = tuple(dict.fromkeys(_storable(tag).strip() for tag in cleaned["tags"] or ()))
        if len(tags) > TAGS_MAX or not all(1 <= len(tag) <= TAG_CHARS_MAX for tag in tags):
            raise InvalidInput(f"an entry has at most {TAGS_MAX} tags of 1 to {TAG_CHARS_MAX} characters each")
        cleaned["tags"] = tags
    if "metadata" in cleaned:
        _check_details("metadata", cleaned["metadata"])
    for name in ("valid_from", "valid_to"):
        if name in cleaned:
            cleaned[name] = column_time(cleaned[name], name)
    if cleaned.get("valid_from") and cleaned.get("valid_to") and cleaned["valid_from"] > cleaned["valid_to"]:
        raise InvalidInput("`valid_to` is before `valid_from`; exchange them or leave one out")
    return cleaned


def find(connection: Connection, owner: str, entry_id: str) -> ArchiveEntry:
    """Return the owner's entry with this id, complete; a chunk's id finds the entry that it is a part of.

    Raises:
        NotFound: there is none, or it is another owner's.
    """
    return whole(connection, [_row(connection, owner, entry_id)])[0]


def whole(connection: Connection, rows: Sequence[ArchivalRow]) -> list[ArchiveEntry]:
    """Return the entries that begin with these rows, with the text of all their chunks."""
    parts = archival.contents(connection, [row.id for row in rows])
    return [
        ArchiveEntry(
            **{name: getattr(row, name) for name in _AS_STORED},
            content="".join(parts[row.id]),
            tags=tuple(row.tags or ()),
            chunks=len(parts[row.id]),
        )
        for row in rows
    ]


def store(connection: Connection, owner: str, new: NewEntry, entry_id: str, terms: Terms) -> StoredEntry:
    """Store the checked entry `new` as `entry_id`, within the caller's transaction.

    If the owner already has exactly this text, that entry is returned instead. With `terms.supersedes` that entry ends
    when the new one begins, and tags, workspace and metadata that the new one does not name are copied.

    Raises:
        SimilarEntry: an entry has nearly the same text, and `terms.force` is not set.
        NotFound: there is no entry to supersede.
        Conflict: that entry was superseded by another one.
        InvalidInput: the entry to supersede has the same text.
        LimitReached: the archive is full.
    """
    stored = foresee(connection, owner, new, entry_id, terms)
    old = None if terms.supersedes is None else _row(connection, owner, terms.supersedes)
    if old is not None:
        new = replace(
            new,
            tags=new.tags or tuple(old.tags or ()),
            workspace=old.workspace if new.workspace is None else new.workspace,
            metadata=old.metadata if new.metadata is None else new.metadata,
        )
    if stored.is_new:
        _insert(connection, owner, new, entry_id, terms.now)
    if old is not None:
        until = terms.now if new.valid_from is None else new.valid_from
        archival.supersede(connection, old.id, by=stored.entry_id, valid_to=until)
    return stored


def foresee(connection: Connection, owner: str, new: NewEntry, entry_id: str, terms: Terms) -> StoredEntry:
    """Return what `store` would return now; nothing is stored. Raises as `store` does."""
    old = None if terms.supersedes is None else _row(connection, owner, terms.supersedes)
    found = _twin(connection, owner, new, terms, None if old is None else old.id)
    if old is not None and found == old.id:
        raise InvalidInput(f"the entry {old.id} already says this; there is nothing to supersede")
    if old is not None and old.superseded_by not in (None, found):
        raise Conflict(
            f"the entry {old.id} was superseded by {old.superseded_by}; read that one, and supersede it if necessary",
            superseded_by=old.superseded_by,
        )
    return StoredEntry(entry_id=found or entry_id, is_new=found is None)


def _twin(connection: Connection, owner: str, new: NewEntry, terms: Terms, old: str | None) -> str | None:
    """Return the id of the owner's valid entry with the same text; None without one or a similar one but `old`."""
    if terms.is_event:
        return None
    same = archival.same(connection, owner, content_hash(new.content), terms.now)
    if same is not None:
        return same.id
    if terms.force or len(new.content) > COMPARED_CHARS_MAX:
        return None
    size = len(new.content)
    chars = range(int(size * LENGTH_RATIO_MIN) - 20, int(size / LENGTH_RATIO_MIN) + 20)
    groups = telling_groups(new.content)
    found = archival.candidates(connection, owner, groups, terms.now, chars=chars, limit=CANDIDATES_MAX)
    texts = archival.contents(connection, [entry for entry in found if entry != old])
    for entry, parts in texts.items():
        if is_near(new.content, content := "".join(parts)):
            shown = content if len(content) <= SHOWN_CHARS_MAX else content[: SHOWN_CHARS_MAX - 1] + "…"
            raise SimilarEntry(
                f"nothing was stored: the entry {entry} says nearly the same: {shown!r}. Leave it at that, supersede"
                " it, or store this too with `force`",
                entry_id=entry,
                content=shown,
            )
    return None


def _insert(connection: Connection, owner: str, new: NewEntry, entry_id: str, now: str) -> None:
    parts = split(new.content)
    if archival.count_rows(connection, owner) + len(parts) > ARCHIVE_ROWS_MAX:
        raise LimitReached(
            f"this archive is full: it holds {ARCHIVE_ROWS_MAX} entries (a long one counts for each of its chunks);"
            " delete entries that are no longer needed"
        )
    first = ArchivalRow(
        id=entry_id,
        agent_id=owner,
        content=parts[0],
        created_at=now,
        metadata=None if new.metadata is None else dict(new.metadata),
        tags=new.tags,
        workspace=new.workspace,
        valid_from=new.valid_from,
        valid_to=new.valid_to,
        source=None if new.source is None else dict(new.source),
        content_hash=content_hash(new.content),
    )
    archival.insert(connection, first)
    for number, part in enumerate(parts[1:], start=1):
        further = replace(first, id=f"{entry_id}.{number}", content=part, chunk_index=number, parent_entry_id=entry_id)
        archival.insert(connection, replace(further, metadata=None, source=None, content_hash=None))


def _row(connection: Connection, owner: str, entry_id: str) -> ArchivalRow:
    """Return the first chunk of the owner's entry."""
    row = archival.get(connection, entry_id.partition(".")[0])
    if row.agent_id != owner:
        raise NotFound(f"there is no archival entry {entry_id}")
    return row


def _storable(text: str) -> str:
    if "\0" in text:
        raise InvalidInput("the text holds a NUL character; remove it")
    return check_text(text)


def _check_details(name: str, value: Json) -> None:
    if value is None:
        return
    try:
        text = to_json(dict(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"`{name}` is not a JSON object: {error}") from None
    if len(_storable(text)) > DETAILS_CHARS_MAX:
        raise InvalidInput(f"`{name}` has at most {DETAILS_CHARS_MAX} characters as JSON, this one {len(text)}")


class Archive:
    """The entries of all agents of a constellation. An `owner` is an agent's id, or CONSTELLATION_OWNER."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def add(
        self,
        owner: str,
        new: NewEntry,
        *,
        author: str,
        supersedes: str | None = None,
        force: bool = False,
        is_event: bool = False,
    ) -> tuple[ArchiveEntry, bool]:
        """Store an entry, which replaces the one that it `supersedes`. Return it, and whether it is new or already
        existed with exactly this text, which does not count for an event.

        Raises:
            InvalidInput: it is empty, too long, malformed, or has the text of the entry to supersede.
            SimilarEntry: an entry has nearly the same text, and `force` is not set.
            NotFound: there is no entry to supersede.
            Conflict: that entry was superseded by another one.
            LimitReached: the archive is full.
        """
        new = checked(new)
        new = replace(new, source={**(new.source or {}), "author": author})
        entry_id = self._storage.ids.new("arch")
        terms = Terms(now=self._storage.now(), supersedes=supersedes, force=force, is_event=is_event)
        added: list[tuple[ArchiveEntry, bool]] = []

        def change(connection: Connection) -> list[Event]:
            stored = store(connection, owner, new, entry_id, terms)
            added.append((find(connection, owner, stored.entry_id), stored.is_new))
            if not stored.is_new and supersedes is None:
                return []
            return append(connection, None, [changed(owner, stored.entry_id, terms.supersedes)], created_at=terms.now)

        await self._write(change)
        return added[-1]

    async def get(self, owner: str, entry_id: str) -> ArchiveEntry:
        """Return one entry, complete.

        Raises:
            NotFound: there is none, or it is another owner's.
        """
        return await self._storage.database.read(find, owner, entry_id)

    async def page(
        self,
        owner: str,
        limit: int,
        *,
        after: tuple[str, str] | None = None,
        tag: str | None = None,
        include_superseded: bool = False,
    ) -> tuple[list[ArchiveEntry], bool]:
        """Return the newest entries, at most `limit` and about `PAGE_CHARS_MAX` characters; and whether more follow.

        `after` selects those older than an entry, given by its `created_at` and id. Ended entries are included only
        with `include_superseded`.
        """
        valid_at = None if include_superseded else self._storage.now()

        def read(connection: Connection) -> tuple[list[ArchiveEntry], bool]:
            rows = archival.list_for_agent(connection, owner, limit + 1, before=after, tag=tag, valid_at=valid_at)
            shown: list[ArchiveEntry] = []
            chars = 0
            for row in rows[:limit]:
                [entry] = whole(connection, [row])
                chars += len(entry.content)
                if shown and chars > PAGE_CHARS_MAX:
                    break
                shown.append(entry)
            return shown, len(shown) < len(rows)

        return await self._storage.database.read(read)

    async def versions(self, owner: str, entry_id: str) -> list[ArchiveEntry]:
        """Return the entry with all that it superseded and that superseded it, oldest first.

        Raises:
            NotFound: there is no such entry, or it is another owner's.
        """

        def read(connection: Connection) -> list[ArchiveEntry]:
            entry = find(connection, owner, entry_id)
            return whole(connection, archival.versions(connection, entry.id, VERSIONS_MAX))

        return await self._storage.database.read(read)

    async def change(self, owner: str, entry_id: str, changes: Mapping[str, Json]) -> ArchiveEntry:
        """Update tags, metadata, workspace or the time of validity of an entry; its text stays.

        Raises:
            InvalidInput: a value is invalid.
            NotFound: there is no such entry, or it is another owner's.
            Conflict: the end of a superseded entry is set by its successor.
        """
        cleaned = checked_fields(changes)
        now = self._storage.now()
        found: list[ArchiveEntry] = []

        def change(connection: Connection) -> list[Event]:
            entry = find(connection, owner, entry_id)
            if "valid_to" in cleaned and entry.superseded_by is not None:
                raise Conflict(f"the entry {entry.id} ended when {entry.superseded_by} replaced it; change that one")
            checked_fields({"valid_from": entry.valid_from, "valid_to": entry.valid_to, **cleaned})
            archival.update(connection, entry.id, cleaned)
            found.append(find(connection, owner, entry.id))
            return append(connection, None, [changed(owner, entry.id)], created_at=now)

        await self._write(change)
        return found[-1]

    async def delete(self, owner: str, entry_id: str) -> None:
        """Delete an entry permanently. Entries that it superseded stay ended.

        Raises:
            NotFound: there is no such entry, or it is another owner's.
        """
        now = self._storage.now()

        def change(connection: Connection) -> list[Event]:
            entry = find(connection, owner, entry_id)
            archival.delete(connection, entry.id)
            return append(connection, None, [changed(owner, entry.id, is_deleted=True)], created_at=now)

        await self._write(change)

    async def _write(self, fn: Callable[[Connection], list[Event]]) -> None:
        work = UnitOfWork()
        work.store_and_tell(fn)
        await self._storage.commit(work)


def changed(owner: str, entry_id: str, supersedes: str | None = None, *, is_deleted: bool = False) -> Draft:
    """Return the event that an archive changed."""
    data: dict[str, Json] = {"agent_id": owner, "entry_id": entry_id}
    if supersedes is not None:
        data["supersedes"] = supersedes
    if is_deleted:
        data["is_deleted"] = True
    return Draft(CHANGED, data)
