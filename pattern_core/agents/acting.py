"""Running the calls of one decision, and what follows when all of them have ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import trio

from pattern_core.agents import pauses
from pattern_core.agents.active import COMPLETED, ActiveTurn, Finished
from pattern_core.agents.calls import WAITING, Planned, forced, run
from pattern_core.agents.consent import AGREED
from pattern_core.agents.judging import Border, TurnStopped, at_border, judge, note_finished, note_refused, state_of
from pattern_core.agents.prompting import fits, make_fitting_prompt, make_prompt
from pattern_core.agents.services import TurnServices
from pattern_core.errors import InvalidInput, LimitReached
from pattern_core.prompts.prompt import Prompt
from pattern_core.rules.check import in_order
from pattern_core.rules.refusals import Asked
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.enums import ApprovalKind
from pattern_db.errors import Conflict, DatabaseError, StorageFailed
from pattern_db.journal import inbox
from pattern_db.journal.approvals import ApprovalRow

JOIN_ATTEMPTS = 8
REPEATS_IN_DOUBT = "an identical call of this turn was cut off, and nobody knows whether it happened"


async def act(services: TurnServices, turn: ActiveTurn, planned: Sequence[Planned]) -> Prompt | None:
    """Run the calls and store each result; open the next step and return its prompt.

    Calls that reach outside run side by side, after their intent is stored (T5). Calls within the file run in
    order, since each commits with its own result; the last one's transaction also opens the next step (T7). Where a
    rule minds what came before, all run one after another. Returns None if the turn has ended, and at a step border
    if the constellation drains or calls wait for a person's consent.

    Raises:
        TurnStopped: somebody wished that the turn goes no further.
        LimitReached: the agent goes in circles, or may not spend more.
    """
    is_ordered = in_order(turn.rules, state_of(turn, services.clock.now_ms()), [one.row.tool for one in planned])
    groups = [[one] for one in planned] if is_ordered else [list(planned)]
    for group in groups:
        following = await _together(services, turn, group, is_last=group is groups[-1])
        if following is not None or turn.is_waiting:
            return following
    return await _go_on(services, turn)


async def _together(
    services: TurnServices, turn: ActiveTurn, group: Sequence[Planned], *, is_last: bool
) -> Prompt | None:
    judged = await _judged(services, turn, group)
    waiting = [one for one in judged if one.is_waiting]
    inner = [one for one in judged if one.is_inner and not one.is_waiting]
    outer = [one for one in judged if not one.is_inner and not one.is_waiting]
    last = inner.pop() if inner and is_last and not waiting and not turn.wishes.joins else None
    if outer:
        await services.journal.start_effects(
            turn, [one.row for one in outer], timeout_s=services.limits.turn.tool_timeout_s
        )
    if inner or outer:
        async with trio.open_nursery() as nursery:
            for one in outer:
                nursery.start_soon(_run_and_store, services, turn, one)
            for one in inner:
                await _run_and_store(services, turn, one)
    if waiting:
        await pauses.wait(services.journal, turn, left_s=turn.deadline - trio.current_time())
        return None
    return None if last is None else await _run_and_store(services, turn, last, is_last=True)


async def _judged(services: TurnServices, turn: ActiveTurn, group: Sequence[Planned]) -> list[Planned]:
    """The calls as the agent's rules leave them: refused ones will not run, and people are asked about some (T4)."""
    judged: list[Planned] = []
    for one in group:
        verdict = await _one_judged(services, turn, one)
        if verdict.question is not None:
            asked = sum(other.question is not None for other in judged)
            verdict = await _if_room(services, verdict, asked + 1)
        if verdict.is_forbidden:
            note_refused(turn, verdict.row)  # so that it does not count against those after it
        judged.append(verdict)
    questions = [(one.row, one.question) for one in judged if one.question is not None]
    if questions:
        await pauses.ask(services.journal, turn, questions)
        services.consent.asked()
    return [one if one.question is None else replace(one, row=replace(one.row, status=WAITING)) for one in judged]


async def _one_judged(services: TurnServices, turn: ActiveTurn, planned: Planned) -> Planned:
    row, tool = planned.row, planned.tool
    if tool is None or row.status != "planned":
        return planned
    is_approved = planned.answered is not None and planned.answered.status in AGREED
    asked = Asked(tool=tool.name, arguments=planned.arguments, parameters=tool.spec.parameters)
    now_ms, agreed = services.clock.now_ms(), set[str | None]()
    while True:  # several rules may ask, each for a scope of its own
        verdict = judge(turn, row, asked, now_ms, is_approved=is_approved, agreed=agreed)
        if verdict.kind != "ask" or not await services.consent.is_standing(turn.agent.id, row, verdict.scope):
            break
        agreed.add(verdict.scope)
    if verdict.kind == "refuse":
        return replace(planned, refusal=f"Not run: {verdict.text}", is_forbidden=True)
    if is_approved:
        return planned
    if row.args_hash in turn.in_doubt:
        return _asked(services, turn, planned, REPEATS_IN_DOUBT, kind=ApprovalKind.RECOVERY)
    if verdict.kind == "ask":
        return _asked(services, turn, planned, verdict.text, scope=verdict.scope)
    reason = None if agreed else _own_reason(planned)  # who agreed to such calls is not asked again by the tool
    if reason is None or await services.consent.is_standing(turn.agent.id, row, None):
        return planned
    return _asked(services, turn, planned, reason)


