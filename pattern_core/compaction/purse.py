"""Pays for the summaries that make room in a conversation."""

from __future__ import annotations

from dataclasses import dataclass

from pattern_core.budgets import ledger
from pattern_core.budgets.amounts import worst_case
from pattern_core.compaction.summariser import SummaryCall
from pattern_core.events import Event
from pattern_core.journal import Journal
from pattern_core.models.client import ModelClient
from pattern_core.models.model import Usage
from pattern_db.connection import Connection
from pattern_db.journal.budgets import ReservationRow
from pattern_db.journal.usage import UsageRow

SUMMARY = "summary"  # the purpose of such calls among the usage


@dataclass(slots=True, kw_only=True)
class SummaryPurse:
    """Pays for an agent's summaries: from the budgets of the `turn` (its key) with the `step` that needs the room.

    Without a turn, because a person asked for it, from those of the agent and the constellation.
    """

    models: ModelClient
    journal: Journal
    agent_id: str
    turn: int | None = None
    step: int = 0
    attempt: int = 0
    held: ReservationRow | None = None

    async def reserve(self, call: SummaryCall) -> None:
        """Hold back what a summary may cost at most.

        Raises:
            LimitReached: a budget forbids it.
        """
        budgets = self.journal.budgets
        if not budgets.exist:
            return
        worst = worst_case(
            self.models.facts(call.provider, call.model).cost,
            prompt_tokens=call.input_tokens,
            output_tokens=call.output_tokens,
        )
        asked = ledger.ModelCall(
            turn=self.turn,
            step=self.step,
            attempt=self.attempt,
            agent_id=self.agent_id,
            provider=call.provider,
            model=call.model,
            purpose=SUMMARY,
        )
        now = self.journal.now()

        def store(connection: Connection) -> tuple[ReservationRow | None, list[Event]]:
            return ledger.reserve(connection, asked, lambda: worst, now=now, configured=budgets.configured), []

        self.held = await self.journal.commit(store)

    async def settle(self, call: SummaryCall, usage: Usage | None) -> None:
        """Store what it cost; of a call that failed its prompt, as an estimate."""
        spent = usage or Usage(input_tokens=call.input_tokens, output_tokens=0, is_estimate=True)
        cost = self.models.facts(call.provider, call.model).cost(spent)
        held = self.held
        row = UsageRow(
            turn=self.turn,
            step=self.step,
            attempt=self.attempt,
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
            at=self.journal.now(),
            agent_id=self.agent_id,
        )

        def store(connection: Connection) -> tuple[None, list[Event]]:
            ledger.settle(connection, row, held)
            return None, []

        await self.journal.commit(store)
        self.held = None
        self.journal.meters.tokens(call.provider, call.model, spent, cost)
