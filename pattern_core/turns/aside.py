"""Questions to an agent's model that leave nothing but usage: a title for a conversation, or a client without memory.

The agent's instructions and memory are shown, its tools are not offered: nothing can change. What the client sends is
the whole conversation.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from pattern_core import images
from pattern_core.agent_settings import settings_of
from pattern_core.agents import Agent
from pattern_core.compaction.summariser import SummaryUsage
from pattern_core.conversation.history import History
from pattern_core.messages import Message
from pattern_core.models.model import Delta, ModelReply, OnDelta, Usage
from pattern_core.models.routing import StepFacts, choose
from pattern_core.prompts.build import Offered
from pattern_core.turns.admission import TurnOptions
from pattern_core.turns.calls import TurnServices
from pattern_core.turns.turn import no_room, room_of

ASIDE = "aside"  # the purpose of these calls in the usage
SETTLE_TIMEOUT_S = 5.0


async def ignore(_delta: Delta) -> None:
    """Ignore a piece of an answer: the caller waits for all of it."""


async def ask_aside(
    services: TurnServices, agent: Agent, conversation: Sequence[Message], options: TurnOptions, on_delta: OnDelta
) -> ModelReply:
    """Return the answer of the agent's model to the last message. Calls of the `options`' tools are the client's.

    Raises:
        ModelError: the provider failed.
        LimitReached: a budget forbids it, or the conversation does not fit.
        InvalidInput: the agent's settings are not valid.
    """
    settings, models = settings_of(options.over(agent.config)), services.models.pinned()
    history = History(conversation)
    facts = StepFacts(provider=agent.model_provider, model=agent.model_name, tokens=history.tokens)
    chain = choose(settings.routing, facts)
    link = chain.links[0]
    known = await models.learn(link.provider, link.model)
    window, output_max = room_of(known, settings, services)
    offered = Offered(
        tools=options.tools,
        window=window,
        output_max=output_max,
        settings=settings,
        force_tool=options.force_tool,
        instructions=options.instructions,
    )
    prompt = await services.prompts.make(agent, history, offered, None, seed=services.journal.ids.seed())
    if history.tokens > prompt.history_room:
        raise no_room(prompt, known)
    request = prompt.request
    if history.has_images:
        request = await images.shown_to(services.journal.database, request, takes_images=known.images)
    usage = SummaryUsage(models=models, journal=services.journal, agent_id=agent.id, purpose=ASIDE)
    await usage.reserve(link.provider, request)
    used: Usage | None = None
    try:
        wall_s = settings.limits.wall_s or models.limits(link.provider).turn_timeout_s
        reply = await models.ask(request, chain, on_delta, trio.current_time() + wall_s, flow=services.constellation_id)
        used = reply.usage
        return reply
    finally:
        with trio.move_on_after(SETTLE_TIMEOUT_S, shield=True):
            await usage.settle(link.provider, request, used)
