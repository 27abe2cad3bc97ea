"""Hot, verified copies of a constellation."""

from __future__ import annotations

from fastapi import APIRouter

from pattern_server.http.auth import demand
from pattern_server.http.bodies import BackupTold
from pattern_server.http.request_body import StrictRoute
from pattern_server.http.state import Caller, Server

router = APIRouter(prefix="/constellations/{c}/backup", tags=["backup"], route_class=StrictRoute)


@router.post("", dependencies=[demand("write")], status_code=201)
async def copy(c: str, server: Server, caller: Caller) -> BackupTold:
    """Copy the constellation, while it works, into the server's `backups` folder; the copy is verified."""
    made = await server.constellations.copy(caller, c)
    return BackupTold(path=str(made.path), size=made.size, sha256=made.sha256)
