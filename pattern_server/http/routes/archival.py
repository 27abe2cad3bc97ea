"""The archive of an agent, or of the whole constellation: entries that are superseded, never overwritten."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Depends, Query, Response
from pydantic import Field

from pattern_core.archive.entries import EntryFilter, NewEntry
from pattern_core.constellation import Constellation
from pattern_server.accounts import Principal
from pattern_server.http.bodies import Asked, Cursor, Page, PageLimit, Told, decode_cursor, encode_cursor
from pattern_server.http.owners import owner_of
from pattern_server.http.routing import MayRead, MayWrite, Router, Server

router = Router(prefix="/constellations/{c}/agents/{a}/archival", tags=["archive"])


class EntryAsked(Asked):
    """An entry to store. Times are RFC 3339 with an offset; `force` stores it beside one that says nearly the same.

    `source` is an object of links to what it was made from, such as `{"message": "msg_…", "url": "https://…"}`.
    """

    content: str
    tags: list[str] = Field(default_factory=list)
    metadata: dict[str, Any] | None = None
    workspace: str | None = None
    source: dict[str, Any] | None = None
    valid_from: str | None = None
    valid_to: str | None = None
    force: bool = False


class NewEntryAsked(EntryAsked):
    """An entry to store; `supersedes` is the id of the one that it takes the place of."""

    supersedes: str | None = None


class EntryPatched(Asked):
    """Fields of an entry to change; null takes a value away. The text stays: supersede the entry to correct it."""

    tags: list[str] | None = None
    metadata: dict[str, Any] | None = None
    workspace: str | None = None
    valid_from: str | None = None
    valid_to: str | None = None


class EntryTold(Told):
    """An entry, whole. It holds from `valid_from` (null: since it was stored) until `valid_to` (null: until now)."""

    id: str
    agent_id: str
    content: str
    tags: list[str]
    metadata: Any
    workspace: str | None
    source: Any
    valid_from: str | None
    valid_to: str | None
    superseded_by: str | None
    chunks: int
    created_at: str


class StoredTold(EntryTold):
    """An entry that was asked for; `is_new` is false if the archive held it already, word for word."""

    is_new: bool


class VersionsTold(Told):
    """An entry with all that it superseded and that superseded it, oldest first."""

    items: list[EntryTold]


async def _wanted(
    cursor: Cursor = None,
    tag: Annotated[str | None, Query(description="only entries with this tag")] = None,
    include_superseded: Annotated[bool, Query(description="entries that hold no more, too")] = False,
) -> EntryFilter:
    place = decode_cursor(cursor, 2)
    after = None if place is None else (place[0], place[1])
    return EntryFilter(after=after, tag=tag, include_superseded=include_superseded)


@router.post("", status_code=201, response_model=StoredTold)
async def add(c: str, a: str, body: NewEntryAsked, server: Server, caller: MayWrite, response: Response) -> object:
    """Store an entry. What is there already, word for word, is not stored again: the answer is that entry (200).

    An entry that says nearly the same is named in a 409 `similar_entry`; `force` stores the new one beside it.
    """
    return await _stored(server, caller, (c, a), body, body.supersedes, response)


@router.get("", response_model=Page[EntryTold])
async def list_all(
    c: str,
    a: str,
    server: Server,
    caller: MayRead,
    wanted: Annotated[EntryFilter, Depends(_wanted)],
    limit: PageLimit = 50,
) -> object:
    """The entries, newest first; without those that were superseded or have ended, unless they are asked for.

    A page ends early where its texts would pass a million characters.
    """
    async with server.constellations.use(caller, c) as constellation:
        owner = await owner_of(constellation, a)
        shown, has_more = await constellation.archive.page(owner, wanted, limit)
    return {"items": shown, "next_cursor": encode_cursor(shown[-1].created_at, shown[-1].id) if has_more else None}


@router.get("/{id}", response_model=EntryTold)
async def show(c: str, a: str, id: str, server: Server, caller: MayRead) -> object:  # noqa: A002 - the word of the path
    """One entry, whole; the id of one of its chunks, as a search gives it, finds it too."""
    async with server.constellations.use(caller, c) as constellation:
        return await constellation.archive.get(await owner_of(constellation, a), id)


@router.get("/{id}/history", response_model=VersionsTold)
async def versions(c: str, a: str, id: str, server: Server, caller: MayRead) -> object:  # noqa: A002 - the word of the path
    """What an entry superseded, itself, and what superseded it; oldest first."""
    async with server.constellations.use(caller, c) as constellation:
        return {"items": await constellation.archive.versions(await owner_of(constellation, a), id)}


@router.post("/{id}/supersede", status_code=201, response_model=StoredTold)
async def supersede(
    c: str,
    a: str,
    id: str,  # noqa: A002 - the word of the path
    body: EntryAsked,
    server: Server,
    caller: MayWrite,
    response: Response,
) -> object:
    """Store an entry in the place of this one, which stays and ends when the new one begins.

    Tags, workspace and metadata that the new one does not name are taken over. Asked again, the answer is the same
    entry (200).
    """
    return await _stored(server, caller, (c, a), body, id, response)


@router.patch("/{id}", response_model=EntryTold)
async def change(c: str, a: str, id: str, body: EntryPatched, server: Server, caller: MayWrite) -> object:  # noqa: A002 - the word of the path
    """Change what is known about an entry: tags, metadata, workspace, and from when to when it holds."""
    changes = body.model_dump(include=body.model_fields_set)
    async with server.constellations.use(caller, c) as constellation:
        return await constellation.archive.change(await owner_of(constellation, a), id, changes)


@router.delete("/{id}", status_code=204)
async def delete(c: str, a: str, id: str, server: Server, caller: MayWrite) -> None:  # noqa: A002 - the word of the path
    """Remove an entry for good. To keep it as something that was once true, set its `valid_to` instead."""
    async with server.constellations.use(caller, c) as constellation:
        await constellation.archive.delete(await owner_of(constellation, a), id)


async def _stored(
    server: Server,
    caller: Principal,
    where: tuple[str, str],
    body: EntryAsked,
    supersedes: str | None,
    response: Response,
) -> object:
    new = NewEntry(**body.model_dump(exclude={"force", "supersedes"}))
    async with server.constellations.use(caller, where[0]) as constellation:
        owner = await owner_of(constellation, where[1])
        added = await constellation.archive.add(
            owner, new, author=caller.author, supersedes=supersedes, force=body.force
        )
    if not added.is_new:
        response.status_code = 200
    response.headers["location"] = _address(constellation, owner, added.entry.id)
    entry = EntryTold.model_validate(added.entry)
    return StoredTold(**entry.model_dump(), is_new=added.is_new)


def _address(constellation: Constellation, owner: str, entry_id: str) -> str:
    return f"/api/v1/constellations/{constellation.id}/agents/{owner}/archival/{quote(entry_id)}"
