"""The prompt of a step: of whom to ask what, with room for the answer, and what that may cost at most."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from pattern_core.agents.active import ActiveTurn, Asking
from pattern_core.agents.judging import offer_of
from pattern_core.agents.purse import SummaryPurse
from pattern_core.agents.services import TurnServices
from pattern_core.budgets.amounts import WorstCase, worst_case
from pattern_core.errors import LimitReached
from pattern_core.models.catalogue import ModelFacts
from pattern_core.models.fallback import Chain, Link
from pattern_core.models.model import Usage
from pattern_core.models.routing import CostThreshold, StepFacts, choose
from pattern_core.models.tokens import estimate_text, estimate_tools
from pattern_core.prompts.making import Offered
from pattern_core.prompts.prompt import Prompt
from pattern_core.prompts.sampling import Sampling, window_of
from pattern_core.rules.words import words
from pattern_db.journal import budgets
from pattern_db.journal.budgets import BudgetScope
from pattern_db.timestamps import iso

ROOM_MIN = 100  # tokens: less holds no question
SQUEEZED_SHARE = 0.6  # of a conversation that a vendor found too long is shown once more …
SQUEEZES_MAX = 3  # … and that again, so often within a step
OUTPUT_SHARE = 4  # an answer takes at most one part in so many of the window, unless the agent's config says more


async def make_prompt(services: TurnServices, turn: ActiveTurn, *, step: int) -> Prompt:
    """What the turn's model is shown in a step; sets of whom the step asks.

    Raises:
        InvalidInput: the agent's config holds a value that will not do.
    """
    agent, now_ms = turn.agent, services.clock.now_ms()
    offered = offer_of(turn, services.tools.specs(agent.enabled_tools), now_ms, step=step)
    chain = choose(turn.settings.routing, await _step_facts(services, turn, now_ms))
    first = chain.links[0]
    facts = services.models.facts(first.provider, first.model)
    window = window_of(agent.config, facts.window)
    sampling = Sampling.of(agent.config, output_tokens_max=_output_max(services, facts, window))
    made = await services.prompts.make(
        turn,
        Offered(
            tools=offered.tools,
            window=window,
            sampling=replace(sampling, force_tool=offered.forced),
            context=turn.settings.context,
            rules=words(turn.rules),
            notes=(*offered.notes, *turn.notes),
        ),
    )
    turn.asking = _asking(services, chain, made)
    return made


def fits(turn: ActiveTurn, prompt: Prompt) -> bool:
    """Whether the conversation leaves the rest of the prompt and an answer their room, with some to spare."""
    is_loaded = not turn.history.opening.unloaded
    return is_loaded and turn.history.tokens <= turn.settings.compaction.threshold * prompt.history_room


async def make_fitting_prompt(services: TurnServices, turn: ActiveTurn, *, step: int) -> Prompt:
    """As `make_prompt`, after making room in the conversation if that is needed.

    Raises:
        LimitReached: what was asked does not fit by itself.
    """
    prompt = await make_prompt(services, turn, step=step)
    if fits(turn, prompt):
        return prompt
    if prompt.history_room < ROOM_MIN:
        raise _no_room(prompt)
    purse = SummaryPurse(services=services, agent_id=turn.agent.id, turn=turn, step=step)
    made = await services.compaction.make_room(turn, room=prompt.history_room, purse=purse)
    if made.messages:
        turn.compactions.append(step)
    return await make_prompt(services, turn, step=step)


def _no_room(prompt: Prompt) -> LimitReached:
    """What takes the room, and what to do about it."""
    answer, tools = prompt.request.max_output_tokens, estimate_tools(prompt.request.tools)
    own = sum(map(estimate_text, [*prompt.request.system, *prompt.request.tail]))
    return LimitReached(
        f"the window holds no conversation: the descriptions of the {len(prompt.request.tools)} tools take about"
        f" {tools:,} tokens, instructions and memory {own:,}, and {answer:,} are kept for the answer. Enable fewer"
        " tools (enabled_tools), shorten the memory, lower max_output_tokens, or take a larger window (context_window,"
        " or another model)"
    )


async def squeeze(services: TurnServices, turn: ActiveTurn, *, step: int) -> Prompt:
    """The prompt with less of the conversation: the vendor found the one before too long.

    Raises:
        LimitReached: what was asked does not fit by itself.
    """
    purse = SummaryPurse(services=services, agent_id=turn.agent.id, turn=turn, step=step)
    room = int(turn.history.tokens * SQUEEZED_SHARE)
    made = await services.compaction.make_room(turn, room=room, purse=purse)
    if made.messages:
        turn.compactions.append(step)
    return await make_prompt(services, turn, step=step)


def _output_max(services: TurnServices, facts: ModelFacts, window: int) -> int:
    most = services.limits.turn.output_tokens_max
    return min(most, facts.output_max, max(window // OUTPUT_SHARE, 1))


def _asking(services: TurnServices, chain: Chain, prompt: Prompt) -> Asking:
    def price(link: Link, usage: Usage) -> int | None:
        return services.models.cost(link.provider, link.model, usage)

    worst = [
        worst_case(
            partial(price, link),
            prompt_tokens=prompt.tokens,
            output_tokens=link.max_output_tokens or prompt.request.max_output_tokens,
        )
        for link in chain.links
    ]
    return Asking(chain=chain, worst=_dearest(worst), tokens=prompt.tokens, price=price)


def _dearest(cases: list[WorstCase]) -> WorstCase:
    """The most that any of the models may take; a model without a known price says nothing about money."""
    return WorstCase(
        tokens=max(case.tokens for case in cases),
        microdollars=max((case.microdollars for case in cases if case.microdollars is not None), default=None),
        prompt_tokens=cases[0].prompt_tokens,
        prompt_microdollars=max(
            (case.prompt_microdollars for case in cases if case.prompt_microdollars is not None), default=None
        ),
    )


async def _step_facts(services: TurnServices, turn: ActiveTurn, now_ms: int) -> StepFacts:
    agent, now, spent = turn.agent, iso(now_ms), 0
    if any(isinstance(rule.condition, CostThreshold) for rule in turn.settings.routing.rules):
        today = await services.database.read(budgets.spent, BudgetScope.AGENT, agent.id, since=now)
        spent = today.microdollars
    return StepFacts(
        provider=agent.model_provider,
        model=agent.model_name,
        tokens=turn.history.tokens,
        spent_today=spent,
        tools_called=frozenset(call.tool for call in turn.log),
        hour=int(now[11:13]),
        source=turn.source,
    )
