"""Constellations: list, rename, resume and delete them; and the caller's identity."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Response
from pydantic import BaseModel, Field

from pattern_core.errors import InvalidInput
from pattern_core.halt import HaltRow
from pattern_db.journal.retention import Pruned
from pattern_server.accounts import SCOPES, Constellation, Principal
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
    """The name of a constellation."""

    name: str


class PruneRequest(RequestModel):
    """What to delete: data older than `days` (default: `limits.retention_days`). A `dry_run` only counts."""

    days: Annotated[int, Field(ge=0, le=100_000)] | None = None
    dry_run: bool = False


class VacuumResult(BaseModel):
    """How many bytes were freed; below 0 if rebuilding a damaged search index needed more."""

    freed_bytes: int


@router.get("/me", response_model=ME)
async def me(caller: MayRead) -> object:
    """Show the user that the token belongs to, and its scopes."""
    return fields_with(caller, scopes=[scope for scope in SCOPES if scope in caller.scopes])


@router.get("/constellations", response_model=page_of(CONSTELLATION))
async def list_all(server: Server, caller: MayRead, paging: Paged) -> object:
    """List your constellations by name; an administrator sees those of all users."""
    page = paging.of_all(await server.accounts.constellations_of(caller), lambda row: (row.name, row.id))
    return {**page, "items": [_answer(server, row) for row in page["items"]]}


@router.get("/constellations/{c}", response_model=CONSTELLATION)
async def get(c: str, server: Server, caller: MayRead) -> object:
    """Show a constellation and its state."""
    return _answer(server, await server.accounts.constellation_for(caller, c))


@router.patch("/constellations/{c}", response_model=CONSTELLATION)
async def rename(c: str, body: ConstellationRequest, server: Server, caller: MayWrite) -> object:
    """Rename a constellation; its id stays the same."""
    return _answer(server, await server.constellations.rename(caller, c, body.name))


@router.delete("/constellations/{c}", status_code=204)
async def delete(c: str, server: Server, caller: MayWrite) -> None:
    """Delete a constellation with its agents and their memory; only a backup can restore them."""
    await server.constellations.delete(caller, c)


@router.post("/constellations/{c}/fork", status_code=201, response_model=CONSTELLATION)
async def fork(
    c: str, body: ConstellationRequest, server: Server, caller: MayWrite, response: Response
) -> dict[str, Any]:
    """Fork a constellation: create one that begins with all it holds now.

    Both work on. In the new one turns that were open are cancelled, schedules, reminders and starts of tasks are paused
    until you resume them, and there are no webhooks, no consent that was given before, and no tokens of its own.
    """
    return answer_made(server, await server.constellations.fork(caller, c, body.name), response)


@router.get("/constellations/{c}/halt", response_model=HALT)
async def get_halt(home: ToRead) -> object:
    """Show whether the constellation is halted, by which agent, and why."""
    halt = home.constellation.halt.current
    return dict.fromkeys(_HALT.split()) | {"halted": False} if halt is None else fields_with(halt, halted=True)


@router.post("/constellations/{c}/resume", response_model=HALT)
async def resume(home: ToWrite) -> object:
    """Resume a halted constellation, and return the halt that was ended."""
    return fields_with(await home.constellation.resume(by=home.caller.author), halted=False)


@router.post("/constellations/{c}/vacuum", response_model=VacuumResult)
async def vacuum(c: str, server: Server, caller: MayWrite) -> object:
    """Vacuum a constellation that is not busy: rewrite its database and search indexes to free disk space."""
    return {"freed_bytes": await server.constellations.vacuum(caller, c)}


@router.post("/constellations/{c}/prune")
async def prune(home: ToWrite, body: PruneRequest | None = None) -> Pruned:
    """Delete old events, steps, tool calls and lists of prompts.

    Only data of turns that ended more than `days` ago is deleted. Messages, memory, the archive, usage and the turns
    themselves stay.
    """
    asked = body or PruneRequest()
    days = home.server.config.limits.retention_days if asked.days is None else asked.days
    if asked.days is None and not days:
        raise InvalidInput("limits.retention_days is 0, so nothing is deleted; send `days`, the number of days to keep")
    return await home.constellation.prune(days, dry_run=asked.dry_run)


@router.post("/vacuum", response_model=VacuumResult)
async def vacuum_registry(server: Server, caller: MayAdminister) -> object:
    """Vacuum the database of users, tokens and the list of constellations; only for administrators."""
    return {"freed_bytes": await server.accounts.database.vacuum()}


def answer_made(server: ServerState, row: Constellation, response: Response) -> dict[str, Any]:
    """Return the answer that shows a new constellation."""
    response.headers["location"] = f"/api/v1/constellations/{quote(row.id)}"
    return _answer(server, row)


def _answer(server: ServerState, row: Constellation) -> dict[str, Any]:
    state, reason = server.supervisor.state_of(row.id)
    return fields_with(row, state=state, reason=reason)
