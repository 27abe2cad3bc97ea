"""Decisions of workspaces, and their files in and out."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request, Response
from pydantic import BaseModel

from pattern_core.decision_files import KIND, export_decisions, import_decisions
from pattern_core.delta_files import LISTED_MAX
from pattern_server.http.routing import Router, ToRead, ToWrite

router = Router(prefix="/constellations/{c}/decisions", tags=["workspaces"])

_LINES: dict[str, Any] = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
Workspace = Annotated[str, Query(description="A workspace: id, name or a folder.")]


class DecisionsImported(BaseModel):
    """What an import did, in records. A conflict was changed here and in the file: nothing was overwritten."""

    workspace: str | None
    added: int
    updated: int
    present: int
    conflicts: list[str]
    skipped: list[str]


@router.post("/import", response_model=DecisionsImported, openapi_extra={"requestBody": {"content": _LINES}})
async def import_file(
    request: Request,
    home: ToWrite,
    workspace: Workspace,
    source: Annotated[str, Query(description="What the file is called.")] = "",
    trust: Annotated[bool, Query(description="Important decisions stay important.")] = False,
    dry_run: Annotated[bool, Query(description="Import nothing.")] = False,
) -> object:
    """Import decisions, a JSON object a line, into a workspace: all in one transaction, each once."""
    found = home.known_workspace(workspace) if dry_run else home.find_workspace(workspace, is_written=True)
    into = await found or ""
    author, data, storage = home.caller.author, await request.body(), home.constellation.storage
    done = await import_decisions(storage, into, data, author=author, source=source, is_trusted=trust, is_dry=dry_run)
    counts = {"added": done.added[KIND], "updated": done.updated[KIND], "present": done.present[KIND]}
    listed = {"conflicts": done.conflicts[:LISTED_MAX], "skipped": done.skipped[:LISTED_MAX]}
    return {"workspace": into or None, **counts, **listed}


@router.get("/export", response_class=Response, responses={200: {"content": _LINES}})
async def export_file(home: ToRead, workspace: Workspace) -> Response:
    """Export the decisions of a workspace as a file; what was imported and not changed has the same bytes."""
    found = await home.constellation.workspaces.find(workspace)
    data = await export_decisions(home.constellation.storage, found.id)
    return Response(data, media_type="application/octet-stream")
