"""The tool calls of one turn: planned, judged by rules and approvals, run by effect class, each with a result.

Calls that reach outside run side by side, after their intent is stored (T5). Calls within the file (pure and local
ones) run in order, and each sees the writes of the previous one, which are flushed before. If a rule depends on earlier
calls, all calls run one after another.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import Any, ParamSpec, TypeVar

import outcome
import trio

from pattern_core.agent_settings import OnDoubt
from pattern_core.compaction.compaction import Compaction
from pattern_core.errors import InvalidInput, NotFound, PatternError
from pattern_core.ids import message_id
from pattern_core.journal import Journal
from pattern_core.limits import Limits
from pattern_core.mcp_servers.servers import McpServers
from pattern_core.memory.block import Attribution, agent_author
from pattern_core.messages import ToolCall
from pattern_core.models.client import ModelClient
from pattern_core.models.model import ModelReply, ToolSpec
from pattern_core.outbox import Outbox
from pattern_core.prompts.collect import Prompts
from pattern_core.rules.facts import FORCED_PREFIX, JudgedCall
from pattern_core.rules.rule import RequestedCall
from pattern_core.tools.arguments import InvalidArguments
from pattern_core.tools.registry import ToolRegistry
from pattern_core.tools.results import shorten, to_text
from pattern_core.tools.tool import Probe, ProbeFunction, Tool, Toolbox, ToolContext
from pattern_core.turns.consent import AGREED, ToolConsent, denial, edited_note
from pattern_core.turns.judge import Judge
from pattern_core.turns.record import Record
from pattern_core.turns.state import FinishedCall
from pattern_core.unit_of_work import UnitOfWork
from pattern_core.untrusted import ERROR
from pattern_db.columns import to_json
from pattern_db.enums import ApprovalKind, EffectClass, EffectStatus
from pattern_db.errors import DatabaseError, StorageFailed
from pattern_db.journal.approvals import ApprovalRow
from pattern_db.journal.steps import EffectRow, hash_call

_log = logging.getLogger(__name__)
WAITING = EffectStatus.AWAITING_APPROVAL.value
KEY_BYTES = 16
_DENIED = EffectStatus.DENIED.value
_INNER = frozenset({EffectClass.PURE.value, EffectClass.LOCAL.value})
NO_TOOL = ""  # the key of a call without a tool: nothing ever runs under it
REPEATS_IN_DOUBT = "an identical call of this turn was cut off, and it is not known whether it happened"
INVALID_JSON = "The arguments are not a JSON object or were cut off, so nothing was run. Send the call again, whole: "
IN_DOUBT = (
    "Outcome unknown: the call was started, and cut off before its result was recorded. It may or may not have"
    " happened. Find out or ask before you do it again; it will not be repeated by itself."
)
INTERRUPTED = "the call was cut off, and it is not known whether it happened; agree to have it run (again)"
NOT_FOR_STRANGERS = "Not run: it could show or change what others said or planned, and this conversation is not theirs."
CLIENTS = "the program that sent the message runs this tool, and sends its result"
GONE = "there is no such tool any more; bring it back and agree to have the call run, or deny"

P = ParamSpec("P")
T = TypeVar("T")


class InDoubt(PatternError):
    """A call was interrupted and may have happened, and the agent's turns fail in this case."""

    code = "in_doubt"
    remedy = "Check outside whether the call happened; then send a message that says how to continue."

    def __init__(self) -> None:
        super().__init__("a call was cut off and may have happened; find out before you send the message again")


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnServices:
    """The services of one constellation. `is_draining`: turns should stop at their next step border.

    `deliver` is a tool's `Deliver` with the record of its turn before the other arguments. `flush_late` flushes a
    record soon, if its turn does not.
    """

    constellation_id: str
    journal: Journal
    models: ModelClient
    tools: ToolRegistry
    toolbox: Toolbox
    mcp: McpServers
    consent: ToolConsent
    prompts: Prompts
    compaction: Compaction
    outbox: Outbox
    limits: Limits
    deliver: Callable[..., Coroutine[Any, Any, str]]
    is_draining: Callable[[], bool]
    flush_late: Callable[[Record], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCall:
    """A decided call: its row, its parsed arguments, and its tool if there is one.

    `finished` is its result if it will not run. `question` is the question to a person before it runs, `answered` the
    approval that allowed or denied it.
    """

    row: EffectRow
    arguments: Mapping[str, object]
    tool: Tool | None
    finished: FinishedCall | None = None
    question: ApprovalRow | None = None
    answered: ApprovalRow | None = None

    @property
    def is_inner(self) -> bool:
        """Whether the call touches nothing outside this file: it needs no stored intent."""
        return self.finished is not None or self.row.effect_class in _INNER


class TurnCalls:
    """Plans and runs the calls of one turn. `in_doubt` holds argument digests of calls with unknown outcome,
    `offered` the tools that the step was offered. Calls of `clients` (names of tools) wait for the client's results.
    """

    def __init__(
        self, services: TurnServices, record: Record, judge: Judge, clients: Collection[str] = frozenset()
    ) -> None:
        self.in_doubt: set[bytes] = set()
        self.offered: Sequence[ToolSpec] = ()
        self._services = services
        self._record = record
        self._judge = judge
        self._clients = clients
        self._agent = record.agent
        self._question = partial(services.consent.question, record.agent, record.id)
        self._outside = 0  # calls that reach outside and run now

    # Planning

    def meant(self, reply: ModelReply) -> ModelReply:
        """Return the reply with the calls that its model meant; its original spelling is not stored."""
        tools, is_whole = self._services.tools, reply.finish_reason in ("stop", "tool_calls")
        parts = [
            tools.meant(part, self._names, is_whole=is_whole) if isinstance(part, ToolCall) else part
            for part in reply.parts
        ]
        return reply if parts == [*reply.parts] else replace(reply, parts=tuple(parts))

    @property
    def _names(self) -> Sequence[str]:
        """The names of the tools that were offered; after a restart, of all that may have been."""
        return [spec.name for spec in self.offered] or self._agent.enabled_tools

    def plan(self, calls: Sequence[ToolCall]) -> list[PlannedCall]:
        """Return the calls of a decision with their tools, in the model's order, after those of the step so far.

        A call that cannot run is planned as a refusal. Its idempotency key is a BLAKE2b digest (32 hex digits) of
        constellation, turn, step and place: the same when the call is run again, and no other call's.
        """
        record, planned = self._record, []
        for index, call in enumerate(calls, self._judge.count(record.step)):
            tool, refusal = self._find(call)
            given = dict(call.arguments) if call.invalid is None else call.invalid
            arguments = to_json(given)
            place = f"{self._services.constellation_id}/{record.id}/{record.step}/{index}".encode()
            row = EffectRow(
                record.key,
                record.step,
                index,
                call.call_id,
                call.tool,
                arguments,
                hash_call(call.tool, arguments),
                (EffectClass.PURE if tool is None else tool.effect).value,
                NO_TOOL if tool is None else blake2b(place, digest_size=KEY_BYTES).hexdigest(),
            )
            planned.append(self._planned(row, call, tool, refusal))
            self._judge.calls[row.key] = JudgedCall.of(row, given)
        return planned

    def _planned(
        self, row: EffectRow, call: ToolCall, tool: Tool | None, refusal: str, answered: ApprovalRow | None = None
    ) -> PlannedCall:
        """Return a call that will run, is refused, or waits for its client and then has its result."""
        finished = question = None
        if tool is None and call.invalid is None and call.tool in self._clients:
            if answered is None:
                question = self._question(row, CLIENTS, is_client=True)
            else:
                result = (answered.decision or {}).get("result")
                limit = self._services.limits.turn.tool_result_chars_max
                finished = FinishedCall(row=row, status=EffectStatus.DONE.value, content=to_text(result, limit))
        elif tool is None:
            finished = _refused(row, refusal)
        return PlannedCall(
            row=row, arguments=call.arguments, tool=tool, finished=finished, question=question, answered=answered
        )

    def forced(self, calls: Sequence[RequestedCall]) -> list[ToolCall]:
        """Return calls by rules in the form of the conversation, after those of the step so far."""
        record, first = self._record, self._judge.count(self._record.step)
        return [
            ToolCall(
                call_id=f"{FORCED_PREFIX}{record.key}_{record.step}_{index}",
                tool=call.tool,
                arguments=dict(call.arguments),
            )
            for index, call in enumerate(calls, first)
        ]

    def _find(self, call: ToolCall) -> tuple[Tool | None, str]:
        """Return the tool of a call, or the reason why none can run it."""
        if call.tool in self._clients and call.invalid is None:
            return None, ""
        if call.invalid is not None:
            return None, INVALID_JSON + call.invalid[:200]
        try:
            return self._services.tools.get(call.tool, self._agent.enabled_tools, offered=self._names), ""
        except NotFound as error:
            return None, error.message

    # Judging

    async def _judged(self, group: Sequence[PlannedCall]) -> list[PlannedCall]:
        """Return the calls after judging by the rules: refused ones will not run, and some need approval (T4)."""
        judged: list[PlannedCall] = []
        asked = 0
        for one in group:
            verdict = await self._one_judged(one)
            if verdict.question is not None and (full := await self._services.consent.approvals.full(asked + 1)):
                why = f"Not run: it needs a person's consent, and {full}."
                verdict = replace(verdict, question=None, finished=_denied(verdict.row, why))
            asked += verdict.question is not None
            if verdict.finished is not None and verdict.finished.status == _DENIED:
                self._judge.refuse(verdict.row)  # so that it does not count against those after it
            judged.append(verdict)
        return self._ask(judged) if asked else judged

    def _ask(self, planned: Sequence[PlannedCall]) -> list[PlannedCall]:
        """T4: record the questions about the calls; return the calls with their new status."""
        questions = [(one.row, one.question) for one in planned if one.question is not None]
        if questions:
            self._record.ask(questions)
        return [
            one if one.question is None else replace(one, row=one.row._replace(status=WAITING), question=None)
            for one in planned
        ]

    async def _one_judged(self, planned: PlannedCall) -> PlannedCall:
        row, tool, consent = planned.row, planned.tool, self._services.consent
        if tool is None or row.status != EffectStatus.PLANNED:
            return planned
        is_approved = planned.answered is not None and planned.answered.status in AGREED
        agreed: set[str | None] = set()
        if not tool.for_strangers and self._record.sees_only is not None:
            return replace(planned, finished=_denied(row, NOT_FOR_STRANGERS))
        if self._judge.rules.rules:
            self._judge.trust = self._record.trust
            asked = RequestedCall(tool=tool.name, arguments=planned.arguments, parameters=tool.parameters)
            while True:  # several rules may ask, each for its own scope
                verdict = self._judge.before(row).check(asked, is_approved=is_approved, agreed=agreed)
                if verdict.kind != "ask" or not await consent.is_standing(self._agent.id, row, verdict.scope):
                    break
                agreed.add(verdict.scope)
            if verdict.kind == "refuse":
                return replace(planned, finished=_denied(row, f"Not run: {verdict.text}"))
            if verdict.kind == "ask" and row.args_hash not in self.in_doubt:
                return replace(planned, question=self._question(row, verdict.text, scope=verdict.scope))
        if is_approved:
            return planned
        if row.args_hash in self.in_doubt:
            return replace(planned, question=self._question(row, REPEATS_IN_DOUBT, kind=ApprovalKind.RECOVERY))
        if agreed or tool.consent is None:  # who agreed to such calls is not asked again by the tool
            return planned
        try:
            tool.check(planned.arguments)
        except InvalidInput:
            return planned  # arguments that do not fit are reported when it runs
        reason = tool.consent(planned.arguments)
        if reason is None or await consent.is_standing(self._agent.id, row, None):
            return planned
        return replace(planned, question=self._question(row, reason))

    # After a restart, or a person's answer

    async def resume(
        self, found: Sequence[tuple[EffectRow, ApprovalRow | None]], on_doubt: OnDoubt
    ) -> list[PlannedCall]:
        """Return the calls of the newest decision without a result, with their current status: they run, or wait for a
        person (T4). If the outcome of one is found out or stays unknown, its result is recorded (T6).

        Raises:
            InDoubt: a call may have happened, and the agent's turns fail in this case.
        """
        rest = []
        for row, answered in found:
            planned = self._plan_again(row, answered)
            resumed = await self._resumed(planned, on_doubt)
            if isinstance(resumed, PlannedCall):
                rest.append(resumed)
            else:
                self._judge.finish(resumed, self._services.journal.clock.now_ms())
                self._record.finish(resumed, UnitOfWork(), planned.arguments)
        return self._ask(rest)

    def _plan_again(self, row: EffectRow, answered: ApprovalRow | None) -> PlannedCall:
        stored = json.loads(row.args)
        call = ToolCall(
            call_id=row.call_id,
            tool=row.tool,
            arguments=stored if isinstance(stored, dict) else {},
            invalid=stored if isinstance(stored, str) else None,
        )
        tool, refusal = self._find(call)
        if row.idempotency_key == NO_TOOL and tool is not None:  # added later: the decided call stays refused
            tool, refusal = None, f"There was no tool {row.tool!r} when you called it; call it again."
        planned = self._planned(row, call, tool, refusal, answered)
        if row.status != _DENIED:
            return planned
        if answered is not None and answered.kind is ApprovalKind.RECOVERY and row.attempts:
            self.in_doubt.add(row.args_hash)
            return replace(planned, finished=in_doubt(row))
        return replace(planned, finished=_denied(row, denial(answered)))

    async def _resumed(self, planned: PlannedCall, on_doubt: OnDoubt) -> PlannedCall | FinishedCall:
        row, tool, answered = planned.row, planned.tool, planned.answered
        if row.status not in (EffectStatus.PLANNED, EffectStatus.STARTED):
            return planned
        is_doubtful = row.status == EffectStatus.STARTED and row.effect_class == EffectClass.UNSAFE
        if not is_doubtful:
            if tool is None and row.idempotency_key != NO_TOOL:
                gone = self._question(row, GONE, kind=ApprovalKind.RECOVERY, attention="tool_gone")
                return replace(planned, question=gone)
            if not row.attempts or tool is None or tool.probe is None:
                return planned
            known = await self._probed(planned, tool, tool.probe)
            if known is None:
                return planned
            if known.status == EffectStatus.DONE:
                return known
            if (
                answered is not None
                and answered.status in AGREED
                and answered.request.get("needs_attention") == "in_doubt"
            ):
                return planned  # a person knew that it may have happened, and agreed
        match on_doubt:
            case "ask_human":
                doubt = self._question(row, INTERRUPTED, kind=ApprovalKind.RECOVERY, attention="in_doubt")
                return replace(planned, question=doubt)
            case "fail_turn":
                raise InDoubt
            case "tell_model":
                self.in_doubt.add(row.args_hash)
                return in_doubt(row)

    # Running

    async def run(self, planned: Sequence[PlannedCall]) -> bool:
        """Run the calls and record each result; False if some of them wait for a person.

        Raises:
            StorageFailed: the disk failed.
        """
        tools = [one.row.tool for one in planned]
        is_ordered = len(tools) > 1 and self._judge.runs_in_order(tools, self._record.step)
        for group in [[one] for one in planned] if is_ordered else [planned]:
            if self._record.holds_work:
                await self._record.flush()  # rules judge by whether it was stored
            judged = await self._judged(group)
            inner = [one for one in judged if one.row.status != WAITING and one.is_inner]
            outer = [one for one in judged if one.row.status != WAITING and not one.is_inner]
            if outer:
                timeout_s = self._services.limits.turn.tool_timeout_s
                await self._record.start_calls([one.row for one in outer], timeout_s=timeout_s)
            if not self._record.is_flushed:
                self._services.flush_late(self._record)
            self._outside = len(outer)
            if outer:
                async with trio.open_nursery() as nursery:
                    for one in outer:
                        nursery.start_soon(self._run_and_record, one)
                    for one in inner:
                        await self._run_and_record(one)
            else:
                for one in inner:
                    await self._run_and_record(one)
            if len(inner) + len(outer) < len(judged):
                return False
        return True

    async def _run_and_record(self, planned: PlannedCall) -> None:
        """T6."""
        if self._record.holds_work:  # a tool that reads sees what the one before it wrote
            await self._record.flush()
        work = UnitOfWork()
        journal = self._services.journal
        began_ms = journal.clock.now_ms()
        try:
            finished = await self._run(planned, work)
        except BaseException:
            work.settle(committed=False)
            raise
        if finished.status != EffectStatus.DONE:  # a failed call leaves nothing behind
            work.settle(committed=False)
            work = UnitOfWork()
        self._judge.finish(finished, began_ms)
        took_ms = max(0, journal.clock.now_ms() - began_ms)
        finished = replace(finished, duration_ms=took_ms)
        self._record.finish(finished, work, planned.arguments)
        name = "unknown" if planned.tool is None else planned.tool.name  # an invented name is not one of ours
        journal.meters.call_ended(name, finished.status, took_ms / 1000)
        self._outside -= not planned.is_inner
        if self._outside:
            await self._record.flush()  # the others may run for long

    async def _run(self, planned: PlannedCall, work: UnitOfWork) -> FinishedCall:
        """Run one call to a result; only cancellation and storage errors are raised."""
        if planned.finished is not None:
            return planned.finished
        row, tool = planned.row, planned.tool
        assert tool is not None  # else it is finished
        services, record, limits = self._services, self._record, self._services.limits.turn
        timeout_s = tool.timeout_s or limits.tool_timeout_s
        context = ToolContext(
            agent_id=self._agent.id,
            agent_name=self._agent.name,
            turn_id=record.id,
            batch_id=record.batch_id,
            batch_type=record.batch_type,
            session_id=record.history.session_id,
            call_id=row.call_id,
            by=Attribution(
                author=agent_author(self._agent.id),
                cause={"message": message_id(record.batch_id), "turn": record.id, "call": row.call_id},
            ),
            idempotency_key=row.idempotency_key,
            work=work,
            deliver=partial(services.deliver, record),
            toolbox=services.toolbox,
            trust=record.trust,
        )
        result = await _within(timeout_s, tool.call, context, planned.arguments)
        if result is None:
            return FinishedCall(row=row, status="timeout", content=_timeout_text(row, timeout_s))
        note = "" if planned.answered is None else edited_note(planned.answered, row)
        if isinstance(result, outcome.Value):
            content = to_text(result.value)
            if len(content) > (limit := limits.tool_result_chars_max):
                reader = services.tools.reader(self._names)
                content = await shorten(content, row, context, limit=limit, reader=reader)
            return FinishedCall(row=row, status="done", content=note + content)
        content = note + to_text(_error_text(row, result.error), limits.tool_result_chars_max)
        return _refused(row, content, is_ours=isinstance(result.error, InvalidArguments))

    async def _probed(self, planned: PlannedCall, tool: Tool, probe: ProbeFunction) -> FinishedCall | None:
        """Return the outcome of a verifiable call that was started before, as its probe reports.

        It is done, or in doubt if the probe cannot tell, fails or times out; None if it did not happen.
        """
        row = planned.row
        limits = self._services.limits.turn
        result = await _within(tool.timeout_s or limits.tool_timeout_s, probe, row.idempotency_key)
        if isinstance(result, outcome.Error):
            _log.error("the probe of the tool %s failed", row.tool, exc_info=result.error)
        answer: Probe | tuple[Probe, str] = result.value if isinstance(result, outcome.Value) else "unknown"
        verdict, text = answer if isinstance(answer, tuple) else (answer, "Done before the interruption.")
        match verdict:
            case "done":
                content = edited_note(planned.answered, row) + to_text(text, limits.tool_result_chars_max)
                return FinishedCall(row=row, status="done", content=content)
            case "absent":
                return None
            case "unknown":
                return in_doubt(row)


async def _within(
    seconds: float, fn: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
) -> outcome.Value[T] | outcome.Error | None:
    """Return the result of a tool, None after a time-out; only cancellation and similar exceptions are raised."""
    with trio.CancelScope(deadline=trio.current_time() + seconds):
        result = await outcome.acapture(fn, *args, **kwargs)
        if not isinstance(result, outcome.Value) and not isinstance(result.error, Exception):
            raise result.error
        return result
    return None


def _error_text(row: EffectRow, error: BaseException) -> str:
    """Return the text for the model about a call that raised.

    Raises:
        StorageFailed: that is what was raised.
    """
    if isinstance(error, StorageFailed):
        raise error
    if isinstance(error, PatternError | DatabaseError):
        return error.message if error.message.startswith(ERROR) else ERROR + error.message
    _log.error("tool %s failed", row.tool, exc_info=error)
    return f"{ERROR}the tool failed ({type(error).__name__}: {error})"


def _refused(row: EffectRow, words: str, *, is_ours: bool = True) -> FinishedCall:
    return FinishedCall(row=row, status=EffectStatus.ERROR.value, content=words, is_ours=is_ours)


def _denied(row: EffectRow, why: str) -> FinishedCall:
    return FinishedCall(row=row, status=_DENIED, content=why)


def in_doubt(row: EffectRow) -> FinishedCall:
    """Return the result of a call that may or may not have happened."""
    return FinishedCall(row=row, status=EffectStatus.IN_DOUBT.value, content=IN_DOUBT)


def _timeout_text(row: EffectRow, timeout_s: float) -> str:
    if row.effect_class in _INNER:
        return f"{ERROR}the tool was not finished within {timeout_s:g} s; nothing was changed."
    return f"{ERROR}no answer within {timeout_s:g} s. It may have happened all the same: find out before you repeat it."
