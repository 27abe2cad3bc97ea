"""Running the tool calls of one decision: each according to its effect class, each with a stored result."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import outcome
import trio

from pattern_core.agents.active import ActiveTurn, Finished
from pattern_core.agents.prompt import Prompt
from pattern_core.agents.rows import effect_rows
from pattern_core.agents.services import TurnServices
from pattern_core.errors import NotFound, PatternError
from pattern_core.messages import ToolCall
from pattern_core.models.model import ModelReply
from pattern_core.tools.registry import to_text
from pattern_core.tools.tool import Tool, ToolContext
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.enums import EffectClass
from pattern_db.errors import DatabaseError, StorageFailed
from pattern_db.journal.effects import EffectRow

_log = logging.getLogger(__name__)
_INNER = frozenset({EffectClass.PURE.value, EffectClass.LOCAL.value})
INVALID_JSON = "The arguments are not a JSON object, so nothing was run. Send the call again with valid JSON: "
IN_DOUBT = (
    "Outcome unknown: the call was started, and cut off before its result was recorded. It may or may not have"
    " happened. Find out or ask before you do it again; it will not be repeated by itself."
)
REFUSED_IN_DOUBT = (
    "Not run: an identical call of this turn was cut off and its outcome is unknown. Ask the person you work for"
    " whether to do it again."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A decided call: its row, its parsed arguments, and its tool, or why none will run."""

    row: EffectRow
    arguments: Mapping[str, object]
    tool: Tool | None
    refusal: str | None = None

    @property
    def is_inner(self) -> bool:
        """Whether the call touches nothing outside this file: it needs no stored intent."""
        return self.tool is None or self.row.effect_class in _INNER


def plan(services: TurnServices, turn: ActiveTurn, reply: ModelReply) -> list[Planned]:
    """The reply's calls with their tools, in the model's order. A call that cannot run is planned as a refusal."""
    calls = [part for part in reply.parts if isinstance(part, ToolCall)]
    if not calls:
        return []
    found = [_find(services, turn, call) for call in calls]
    classes = [EffectClass.PURE if tool is None else tool.effect for tool, _refusal in found]
    rows = effect_rows(turn, calls, classes, services.constellation_id)
    return [
        Planned(row=row, arguments=call.arguments, tool=tool, refusal=refusal)
        for row, call, (tool, refusal) in zip(rows, calls, found, strict=True)
    ]


def plan_again(services: TurnServices, turn: ActiveTurn, row: EffectRow) -> Planned:
    """A stored call after a restart."""
    stored = json.loads(row.args)
    call = ToolCall(
        call_id=row.call_id,
        tool=row.tool,
        arguments=stored if isinstance(stored, dict) else {},
        invalid=stored if isinstance(stored, str) else None,
    )
    tool, refusal = _find(services, turn, call)
    return Planned(row=row, arguments=call.arguments, tool=tool, refusal=refusal)


def _find(services: TurnServices, turn: ActiveTurn, call: ToolCall) -> tuple[Tool | None, str | None]:
    if call.invalid is not None:
        return None, INVALID_JSON + call.invalid[:200]
    try:
        return services.tools.get(call.tool, turn.agent.enabled_tools), None
    except NotFound as error:
        return None, error.message


async def act(services: TurnServices, turn: ActiveTurn, planned: Sequence[Planned]) -> Prompt | None:
    """Run the calls and store each result; open the next step and return its prompt.

    Calls that reach outside run side by side, after their intent is stored (T5). Calls within the file run in
    order, since each commits with its own result; the last one's transaction also opens the next step (T7).
    Returns None, at a step border, while the constellation drains.
    """
    inner = [one for one in planned if one.is_inner]
    outer = [one for one in planned if not one.is_inner]
    last = inner.pop() if inner else None
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
    if last is not None:
        return await _run_and_store(services, turn, last, is_last=True)
    if services.is_draining():
        return None
    turn.step, turn.attempt = turn.step + 1, 1
    prompt = await services.prompt(turn)
    await services.journal.open_step(turn, prompt)
    return prompt


