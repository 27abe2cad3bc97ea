"""The archive of an agent, or of the whole constellation: entries that are superseded, never overwritten."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Response
from pydantic import Field

from pattern_core.archive.entries import ArchiveEntry, NewEntry
from pattern_server.http.bodies import (
    PagedTexts,
    RequestModel,
    answer_of,
    decode_cursor,
    encode_cursor,
    fields_with,
    items_of,
    page_of,
)
from pattern_server.http.routing import OwnerAccess, Router, ToReadOwned, ToWriteOwned

router = Router(prefix="/constellations/{c}/agents/{a}/archival", tags=["archive"])

_FIELDS = "id agent_id content tags metadata workspace source valid_from valid_to superseded_by chunks created_at"
ENTRY = answer_of(ArchiveEntry, _FIELDS)
# `is_new` is false if the archive already had an entry with exactly this text.
STORED = answer_of(ArchiveEntry, _FIELDS, "StoredArchiveEntry", is_new=bool)


class ArchiveEntryRequest(RequestModel):
    """The entry to store."""

    content: str
    tags: list[str] = Field(default_factory=list)
    metadata: dict[str, Any] | None = None
    workspace: str | None = None
    source: dict[str, Any] | None = None
    valid_from: str | None = None
    valid_to: str | None = None
    force: bool = False


class ArchiveEntryCreateRequest(ArchiveEntryRequest):
    """The entry to store, and the one that it replaces, if any."""

    supersedes: str | None = None


class ArchiveEntryUpdateRequest(RequestModel):
    """The fields of an entry to change; null removes a value. To correct the text, supersede the entry."""

    tags: list[str] | None = None
    metadata: dict[str, Any] | None = None
    workspace: str | None = None
    valid_from: str | None = None
    valid_to: str | None = None


@router.post("", status_code=201, response_model=STORED, responses={200: {"model": STORED}})
async def create(body: ArchiveEntryCreateRequest, home: ToWriteOwned, response: Response) -> object:
    """Store an archive entry.

    If the archive has an entry with exactly this text, nothing is stored and that entry is returned (200). If an entry
    has nearly the same text, the answer is 409 `similar_entry` and names it; `force` stores the new one as well.
    """
    return await _stored(home, body, body.supersedes, response)


@router.get("", response_model=page_of(ENTRY))
async def list_all(
    home: ToReadOwned,
    paging: PagedTexts,
    tag: Annotated[str | None, Query(description="Only entries with this tag.")] = None,
    include_superseded: Annotated[
        bool, Query(description="Include entries that were superseded or have ended.")
    ] = False,
) -> object:
    """List archive entries.

    Return the entries, newest first, without superseded and ended ones unless requested. A
    page ends early if its texts would exceed a million characters.
    """
    place = decode_cursor(paging.cursor, 2)
    after = None if place is None else (place[0], place[1])
    shown, has_more = await home.constellation.archive.page(
        home.owner, paging.limit, after=after, tag=tag, include_superseded=include_superseded
    )
    return {"items": shown, "next_cursor": encode_cursor(shown[-1].created_at, shown[-1].id) if has_more else None}


@router.get("/{id}", response_model=ENTRY)
async def get(id: str, home: ToReadOwned) -> object:  # noqa: A002 - the word of the path
    """Show a whole archive entry; the id of one of its chunks, as search returns it, is accepted too."""
    return await home.constellation.archive.get(home.owner, id)


@router.get("/{id}/history", response_model=items_of(ENTRY))
async def history(id: str, home: ToReadOwned) -> object:  # noqa: A002 - the word of the path
    """List versions of an archive entry: what it superseded, the entry, and what superseded it, oldest first."""
    return {"items": await home.constellation.archive.versions(home.owner, id)}


@router.post("/{id}/supersede", status_code=201, response_model=STORED, responses={200: {"model": STORED}})
async def supersede(id: str, body: ArchiveEntryRequest, home: ToWriteOwned, response: Response) -> object:  # noqa: A002 - the word of the path
    """Supersede an archive entry.

    Store an entry that replaces this one. The old entry stays and ends when the new one begins. Tags, workspace and
    metadata that the new entry does not name are copied. A repeated request returns the same entry (200).
    """
    return await _stored(home, body, id, response)


@router.patch("/{id}", response_model=ENTRY)
async def update(id: str, body: ArchiveEntryUpdateRequest, home: ToWriteOwned) -> object:  # noqa: A002 - the word of the path
    """Update an archive entry: tags, metadata, workspace, and the time for which it holds."""
    changes = body.model_dump(include=body.model_fields_set)
    if "workspace" in changes:
        changes["workspace"] = await home.find_workspace(body.workspace, is_written=True)
    return await home.constellation.archive.change(home.owner, id, changes)


@router.delete("/{id}", status_code=204)
async def delete(id: str, home: ToWriteOwned) -> None:  # noqa: A002 - the word of the path
    """Delete an archive entry permanently; to keep it as a past fact, set its `valid_to` instead."""
    await home.constellation.archive.delete(home.owner, id)


async def _stored(home: OwnerAccess, body: ArchiveEntryRequest, supersedes: str | None, response: Response) -> object:
    workspace = await home.find_workspace(body.workspace, is_written=True)
    new = NewEntry(**body.model_dump(exclude={"force", "supersedes", "workspace"}), workspace=workspace)
    author = home.caller.author
    entry, is_new = await home.constellation.archive.add(
        home.owner, new, author=author, supersedes=supersedes, force=body.force
    )
    if not is_new:
        response.status_code = 200
    home.locate(response, "agents", home.owner, "archival", entry.id)
    return fields_with(entry, is_new=is_new)
