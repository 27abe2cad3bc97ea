"""Delta's files as rows: imports into a workspace, and exports of it. `pattern import delta` reads the files."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from pydantic import BaseModel

from pattern_core.delta import Delta
from pattern_core.delta_files import LISTED_MAX, Version, export_delta, import_delta, place_of
from pattern_server.http.bodies import RequestModel
from pattern_server.http.routing import Router, ToRead, ToWrite

router = Router(prefix="/constellations/{c}/delta", tags=["workspaces"])

Rows = list[dict[str, Any]]


class DeltaImportRequest(RequestModel):
    """The rows of a file, by table, and the name of its folder. Without a workspace it is the one that Delta calls so,
    or one of that name without the branch.
    """

    source: str
    version: str
    tables: dict[str, Rows]
    workspace: str | None = None
    dry_run: bool = False


class DeltaImported(BaseModel):
    """What an import did, by table. A conflict was changed in the file and here: nothing was overwritten."""

    workspace: str | None
    added: dict[str, int]
    updated: dict[str, int]
    present: dict[str, int]
    conflicts: list[str]
    skipped: list[str]


class DeltaTables(BaseModel):
    """The rows of a workspace as Delta has them, by table."""

    tables: dict[str, Rows]


@router.post("/import", response_model=DeltaImported)
async def import_rows(body: DeltaImportRequest, home: ToWrite) -> object:
    """Import the rows of a file of Delta into a workspace: all of them in one transaction, each once."""
    core, author = home.constellation, home.caller.author
    name, workspace, branch = await place_of(core.workspaces, body.workspace, body.source, body.version)
    if not body.dry_run:
        workspace = await home.find_workspace(name, is_written=True)
    delta = Delta(constellation=core, workspace=workspace or "", author=author, branch=branch)
    done = await import_delta(delta, body.tables, source=body.source, version=body.version, is_dry=body.dry_run)
    listed = {"conflicts": done.conflicts[:LISTED_MAX], "skipped": done.skipped[:LISTED_MAX]}
    return {**vars(done), **listed, "workspace": workspace}


@router.get("/export", response_model=DeltaTables)
async def export_rows(
    home: ToRead,
    workspace: Annotated[str, Query(description="A workspace: id, name or a folder.")],
    version: Annotated[Version, Query(description="The tables of v1, or of v4.")] = "v1",
) -> object:
    """Export a workspace as rows of Delta's tables; those of v4 have no tasks."""
    found = await home.constellation.workspaces.find(workspace)
    delta = Delta(constellation=home.constellation, workspace=found.id, author=home.caller.author)
    return {"tables": await export_delta(delta, version)}
