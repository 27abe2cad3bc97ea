"""Constellations: making, finding, renaming and deleting them, and who one is."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from fastapi import Response

from pattern_core.errors import InvalidInput
from pattern_server.accounts import SCOPES, Constellation
from pattern_server.http.bodies import (
    ConstellationAsked,
    ConstellationTold,
    Cursor,
    MeTold,
    Page,
    PageLimit,
    RestoreAsked,
    page_of,
)
from pattern_server.http.routing import MayAdminister, MayRead, MayWrite, Router, Server, ServerState

router = Router(tags=["constellations"])


@router.get("/me")
async def me(caller: MayRead) -> MeTold:
    """Whose token this is, and what it may do."""
    return MeTold(
        user_id=caller.user_id,
        username=caller.username,
        is_admin=caller.is_admin,
        scopes=[scope for scope in SCOPES if scope in caller.scopes],
        constellation_id=caller.constellation_id,
    )


@router.get("/constellations", response_model=Page[ConstellationTold])
async def list_all(server: Server, caller: MayRead, limit: PageLimit = 100, cursor: Cursor = None) -> object:
    """Your constellations by name; for administrators everybody's."""
    page = page_of(await server.constellations.all(caller), _place, limit, cursor)
    return {**page, "items": [_told(server, row) for row in page["items"]]}


@router.post("/constellations", status_code=201, response_model=ConstellationTold)
async def create(body: ConstellationAsked, server: Server, caller: MayWrite, response: Response) -> object:
    """Make an empty constellation."""
    caller.require_unbound()
    made = await server.constellations.create(caller, body.name)
    response.headers["location"] = _address(made)
    return _told(server, made)


@router.post("/constellations/restore", status_code=201, response_model=ConstellationTold)
async def restore(body: RestoreAsked, server: Server, caller: MayAdminister, response: Response) -> object:
    """Make a constellation from a copy that lies on the server's machine."""
    path = Path(body.file)
    if not path.is_absolute() or "\0" in body.file:
        raise InvalidInput("`file` is an absolute path on the server's machine")
    made = await server.constellations.restore(caller, path, body.name)
    response.headers["location"] = _address(made)
    return _told(server, made)


@router.get("/constellations/{c}", response_model=ConstellationTold)
async def show(c: str, server: Server, caller: MayRead) -> object:
    """One constellation, by id or name."""
    return _told(server, await server.constellations.find(caller, c))


@router.patch("/constellations/{c}", response_model=ConstellationTold)
async def rename(c: str, body: ConstellationAsked, server: Server, caller: MayWrite) -> object:
    """Give a constellation another name."""
    return _told(server, await server.constellations.rename(caller, c, body.name))


@router.delete("/constellations/{c}", status_code=204)
async def delete(c: str, server: Server, caller: MayWrite) -> None:
    """Delete a constellation with all its agents and everything that they remember. Only a backup brings it back."""
    await server.constellations.delete(caller, c)


def _told(server: ServerState, row: Constellation) -> ConstellationTold:
    state, reason = server.supervisor.state_of(row.id)
    return ConstellationTold(
        id=row.id,
        name=row.name,
        owner_id=row.owner_id,
        state=state,
        reason=reason,
        created_at=row.created_at,
        last_accessed_at=row.last_accessed_at,
    )


def _place(row: Constellation) -> tuple[str, str]:
    return row.name, row.id


def _address(row: Constellation) -> str:
    return f"/api/v1/constellations/{quote(row.id)}"
