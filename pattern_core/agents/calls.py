"""Running the tool calls of one decision: each according to its effect class, each with a stored result."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import outcome
import trio

from pattern_core.agents import pauses
from pattern_core.agents.active import ActiveTurn, Finished
from pattern_core.agents.consent import denial, edited_note
from pattern_core.agents.judging import note_planned
from pattern_core.agents.rows import effect_rows
from pattern_core.agents.services import TurnServices
from pattern_core.errors import NotFound, PatternError
from pattern_core.messages import ToolCall
from pattern_core.rules.exits import ForcedCall
from pattern_core.rules.state import FORCED_PREFIX
from pattern_core.tools.registry import to_text
from pattern_core.tools.results import READER, Origin
from pattern_core.tools.tool import Probe, Tool, ToolContext
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.enums import ApprovalKind, EffectClass, EffectStatus
from pattern_db.errors import DatabaseError, StorageFailed
from pattern_db.journal.approvals import ApprovalRow
from pattern_db.journal.effects import EffectRow

_log = logging.getLogger(__name__)
WAITING = EffectStatus.AWAITING_APPROVAL.value
_DENIED = EffectStatus.DENIED.value
_INNER = frozenset({EffectClass.PURE.value, EffectClass.LOCAL.value})
NO_TOOL = ""  # the key of a call that no tool took: nothing ever runs under it
INVALID_JSON = "The arguments are no JSON object or were cut off, so nothing was run. Send the call again, whole: "
IN_DOUBT = (
    "Outcome unknown: the call was started, and cut off before its result was recorded. It may or may not have"
    " happened. Find out or ask before you do it again; it will not be repeated by itself."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A decided call: its row, its parsed arguments, and its tool, or why none will run.

    `question` is what a person must answer before it runs, `answered` the approval that let it run or kept it from it;
    `is_forbidden` that a rule keeps it from running, for the reason in `refusal`; `is_gone` that its tool is no more,
    and was there when it was decided on.
    """

    row: EffectRow
    arguments: Mapping[str, object]
    tool: Tool | None
    refusal: str | None = None
    question: ApprovalRow | None = None
    answered: ApprovalRow | None = None
    is_forbidden: bool = False
    is_gone: bool = False

    @property
    def is_inner(self) -> bool:
        """Whether the call touches nothing outside this file: it needs no stored intent."""
        will_run = self.tool is not None and not self.is_forbidden and self.row.status != _DENIED
        return not will_run or self.row.effect_class in _INNER

    @property
    def is_waiting(self) -> bool:
        """Whether it may not run before a person agreed."""
        return self.row.status == WAITING


def plan(services: TurnServices, turn: ActiveTurn, calls: Sequence[ToolCall]) -> list[Planned]:
    """The calls of a decision with their tools, in the model's order, after those of the step so far. A call that
    cannot run is planned as a refusal.
    """
    if not calls:
        return []
    found = [_find(services, turn, call) for call in calls]
    classes = [EffectClass.PURE if tool is None else tool.effect for tool, _refusal in found]
    rows = [
        row if tool is not None else replace(row, idempotency_key=NO_TOOL)
        for row, (tool, _refusal) in zip(
            effect_rows(turn, calls, classes, services.constellation_id), found, strict=True
        )
    ]
    note_planned(turn, rows, [call.arguments if call.invalid is None else call.invalid for call in calls])
    return [
        Planned(row=row, arguments=call.arguments, tool=tool, refusal=refusal)
        for row, call, (tool, refusal) in zip(rows, calls, found, strict=True)
    ]


async def forced(services: TurnServices, turn: ActiveTurn, calls: Sequence[ForcedCall]) -> list[Planned]:
    """Plan and store calls that rules make instead of the model."""
    first = sum(call.step == turn.step for call in turn.log)
    made = [forced_call(turn, call, first + index) for index, call in enumerate(calls)]
    planned = plan(services, turn, made)
    await pauses.force(services.journal, turn, made, [one.row for one in planned])
    return planned


def forced_call(turn: ActiveTurn, call: ForcedCall, index: int) -> ToolCall:
    """A rule's call as the conversation shows it."""
    return ToolCall(
        call_id=f"{FORCED_PREFIX}{turn.key}_{turn.step}_{index}", tool=call.tool, arguments=dict(call.arguments)
    )


def plan_again(
    services: TurnServices, turn: ActiveTurn, row: EffectRow, answered: ApprovalRow | None = None
) -> Planned:
    """A stored call after a restart, or after a person answered."""
    stored = json.loads(row.args)
    call = ToolCall(
        call_id=row.call_id,
        tool=row.tool,
        arguments=stored if isinstance(stored, dict) else {},
        invalid=stored if isinstance(stored, str) else None,
    )
    tool, refusal = _find(services, turn, call)
    if row.idempotency_key == NO_TOOL and tool is not None:  # it has come since; what was decided on stays a refusal
        tool, refusal = None, f"There was no tool {row.tool!r} when you called it; call it again."
    is_gone = tool is None and call.invalid is None and row.idempotency_key != NO_TOOL
    return Planned(row=row, arguments=call.arguments, tool=tool, refusal=refusal, answered=answered, is_gone=is_gone)


