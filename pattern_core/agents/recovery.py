"""Taking up a turn that a dead process left: what each found state means, decided from the rows alone.

| found | what follows |
|---|---|
| somebody asked to stop it | `turn.cancelled` |
| its deadline passed while nothing ran | `turn.interrupted` |
| the same step was cut off too often | `turn.interrupted` |
| no step | it begins anew, with the same seed |
| step open | asked again as the next attempt; the dead one is superseded and charged at an estimate |
| step done, calls planned | they run |
| call started, pure | cannot be: nothing is stored before it; it is still planned and runs again |
| call started, local | cannot be: it commits with its result |
| call started, idempotent | runs again under the same key |
| call started, verifiable | its tool's probe tells: done, absent (runs) or unknown (as unsafe) |
| call planned or started, its tool is no more | it waits for a person: needs attention |
| call started, unsafe | in doubt: told to the model, or asked a person, or the turn fails: the agent's `on_doubt` |
| call waits for a person | the turn rests until the answer |
| a person agreed | it runs, with the arguments that they agreed to |
| a person refused, or nobody answered in time | the model is told |
| calls all ended | the next step |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pattern_core.admission import ROLLED_BACK
from pattern_core.agents import pauses
from pattern_core.agents.active import ActiveTurn, Ending, Finished
from pattern_core.agents.calls import IN_DOUBT, WAITING, Planned, plan_again, probed
from pattern_core.agents.consent import AGREED, Attention
from pattern_core.agents.judging import note_finished, notes_before
from pattern_core.agents.prompting import make_fitting_prompt
from pattern_core.agents.services import TurnServices
from pattern_core.agents.settings import OnDoubt
from pattern_core.agents.turn import go_on, run_turn
from pattern_core.errors import PatternError
from pattern_core.limits import TurnLimits
from pattern_core.models.tokens import estimate_usage
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.connection import Connection
from pattern_db.enums import ApprovalKind, EffectClass, EffectStatus, TurnStatus
from pattern_db.journal import approvals, effects, inbox, steps
from pattern_db.journal.approvals import ApprovalRow
from pattern_db.journal.effects import EffectRow
from pattern_db.journal.steps import StepRow
from pattern_db.journal.turns import TurnRow

OPEN_STATUSES = frozenset(
    {EffectStatus.PLANNED.value, EffectStatus.STARTED.value, EffectStatus.AWAITING_APPROVAL.value}
)
INTERRUPTED = "the call was cut off, and nobody knows whether it happened; agree to have it run (again)"
GONE = "there is no such tool any more; bring it back and agree to have the call run, or deny"
NOT_RUN = "Not run: the turn ended before."


class InDoubt(PatternError):
    """A call was cut off and may have happened, and the agent's turns shall fail then."""

    code = "in_doubt"

    def __init__(self) -> None:
        super().__init__("a call was cut off and may have happened; find out before you send the message again")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the rows say about an unfinished turn: its newest step, all its calls, and what it asked people."""

    step: StepRow | None
    calls: Sequence[EffectRow]
    approvals: Sequence[ApprovalRow] = ()

    @property
    def of_step(self) -> list[EffectRow]:
        """The calls of the newest step, in order."""
        return [] if self.step is None else [call for call in self.calls if call.step == self.step.no]

    @property
    def unanswered(self) -> list[EffectRow]:
        """Calls without a result."""
        return [call for call in self.calls if is_open(call)]

    def answered(self, call: EffectRow) -> ApprovalRow | None:
        """What a person said about the call, if somebody was asked."""
        about = [row for row in self.approvals if (row.step, row.call) == (call.step, call.call)]
        return about[-1] if about else None


@dataclass(frozen=True, slots=True)
class Begin:
    """The turn was started and asked nobody yet."""


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
    calls = effects.of_turn(connection, turn)
    return Found(
        step=steps.latest(connection, turn),
        calls=calls,
        approvals=approvals.of_turn(connection, turn) if calls else (),
    )


def is_open(call: EffectRow) -> bool:
    """Whether the call has no result yet."""
    return call.status in OPEN_STATUSES or (call.status == EffectStatus.DENIED and call.message_id is None)


def decide(
    row: TurnRow, found: Found, limits: TurnLimits, now: str, *, on_doubt: OnDoubt = "tell_model"
) -> Ending | Begin | AskAgain | Act:
    """What to do with an unfinished turn. Pure; `now` is wall time as stored."""
    if row.cancel_reason is not None:
        return cancelled(row.cancel_reason)
    if row.deadline_at is not None and row.deadline_at <= now:
        return interrupted(
            "deadline_passed", "the turn's time ran out while the server was down; send the message again"
        )
    step = 0 if found.step is None else found.step.no
    # A turn that came as far as to wait got past what had cut it off.
    is_stuck = row.status != TurnStatus.WAITING and row.steps == step
    if is_stuck and row.resumes >= limits.resumes_max:
        message = (
            f"the same step was cut off {row.resumes + 1} times; look at the server's log before you send it again"
        )
        return interrupted("gave_up", message)
    if found.step is None:
        return Begin()
    if found.step.status == "open":
        return AskAgain(found.step)
    if on_doubt == "fail_turn" and any(map(is_doubtful, found.of_step)):
        doubt = InDoubt()
        return Ending(status="failed", error={"code": doubt.code, "message": doubt.message})
    return Act([call for call in found.of_step if is_open(call)])


def cancelled(reason: str) -> Ending:
    """The end of a turn that somebody asked to stop."""
    error = {"code": "cancelled", "message": f"cancelled: {reason}"}
    return Ending(status="cancelled", error=error, discards=reason == ROLLED_BACK)


def interrupted(code: str, message: str) -> Ending:
    """The end of a turn that restarts cut off for good."""
    return Ending(status="interrupted", error={"code": code, "message": message})


def close_calls(unanswered: Sequence[EffectRow]) -> list[Finished]:
    """Results for calls that will get none, so that none stays unanswered when the turn ends.

    A call that was only planned did not run; one that was started, be it before a person was asked about it, may have
    happened.
    """
    return [
        Finished(row=row, status=EffectStatus.IN_DOUBT.value, content=IN_DOUBT)
        if row.status == EffectStatus.STARTED.value or row.attempts
        else Finished(row=row, status=EffectStatus.CANCELLED.value, content=NOT_RUN)
        for row in unanswered
    ]


async def resume(services: TurnServices, turn: ActiveTurn, found: Found, verdict: Begin | AskAgain | Act) -> None:
    """Go on from where the rows end.

    Raises:
        ModelError, LimitReached: as `run_turn`.
        InDoubt: a call may have happened, and the agent's turns shall fail then.
    """
    turn.wishes.joins = bool(await services.database.read(inbox.steering, turn.agent.id))
    turn.is_addressed = turn.is_addressed and isinstance(verdict, Act)  # else the model is about to see it
    if isinstance(verdict, Begin):
        await run_turn(services, turn, None)
        return
    if isinstance(verdict, AskAgain):
        turn.attempt = verdict.dead.attempt + 1
        turn.notes = notes_before(turn, services.clock.now_ms())
        prompt = await make_fitting_prompt(services, turn, step=turn.step)
        await services.journal.open_step(turn, prompt, dead=verdict.dead, spent=estimate_usage(prompt.request, ()))
        await run_turn(services, turn, prompt)
        return
    rest = []
    for call in verdict.calls:
        planned = await _seen_to(services, turn, plan_again(services, turn, call, found.answered(call)))
        if planned is not None:
            rest.append(planned)
    following = await go_on(services, turn, rest)
    if following is not None:
        await run_turn(services, turn, following)


async def _seen_to(services: TurnServices, turn: ActiveTurn, planned: Planned) -> Planned | None:
    """A call without a result as it goes on: it runs, or waits for a person. None if it has its result now.

    Raises:
        InDoubt: it may have happened, and the agent's turns shall fail then.
    """
    call = planned.row
    if is_doubtful(call):
        return await _in_doubt(services, turn, planned)
    if call.status not in (EffectStatus.PLANNED, EffectStatus.STARTED):
        return planned
    if planned.is_gone:
        return await _asked(services, turn, planned, GONE, "tool_gone")
    if not call.attempts or planned.tool is None or planned.tool.probe is None:
        return planned
    known = await probed(services, planned)
    if known is None:
        return planned
    if known.status == EffectStatus.DONE:
        await _ended(services, turn, planned, known)
        return None
    answered = planned.answered
    if answered is not None and answered.status in AGREED and answered.request.get("needs_attention") == "in_doubt":
        return planned  # a person knew that it may have happened, and agreed
    return await _in_doubt(services, turn, planned)


async def _in_doubt(services: TurnServices, turn: ActiveTurn, planned: Planned) -> Planned | None:
    """What the agent wants done about a call that may have happened."""
    match turn.settings.on_doubt:
        case "ask_human":
            return await _asked(services, turn, planned, INTERRUPTED, "in_doubt")
        case "fail_turn":
            raise InDoubt
        case "tell_model":
            turn.in_doubt.add(planned.row.args_hash)
            unknown = Finished(row=planned.row, status=EffectStatus.IN_DOUBT.value, content=IN_DOUBT)
            await _ended(services, turn, planned, unknown)
            return None


async def _asked(
    services: TurnServices, turn: ActiveTurn, planned: Planned, reason: str, attention: Attention
) -> Planned:
    """T4, for a call that needs attention before it goes on."""
    question = services.consent.question(turn, planned.row, reason, kind=ApprovalKind.RECOVERY, attention=attention)
    await pauses.ask(services.journal, turn, [(planned.row, question)])
    services.consent.asked()
    return replace(planned, row=replace(planned.row, status=WAITING))


async def _ended(services: TurnServices, turn: ActiveTurn, planned: Planned, finished: Finished) -> None:
    """T6, for a call that needs not run to have its result."""
    note_finished(turn, finished, services.clock.now_ms())
    await services.journal.finish_effect(turn, finished, UnitOfWork(), planned.arguments)


def is_doubtful(call: EffectRow) -> bool:
    """Whether nobody can know if the call happened."""
    return call.status == EffectStatus.STARTED.value and call.effect_class == EffectClass.UNSAFE.value
