"""Files of other programs in and out: those of Delta, Delia and Codepilot, and files of decisions.

A POST has what a GET returns: the rows of a database by table, the texts of a folder by path, or the lines of a file as
they are. `pattern import` and `pattern export` read and write the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, TypeAdapter, ValidationError

from pattern_core.chat_files import export_chats, import_chats
from pattern_core.decision_files import export_decisions, import_decisions
from pattern_core.delia import Delia, export_folder, import_folder
from pattern_core.delta import Delta
from pattern_core.delta_files import LISTED_MAX, FileImport, Row, Version, export_delta, import_delta, place_of
from pattern_core.errors import InvalidInput
from pattern_server.http.routes.chat import agent_of
from pattern_server.http.routing import Router, ToRead, ToWrite

router = Router(prefix="/constellations/{c}/programs", tags=["programs"])

T = TypeVar("T")
Program = Literal["codepilot", "decisions", "delia", "delta"]
_TABLES, _TEXTS = TypeAdapter(dict[str, list[Row]]), TypeAdapter(dict[str, str])
_JSON, _LINES = "application/json", "application/octet-stream"
_BODY: dict[str, Any] = {_JSON: {"schema": {"type": "object"}}}
_BODY |= {_LINES: {"schema": {"type": "string", "format": "binary"}}}


class ProgramImported(BaseModel):
    """What an import did, by table or file. A conflict was changed here and in the file: nothing was overwritten."""

    workspace: str | None
    agent: str | None
    added: Mapping[str, int]
    updated: Mapping[str, int]
    present: Mapping[str, int]
    conflicts: list[str]
    skipped: list[str]
    outgoing: list[str]


@router.post("/{program}", response_model=ProgramImported, openapi_extra={"requestBody": {"content": _BODY}})
async def import_file(
    program: Program,
    request: Request,
    home: ToWrite,
    workspace: Annotated[
        str | None, Query(description="A workspace: id, name or a folder; of Delta by default as the file's folder.")
    ] = None,
    source: Annotated[str, Query(description="What the file is called; of Delta its folder.")] = "",
    version: Annotated[str, Query(description="Of Delta: that of the tables.")] = "",
    agent: Annotated[str | None, Query(description="Of Codepilot: who gets the sessions; else the oldest.")] = None,
    trust: Annotated[bool, Query(description="Guidance is active at once; important decisions stay so.")] = False,
    force: Annotated[bool, Query(description="Also playbooks of a newer version.")] = False,
    dry_run: Annotated[bool, Query(description="Import nothing.")] = False,
    sync: Annotated[bool, Query(description="Return the lines that a file of decisions has to have.")] = False,
) -> object:
    """Import a file of another program, each row once; what was changed only in the file is changed here, too."""
    data, core, author = await request.body(), home.constellation, home.caller.author
    rows = await _read(_TABLES, request) if program in ("codepilot", "delta") else {}
    texts = await _read(_TEXTS, request) if program == "delia" else {}
    if program == "codepilot":
        owner = await agent_of(core, agent)
        done = await import_chats(core.storage, owner.id, rows, source=source, author=author, is_dry=dry_run)
        return _answer(done, agent=owner.name)
    branch = None
    if program == "delta":
        workspace, _known, branch = await place_of(core.workspaces, workspace, source, version)
    named = _named(workspace)
    into = await (home.known_workspace(named) if dry_run else home.find_workspace(named, is_written=True)) or ""
    if program == "delta":
        delta = Delta(constellation=core, workspace=into, author=author, branch=branch)
        done = await import_delta(delta, rows, source=source, version=version, is_dry=dry_run)
    elif program == "delia":
        settings = home.server.config.embeddings
        delia = Delia(core, into, author, settings.model or settings.provider)
        done = await import_folder(delia, texts, is_trusted=trust, is_forced=force, is_dry=dry_run)
    else:
        about: dict[str, Any] = {"author": author, "source": source, "on_new": core.decisions.on_new}
        done = await import_decisions(core.storage, into, data, **about, is_trusted=trust, is_dry=dry_run)
    return _answer(done, workspace=into or None, outgoing=[line.decode() for line in done.outgoing] if sync else [])


@router.get("/{program}", response_class=Response, responses={200: {"content": _BODY}})
async def export_file(
    program: Program,
    home: ToRead,
    workspace: Annotated[str | None, Query(description="A workspace: id, name or a folder. Not of Codepilot.")] = None,
    version: Annotated[Version, Query(description="Of Delta: the tables of v1, or of v4, which has no tasks.")] = "v1",
) -> Response:
    """Export what a program calls its own; what was imported and not changed is as it came."""
    core, author = home.constellation, home.caller.author
    if program == "codepilot":
        return JSONResponse(await export_chats(core.storage))
    into = await home.find_workspace(_named(workspace)) or ""
    if program == "decisions":
        return Response(await export_decisions(core.storage, into), media_type=_LINES)
    if program == "delia":
        return JSONResponse(await export_folder(Delia(core, into, author)))
    return JSONResponse(await export_delta(Delta(constellation=core, workspace=into, author=author), version))


def _answer(done: FileImport, **more: object) -> object:
    listed = {"conflicts": done.conflicts[:LISTED_MAX], "skipped": done.skipped[:LISTED_MAX], "outgoing": []}
    return {"workspace": None, "agent": None, **vars(done), **listed, **more}


def _named(workspace: str | None) -> str:
    if workspace is None:
        raise InvalidInput("name the project: `workspace` is an id, a name or a folder")
    return workspace


async def _read(kind: TypeAdapter[T], request: Request) -> T:
    try:
        return kind.validate_python(await request.json(), strict=True)
    except ValueError as error:  # pydantic's is one
        why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise InvalidInput(f"the body is neither rows by table nor texts by path: {why}") from None
