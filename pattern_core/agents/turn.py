"""One turn: ask the model, run the tools that it asks for, ask again, until it asks for none."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from pattern_core.agents.active import COMPLETED, ActiveTurn
from pattern_core.agents.calls import Planned, act, plan
from pattern_core.agents.prompt import Prompt
from pattern_core.agents.rows import step_row
from pattern_core.agents.services import TurnServices
from pattern_core.clock import now_text
from pattern_core.errors import LimitReached
from pattern_core.events import Draft
from pattern_core.limits import Limits
from pattern_core.models.client import was_shown
from pattern_core.models.errors import ModelError
from pattern_core.models.model import Delta, ModelReply, TextDelta
from pattern_core.models.tokens import estimate_usage


async def run_turn(services: TurnServices, turn: ActiveTurn, prompt: Prompt) -> None:
    """Work from an open step to the turn's end, or to a step border if the constellation drains.

    Every decision is stored before it is acted on, so that a crash loses at most one model call.

    Raises:
        ModelError: the provider failed for good.
        LimitReached: one of the turn's bounds was met.
    """
    following: Prompt | None = prompt
    while following is not None:
        calls = await ask(services, turn, following)
        if not calls:
            return
        following = await go_on(services, turn, calls)


async def go_on(services: TurnServices, turn: ActiveTurn, calls: Sequence[Planned]) -> Prompt | None:
    """Run the decided calls and open the next step; None at a step border while the constellation drains.

    Raises:
        LimitReached: the calls or the next step would be one too many.
    """
    limits = services.limits.turn
    turn.calls += len(calls)
    if turn.calls > limits.tool_calls_max:
        raise LimitReached(f"the turn asked for more than {limits.tool_calls_max} tool calls")
    if turn.step >= limits.steps_max:
        raise LimitReached(f"the turn took {limits.steps_max} steps and wants more")
    return await act(services, turn, calls)


async def ask(services: TurnServices, turn: ActiveTurn, prompt: Prompt) -> list[Planned]:
    """Ask the model and store its decision; return the calls that it planned, none if the turn ended.

    An answer that breaks off in the middle is superseded by another attempt, for clients to drop what they showed.

    Raises:
        ModelError: the provider failed for good.
    """
    while True:
        writer = DeltaWriter(services, turn)
        try:
            reply = await services.models.ask(
                prompt.request, turn.agent.model_provider, writer.on_delta, deadline=turn.deadline
            )
        except ModelError as error:
            if not (error.retryable and was_shown(error) and turn.attempt < services.limits.turn.attempts_max):
                raise
            dead = step_row(turn, prompt, now_text(services.clock))
            turn.attempt += 1
            await services.journal.open_step(turn, prompt, dead=dead, spent=estimate_usage(prompt.request, ()))
            continue
        return await _decide(services, turn, reply, writer)


async def _decide(services: TurnServices, turn: ActiveTurn, reply: ModelReply, writer: DeltaWriter) -> list[Planned]:
    planned = plan(services, turn, reply)
    await services.journal.decide(
        turn, reply, [one.row for one in planned], ending=None if planned else COMPLETED, rest=writer.rest()
    )
    return planned


class DeltaWriter:
    """Stores an answer's pieces as it arrives: the first at once, then what came within a tenth of a second.

    An answer that comes whole is not stored in pieces; its message is the event.
    """

    def __init__(self, services: TurnServices, turn: ActiveTurn) -> None:
        self._journal = services.journal
        self._limits: Limits = services.limits
        self._turn = turn
        self._waiting: list[tuple[str, str]] = []
        self._chars = 0
        self._flushed_at = float("-inf")

    async def on_delta(self, delta: Delta) -> None:
        """Take a piece; store what has gathered if it is time."""
        name = "text.delta" if isinstance(delta, TextDelta) else "reasoning.delta"
        self._waiting.append((name, delta.text))
        self._chars += len(delta.text)
        due = self._flushed_at + self._limits.delta_flush_s
        if trio.current_time() >= due or self._chars >= self._limits.delta_flush_chars:
            await self._journal.stream(self._turn, self._take())
            self._flushed_at = trio.current_time()

    def rest(self) -> list[Draft]:
        """The pieces that were not stored yet, to be stored with the decision."""
        return self._take()

    def _take(self) -> list[Draft]:
        merged: list[tuple[str, list[str]]] = []
        for name, text in self._waiting:
            if merged and merged[-1][0] == name:
                merged[-1][1].append(text)
            else:
                merged.append((name, [text]))
        self._waiting, self._chars = [], 0
        place = {"step": self._turn.step, "attempt": self._turn.attempt}
        return [Draft(name, {**place, "text": "".join(texts)}) for name, texts in merged]
