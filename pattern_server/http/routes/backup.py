"""Hot, verified copies of a constellation, and of the users and tokens."""

from __future__ import annotations

from pattern_server.http.bodies import BackupTold
from pattern_server.http.routing import MayAdminister, MayWrite, Router, Server

router = Router(tags=["backup"])


@router.post("/constellations/{c}/backup", status_code=201)
async def copy(c: str, server: Server, caller: MayWrite) -> BackupTold:
    """Copy the constellation, while it works, into the server's `backups` folder; the copy is verified."""
    made = await server.constellations.copy(caller, c)
    return BackupTold(path=str(made.path), size=made.size, sha256=made.sha256)


@router.post("/backup", status_code=201)
async def copy_registry(server: Server, caller: MayAdminister) -> BackupTold:
    """Copy users, tokens and the list of constellations into the server's `backups` folder; the copy is verified."""
    made = await server.constellations.copy_registry(caller)
    return BackupTold(path=str(made.path), size=made.size, sha256=made.sha256)
