"""Backups: make, list and download copies, restore from them."""

from __future__ import annotations

from typing import Any

import trio
from fastapi import Response
from fastapi.responses import StreamingResponse

from pattern_core.errors import PermissionDenied
from pattern_db.backup import Report
from pattern_server.backups import REGISTRY, KeptCopy, kept, kept_copies, verified
from pattern_server.constellations import Copy
from pattern_server.http.bodies import Paged, Paging, RequestModel, answer_of, fields_with, file_here, page_of, streamed
from pattern_server.http.routes.constellations import CONSTELLATION, answer_made
from pattern_server.http.routing import MayAdminister, MayRead, MayWrite, Router, Server, ServerState

router = Router(tags=["constellations"])

KEPT = answer_of(KeptCopy, "id file path name created_at schema_version size sha256 rows", "KeptBackup", path=str)
CHECKED = answer_of(Report, "constellation_id version rows bytes", "CheckedBackup")
_SQLITE = "application/vnd.sqlite3"
_FILE: dict[int | str, Any] = {200: {"content": {_SQLITE: {"schema": {"type": "string", "format": "binary"}}}}}


class RestoreRequest(RequestModel):
    """The backup, and the name of the constellation to create from it.

    With `migrate`, a constellation made from an older server's backup is migrated; the backup stays as it is.
    """

    file: str
    name: str
    migrate: bool = False


class BackupRequest(RequestModel):
    """A backup: its path on the server's machine."""

    file: str


@router.post("/constellations/{c}/backup", status_code=201)
async def backup(c: str, server: Server, caller: MayWrite) -> Copy:
    """Back up a constellation: a verified copy in the server's folder `backups`, while it works."""
    return await server.constellations.copy(caller, c)


@router.post("/backup", status_code=201)
async def backup_registry(server: Server, _caller: MayAdminister) -> Copy:
    """Back up users, tokens and the list of constellations; only for administrators."""
    return await server.constellations.copy_registry()


@router.get("/constellations/{c}/backups", response_model=page_of(KEPT))
async def list_backups(c: str, server: Server, caller: MayRead, paging: Paged) -> object:
    """List scheduled backups of a constellation: verified copies that the server made by itself, oldest first."""
    found = await server.accounts.constellation_for(caller, c)
    there = await trio.to_thread.run_sync(kept, server.backups.folder / found.id)
    return _page(server, there, paging)


@router.get("/backups", response_model=page_of(KEPT))
async def list_all_backups(server: Server, _caller: MayAdminister, paging: Paged) -> object:
    """List all scheduled backups: by constellation, also of deleted ones and of users and tokens (`global`), oldest
    first; only for administrators.
    """
    return _page(server, await trio.to_thread.run_sync(kept_copies, server.backups.folder), paging)


@router.get("/constellations/{c}/backups/{file}", response_class=StreamingResponse, responses=_FILE)
async def download_backup(c: str, file: str, server: Server, caller: MayWrite) -> StreamingResponse:
    """Download a backup of a constellation: scheduled or asked for, by the name of its file."""
    found = await server.accounts.constellation_for(caller, c)
    return streamed(server.backups.path_of(found.id, file), _SQLITE)


@router.get("/backups/{file}", response_class=StreamingResponse, responses=_FILE)
async def download_registry(file: str, server: Server, _caller: MayAdminister) -> StreamingResponse:
    """Download a backup of users, tokens and the list of constellations; only for administrators."""
    return streamed(server.backups.path_of(REGISTRY, file), _SQLITE)


@router.post("/constellations/restore", status_code=201, response_model=CONSTELLATION)
async def restore(body: RestoreRequest, server: Server, caller: MayAdminister, response: Response) -> object:
    """Restore a constellation from a backup file on the server's machine; only for administrators."""
    path = file_here(body.file)
    return answer_made(
        server, await server.constellations.restore(caller, path, body.name, migrate=body.migrate), response
    )


@router.post("/constellations/restore/check", response_model=CHECKED)
async def check_backup(body: BackupRequest, _server: Server, _caller: MayAdminister) -> object:
    """Check a backup: read the whole file, restore nothing; only for administrators."""
    return await trio.to_thread.run_sync(verified, file_here(body.file))


@router.post("/constellations/{c}/restore", response_model=CHECKED)
async def put_back(c: str, body: BackupRequest, server: Server, caller: MayWrite) -> object:
    """Put a constellation back to a backup of it: everything after the backup is undone.

    A copy of the present state is made first, and the present file stays next to
    the new one. Schedules and reminders are paused. `file` may also be the name of a copy; a path is for administrators
    only.
    """
    found = await server.accounts.constellation_for(caller, c)
    if "/" not in body.file:
        return await server.backups.restore(found, server.backups.path_of(found.id, body.file))
    if not caller.reaches_all:
        raise PermissionDenied("only an administrator may name a path; send the name of a copy that is listed")
    return await server.backups.restore(found, file_here(body.file))


def _page(server: ServerState, there: list[KeptCopy], paging: Paging) -> object:
    page = paging.of_all(there, lambda one: (one.id, one.created_at))
    folder = server.backups.folder.absolute()
    return {**page, "items": [fields_with(one, path=str(folder / one.id / one.file)) for one in page["items"]]}
