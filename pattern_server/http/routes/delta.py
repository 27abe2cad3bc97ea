"""Delta's files as rows: imports into a workspace, and exports of it. `pattern import delta` reads the files."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import BaseModel

from pattern_core.delta import SYSTEM, Delta
from pattern_core.delta_files import LISTED_MAX, as_memories, export_delta, import_delta
from pattern_core.workspaces import WorkspaceAlias
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
    branch: str | None = None
    dry_run: bool = False


class DeltaImported(BaseModel):
    """What an import did, by table. A conflict was imported before and differs now: nothing was overwritten."""

    workspace: str | None
    added: dict[str, int]
    present: dict[str, int]
    conflicts: list[str]
    skipped: list[str]


class DeltaTables(BaseModel):
    """The rows of a workspace as Delta has them, by table."""

    tables: dict[str, Rows]


@router.post("/import", response_model=DeltaImported)
async def import_rows(body: DeltaImportRequest, home: ToWrite) -> object:
    """Import the rows of a file of Delta into a workspace: all of them in one transaction, each once."""
    workspaces, author = home.constellation.workspaces, home.caller.author
    alias = WorkspaceAlias(SYSTEM, body.source)
    known = await workspaces.called(alias)
    given = body.workspace or known or body.source.removesuffix(f"-{body.branch}")
    workspace = await home.known_workspace(given) if body.dry_run else await home.find_workspace(given, is_written=True)
    delta = Delta(constellation=home.constellation, workspace=workspace or "", author=author, branch=body.branch)
    done = await import_delta(delta, body.tables, source=body.source, version=body.version, is_dry=body.dry_run)
    if workspace and known is None and not body.dry_run:
        await workspaces.add_alias(workspace, alias, author=author)
    return {
        "workspace": workspace or None,
        "added": done.added,
        "present": done.present,
        "conflicts": done.conflicts[:LISTED_MAX],
        "skipped": done.skipped[:LISTED_MAX],
    }


@router.get("/export", response_model=DeltaTables)
async def export_rows(
    home: ToRead,
    workspace: Annotated[str, Query(description="A workspace: id, name or a folder.")],
    version: Annotated[Literal["v1", "v4"], Query(description="The tables of v1, or of v4.")] = "v1",
) -> object:
    """Export a workspace as rows of Delta's tables; those of v4 have no tasks."""
    found = await home.constellation.workspaces.find(workspace)
    tables = await export_delta(Delta(constellation=home.constellation, workspace=found.id, author=""))
    if version == "v4":
        return {"tables": as_memories(tables)}
    episodes = [{name: value for name, value in row.items() if name != "importance"} for row in tables["episodes"]]
    return {"tables": {**tables, "episodes": episodes}}
