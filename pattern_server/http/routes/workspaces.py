"""Workspaces: the projects that messages, entries, blocks, tasks and sessions belong to."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response
from pydantic import BaseModel

from pattern_core.delta import memory_of
from pattern_core.workspaces import Workspace, WorkspaceAlias
from pattern_server.http.bodies import Paged, RequestModel, answer_of, page_of
from pattern_server.http.routing import Router, ToRead, ToWrite

router = Router(prefix="/constellations/{c}", tags=["workspaces"])

WORKSPACE = answer_of(Workspace, "id name in_prompts roots aliases created_at updated_at", "Workspace")


class WorkspaceContext(BaseModel):
    """What a program shows its model of a workspace."""

    text: str


class WorkspaceRequest(RequestModel):
    """The workspace to create: its name, or a folder of it by its whole path."""

    workspace: str


class WorkspaceUpdateRequest(RequestModel):
    """Whether prompts show the workspace."""

    in_prompts: bool


class RootRequest(RequestModel):
    """The folder to add."""

    path: str


class AliasRequest(RequestModel):
    """What a system calls the workspace."""

    system: str
    alias: str


class WorkspaceMergeRequest(RequestModel):
    """The workspace that stays, by id, name or a folder."""

    into: str


@router.get("/workspaces", response_model=page_of(WORKSPACE))
async def list_all(
    home: ToRead,
    paging: Paged,
    path: Annotated[str | None, Query(description="Only the workspace that this folder belongs to.")] = None,
) -> object:
    """List workspaces by name."""
    workspaces = home.constellation.workspaces
    if path is not None:
        return {"items": [await workspaces.find(path)], "next_cursor": None}
    return paging.cut(await workspaces.page(paging.one_more, after=paging.after), lambda workspace: workspace.name)


@router.post("/workspaces", status_code=201, response_model=WORKSPACE)
async def create(body: WorkspaceRequest, home: ToWrite, response: Response) -> Workspace:
    """Create a workspace; one that exists is returned as it is."""
    made = await home.constellation.workspaces.ensure(body.workspace, author=home.caller.author)
    home.locate(response, "workspaces", made.id)
    return made


@router.get("/workspaces/{workspace}", response_model=WORKSPACE)
async def get(workspace: str, home: ToRead) -> Workspace:
    """Show a workspace."""
    return await home.constellation.workspaces.find(workspace)


@router.patch("/workspaces/{workspace}", response_model=WORKSPACE)
async def update(workspace: str, body: WorkspaceUpdateRequest, home: ToWrite) -> Workspace:
    """Say whether prompts of its sessions show a workspace."""
    return await home.constellation.workspaces.show_in_prompts(workspace, body.in_prompts, author=home.caller.author)


@router.post("/workspaces/{workspace}/roots", response_model=WORKSPACE)
async def add_root(workspace: str, body: RootRequest, home: ToWrite) -> Workspace:
    """Add a folder of the server's machine to a workspace: all that lies in it belongs to the workspace."""
    return await home.constellation.workspaces.add_root(workspace, body.path, author=home.caller.author)


@router.delete("/workspaces/{workspace}/roots", response_model=WORKSPACE)
async def remove_root(
    workspace: str, home: ToWrite, path: Annotated[str, Query(description="The folder, by its whole path.")]
) -> Workspace:
    """Take a folder from a workspace; what is stored in the workspace stays."""
    return await home.constellation.workspaces.remove_root(workspace, path, author=home.caller.author)


@router.post("/workspaces/{workspace}/aliases", response_model=WORKSPACE)
async def add_alias(workspace: str, body: AliasRequest, home: ToWrite) -> Workspace:
    """Add what another system calls a workspace."""
    alias = WorkspaceAlias(body.system, body.alias)
    return await home.constellation.workspaces.add_alias(workspace, alias, author=home.caller.author)


@router.post("/workspaces/{workspace}/merge", response_model=WORKSPACE)
async def merge(workspace: str, body: WorkspaceMergeRequest, home: ToWrite) -> Workspace:
    """Merge a workspace into another one: everything of it belongs to that, and it is gone."""
    return await home.constellation.workspaces.merge(workspace, body.into, author=home.caller.author)


@router.get("/context", response_model=WorkspaceContext)
async def context(
    home: ToRead, workspace: Annotated[str, Query(description="A workspace: id, name or a folder.")]
) -> object:
    """Show what is remembered of a workspace as a block for a program's prompt; one without rows for no workspace."""
    return {"text": await memory_of(home.constellation, workspace)}
