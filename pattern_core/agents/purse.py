"""Who pays for what a turn asks models beside its steps: the summaries that make room in its conversation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pattern_core.agents.active import ActiveTurn
from pattern_core.agents.journal import Journal, Told
from pattern_core.agents.services import TurnServices
from pattern_core.budgets import ledger
from pattern_core.budgets.amounts import WorstCase, worst_case
from pattern_core.compaction.summariser import SummaryCall
from pattern_core.models.model import Usage
from pattern_db.connection import Connection
from pattern_db.journal.budgets import ReservationRow
from pattern_db.journal.usage import UsageRow

SUMMARY = "summary"  # the purpose of such calls among the usage


@dataclass(slots=True, kw_only=True)
class TurnPurse:
    """Pays for a turn's summaries out of the turn's budgets."""

    services: TurnServices
    turn: ActiveTurn
    step: int
    held: ReservationRow | None = None

    async def reserve(self, call: SummaryCall) -> None:
        """Hold back what a summary may cost.

        Raises:
            LimitReached: a budget forbids it.
        """
        worst = worst_case(
            partial(self.services.models.cost, call.provider, call.model),
            prompt_tokens=call.input_tokens,
            output_tokens=call.output_tokens,
        )
        self.held = await _hold(self.services.journal, self.turn, call, worst, step=self.step)

    async def settle(self, call: SummaryCall, usage: Usage | None) -> None:
        """Store what it cost; of a call that failed its prompt, as an estimate."""
        spent = usage or Usage(input_tokens=call.input_tokens, output_tokens=0, is_estimate=True)
        cost = self.services.models.cost(call.provider, call.model, spent)
        await _charge(self.services.journal, self.turn, call, spent, cost, self.held, step=self.step)
        self.held = None


async def _hold(
    journal: Journal, turn: ActiveTurn, call: SummaryCall, worst: WorstCase, *, step: int
) -> ReservationRow | None:
    """Hold back what a model call beside the turn's steps may cost at most.

    Raises:
        LimitReached: a budget forbids it.
    """
    now = journal.now()
    asked = ledger.Call(
        turn=turn.key,
        step=step,
        attempt=turn.attempt,
        agent_id=turn.agent.id,
        provider=call.provider,
        model=call.model,
        purpose=SUMMARY,
    )

    def store(connection: Connection) -> tuple[ReservationRow | None, Told]:
        return ledger.reserve(connection, asked, worst, now=now, configured=journal.budgets), []

    return await journal.commit(store)


async def _charge(
    journal: Journal,
    turn: ActiveTurn,
    call: SummaryCall,
    spent: Usage,
    cost: int | None,
    held: ReservationRow | None,
    *,
    step: int,
) -> None:
    """Store what a model call beside the turn's steps cost, in micro-dollars."""
    row = UsageRow(
        turn=turn.key,
        step=step,
        attempt=turn.attempt,
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
    )

    def store(connection: Connection) -> tuple[None, Told]:
        ledger.settle(connection, row, held)
        return None, []

    await journal.commit(store)
    journal.meters.tokens(call.provider, call.model, spent, cost)
