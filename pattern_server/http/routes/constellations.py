"""Constellations: making, finding, renaming, copying, resuming and deleting them, and who one is."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import Response

from pattern_core.errors import InvalidInput
from pattern_core.halt import HaltRow
from pattern_server.accounts import SCOPES, Constellation, Principal
from pattern_server.constellations import Copy
from pattern_server.http.bodies import Paged, RequestModel, answer_of, fields_with, page_of
from pattern_server.http.routing import MayAdminister, MayRead, MayWrite, Router, Server, ServerState, ToRead, ToWrite

router = Router(tags=["constellations"])

ME = answer_of(Principal, "user_id username is_admin scopes constellation_id", scopes=list[str])
# `state` is parked, starting, awake, restarting, parking or quarantined; `reason` says why.
CONSTELLATION = answer_of(
    Constellation, "id name owner_id state reason created_at last_accessed_at", state=str, reason=str | None
)
# Without a halt, `halted` is false and the rest null.
_HALT = "id agent_id agent_name turn_id at severity reason"
HALT = answer_of(HaltRow, f"halted {_HALT}", halted=bool, **dict.fromkeys(_HALT.split(), str | None))


class ConstellationRequest(RequestModel):
    """A constellation to make or rename."""

    name: str


class RestoreRequest(RequestModel):
    """A copy, by its path on the server's machine, and the name of the constellation to make from it."""

    file: str
    name: str


@router.get("/me", response_model=ME)
async def me(caller: MayRead) -> object:
    """Whose token this is, and what it may do."""
    return fields_with(caller, scopes=[scope for scope in SCOPES if scope in caller.scopes])


@router.get("/constellations", response_model=page_of(CONSTELLATION))
async def list_all(server: Server, caller: MayRead, paging: Paged) -> object:
    """Your constellations by name; for administrators everybody's."""
    page = paging.of_all(await server.accounts.constellations_of(caller), lambda row: (row.name, row.id))
    return {**page, "items": [_answer(server, row) for row in page["items"]]}


@router.post("/constellations", status_code=201, response_model=CONSTELLATION)
async def create(body: ConstellationRequest, server: Server, caller: MayWrite, response: Response) -> object:
    """Make an empty constellation."""
    return _made(server, await server.constellations.create(caller, body.name), response)


@router.post("/constellations/restore", status_code=201, response_model=CONSTELLATION)
async def restore(body: RestoreRequest, server: Server, caller: MayAdminister, response: Response) -> object:
    """Make a constellation from a copy on the server's machine."""
    path = Path(body.file)
    if not path.is_absolute() or "\0" in body.file:
        raise InvalidInput("`file` is an absolute path on the server's machine")
    return _made(server, await server.constellations.restore(caller, path, body.name), response)


@router.get("/constellations/{c}", response_model=CONSTELLATION)
async def show(c: str, server: Server, caller: MayRead) -> object:
    """One constellation, by id or name."""
    return _answer(server, await server.accounts.constellation_for(caller, c))


@router.patch("/constellations/{c}", response_model=CONSTELLATION)
async def rename(c: str, body: ConstellationRequest, server: Server, caller: MayWrite) -> object:
    """Give a constellation another name."""
    return _answer(server, await server.constellations.rename(caller, c, body.name))


@router.delete("/constellations/{c}", status_code=204)
async def delete(c: str, server: Server, caller: MayWrite) -> None:
    """Delete a constellation with all its agents and everything that they remember. Only a backup brings it back."""
    await server.constellations.delete(caller, c)


@router.get("/constellations/{c}/halt", response_model=HALT)
async def show_halt(home: ToRead) -> object:
    """Whether an agent halted everything, and why."""
    halt = home.constellation.halt.current
    return dict.fromkeys(_HALT.split()) | {"halted": False} if halt is None else fields_with(halt, halted=True)


@router.post("/constellations/{c}/resume", response_model=HALT)
async def resume(home: ToWrite) -> object:
    """Let a halted constellation continue; the answer is the halt that ends."""
    return fields_with(await home.constellation.resume(by=home.caller.author), halted=False)


@router.post("/constellations/{c}/backup", status_code=201)
async def copy(c: str, server: Server, caller: MayWrite) -> Copy:
    """Copy the constellation, while it works, into the server's `backups` folder; the copy is verified."""
    return await server.constellations.copy(caller, c)


@router.post("/backup", status_code=201)
async def copy_registry(server: Server, caller: MayAdminister) -> Copy:
    """Copy users, tokens and the list of constellations into the server's `backups` folder; the copy is verified."""
    return await server.constellations.copy_registry(caller)


def _made(server: ServerState, row: Constellation, response: Response) -> dict[str, Any]:
    response.headers["location"] = f"/api/v1/constellations/{quote(row.id)}"
    return _answer(server, row)


def _answer(server: ServerState, row: Constellation) -> dict[str, Any]:
    state, reason = server.supervisor.state_of(row.id)
    return fields_with(row, state=state, reason=reason)
