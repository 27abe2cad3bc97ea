"""Folders and their files: made, filled, looked through, and attached to agents.

A folder is virtual (its files are uploaded and kept in the constellation) or local: a directory of the server's
machine. Which directories agents may be shown is the operator's decision: those in `files_roots` for everybody who may
write, any for an administrator, and never the server's own data.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import trio
from fastapi import Query, Request, Response

from pattern_core.errors import InvalidInput
from pattern_core.files import disk
from pattern_core.files.folders import Borrower, Folder, FolderFile, IndexReport
from pattern_db.enums import FolderAccess, PathType
from pattern_server.http.bodies import BY_VALUE, Paged, RequestModel, answer_of, fields_with, page_of
from pattern_server.http.routing import Router, ToRead, ToWrite

router = Router(prefix="/constellations/{c}/folders", tags=["folders"])

FOLDER = answer_of(
    Folder,
    "id name description path_type path_value embedding_model status status_reason indexed_at created_at",
)
FILE = answer_of(
    FolderFile, "id name content_type size_bytes status error line_count passage_count uploaded_at indexed_at"
)
ATTACHMENT = answer_of(Borrower, "agent agent_id access attached_at", agent=str)


class FolderRequest(RequestModel):
    """A folder to make. `path` is a local one's directory on the server's machine, as its whole path."""

    name: str
    description: str | None = None
    path_type: Annotated[PathType, BY_VALUE] = PathType.VIRTUAL
    path: str | None = None


class FolderPatchRequest(RequestModel):
    """What to change about a folder; an empty description removes it."""

    name: str | None = None
    description: str | None = None


class AttachmentRequest(RequestModel):
    """Which agent (by id or name) may do what in a folder."""

    agent: str
    access: Annotated[FolderAccess, BY_VALUE] = FolderAccess.READ


@router.get("", response_model=page_of(FOLDER))
async def list_all(home: ToRead, paging: Paged) -> object:
    """The folders, by name."""
    rows = await home.constellation.folders.all()
    return paging.of_all(rows, lambda row: (row.name, row.id))


@router.post("", status_code=201, response_model=FOLDER)
async def create(body: FolderRequest, home: ToWrite, response: Response) -> object:
    """Make a folder. A local one's files are known after `…/index`, or soon after it is attached."""
    root = None
    if body.path_type is PathType.LOCAL:
        allowed = None if home.caller.reaches_all else home.server.config.files_roots
        root = await trio.to_thread.run_sync(
            lambda: disk.check_root(body.path or "", allowed=allowed, kept_out=[home.server.config.data_dir])
        )
    elif body.path is not None:
        raise InvalidInput('only folders with path_type "local" have a path')
    embeddings = home.server.config.embeddings
    row = await home.constellation.folders.create(
        body.name,
        description=body.description,
        path_type=body.path_type,
        embedding_model=embeddings.model or embeddings.provider,
        root=root,
    )
    response.headers["location"] = f"/api/v1/constellations/{home.constellation.id}/folders/{row.id}"
    return row


@router.get("/{f}", response_model=FOLDER)
async def show(f: str, home: ToRead) -> object:
    """One folder, by id or name."""
    return await home.constellation.folders.get(f)


@router.patch("/{f}", response_model=FOLDER)
async def change(f: str, body: FolderPatchRequest, home: ToWrite) -> object:
    """Change a folder's name or description."""
    return await home.constellation.folders.change(f, name=body.name, description=body.description)


@router.delete("/{f}", status_code=204)
async def delete(f: str, home: ToWrite) -> None:
    """Remove a folder and all that was read from it. The files of a directory stay where they are."""
    await home.constellation.folders.delete(f)


@router.post("/{f}/index")
async def index(
    f: str,
    home: ToWrite,
    again: Annotated[bool, Query(description="also read what seems unchanged")] = False,
) -> IndexReport:
    """Look through a folder now and read what changed; the answer says what was left out, and why."""
    return await home.constellation.folders.index(f, again=again)


@router.get("/{f}/files", response_model=page_of(FILE))
async def list_files(f: str, home: ToRead, paging: Paged) -> object:
    """The files, by name."""
    rows = await home.constellation.folders.files(f, limit=paging.one_more, after=paging.after)
    return paging.cut(rows, lambda row: row.name)


@router.put("/{f}/files/{name:path}", response_model=FILE)
async def put_file(f: str, name: str, request: Request, home: ToWrite, response: Response) -> object:
    """Store the request's body, whatever its type, as a file of a virtual folder; 201 if it is new."""
    data = await request.body()
    row, is_new = await home.constellation.folders.put_file(f, name, data)
    if is_new:
        response.status_code = 201
        where = f"{row.folder_id}/files/{quote(row.name)}"
        response.headers["location"] = f"/api/v1/constellations/{home.constellation.id}/folders/{where}"
    return row


@router.get("/{f}/files/{name:path}")
async def content(f: str, name: str, home: ToRead) -> Response:
    """A file's own bytes, as they are stored or on the disk now."""
    row, data = await home.constellation.folders.content(f, name)
    # Never as a type that a browser would run: the file is a user's, the address is ours.
    quoted = quote(row.name.rsplit("/", 1)[-1], safe="")
    disposition = {"content-disposition": f"attachment; filename*=UTF-8''{quoted}"}
    return Response(data, media_type="application/octet-stream", headers=disposition)


@router.delete("/{f}/files/{name:path}", status_code=204)
async def delete_file(f: str, name: str, home: ToWrite) -> None:
    """Remove a file of a virtual folder."""
    await home.constellation.folders.delete_file(f, name)


@router.get("/{f}/attachments", response_model=page_of(ATTACHMENT))
async def list_attachments(f: str, home: ToRead, paging: Paged) -> object:
    """The agents that may use the folder, by name."""
    found = await home.constellation.folders.attachments(f)
    names = {agent.id: agent.name for agent in await home.constellation.roster.all()}
    shown = [fields_with(one, agent=names.get(one.agent_id, one.agent_id)) for one in found]
    return paging.of_all(shown, lambda row: (row["agent"], row["agent_id"]))


@router.post("/{f}/attachments", response_model=ATTACHMENT)
async def attach(f: str, body: AttachmentRequest, home: ToWrite) -> object:
    """Let an agent use the folder, or change what it may do there."""
    agent = await home.constellation.roster.get(body.agent)
    made = await home.constellation.folders.attach(f, agent.id, body.access)
    return fields_with(made, agent=agent.name)


@router.delete("/{f}/attachments/{a}", status_code=204)
async def detach(f: str, a: str, home: ToWrite) -> None:
    """Take the folder away from an agent."""
    agent = await home.constellation.roster.get(a)
    await home.constellation.folders.detach(f, agent.id)
