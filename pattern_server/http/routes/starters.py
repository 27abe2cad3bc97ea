"""New constellations, empty or from a starter: agents with their memory, groups and schedules."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache, partial
from typing import TYPE_CHECKING

from fastapi import Response
from pydantic import Field

from pattern_core.errors import InvalidInput
from pattern_core.memory.block import Attribution
from pattern_db.enums import CONSTELLATION_OWNER
from pattern_db.files import shipped
from pattern_server.accounts import Principal
from pattern_server.http.blocks import BlockCreateRequest, new_block
from pattern_server.http.bodies import RequestModel
from pattern_server.http.routes import agents as agent_routes
from pattern_server.http.routes import constellations as constellation_routes
from pattern_server.http.routes import groups as group_routes
from pattern_server.http.routes import schedules as schedule_routes
from pattern_server.http.routing import AwakeAccess, MayWrite, Router, Server, ServerState

if TYPE_CHECKING:
    from pattern_core.constellation import Constellation

router = Router(tags=["constellations"])


class StarterRequest(RequestModel):
    """What a constellation begins with: `memory` that all agents see, and agents, groups and schedules as in the
    requests that create them, which name agents and groups.
    """

    description: str = ""
    memory: list[BlockCreateRequest] = Field(default_factory=list)
    agents: list[agent_routes.AgentCreateRequest] = Field(default_factory=list)
    groups: list[group_routes.GroupCreateRequest] = Field(default_factory=list)
    schedules: list[schedule_routes.ScheduleCreateRequest] = Field(default_factory=list)


class ConstellationCreateRequest(RequestModel):
    """The constellation to create. `from` is the name of a starter, or a starter."""

    name: str
    starter: str | StarterRequest | None = Field(default=None, alias="from")


@router.post("/constellations", status_code=201, response_model=constellation_routes.CONSTELLATION)
async def create(body: ConstellationCreateRequest, server: Server, caller: MayWrite, response: Response) -> object:
    """Create a constellation, empty or with everything that is in a starter."""
    starter = starter_of(body.starter) if isinstance(body.starter, str) else body.starter
    fill = None if starter is None else partial(_fill, starter, server, caller)
    row = await server.constellations.create(caller, body.name, fill)
    return constellation_routes.answer_made(server, row, response)


async def _fill(starter: StarterRequest, server: ServerState, caller: Principal, constellation: Constellation) -> None:
    """Create what is in a starter, as requests do."""
    home = AwakeAccess(server, caller, constellation.id, constellation)
    for block in starter.memory:
        by = Attribution(author=caller.author)
        await constellation.memory.create(CONSTELLATION_OWNER, new_block(block, block.label), by=by)
    for agent in starter.agents:
        await agent_routes.create(agent, home, Response())
    for group in starter.groups:
        await group_routes.create(group, home, Response())
    for schedule in starter.schedules:
        await schedule_routes.create(schedule, home, Response())


@cache
def starters() -> Mapping[str, StarterRequest]:
    """Return the starters that come with Pattern, by name: the files of `data/starters`."""
    files = sorted(shipped("data/starters").glob("*.toml"))
    return {one.stem: StarterRequest.model_validate(tomllib.loads(one.read_text(encoding="utf-8"))) for one in files}


def starter_of(name: str) -> StarterRequest:
    """Return the starter of this name.

    Raises:
        InvalidInput: there is none; the message lists them.
    """
    if name not in starters():
        known = "".join(f"\n  {one}: {starter.description}" for one, starter in starters().items())
        raise InvalidInput(f"there is no starter {name!r}; there are:{known}")
    return starters()[name]
