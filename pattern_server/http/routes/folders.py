"""Folders and their files: made, filled, looked through, and attached to agents.

A folder is virtual (its files are uploaded and kept in the constellation) or local: a directory of the server's
machine. Which directories agents may be shown is the operator's decision: those in `files_roots` for everybody who may
write, any for an administrator, and never the server's own data.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple
from urllib.parse import quote

import trio
from fastapi import Depends, Query, Request, Response
from pydantic import Field

from pattern_core.errors import InvalidInput
from pattern_core.files import disk
from pattern_db.enums import FolderAccess, PathType
from pattern_server.http.bodies import Asked, Cursor, Page, PageLimit, Told, decode_cursor, encode_cursor, page_of
from pattern_server.http.routing import MayRead, MayWrite, Router, Server

router = Router(prefix="/constellations/{c}/folders", tags=["folders"])

_PathType = Annotated[PathType, Field(strict=False)]
_Access = Annotated[FolderAccess, Field(strict=False)]


class FolderAsked(Asked):
    """A folder to make. `path` is a local one's directory on the server's machine, as its whole path."""

    name: str
    description: str | None = None
    path_type: _PathType = PathType.VIRTUAL
    path: str | None = None


class FolderPatched(Asked):
    """What to change about a folder; an empty description removes it."""

    name: str | None = None
    description: str | None = None


class AttachmentAsked(Asked):
    """Which agent (by id or name) may do what in a folder."""

    agent: str
    access: _Access = FolderAccess.READ


class FolderTold(Told):
    """A folder. `status` is ready, or unavailable with its reason; `indexed_at` is the last whole look through it."""

    id: str
    name: str
    description: str | None
    path_type: str
    path_value: str | None
    embedding_model: str
    status: str
    status_reason: str | None
    indexed_at: str | None
    created_at: str


class FileTold(Told):
    """A file. `status` is indexed, or unreadable with its error; `line_count` counts the lines of its text."""

    id: str
    name: str
    content_type: str | None
    size_bytes: int | None
    status: str
    error: str | None
    line_count: int
    passage_count: int
    uploaded_at: str
    indexed_at: str | None


class SkippedTold(Told):
    """A file that was not read, and why."""

    name: str
    reason: str


class IndexTold(Told):
    """What a look through a folder did, in files."""

    indexed: int
    unchanged: int
    removed: int
    skipped: list[SkippedTold]


class AttachmentTold(Told):
    """An agent that may use a folder."""

    agent: str
    agent_id: str
    access: str
    attached_at: str


class Place(NamedTuple):
    """The folder that a path names: the constellation and the folder, by id or name."""

    c: str
    f: str


async def _place_of(c: str, f: str) -> Place:
    return Place(c, f)


At = Annotated[Place, Depends(_place_of)]


@router.get("", response_model=Page[FolderTold])
async def list_all(c: str, server: Server, caller: MayRead, limit: PageLimit = 100, cursor: Cursor = None) -> object:
    """The folders, by name."""
    async with server.constellations.use(caller, c) as constellation:
        rows = await constellation.folders.all()
        return page_of(rows, lambda row: (row.name, row.id), limit, cursor)


@router.post("", status_code=201, response_model=FolderTold)
async def create(c: str, body: FolderAsked, server: Server, caller: MayWrite, response: Response) -> object:
    """Make a folder. A local one's files are known after `…/index`, or soon after it is attached."""
    async with server.constellations.use(caller, c) as constellation:
        root = None
        if body.path_type is PathType.LOCAL:
            is_admin = caller.is_admin and "admin" in caller.scopes
            allowed = None if is_admin else server.config.files_roots
            root = await trio.to_thread.run_sync(
                lambda: disk.check_root(body.path or "", allowed=allowed, kept_out=[server.config.data_dir])
            )
        elif body.path is not None:
            raise InvalidInput('only folders with path_type "local" have a path')
        embeddings = server.config.embeddings
        row = await constellation.folders.create(
            body.name,
            description=body.description,
            path_type=body.path_type,
            embedding_model=embeddings.model or embeddings.provider,
            root=root,
        )
    response.headers["location"] = f"/api/v1/constellations/{constellation.id}/folders/{row.id}"
    return row


@router.get("/{f}", response_model=FolderTold)
async def show(at: At, server: Server, caller: MayRead) -> object:
    """One folder, by id or name."""
    async with server.constellations.use(caller, at.c) as constellation:
        return await constellation.folders.get(at.f)


@router.patch("/{f}", response_model=FolderTold)
async def change(at: At, body: FolderPatched, server: Server, caller: MayWrite) -> object:
    """Change a folder's name or description."""
    async with server.constellations.use(caller, at.c) as constellation:
        return await constellation.folders.change(at.f, name=body.name, description=body.description)


