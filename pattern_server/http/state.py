"""What the routes have at hand: the parts of the server, handed to the application once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import trio
from fastapi import Depends, Request

from pattern_core.runtime import Runtime
from pattern_server.accounts import Accounts, Principal
from pattern_server.config import Config
from pattern_server.constellations import Constellations
from pattern_server.metrics import Metrics
from pattern_server.supervisor import Supervisor

if TYPE_CHECKING:
    from pattern_core.constellation import Constellation


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """The parts of a running server. `answers` counts responses by status class ("2xx" …)."""

    config: Config
    accounts: Accounts
    constellations: Constellations
    supervisor: Supervisor[Constellation]
    runtime: Runtime
    draining: trio.Event
    started_at: str
    answers: Counter[str] = field(default_factory=Counter)
    metrics: Metrics = field(default_factory=Metrics)


async def _server(request: Request) -> ServerState:
    state: ServerState = request.app.state.server
    return state


async def _caller(request: Request) -> Principal:
    principal: Principal = request.state.principal  # set at the border, before any route is looked for
    return principal


Server = Annotated[ServerState, Depends(_server)]
Caller = Annotated[Principal, Depends(_caller)]
