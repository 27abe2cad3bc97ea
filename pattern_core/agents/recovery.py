"""Taking up a turn that a dead process left: what each found state means, decided from the rows alone.

| found | what follows |
|---|---|
| somebody asked to stop it | `turn.cancelled` |
| its deadline passed while nothing ran | `turn.interrupted` |
| the same step was cut off too often | `turn.interrupted` |
| step open | asked again as the next attempt; the dead one is superseded and charged at an estimate |
| step done, calls planned | they run |
| call started, pure | cannot be: nothing is stored before it; it is still planned and runs again |
| call started, local | cannot be: it commits with its result |
| call started, idempotent | runs again under the same key |
| call started, verifiable | its tool's probe tells: done, absent (runs) or unknown (as unsafe) |
| call started, unsafe | in doubt: reported to the model and in the events, never repeated |
| calls all ended | the next step |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pattern_core.agents.active import ActiveTurn, Ending, Finished
from pattern_core.agents.calls import IN_DOUBT, plan_again
from pattern_core.agents.rows import effect_key
from pattern_core.agents.services import TurnServices
from pattern_core.agents.turn import go_on, run_turn
from pattern_core.limits import TurnLimits
from pattern_core.models.tokens import estimate_usage
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.connection import Connection
from pattern_db.enums import EffectClass, EffectStatus
from pattern_db.journal import effects, steps
from pattern_db.journal.effects import EffectRow
from pattern_db.journal.steps import StepRow
from pattern_db.journal.turns import TurnRow

OPEN_STATUSES = frozenset(
    {EffectStatus.PLANNED.value, EffectStatus.STARTED.value, EffectStatus.AWAITING_APPROVAL.value}
)
NOT_RUN = "Not run: the turn ended before."


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the rows say about an unfinished turn: its newest step, and all its calls."""

    step: StepRow | None
    calls: Sequence[EffectRow]

    @property
    def of_step(self) -> list[EffectRow]:
        """The calls of the newest step, in order."""
        return [] if self.step is None else [call for call in self.calls if call.step == self.step.no]

    @property
    def unanswered(self) -> list[EffectRow]:
        """Calls without a result."""
        return [call for call in self.calls if call.status in OPEN_STATUSES]


@dataclass(frozen=True, slots=True)
class AskAgain:
    """The newest step's model call was cut off."""

    dead: StepRow


@dataclass(frozen=True, slots=True)
class Act:
    """The newest step's decision is stored; these of its calls have no result yet (maybe none)."""

    calls: Sequence[EffectRow]


def find(connection: Connection, turn: int) -> Found:
    """Read what the rows say about a turn."""
    return Found(step=steps.latest(connection, turn), calls=effects.of_turn(connection, turn))


def decide(row: TurnRow, found: Found, limits: TurnLimits, now: str) -> Ending | AskAgain | Act:
    """What to do with an unfinished turn. Pure; `now` is wall time as stored."""
    if row.cancel_reason is not None:
        return cancelled(row.cancel_reason)
    if row.deadline_at is not None and row.deadline_at <= now:
        return interrupted(
            "deadline_passed", "the turn's time ran out while the server was down; send the message again"
        )
    step = 0 if found.step is None else found.step.no
    if row.resumes >= limits.resumes_max and row.steps == step:
        message = (
            f"the same step was cut off {row.resumes + 1} times; look at the server's log before you send it again"
        )
        return interrupted("gave_up", message)
    if found.step is None:
        return interrupted("no_step", "the turn was started without a step; send the message again")
    if found.step.status == "open":
        return AskAgain(found.step)
    return Act([call for call in found.of_step if call.status in OPEN_STATUSES])


def cancelled(reason: str) -> Ending:
    """The end of a turn that somebody asked to stop."""
    return Ending(status="cancelled", error={"code": "cancelled", "message": f"cancelled: {reason}"})


def interrupted(code: str, message: str) -> Ending:
    """The end of a turn that restarts cut off for good."""
    return Ending(status="interrupted", error={"code": code, "message": message})


def close_calls(unanswered: Sequence[EffectRow]) -> list[Finished]:
    """Results for calls that will get none, so that none stays unanswered when the turn ends.

    A call that was only planned did not run; one that was started may have happened.
    """
    return [
        Finished(row=row, status=EffectStatus.IN_DOUBT.value, content=IN_DOUBT)
        if row.status == EffectStatus.STARTED.value
        else Finished(row=row, status=EffectStatus.CANCELLED.value, content=NOT_RUN)
        for row in unanswered
    ]


async def resume(services: TurnServices, turn: ActiveTurn, found: Found, verdict: AskAgain | Act) -> None:
    """Go on from where the rows end.

    Raises:
        ModelError, LimitReached: as `run_turn`.
    """
    if isinstance(verdict, AskAgain):
        turn.attempt = verdict.dead.attempt + 1
        prompt = await services.prompt(turn)
        await services.journal.open_step(turn, prompt, dead=verdict.dead, spent=estimate_usage(prompt.request, ()))
        await run_turn(services, turn, prompt)
        return
    doubtful = [call for call in verdict.calls if is_doubtful(call)]
    for call in doubtful:
        unknown = Finished(row=call, status=EffectStatus.IN_DOUBT.value, content=IN_DOUBT)
        again = plan_again(services, turn, call)
        await services.journal.finish_effect(turn, unknown, UnitOfWork(), again.arguments)
        turn.in_doubt.add(call.args_hash)
    settled = {effect_key(call) for call in doubtful}
    rest = [plan_again(services, turn, call) for call in verdict.calls if effect_key(call) not in settled]
    following = await go_on(services, turn, rest)
    if following is not None:
        await run_turn(services, turn, following)


def is_doubtful(call: EffectRow) -> bool:
    """Whether nobody can know if the call happened."""
    return call.status == EffectStatus.STARTED.value and call.effect_class == EffectClass.UNSAFE.value