@router.delete("/{f}", status_code=204)
async def delete(at: At, server: Server, caller: MayWrite) -> None:
    """Remove a folder and all that was read from it. The files of a directory stay where they are."""
    async with server.constellations.use(caller, at.c) as constellation:
        await constellation.folders.delete(at.f)


@router.post("/{f}/index", response_model=IndexTold)
async def index(
    at: At,
    server: Server,
    caller: MayWrite,
    again: Annotated[bool, Query(description="also read what seems unchanged")] = False,
) -> object:
    """Look through a folder now and read what changed; the answer says what was left out, and why."""
    async with server.constellations.use(caller, at.c) as constellation:
        return await constellation.folders.index(at.f, again=again)


@router.get("/{f}/files", response_model=Page[FileTold])
async def list_files(
    at: At, server: Server, caller: MayRead, limit: PageLimit = 100, cursor: Cursor = None
) -> dict[str, Any]:
    """The files, by name."""
    place = decode_cursor(cursor, 1)
    async with server.constellations.use(caller, at.c) as constellation:
        after = None if place is None else place[0]
        rows = await constellation.folders.files(at.f, limit=limit + 1, after=after)
    shown = rows[:limit]
    return {"items": shown, "next_cursor": encode_cursor(shown[-1].name) if len(rows) > limit else None}


@router.put("/{f}/files/{name:path}", response_model=FileTold)
async def put_file(at: At, name: str, request: Request, server: Server, caller: MayWrite, response: Response) -> object:
    """Store the request's body, whatever its type, as a file of a virtual folder; 201 if it is new."""
    data = await request.body()
    async with server.constellations.use(caller, at.c) as constellation:
        row, is_new = await constellation.folders.put_file(at.f, name, data)
        if is_new:
            response.status_code = 201
            where = f"{row.folder_id}/files/{quote(row.name)}"
            response.headers["location"] = f"/api/v1/constellations/{constellation.id}/folders/{where}"
    return row


@router.get("/{f}/files/{name:path}")
async def content(at: At, name: str, server: Server, caller: MayRead) -> Response:
    """A file's own bytes, as they are stored or lie on the disk now."""
    async with server.constellations.use(caller, at.c) as constellation:
        row, data = await constellation.folders.content(at.f, name)
    # Never as a type that a browser would run: the file is somebody's, the address is ours.
    quoted = quote(row.name.rsplit("/", 1)[-1], safe="")
    disposition = {"content-disposition": f"attachment; filename*=UTF-8''{quoted}"}
    return Response(data, media_type="application/octet-stream", headers=disposition)


@router.delete("/{f}/files/{name:path}", status_code=204)
async def delete_file(at: At, name: str, server: Server, caller: MayWrite) -> None:
    """Remove a file of a virtual folder."""
    async with server.constellations.use(caller, at.c) as constellation:
        await constellation.folders.delete_file(at.f, name)


@router.get("/{f}/attachments", response_model=Page[AttachmentTold])
async def list_attachments(
    at: At, server: Server, caller: MayRead, limit: PageLimit = 100, cursor: Cursor = None
) -> object:
    """The agents that may use the folder, by name."""
    async with server.constellations.use(caller, at.c) as constellation:
        found = await constellation.folders.attachments(at.f)
        names = {agent.id: agent.name for agent in await constellation.roster.all()}
        told = [
            AttachmentTold(
                agent=names.get(one.agent_id, one.agent_id),
                agent_id=one.agent_id,
                access=one.access.value,
                attached_at=one.attached_at,
            )
            for one in found
        ]
        return page_of(told, lambda row: (row.agent, row.agent_id), limit, cursor)


@router.post("/{f}/attachments", response_model=AttachmentTold)
async def attach(at: At, body: AttachmentAsked, server: Server, caller: MayWrite) -> object:
    """Let an agent use the folder, or change what it may do there."""
    async with server.constellations.use(caller, at.c) as constellation:
        agent = await constellation.roster.get(body.agent)
        made = await constellation.folders.attach(at.f, agent.id, body.access)
    return AttachmentTold(agent=agent.name, agent_id=agent.id, access=made.access.value, attached_at=made.attached_at)


@router.delete("/{f}/attachments/{a}", status_code=204)
async def detach(at: At, a: str, server: Server, caller: MayWrite) -> None:
    """Take the folder away from an agent."""
    async with server.constellations.use(caller, at.c) as constellation:
        agent = await constellation.roster.get(a)
        await constellation.folders.detach(at.f, agent.id)