def _find(services: TurnServices, turn: ActiveTurn, call: ToolCall) -> tuple[Tool | None, str | None]:
    if call.invalid is not None:
        return None, INVALID_JSON + call.invalid[:200]
    try:
        return services.tools.get(call.tool, turn.agent.enabled_tools), None
    except NotFound as error:
        return None, error.message


async def run(services: TurnServices, turn: ActiveTurn, planned: Planned, work: UnitOfWork) -> Finished:
    """Run one call to a result; only cancellation and trouble with storage come out as exceptions."""
    row, tool = planned.row, planned.tool
    if planned.is_forbidden or row.status == _DENIED:
        return _denied(planned)
    if tool is None:
        return Finished(row=row, status="error", content=planned.refusal or "Not run.")
    timeout_s = tool.timeout_s or services.limits.turn.tool_timeout_s
    with trio.move_on_after(timeout_s) as scope:
        result = await outcome.acapture(tool.call, _context(services, turn, row, work), planned.arguments)
        if isinstance(result, outcome.Error) and not isinstance(result.error, Exception):
            raise result.error
    if scope.cancelled_caught:
        return Finished(row=row, status="timeout", content=_timeout_text(row, timeout_s))
    finished = await _finished(services, turn, row, result, work)
    return replace(finished, content=edited_note(planned.answered, row) + finished.content)


def _denied(planned: Planned) -> Finished:
    """A rule forbids it, or nobody agreed. A call whose outcome was unknown stays so."""
    if planned.is_forbidden:
        return Finished(row=planned.row, status=_DENIED, content=planned.refusal or "Not run.")
    answered = planned.answered
    if answered is not None and answered.kind is ApprovalKind.RECOVERY and planned.row.attempts:
        return Finished(row=planned.row, status="in_doubt", content=IN_DOUBT)
    return Finished(row=planned.row, status=_DENIED, content=denial(answered))


async def probed(services: TurnServices, planned: Planned) -> Finished | None:
    """What a verifiable call that was started before came to, as its tool finds out: done, or in doubt where the tool
    cannot tell, fails at it or does not answer in its time; None if it did not happen.
    """
    row, tool = planned.row, planned.tool
    assert tool is not None
    assert tool.probe is not None
    limits = services.limits.turn
    result: outcome.Outcome[Probe | tuple[Probe, str]] = outcome.Value("unknown")
    with trio.move_on_after(tool.timeout_s or limits.tool_timeout_s):
        result = await outcome.acapture(tool.probe, row.idempotency_key)
        if isinstance(result, outcome.Error) and not isinstance(result.error, Exception):
            raise result.error
    if isinstance(result, outcome.Error):
        _log.error("the probe of the tool %s failed", row.tool, exc_info=result.error)
        result = outcome.Value("unknown")
    answer = result.unwrap()
    verdict, text = answer if isinstance(answer, tuple) else (answer, "Done before the interruption.")
    match verdict:
        case "done":
            content = edited_note(planned.answered, row) + to_text(text, limits.tool_result_chars_max)
            return Finished(row=row, status="done", content=content)
        case "absent":
            return None
        case "unknown":
            return Finished(row=row, status="in_doubt", content=IN_DOUBT)


async def _finished(
    services: TurnServices, turn: ActiveTurn, row: EffectRow, result: outcome.Outcome[object], work: UnitOfWork
) -> Finished:
    limit = services.limits.turn.tool_result_chars_max
    if isinstance(result, outcome.Value):
        origin = Origin(
            agent_id=turn.agent.id,
            tool=row.tool,
            call_id=row.call_id,
            can_read_on=READER in turn.agent.enabled_tools,
        )
        whole = to_text(result.value)
        text = await services.toolbox.results.shorten(whole, limit=limit, origin=origin, work=work)
        return Finished(row=row, status="done", content=text)
    error = cast("outcome.Error", result).error
    if isinstance(error, StorageFailed):
        raise error
    if isinstance(error, PatternError | DatabaseError):
        return Finished(row=row, status="error", content=to_text(f"Error: {error.message}", limit))
    _log.error("tool %s failed", row.tool, exc_info=error)
    told = f"Error: the tool failed ({type(error).__name__}: {error})"
    return Finished(row=row, status="error", content=to_text(told, limit))


def _timeout_text(row: EffectRow, timeout_s: float) -> str:
    if row.effect_class in _INNER:
        return f"Error: the tool took longer than {timeout_s:g} s; nothing was changed."
    return f"Error: no answer within {timeout_s:g} s. It may have happened all the same: find out before you repeat it."


def _context(services: TurnServices, turn: ActiveTurn, row: EffectRow, work: UnitOfWork) -> ToolContext:
    async def deliver(work: UnitOfWork, *, target: str, content: str) -> str:
        """As `Deliver` says, for the turn that calls."""
        return await services.deliver(turn, work, target, content)

    return ToolContext(
        agent_id=turn.agent.id,
        agent_name=turn.agent.name,
        turn_id=turn.id,
        batch_id=turn.batch_id,
        call_id=row.call_id,
        idempotency_key=row.idempotency_key,
        work=work,
        memory=services.memory,
        sharing=services.sharing,
        revisions=services.revisions,
        search=services.search,
        database=services.database,
        clock=services.clock,
        ids=services.ids,
        deliver=deliver,
        toolbox=services.toolbox,
    )
