"""Who pays for what models are asked beside the steps of turns: the summaries that make room in a conversation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pattern_core.agents.active import ActiveTurn
from pattern_core.agents.journal import Told
from pattern_core.agents.roster import Agent
from pattern_core.agents.services import TurnServices
from pattern_core.budgets import ledger
from pattern_core.budgets.amounts import worst_case
from pattern_core.compaction.compaction import Made
from pattern_core.compaction.summariser import SummaryCall
from pattern_core.models.model import Usage
from pattern_db.connection import Connection
from pattern_db.journal.budgets import ReservationRow
from pattern_db.journal.usage import UsageRow

SUMMARY = "summary"  # the purpose of such calls among the usage


@dataclass(slots=True, kw_only=True)
class SummaryPurse:
    """Pays for an agent's summaries: out of the budgets of the turn whose `step` needs the room; without a turn,
    because a person wants it, out of those of the agent and the constellation.
    """

    services: TurnServices
    agent_id: str
    turn: ActiveTurn | None = None
    step: int = 0
    held: ReservationRow | None = None

    async def reserve(self, call: SummaryCall) -> None:
        """Hold back what a summary may cost at most.

        Raises:
            LimitReached: a budget forbids it.
        """
        worst = worst_case(
            partial(self.services.models.cost, call.provider, call.model),
            prompt_tokens=call.input_tokens,
            output_tokens=call.output_tokens,
        )
        journal, turn = self.services.journal, self.turn
        now = journal.now()
        asked = ledger.Call(
            turn=None if turn is None else turn.key,
            step=self.step,
            attempt=0 if turn is None else turn.attempt,
            agent_id=self.agent_id,
            provider=call.provider,
            model=call.model,
            purpose=SUMMARY,
        )

        def store(connection: Connection) -> tuple[ReservationRow | None, Told]:
            """What is held, if a budget is concerned."""
            return ledger.reserve(connection, asked, worst, now=now, configured=journal.budgets), []

        if turn is not None:
            turn.may_hold = True
        self.held = await journal.commit(store)

    async def settle(self, call: SummaryCall, usage: Usage | None) -> None:
        """Store what it cost; of a call that failed its prompt, as an estimate."""
        spent = usage or Usage(input_tokens=call.input_tokens, output_tokens=0, is_estimate=True)
        cost = self.services.models.cost(call.provider, call.model, spent)
        journal, turn, held = self.services.journal, self.turn, self.held
        row = UsageRow(
            turn=None if turn is None else turn.key,
            step=self.step,
            attempt=0 if turn is None else turn.attempt,
            purpose=SUMMARY,
            provider=call.provider,
            model=call.model,
            input_tokens=spent.input_tokens,
            output_tokens=spent.output_tokens,
            cached_tokens=spent.cached_tokens,
            cache_write_tokens=spent.cache_write_tokens,
            reasoning_tokens=spent.reasoning_tokens,
            cost_microdollars=cost,
            is_estimate=spent.is_estimate,
            at=journal.now(),
            agent_id=self.agent_id,
        )

        def store(connection: Connection) -> tuple[None, Told]:
            """What it cost, instead of what was held."""
            ledger.settle(connection, row, held)
            return None, []

        await journal.commit(store)
        self.held = None
        journal.meters.tokens(call.provider, call.model, spent, cost)


async def compact(services: TurnServices, agent: Agent) -> Made:
    """Compact the agent's conversation because a person wants it; the agent's budgets pay for the summaries.

    Raises:
        Conflict: the agent is at work, or somebody else is at this already.
        InvalidInput: the agent's `compaction` settings are not valid.
    """
    return await services.compaction.by_hand(agent, purse=SummaryPurse(services=services, agent_id=agent.id))
