"""Whether an agent halted a constellation, and letting it go on."""

from __future__ import annotations

from dataclasses import asdict

from pattern_server.http.bodies import Told
from pattern_server.http.routing import MayRead, MayWrite, Router, Server

router = Router(prefix="/constellations/{c}", tags=["constellations"])


class HaltTold(Told):
    """A halt: who asked for it in which turn, when and why. Without one, `halted` is false and the rest null."""

    halted: bool
    id: str | None = None
    agent_id: str | None = None
    agent_name: str | None = None
    turn_id: str | None = None
    at: str | None = None
    severity: str | None = None
    reason: str | None = None


@router.get("/halt", response_model=HaltTold)
async def show(c: str, server: Server, caller: MayRead) -> object:
    """Whether an agent halted everything, and why."""
    async with server.constellations.use(caller, c) as constellation:
        halt = constellation.halt.current
    return HaltTold(halted=False) if halt is None else HaltTold.model_validate({"halted": True, **asdict(halt)})


@router.post("/resume", response_model=HaltTold)
async def resume(c: str, server: Server, caller: MayWrite) -> object:
    """Let a halted constellation go on; the answer is the halt that ends."""
    async with server.constellations.use(caller, c) as constellation:
        halt = await constellation.resume(by=caller.author)
    return HaltTold.model_validate({"halted": False, **asdict(halt)})
