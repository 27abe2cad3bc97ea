"""Hot, verified copies of a constellation, and of the users and tokens."""

from __future__ import annotations

from pattern_server.http.auth import demand
from pattern_server.http.bodies import BackupTold
from pattern_server.http.postponed import Router
from pattern_server.http.state import Caller, Server

router = Router(tags=["backup"])


@router.post("/constellations/{c}/backup", dependencies=[demand("write")], status_code=201)
async def copy(c: str, server: Server, caller: Caller) -> BackupTold:
    """Copy the constellation, while it works, into the server's `backups` folder; the copy is verified."""
    made = await server.constellations.copy(caller, c)
    return BackupTold(path=str(made.path), size=made.size, sha256=made.sha256)


@router.post("/backup", dependencies=[demand("admin")], status_code=201)
async def copy_registry(server: Server, caller: Caller) -> BackupTold:
    """Copy users, tokens and the list of constellations into the server's `backups` folder; the copy is verified."""
    made = await server.constellations.copy_registry(caller)
    return BackupTold(path=str(made.path), size=made.size, sha256=made.sha256)