def _own_reason(planned: Planned) -> str | None:
    """Why the tool itself wants a person to agree. Arguments that do not fit are told when it runs."""
    tool = planned.tool
    if tool is None or tool.consent is None:
        return None
    try:
        tool.arguments.check(planned.arguments)
    except InvalidInput:
        return None
    return tool.consent(planned.arguments)


def _asked(
    services: TurnServices,
    turn: ActiveTurn,
    planned: Planned,
    reason: str,
    *,
    kind: ApprovalKind = ApprovalKind.TOOL,
    scope: str | None = None,
) -> Planned:
    question: ApprovalRow = services.consent.question(turn, planned.row, reason, kind=kind, scope=scope)
    return replace(planned, question=question)


async def _if_room(services: TurnServices, planned: Planned, wanted: int) -> Planned:
    """The call with its question, if so many more may be asked; else refused."""
    full = await services.consent.room(wanted)
    if full is None:
        return planned
    why = f"Not run: it needs a person's consent, and {full}."
    return replace(planned, question=None, refusal=why, is_forbidden=True)


async def _go_on(services: TurnServices, turn: ActiveTurn) -> Prompt | None:
    """What follows the calls: the end, calls that rules make, or T2 of the next step."""
    while True:
        border = at_border(turn, services.clock.now_ms())
        if services.is_draining():
            return None
        if border.forced:
            for one in await forced(services, turn, border.forced):
                await _together(services, turn, [one], is_last=False)
                if turn.is_waiting:
                    return None
            continue
        await _join(services, turn)
        if turn.is_addressed or not border.ends:
            return await _open_next(services, turn, border)
        await services.journal.end(turn, COMPLETED)
        return None


async def _join(services: TurnServices, turn: ActiveTurn) -> None:
    """Take in the messages that shall join the turn; those that cannot be had are turns of their own."""
    if not turn.wishes.joins:
        return
    turn.wishes.joins = False
    for _attempt in range(JOIN_ATTEMPTS):
        joining = await services.database.read(inbox.steering, turn.agent.id)
        try:
            await pauses.join(services.journal, turn, joining)
        except Conflict:
            continue  # one of them was cancelled in this moment
        turn.is_addressed = turn.is_addressed or bool(joining)
        return


async def open_first(services: TurnServices, turn: ActiveTurn) -> Prompt:
    """T2 of a turn whose first step could not be opened with its start: there was no room, or no money.

    Raises:
        LimitReached: a budget forbids it, or what was asked does not fit.
    """
    prompt = await make_fitting_prompt(services, turn, step=1)
    turn.step, turn.attempt = 1, 1
    await services.journal.open_step(turn, prompt)
    return prompt


async def _open_next(services: TurnServices, turn: ActiveTurn, border: Border) -> Prompt:
    turn.notes = border.notes
    prompt = await make_fitting_prompt(services, turn, step=turn.step + 1)
    turn.step, turn.attempt, turn.is_addressed = turn.step + 1, 1, False
    await services.journal.open_step(turn, prompt)
    return prompt


async def _run_and_store(
    services: TurnServices, turn: ActiveTurn, planned: Planned, *, is_last: bool = False
) -> Prompt | None:
    work = UnitOfWork()
    stored = False
    began_ms = services.clock.now_ms()
    try:
        finished = await run(services, turn, planned, work)
        if finished.status != "done":
            work = _give_up(work)
        prompt = await _store(services, turn, planned, finished, work, is_last=is_last, began_ms=began_ms)
        stored = True
        name = "unknown" if planned.tool is None else planned.tool.name  # what a model made up is no name of ours
        seconds = (services.clock.now_ms() - began_ms) / 1000
        services.journal.meters.call_ended(name, finished.status, max(0.0, seconds))
        return prompt
    finally:
        if not stored:
            work.settle(committed=False)


def _give_up(work: UnitOfWork) -> UnitOfWork:
    """A failed call leaves nothing behind."""
    work.settle(committed=False)
    return UnitOfWork()


async def _store(
    services: TurnServices,
    turn: ActiveTurn,
    planned: Planned,
    finished: Finished,
    work: UnitOfWork,
    *,
    is_last: bool,
    began_ms: int,
) -> Prompt | None:
    """T6. If the tool's own writes are refused, nothing of them is stored and the model reads why."""
    note_finished(turn, finished, began_ms)
    following = _following(services, turn) if is_last else None
    try:
        return await services.journal.finish_effect(turn, finished, work, planned.arguments, following)
    except StorageFailed:
        raise
    except DatabaseError as error:
        if finished.status != "done":
            raise
        refused = Finished(row=planned.row, status="error", content=f"Nothing was changed: {error}")
        note_finished(turn, refused, began_ms)
        return await services.journal.finish_effect(turn, refused, UnitOfWork(), planned.arguments, following)


def _following(services: TurnServices, turn: ActiveTurn) -> Callable[[], Awaitable[Prompt | None]] | None:
    """The prompt of the next step, if one follows at once; else what follows is seen to after this call is stored."""
    try:
        border = at_border(turn, services.clock.now_ms())
    except (TurnStopped, LimitReached):
        return None
    if services.is_draining() or border.ends or border.forced:
        return None
    turn.notes = border.notes

    async def prompt() -> Prompt | None:
        """The next step's, if the conversation fits; else room is made once the call is stored."""
        made = await make_prompt(services, turn, step=turn.step + 1)
        return made if fits(turn, made) else None

    return prompt