async def _run_and_store(
    services: TurnServices, turn: ActiveTurn, planned: Planned, *, is_last: bool = False
) -> Prompt | None:
    work = UnitOfWork()
    stored = False
    try:
        finished = await _run(services, turn, planned, work)
        if finished.status != "done":
            work = _give_up(work)
        prompt = await _store(services, turn, planned, finished, work, is_last=is_last)
        stored = True
        return prompt
    finally:
        if not stored:
            work.settle(committed=False)


def _give_up(work: UnitOfWork) -> UnitOfWork:
    """A failed call leaves nothing behind."""
    work.settle(committed=False)
    return UnitOfWork()


async def _store(
    services: TurnServices, turn: ActiveTurn, planned: Planned, finished: Finished, work: UnitOfWork, *, is_last: bool
) -> Prompt | None:
    """T6. If the tool's own writes are refused, nothing of them is stored and the model reads why."""
    following = None if services.is_draining() or not is_last else lambda: services.prompt(turn)
    try:
        return await services.journal.finish_effect(turn, finished, work, planned.arguments, following)
    except StorageFailed:
        raise
    except DatabaseError as error:
        if finished.status != "done":
            raise
        refused = Finished(row=planned.row, status="error", content=f"Nothing was changed: {error}")
        return await services.journal.finish_effect(turn, refused, UnitOfWork(), planned.arguments, following)


async def _run(services: TurnServices, turn: ActiveTurn, planned: Planned, work: UnitOfWork) -> Finished:
    """Run one call to a result; only cancellation and trouble with storage come out as exceptions."""
    row, tool = planned.row, planned.tool
    if tool is None:
        return Finished(row=row, status="error", content=planned.refusal or "Not run.")
    if row.effect_class == EffectClass.UNSAFE.value and row.args_hash in turn.in_doubt:
        return Finished(row=row, status="denied", content=REFUSED_IN_DOUBT)
    if row.status == "started":
        known = await _probe(row, tool)
        if known is not None:
            return known
    timeout_s = tool.timeout_s or services.limits.turn.tool_timeout_s
    with trio.move_on_after(timeout_s) as scope:
        result = await outcome.acapture(tool.call, _context(services, turn, row, work), planned.arguments)
        if isinstance(result, outcome.Error) and not isinstance(result.error, Exception):
            raise result.error
    if scope.cancelled_caught:
        return Finished(row=row, status="timeout", content=_timeout_text(row, timeout_s))
    return _finished(services, row, result)


async def _probe(row: EffectRow, tool: Tool) -> Finished | None:
    """After a restart, what a call that was started came to; None if it should run (again)."""
    if tool.probe is None:
        return None  # idempotent: running it again under the same key is harmless
    answer = await tool.probe(row.idempotency_key)
    verdict, text = answer if isinstance(answer, tuple) else (answer, "Done before the interruption.")
    match verdict:
        case "done":
            return Finished(row=row, status="done", content=text)
        case "absent":
            return None
        case "unknown":
            return Finished(row=row, status="in_doubt", content=IN_DOUBT)


def _finished(services: TurnServices, row: EffectRow, result: outcome.Outcome[object]) -> Finished:
    if isinstance(result, outcome.Value):
        text = to_text(result.value, services.limits.turn.tool_result_chars_max)
        return Finished(row=row, status="done", content=text)
    error = cast("outcome.Error", result).error
    if isinstance(error, StorageFailed):
        raise error
    if isinstance(error, PatternError | DatabaseError):
        return Finished(row=row, status="error", content=f"Error: {error.message}")
    _log.error("tool %s failed", row.tool, exc_info=error)
    return Finished(row=row, status="error", content=f"Error: the tool failed ({type(error).__name__}: {error})")


def _timeout_text(row: EffectRow, timeout_s: float) -> str:
    if row.effect_class in _INNER:
        return f"Error: the tool took longer than {timeout_s:g} s; nothing was changed."
    return f"Error: no answer within {timeout_s:g} s. It may have happened all the same: find out before you repeat it."


def _context(services: TurnServices, turn: ActiveTurn, row: EffectRow, work: UnitOfWork) -> ToolContext:
    async def deliver(work: UnitOfWork, *, target: str, content: str) -> str:
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
    )
