"""Folders and their files: create, fill, index, and attach them to agents.

A folder is virtual (its files are uploaded and kept in the constellation), local: a directory of the server's
machine, or remote: read from WebDAV or a bucket, where `[sources]` allows. The operator decides which directories are
allowed: those in `files_roots` for users with the scope `write`, any for an administrator, and never the server's own
data.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import trio
from fastapi import Query, Request, Response

from pattern_core.errors import InvalidInput
from pattern_core.files import disk
from pattern_core.files.folders import Borrower, Folder, FolderFile, IndexReport
from pattern_core.remote_files import check_address
from pattern_db.enums import FolderAccess, PathType
from pattern_server.http.bodies import BY_VALUE, Paged, RequestModel, answer_of, fields_with, page_of
from pattern_server.http.routing import Router, ToRead, ToWrite

router = Router(prefix="/constellations/{c}/folders", tags=["folders"])

FOLDER = answer_of(
    Folder,
    "id name description path_type path_value embedding_model status status_reason indexed_at created_at",
)
FILE = answer_of(
    FolderFile,
    "id name content_type size_bytes status error line_count passage_count uploaded_at indexed_at",
    "FolderFile",
)
ATTACHMENT = answer_of(Borrower, "agent agent_id access attached_at", agent=str)


class FolderCreateRequest(RequestModel):
    """The folder to create. Virtual folders have no `path`."""

    name: str
    description: str | None = None
    path_type: Annotated[PathType, BY_VALUE] = PathType.VIRTUAL
    path: str | None = None


class FolderUpdateRequest(RequestModel):
    """The fields of a folder to change; an empty description removes it."""

    name: str | None = None
    description: str | None = None


class AttachmentRequest(RequestModel):
    """The agent to attach the folder to, and its access."""

    agent: str
    access: Annotated[FolderAccess, BY_VALUE] = FolderAccess.READ


@router.get("", response_model=page_of(FOLDER))
async def list_all(home: ToRead, paging: Paged) -> object:
    """List the folders of the constellation by name."""
    rows = await home.constellation.folders.all()
    return paging.of_all(rows, lambda row: (row.name, row.id))


@router.post("", status_code=201, response_model=FOLDER)
async def create(body: FolderCreateRequest, home: ToWrite, response: Response) -> object:
    """Create a folder; a local or remote one is indexed by `…/index`, or soon after it is attached to an agent."""
    path = body.path
    if body.path_type is PathType.LOCAL:
        allowed = None if home.caller.reaches_all else home.server.config.files_roots
        root = await trio.to_thread.run_sync(
            lambda: disk.check_root(path or "", allowed=allowed, kept_out=[home.server.config.data_dir])
        )
        path = str(root)
    elif body.path_type is PathType.REMOTE:
        check_address(path or "", home.constellation.sources.settings)
    elif path is not None:
        raise InvalidInput(
            'only folders with path_type "local" or "remote" have a path; set path_type, or leave `path` out'
        )
    embeddings = home.server.config.embeddings
    row = await home.constellation.folders.create(
        body.name,
        description=body.description,
        path_type=body.path_type,
        embedding_model=embeddings.model or embeddings.provider,
        path=path,
    )
    home.locate(response, "folders", row.id)
    return row


@router.get("/{f}", response_model=FOLDER)
async def get(f: str, home: ToRead) -> object:
    """Show a folder and its status."""
    return await home.constellation.folders.get(f)


@router.patch("/{f}", response_model=FOLDER)
async def update(f: str, body: FolderUpdateRequest, home: ToWrite) -> object:
    """Update the name or the description of a folder."""
    return await home.constellation.folders.change(f, name=body.name, description=body.description)


@router.delete("/{f}", status_code=204)
async def delete(f: str, home: ToWrite) -> None:
    """Delete a folder with its index and uploaded files; the files of a local or remote folder stay where they are."""
    await home.constellation.folders.delete(f)


@router.post("/{f}/index")
async def index(
    f: str,
    home: ToWrite,
    again: Annotated[bool, Query(description="Read files again that seem unchanged.")] = False,
) -> IndexReport:
    """Index a folder now: read changed files, and return the skipped ones with the reasons."""
    return await home.constellation.folders.index(f, again=again)


@router.get("/{f}/files", response_model=page_of(FILE))
async def list_files(f: str, home: ToRead, paging: Paged) -> object:
    """List the files of a folder by name."""
    rows = await home.constellation.folders.files(f, limit=paging.one_more, after=paging.after)
    return paging.cut(rows, lambda row: row.name)


_BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


@router.put(
    "/{f}/files/{name:path}",
    response_model=FILE,
    responses={201: {"model": FILE}},
    openapi_extra={"requestBody": {"content": _BYTES}},
)
async def put_file(f: str, name: str, request: Request, home: ToWrite, response: Response) -> object:
    """Upload a file: the body, whatever its content type; 201 if it is new. Only into virtual folders."""
    data = await request.body()
    row, is_new = await home.constellation.folders.put_file(f, name, data)
    if is_new:
        response.status_code = 201
        home.locate(response, "folders", row.folder_id, "files", row.name)
    return row


@router.get("/{f}/files/{name:path}", response_class=Response, responses={200: {"content": _BYTES}})
async def get_file(f: str, name: str, home: ToRead) -> Response:
    """Download a file; of a local folder as it is now, of a remote folder as it was indexed."""
    row, data = await home.constellation.folders.content(f, name)
    # Never a type that a browser would run: the file is a user's, the origin is the server's.
    quoted = quote(row.name.rsplit("/", 1)[-1], safe="")
    disposition = {"content-disposition": f"attachment; filename*=UTF-8''{quoted}"}
    return Response(data, media_type="application/octet-stream", headers=disposition)


@router.delete("/{f}/files/{name:path}", status_code=204)
async def delete_file(f: str, name: str, home: ToWrite) -> None:
    """Delete a file of a virtual folder."""
    await home.constellation.folders.delete_file(f, name)


@router.get("/{f}/attachments", response_model=page_of(ATTACHMENT))
async def list_attachments(f: str, home: ToRead, paging: Paged) -> object:
    """List agents that may use a folder; by name, each with its access."""
    found = await home.constellation.folders.attachments(f)
    names = {agent.id: agent.name for agent in await home.constellation.roster.all()}
    shown = [fields_with(one, agent=names.get(one.agent_id, one.agent_id)) for one in found]
    return paging.of_all(shown, lambda row: (row["agent"], row["agent_id"]))


@router.post("/{f}/attachments", response_model=ATTACHMENT)
async def attach(f: str, body: AttachmentRequest, home: ToWrite) -> object:
    """Attach a folder to an agent, or change the agent's access."""
    agent = await home.constellation.roster.get(body.agent)
    made = await home.constellation.folders.attach(f, agent.id, body.access)
    return fields_with(made, agent=agent.name)


@router.delete("/{f}/attachments/{a}", status_code=204)
async def detach(f: str, a: str, home: ToWrite) -> None:
    """Detach a folder from an agent; it can no longer use the folder."""
    agent = await home.constellation.roster.get(a)
    await home.constellation.folders.detach(f, agent.id)
