"""Why a turn's model was shown what it was shown."""

from __future__ import annotations

from pattern_core.prompts.explain import explain
from pattern_server.http.bodies import Told
from pattern_server.http.routing import MayRead, Router, Server

router = Router(prefix="/constellations/{c}/turns/{t}/prompt", tags=["turns"])


class PartTold(Told):
    """A part of a prompt. `text` is how it begins, null if that cannot be told any more; `note` then says why.

    `tokens` is an estimate; `version` is that of a memory block.
    """

    kind: str
    place: str
    name: str
    ref: str
    version: int | None
    tokens: int
    reason: str
    text: str | None
    note: str | None


class ShownHistoryTold(Told):
    """The messages that were shown: positions of the first and last (empty for none), and an estimate of tokens."""

    first: str
    last: str
    count: int
    tokens: int


class ShownToolsTold(Told):
    """The tools that were offered, and an estimate of their tokens."""

    count: int
    tokens: int


class StepPromptTold(Told):
    """What one model call was shown. `tokens` is what the vendor counted, or with `is_estimate` an estimate.

    `is_known` is false for steps from before prompts were noted.
    """

    step: int
    attempt: int
    status: str
    provider: str
    model: str
    started_at: str
    window: int
    tokens: int
    is_estimate: bool
    cached_tokens: int
    tools: ShownToolsTold
    history: ShownHistoryTold
    parts: list[PartTold]
    left_out: list[PartTold]
    notes: list[str]
    is_known: bool


class TurnPromptTold(Told):
    """A turn's model calls, every attempt, in order."""

    turn_id: str
    agent_id: str
    steps: list[StepPromptTold]


@router.get("", response_model=TurnPromptTold)
async def show(c: str, t: str, server: Server, caller: MayRead) -> object:
    """What each model call of a turn was shown and why, and what was left out for lack of room.

    Texts are made again from the rows that they came from, at the versions that were shown.
    """
    async with server.constellations.use(caller, c) as constellation:
        return await explain(constellation.database, constellation.history, t)
