"""Archives: constellations, agents and groups as files for other servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio
from fastapi import Response
from fastapi.responses import StreamingResponse

from pattern_core.errors import InvalidInput, NotFound
from pattern_core.portable import Kind, Manifest, verify
from pattern_server import portable
from pattern_server.constellations import Copy
from pattern_server.http.bodies import RequestModel, answer_of, fields_with, streamed
from pattern_server.http.routes.constellations import CONSTELLATION, answer_made
from pattern_server.http.routing import MayAdminister, MayWrite, Router, Server

router = Router(prefix="/constellations", tags=["constellations"])

MANIFEST = answer_of(Manifest, "kind name exported_at schema_version rows blocks bytes cut")
EXPORT = answer_of(Copy, "path size sha256", "Export", manifest=MANIFEST)
_CAR = "application/vnd.ipld.car"
_FILE: dict[int | str, Any] = {200: {"content": {_CAR: {"schema": {"type": "string", "format": "binary"}}}}}


class ExportRequest(RequestModel):
    """What to export: the whole constellation, or the agent or group with this name or id."""

    kind: Kind = "constellation"
    name: str | None = None


class ImportRequest(RequestModel):
    """The archive, by its path on the server's machine, and the name of the new constellation; by default the archive's
    own.
    """

    file: str
    name: str | None = None


@router.post("/{c}/export", status_code=201, response_model=EXPORT)
async def export(c: str, body: ExportRequest, server: Server, caller: MayWrite) -> object:
    """Export an archive.

    Write an archive of the constellation, or of an agent or group with its members, into the constellation's folder
    `exports`, while it works. Keys, tokens, consent and what turns did step by step stay behind.
    """
    if (body.kind == "constellation") != (body.name is None):
        raise InvalidInput("`name` names the agent or group; leave it out for the whole constellation, else send it")
    copy, manifest = await portable.export(server.constellations, caller, c, body.kind, body.name)
    return fields_with(copy, manifest=manifest)


@router.get("/{c}/exports/{file}", response_class=StreamingResponse, responses=_FILE)
async def download(c: str, file: str, server: Server, caller: MayWrite) -> StreamingResponse:
    """Download an archive.

    Return an archive that was exported before, by the name of its file.
    """
    return streamed(await portable.exported(server.constellations, caller, c, file), _CAR)


@router.post("/import", status_code=201, response_model=CONSTELLATION)
async def import_archive(body: ImportRequest, server: Server, caller: MayAdminister, response: Response) -> object:
    """Import an archive.

    Create a constellation from an archive on the server's machine: all of it, or nothing. Its schedules are paused.
    Only for administrators.
    """
    return answer_made(
        server, await portable.import_archive(server.constellations, caller, _path(body.file), body.name), response
    )


@router.post("/import/check", response_model=MANIFEST)
async def check_archive(body: ImportRequest, server: Server, caller: MayAdminister) -> Any:
    """Check an archive.

    Read the whole archive and return what it says of itself; nothing is imported. Only for administrators.
    """
    return await trio.to_thread.run_sync(verify, _path(body.file))


def _path(file: str) -> Path:
    path = Path(file)
    if not path.is_absolute() or "\0" in file:
        raise InvalidInput("`file` is not an absolute path; send one of the server's machine")
    if not path.is_file():
        raise NotFound(f"there is no file {file} on the server's machine")
    return path
