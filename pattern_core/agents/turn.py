"""One turn: ask the model, run the tools that it asks for, ask again, until it asks for none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import trio

from pattern_core import images
from pattern_core.agents.acting import act, open_first
from pattern_core.agents.active import COMPLETED, ActiveTurn
from pattern_core.agents.calls import Planned, forced_call, plan
from pattern_core.agents.judging import exit_of, offer_of, state_of
from pattern_core.agents.prompting import SQUEEZES_MAX, squeeze
from pattern_core.agents.rows import asking_of, step_row
from pattern_core.agents.services import TurnServices
from pattern_core.budgets.turn_budget import TurnUse
from pattern_core.clock import now_text
from pattern_core.events import Draft
from pattern_core.limits import Limits
from pattern_core.messages import Part, Reasoning, Text, ToolCall
from pattern_core.models.errors import ModelError, ModelRejected, WindowExceeded, was_shown
from pattern_core.models.fallback import Move
from pattern_core.models.model import Delta, ModelReply, TextDelta, Usage
from pattern_core.models.tokens import estimate_usage
from pattern_core.prompts.prompt import Prompt
from pattern_core.rules.offer import added


async def run_turn(services: TurnServices, turn: ActiveTurn, prompt: Prompt | None) -> None:
    """Work from an open step (or, without a prompt, from before the first) to the turn's end, or to a step border if
    the constellation drains or a person must answer first.

    Every decision is stored before it is acted on, so that a crash loses at most one model call.

    Raises:
        ModelError: the provider failed for good.
        LimitReached: one of the turn's bounds or a budget was met, or the agent goes in circles.
        TurnStopped: somebody wished that it goes no further.
    """
    following: Prompt | None = prompt or await open_first(services, turn)
    while following is not None:
        calls = await ask(services, turn, following)
        if calls is None:
            return
        following = await go_on(services, turn, calls)


async def go_on(services: TurnServices, turn: ActiveTurn, calls: Sequence[Planned]) -> Prompt | None:
    """Run the decided calls and open the next step; None if there is no next step, or not now.

    Raises:
        LimitReached: the calls or the next step would be one too many.
    """
    bounds = turn.settings.limits.over(services.limits.turn)
    bounds.check(
        TurnUse(
            steps=turn.step + 1,
            tool_calls=len(turn.log),
            children=turn.children,
            output_chars=turn.output_chars,
        )
    )
    return await act(services, turn, calls)


async def ask(services: TurnServices, turn: ActiveTurn, prompt: Prompt) -> list[Planned] | None:
    """Ask the model and store its decision; return the calls that it planned, None if the turn ended.

    An answer that breaks off in the middle is superseded by another attempt, for clients to drop what they showed; so
    is a prompt that turns out too long for the model, after more room was made.

    Raises:
        ModelError: the provider failed for good.
    """
    while True:
        writer = DeltaWriter(services, turn)
        turn.step_began_ms = services.clock.now_ms()
        try:
            reply = await _answer(services, turn, prompt, writer)
        except ModelError as error:
            prompt = await _another_attempt(services, turn, prompt, error)
            continue
        if asking_of(turn).index == 0:  # the prompt was counted for the model that is asked first
            services.prompts.learn(turn, prompt, reply.usage)
        return await _decide(services, turn, reply, writer)


async def _another_attempt(services: TurnServices, turn: ActiveTurn, prompt: Prompt, error: ModelError) -> Prompt:
    """Open the step once more, if that may help; else the error goes on.

    Raises:
        ModelError: it would not help, or was tried often enough.
    """
    dead = step_row(turn, prompt, now_text(services.clock))
    spent: Usage | None = estimate_usage(prompt.request, ())
    if isinstance(error, WindowExceeded) and turn.squeezed.count(turn.step) < SQUEEZES_MAX:
        # The estimate was wrong, or the catalogue is. Nothing was answered, so nothing is charged.
        turn.squeezed.append(turn.step)
        prompt, spent = await squeeze(services, turn, step=turn.step), None
    elif type(error) is ModelRejected and prompt.has_images and not turn.is_blind:
        turn.is_blind, spent = True, None  # a vendor that cannot take one image refuses every prompt that shows it
    elif not (error.retryable and was_shown(error) and turn.attempt < services.limits.turn.attempts_max):
        raise error
    turn.attempt += 1
    await services.journal.open_step(turn, prompt, dead=dead, spent=spent)
    return prompt


async def _answer(services: TurnServices, turn: ActiveTurn, prompt: Prompt, writer: DeltaWriter) -> ModelReply:
    """Ask the models of the step in turn, telling what is tried again and who is asked instead."""
    asking = asking_of(turn)
    asking.index = 0

    async def on_retry(attempt: int, error: ModelError, wait_s: float) -> None:
        await services.journal.tell(
            turn, "model.retry", {"attempt": attempt, "code": error.code, "wait_s": round(wait_s, 3)}
        )

    async def on_move(move: Move) -> None:
        asking.index = move.index
        following = move.following
        await services.journal.tell(
            turn,
            "model.fallback",
            {
                "from": f"{move.failed.provider}/{move.failed.model}",
                "to": f"{following.provider}/{following.model}",
                "why": move.why,
                "message": move.message,
            },
        )

    request = prompt.request
    if prompt.has_images:
        facts = services.models.facts(asking.first.provider, asking.first.model)
        request = await images.shown_to(services.database, request, takes_images=facts.images and not turn.is_blind)
    return await services.models.ask(
        request,
        asking.first.provider,
        writer.on_delta,
        turn.deadline,
        on_retry,
        flow=services.constellation_id,
        chain=replace(asking.chain, on_move=on_move),
    )


async def _decide(
    services: TurnServices, turn: ActiveTurn, reply: ModelReply, writer: DeltaWriter
) -> list[Planned] | None:
    reply = _with_rules(services, turn, reply)
    planned = plan(services, turn, [part for part in reply.parts if isinstance(part, ToolCall)])
    turn.output_chars += sum(len(part.text) for part in reply.parts if isinstance(part, Text | Reasoning))
    if any(isinstance(part, Text) and part.text for part in reply.parts):
        turn.said.add(turn.step)
    ending = None
    if not planned and not turn.wishes.joins and exit_of(turn, services.clock.now_ms()).may_end:
        ending = COMPLETED
    await services.journal.decide(turn, reply, [one.row for one in planned], ending=ending, rest=writer.rest())
    return None if ending is not None else planned


def _with_rules(services: TurnServices, turn: ActiveTurn, reply: ModelReply) -> ModelReply:
    """The reply with the arguments that rules give, and with first the calls that a turn must begin with."""
    wanted = [part for part in reply.parts if isinstance(part, ToolCall)]
    if not turn.rules.rules or not wanted:
        return reply
    now_ms = services.clock.now_ms()
    offered = offer_of(turn, services.tools.specs(turn.agent.enabled_tools), now_ms, step=turn.step)
    parts: list[Part] = [
        replace(part, arguments=offered.filled(part.tool, part.arguments))
        if isinstance(part, ToolCall) and part.invalid is None
        else part
        for part in reply.parts
    ]
    before = replace(state_of(turn, now_ms), step=turn.step - 1)
    made = added(turn.rules, before, [call.tool for call in wanted])
    first = [forced_call(turn, call, index) for index, call in enumerate(made)]
    place = next(index for index, part in enumerate(parts) if isinstance(part, ToolCall))
    return replace(reply, parts=(*parts[:place], *first, *parts[place:]))


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
