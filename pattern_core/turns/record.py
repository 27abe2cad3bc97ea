"""The stored side of one turn: recorded first, then flushed before anything leaves the process.

`record` keeps a write for the turn's next commit, `flush` commits all recorded writes, in order, with one more. So
everything recorded is on disk before a 2xx, an event, a model call or a call that reaches outside.

| moment | method | stored | flushed |
|---|---|---|---|
| T0 accepted | `admission.accept`, or `start` | turn, `turn.queued` | before the 2xx |
| T1 started | `start` | turn running, the message, what the turn may spend, `turn.started` | before the model call |
| T2 asks | `open_step` | step open, `step.started`; a dead attempt superseded and charged at an estimate | at once |
| T2' streams | `say` | pieces of the answer | at once if a stream waits for them |
| T3 decided | `decide` | step done, message, usage, an effect per call, `message`, `tool.call` | before a call leaves |
| T4 asks people | `ask` | calls that wait, a question for each, `approval.requested` | when the turn waits |
| T4' waits | `wait` | turn waiting, `turn.waiting` | at once |
| T5 about to act | `start_calls` | calls started: the intent is on disk before anything leaves | at once |
| T6 acted | `finish` | the tool's own writes, call ended, message, `tool.result` | with the next step |
| is joined | `join` | an inbox row becomes a message of this turn, its own turn ends, `message.joined` | at once |
| is resumed | `resume` | turn running here, `turn.resumed`; dead reservations charged | with the next write |
| T8 ended | `end` | turn's status, open calls closed, the partial answer, the terminal event | at once |
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import trio

from pattern_core.agents import Agent
from pattern_core.approvals import requested
from pattern_core.budgets import reservations
from pattern_core.budgets.budget import TurnBudget
from pattern_core.conversation.history import History, to_row
from pattern_core.errors import PatternError
from pattern_core.events import Draft, Event, append, called, ended, resulted
from pattern_core.journal import Journal
from pattern_core.messages import Message, Part, Text, ToolCall
from pattern_core.models.model import ModelReply, Usage
from pattern_core.models.routing import Link
from pattern_core.models.tokens import estimate_usage
from pattern_core.prompts.collect import mark_shown
from pattern_core.rules import facts
from pattern_core.turns.admission import Arrival, Asker, accept_at_rest, parts_of
from pattern_core.turns.state import Asking, DeadAttempt, Ending, FinishedCall
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.columns import iso, unix_ms
from pattern_db.connection import Connection
from pattern_db.enums import ApprovalStatus, BatchType, EffectStatus, TrustLevel, TurnStatus
from pattern_db.errors import RAISED, RowConflict, StorageFailed, translate
from pattern_db.journal import approvals, budgets, steps, turns, usage
from pattern_db.journal import events as event_table
from pattern_db.journal.approvals import ApprovalRow
from pattern_db.journal.steps import EffectRow, StepRow
from pattern_db.journal.turns import InboxRow, Started
from pattern_db.journal.usage import UsageRow
from pattern_db.tables import handoffs, messages, outbox
from pattern_db.tables.messages import PARTIAL, MessageRow

T = TypeVar("T")


class CallRefused(Exception):
    """The database, or the receiver of a message, refused what a tool wanted to store: nothing was stored."""

    def __init__(self, recorded: Recorded, reason: str) -> None:
        super().__init__(reason)
        self.recorded = recorded
        self.reason = reason


@dataclass(slots=True)
class Recorded:
    """Data for the turn's next commit: rows and events of one moment.

    If a call has ended, `work` is what its tool stores before them, and `result` its result, for the conversation and
    the table.
    """

    rows: UnitOfWork
    work: UnitOfWork | None = None
    result: tuple[FinishedCall, Message, MessageRow] | None = None


@dataclass(slots=True, kw_only=True)
class Record:
    """The stored side of one turn of `agent`. Its `history` in memory grows with the records.

    `batch_type` is what its messages are stored as. `key` is known once the turn is accepted. `seed` feeds
    sampling. `source` is the origin of its message for routing: as the sender named it, else the kind of sender, such
    as `user` or `agent`. `step` and `attempt` count from 1 and are those of the open or last step. `sequence` is the
    place of the next message in the turn's batch. `trust` is that of its least trusted message.
    """

    journal: Journal
    agent: Agent
    history: History
    id: str
    batch_id: str
    batch_type: BatchType = BatchType.USER_REQUEST
    key: int = 0
    seed: int = 0
    source: str = ""
    trust: TrustLevel = TrustLevel.SOURCE
    group_id: str | None = None  # of the group that asked for it
    depth: int = 0  # how many agents passed the request on
    children: int = 0  # messages that its tools sent to agents …
    children_max: int | None = None  # … and how many they may send; None: any number
    deadline: float = math.inf  # on trio's clock …
    deadline_at: str = ""  # … and its wall time as stored
    step: int = 0
    attempt: int = 0
    model: str | None = None  # that was asked last, as `provider/model`
    sequence: int = 0
    is_started: bool = False  # on disk
    status: str = TurnStatus.RUNNING.value  # on disk, once it is started
    is_ending: bool = False  # its end is on the way to the disk, or there
    is_streamed: bool = False  # pieces of an answer may be stored
    may_hold: bool = False  # there may be reservations for its calls
    began_ms: int = 0
    queue_ms: int = 0  # how long it waited before it was started
    asker: Asker | None = None
    on_refused: Callable[[FinishedCall], None] = lambda _finished: None  # called with a result that became an error
    _question: MessageRow | None = None  # the message that it answers, until it is on disk
    _recorded: list[Recorded] = field(default_factory=list)
    _is_flushing: bool = False
    _flushed: trio.Event | None = None  # for those who wait until it has ended

    @property
    def sees_only(self) -> str | None:
        """The session that it is in, if it must see no other; what it leads to stays there, too."""
        return None if self.trust.sees_all else self.history.session_id

    @property
    def is_flushed(self) -> bool:
        """Whether everything that was recorded is on disk."""
        return not self._recorded and not self._is_flushing

    @property
    def holds_work(self) -> bool:
        """Whether a tool's writes wait for the next commit: no tool can read them before."""
        return any(one.work is not None for one in self._recorded)

    async def flush(self, last: UnitOfWork | None = None, *, shows_results: bool = False, now: str = "") -> None:
        """Commit what was recorded, in order, and `last`, all in one transaction.

        If the writes of a tool are refused, its result becomes an error, and the commit is retried without these
        writes. For a caller that `shows_results` CallRefused is raised instead. It waits for a flush by another task:
        after a failed one the rows of both are stored in order.

        Raises:
            CallRefused: a result is an error now, nothing is stored, and what was recorded stays so.
            PatternError, DatabaseError: as `last` raises; nothing is stored, and what was recorded stays so.
        """
        if self._is_flushing:
            await self._other_flush()
        while self._recorded or last is not None:
            recorded, self._recorded = self._recorded, []
            batch = recorded if last is None else [*recorded, Recorded(last)]
            committed, self._is_flushing = False, True
            try:
                await self.journal.commit(partial(self._write, batch, now or self.journal.now()))
                committed = True
            except CallRefused as refused:
                self._correct(refused)
                if shows_results:
                    raise
                continue
            finally:
                if not committed:
                    self._recorded = [*recorded, *self._recorded]
                self._is_flushing = False
                if self._flushed is not None:
                    self._flushed.set()
                    self._flushed = None
            self.is_started = True
            _settle(batch, committed=True)
            return

    async def _other_flush(self) -> None:
        """Wait until no other task flushes."""
        while self._is_flushing:
            if self._flushed is None:
                self._flushed = trio.Event()
            await self._flushed.wait()

    def _write(self, batch: Sequence[Recorded], now: str, connection: Connection) -> tuple[None, list[Event]]:
        events, drafts = list[Event](), list[Draft]()
        for one in batch:
            if one.work is not None:
                try:
                    events += one.work.run(connection)
                except (PatternError, *RAISED) as error:
                    known = error if isinstance(error, PatternError) else translate(error)
                    if known is None or isinstance(known, StorageFailed):
                        raise
                    raise CallRefused(one, known.message) from error
                drafts += one.work.drafts
            events += one.rows.run(connection)
            drafts += one.rows.drafts
        if drafts:
            events += append(connection, (self.key, self.id), drafts, created_at=now)
        if self.is_ending and self.is_streamed:
            event_table.prune_deltas(connection, self.key)
        more = self.asker.proceed(connection, batch[-1].rows) if self.is_ending and self.asker else []
        return None, [*events, *more]

    async def abandon(self) -> None:
        """Discard what was not flushed: what resumes the turn finds what is on disk, also by another task's flush."""
        if self._is_flushing:
            with trio.CancelScope(shield=True):  # a commit has a deadline
                await self._other_flush()
        recorded, self._recorded = self._recorded, []
        _settle(recorded, committed=False)

    def _correct(self, refused: CallRefused) -> None:
        """Replace a result by an error, because its writes were not stored."""
        one = refused.recorded
        assert one.work is not None and one.result is not None
        finished, shown, row = one.result
        one.work.settle(committed=False)
        failed = replace(finished, status="error", content=f"Nothing was changed: {refused.reason}")
        self.history.replace(shown, replace(shown, parts=(failed.result,)))
        one.rows, one.work, one.result = UnitOfWork(), None, None
        _store_result(one.rows, failed, row._replace(content=failed.content, tool_result={"is_error": True}))
        self.on_refused(failed)

    def _record(self, *drafts: Draft) -> UnitOfWork:
        """Return a unit of work with these events that the next commit stores."""
        rows = UnitOfWork()
        rows.drafts += drafts
        self._recorded.append(Recorded(rows))
        return rows

    def start(
        self,
        incoming: Message,
        payload: Mapping[str, object],
        *,
        limits: TurnBudget,
        arrival: Arrival | None = None,
    ) -> UnitOfWork:
        """T1: move the accepted message from the inbox to the conversation. With an `arrival` also T0, for a message to
        an idle agent, which is in no inbox. Return what will be stored.

        The commit raises RowConflict if the message was cancelled, or another one comes first; with an `arrival`
        NotAtRest.
        """
        known, self._question = self.journal.budgets, self._message_row(incoming, payload=payload)
        self.asker = None if arrival is None else arrival.incoming.asker
        known.exist = known.exist or (limits.tokens, limits.microdollars) != (None, None)
        start = Started(self.batch_id, self.journal.epoch, self.journal.now(), self.deadline_at)

        def started(connection: Connection) -> list[Event]:
            events: list[Event] = []
            if arrival is None:
                turns.take_first_message(connection, self.agent.id, self.key)
                turns.start(connection, self.key, start)
            else:
                self.key, events = accept_at_rest(connection, arrival, start)
            if known.exist:
                reservations.open_turn(connection, self.key, limits, known.configured)
            if self.trust is TrustLevel.SOURCE:  # who led to it is only in rows
                self.trust = facts.trust(connection, self.key)
            assert self._question is not None
            messages.append(connection, [self._question._replace(trust=self.trust)])
            return events

        self.history.append(incoming)
        rows = self._record() if arrival is None else self._record(arrival.queued)
        rows.drafts.append(Draft("turn.started", {}, {"agent_id": self.agent.id, "message_id": incoming.id}))
        rows.store_and_tell(started)
        return rows

    def resume(self, *, waited: bool) -> None:
        """Record that this process resumes an unfinished turn, or one that `waited` for a person."""
        if waited:
            self._record(Draft("turn.resumed", {})).store(turns.go_on, self.key, deadline_at=self.deadline_at)
        else:
            rows = self._record()
            rows.store(turns.resume, self.key, epoch=self.journal.epoch, step=self.step)
            rows.store(reservations.recover, self.key, at=self.journal.now())

    async def look(self, look: Callable[[Connection], T]) -> T:
        """Return what `look` finds in the transaction that stores what was recorded."""
        found, rows = list[T](), UnitOfWork()
        rows.store(lambda connection: found.append(look(connection)))
        await self.flush(rows)
        return found[-1]

    async def open_step(
        self, asking: Asking, *, look: Callable[[Connection], T | None] | None = None, dead: DeadAttempt | None = None
    ) -> T | None:
        """T2: open the next step, or after a `dead` attempt the next one of the same step.

        If `look` finds something that the prompt should show, it is returned, and no step is opened.

        Raises:
            LimitReached: a budget might be exceeded; nothing is stored.
            CallRefused: the prompt shows a result that is an error now; make it again.
        """
        now, prompt, link = self.journal.now(), asking.prompt, asking.chain.links[0]
        step, attempt = (self.step + 1, 1) if dead is None else (self.step, self.attempt + 1)
        rows, found = UnitOfWork(), None
        if dead is not None:
            why: dict[str, object] = {"why": dead.why} if dead.why else {}
            rows.event("step.superseded", why | {"step": self.step, "attempt": self.attempt})
        rows.event("step.started", {"step": step, "attempt": attempt})

        def opened(connection: Connection) -> None:
            nonlocal found
            found = None if look is None else look(connection)
            if found is not None:
                rows.drafts.clear()
                return
            if dead is not None:
                steps.close(connection, (self.key, self.step, self.attempt), status="superseded", ended_at=now)
                if dead.is_charged:
                    spent = dead.used or estimate_usage((dead.asking or asking).prompt.request, ())
                    reservations.settle(connection, self._usage(dead.asking or asking, spent, now))
            known = self.journal.budgets
            if known.exist:
                call = self._call(link, step, attempt)
                held = reservations.reserve(connection, call, asking.worst, now=now, configured=known.configured)
                self.may_hold = self.may_hold or held is not None
            asked = link.provider, link.model, prompt.cursor, prompt.prefix_hash, prompt.request_hash
            row = StepRow(self.key, step, attempt, "open", *asked, finish_reason=None, started_at=now)
            steps.open_step(connection, row, prompt.log, self.journal.logged.get(self.agent.id, ()))

        if prompt.note is not None:
            self._note(*prompt.note, rows)
        if prompt.shown:
            rows.store(mark_shown, prompt.shown, now)
        rows.store(opened)
        await self.flush(rows, shows_results=True, now=now)
        if found is None:
            self.step, self.attempt, self.model = step, attempt, f"{link.provider}/{link.model}"
            self.journal.logged[self.agent.id] = prompt.log.stable.digest, prompt.log.volatile.digest
        return found

    def _note(self, position: str, note: str, rows: UnitOfWork) -> None:
        """Store the note before a message: with it, or if it is already on disk, with `rows`."""
        if self._question is not None and not self.is_started:
            self._question = self._question._replace(note=note or None)
        else:
            rows.store(messages.set_note, self.agent.id, position, note)

    def say(self, drafts: Sequence[Draft]) -> None:
        """T2': record pieces of an answer that is still arriving."""
        self.is_streamed = True
        self._record(*drafts)

    async def publish(self, name: str, data: Mapping[str, object]) -> None:
        """Store an event about the open step that changes nothing."""
        self._record(Draft(name, {"step": self.step, "attempt": self.attempt, **data}))
        await self.flush()

    def decide(
        self,
        reply: ModelReply,
        asking: Asking,
        planned: Sequence[EffectRow],
        *,
        rest: Sequence[Draft] = (),
        cut_off: str = "",
    ) -> None:
        """T3: record what the model decided. `rest` are streamed pieces that were not stored yet, `cut_off` why the
        answer is incomplete.
        """
        message = self.journal.new_message("assistant", *(reply.parts or (Text(text=""),)))
        message = replace(message, cut_off=cut_off) if cut_off else message
        spent = self._usage(asking, reply.usage, message.created_at)
        self.model = f"{spent.provider}/{spent.model}"
        self.history.append(message)
        rows = self._record(*rest)
        rows.store(
            steps.close,
            (self.key, self.step, self.attempt),
            status="done",
            ended_at=message.created_at,
            finish_reason=reply.finish_reason,
            request_id=reply.request_id,
            answered=(spent.provider, spent.model),
        )
        rows.store(messages.append, [self._message_row(message)])
        rows.store(reservations.settle if self.may_hold else usage.add, spent)
        if text := message.text:
            rows.drafts.append(_said(message, text))
        if planned:
            rows.store(steps.plan_calls, planned)
            rows.drafts.extend(map(called, planned))
        meters, took_s = self.journal.meters, self.journal.seconds_since(asking.asked_ms)
        meters.step_done(spent.provider, spent.model, took_s, (asking.asked_ms - asking.began_ms) / 1000)
        meters.tokens(spent.provider, spent.model, reply.usage, spent.cost_microdollars)

    def force(self, calls: Sequence[ToolCall], planned: Sequence[EffectRow]) -> None:
        """T3, for calls that a rule makes instead of the model: record a message with them."""
        message = self.journal.new_message("assistant", *calls)
        self.history.append(message)
        rows = self._record(*map(called, planned))
        rows.store(messages.append, [self._message_row(message)])
        rows.store(steps.plan_calls, planned)

    def ask(self, questions: Sequence[tuple[EffectRow, ApprovalRow]]) -> None:
        """T4: record that calls wait for a person."""
        rows = self._record()
        for row, question in questions:
            rows.store(steps.ask_about_call, row.key)
            rows.store(approvals.insert, question)
            rows.event("approval.requested", requested(question))

    async def wait(self) -> None:
        """T4': let the turn wait until its questions are answered; its clock is stopped."""
        asked: list[str] = []

        def pending(connection: Connection) -> None:
            """Find the open questions for the event: some may already be answered."""
            stored = approvals.of_turn(connection, self.key)
            asked[:] = [row.id for row in stored if row.status is ApprovalStatus.PENDING]

        rows, left_s = UnitOfWork(), self.deadline - trio.current_time()
        rows.store(turns.wait, self.key, time_left_ms=max(0, round(left_s * 1000)))
        rows.store(pending)
        rows.event("turn.waiting", {"approvals": asked})
        await self.flush(rows)
        self.status = TurnStatus.WAITING.value

    async def start_calls(self, rows: Sequence[EffectRow], *, timeout_s: float) -> None:
        """T5: store the intent to run these calls; only then may they touch the outside."""
        now, intent = self.journal.now(), UnitOfWork()
        deadline_at = iso(unix_ms(now) + int(timeout_s * 1000))
        for row in rows:
            intent.store(steps.start_call, row.key, epoch=self.journal.epoch, started_at=now, deadline_at=deadline_at)
        await self.flush(intent)

    def finish(self, finished: FinishedCall, work: UnitOfWork, arguments: Mapping[str, object] | None) -> None:
        """T6: record a call's own writes, its result and its end. `work` is settled with the commit."""
        message = self.journal.new_message("tool", finished.result)
        self.history.append(message)
        row = self._message_row(message, arguments=arguments)
        if work.has_writes:
            self._recorded.append(Recorded(UnitOfWork(), work, (finished, message, row)))
        else:
            work.settle(committed=True)
            self._recorded.append(Recorded(UnitOfWork()))
        _store_result(self._recorded[-1].rows, finished, row)

    # Between steps, and the end

    async def join(self, joining: Sequence[InboxRow]) -> bool:
        """Add messages that were sent during the turn to it, which ends their own turns. Messages cancelled at this
        moment are left out; return whether any was added.
        """
        now, rows, joined, ends = self.journal.now(), UnitOfWork(), list[Message](), dict[str, Draft]()
        payloads = [json.loads(row.payload) for row in joining]
        sent = [self.journal.new_message("user", *parts_of(payload)) for payload in payloads]
        new = [
            self._message_row(message, payload={"source": "user", **one})
            for message, one in zip(sent, payloads, strict=True)
        ]

        def join(connection: Connection) -> list[Event]:
            events: list[Event] = []
            joined.clear()
            ends.clear()
            rows.drafts.clear()
            for row, message, stored in zip(joining, sent, new, strict=True):
                try:
                    turns.take_message(connection, row.turn)
                except RowConflict:
                    continue
                turns.join(connection, row.turn, self.key, ended_at=now)
                ending = turns.by_key(connection, row.turn)
                ends[ending.id] = ended("completed", None, data={"joined": self.id})
                events += append(connection, (ending.key, ending.id), [ends[ending.id]], created_at=now)
                place = {"turn_id": ending.id, "message_id": message.id}
                rows.drafts.append(Draft("message.joined", place, {"content": message.text}))
                messages.append(connection, [stored._replace(trust=facts.trust(connection, row.turn))])
                joined.append(message)
            self.trust = facts.trust(connection, self.key)
            return events

        rows.store_and_tell(join)
        await self.flush(rows)
        for message in joined:
            self.history.append(message)
        for turn_id, end in ends.items():
            self.journal.log_end(turn_id, self.agent.id, end)
        return bool(joined)

    async def end(
        self,
        ending: Ending,
        *,
        closed: Sequence[FinishedCall] = (),
        cut_off: DeadAttempt | None = None,
        streamed: Sequence[Part] = (),
    ) -> None:
        """T8: end the turn. `closed` are results for calls without one, so that every call has a result. `cut_off` is
        the call of the open step, if there is one, and `streamed` the part of its answer that clients saw: it is stored
        as a partial message.
        """
        now, rows, added = self.journal.now(), UnitOfWork(), list[Message]()
        if cut_off is not None:
            rows.store(steps.close, (self.key, self.step, self.attempt), status="failed", ended_at=now)
            if cut_off.is_charged and cut_off.asking is not None:
                estimate = Usage(input_tokens=cut_off.asking.prompt.log.tokens, output_tokens=0, is_estimate=True)
                rows.store(reservations.settle, self._usage(cut_off.asking, cut_off.used or estimate, now))
        for finished in closed:
            added.append(self.journal.new_message("tool", finished.result))
            _store_result(rows, finished, self._message_row(added[-1]))
        if closed and any(finished.row.status == EffectStatus.AWAITING_APPROVAL for finished in closed):
            rows.store(approvals.cancel_calls, self.key, now)
        status, error, before = ending.status, ending.error, rows.drafts
        if streamed:
            added.append(replace(self.journal.new_message("assistant", *streamed), cut_off=status))
            rows.store(messages.append, [self._message_row(added[-1])])
            rows.drafts.append(_said(added[-1], added[-1].text))
        if self.may_hold:
            rows.store(reservations.recover, self.key, at=now)  # an interrupted summary costs something
            rows.store(budgets.let_go_of_turn, self.key)
        if ending.discards:
            rows.store(messages.discard_batch, self.agent.id, self.batch_id)
            rows.store(handoffs.mark_unread, self.key)
        if ending.undelivered is not None:
            rows.store(outbox.add, ending.undelivered)

        def store_end(connection: Connection) -> None:
            rest = turns.end(connection, self.key, status=status, ended_at=now, steps=self.step, error=error)
            rows.drafts = [*before, ended(status, error, rest)]

        rows.store(store_end)
        self.is_ending = True
        await self.flush(rows, now=now)
        self.status = status
        for message in added:
            self.history.append(message)
        took_s = self.journal.seconds_since(self.began_ms)
        self.journal.meters.turn_ended(status, took_s, self.queue_ms / 1000)
        self.journal.log_end(self.id, self.agent.id, rows.drafts[-1], steps=self.step, model=self.model, seconds=took_s)

    # Rows

    def _message_row(
        self,
        message: Message,
        *,
        payload: Mapping[str, Any] | None = None,
        arguments: Mapping[str, object] | None = None,
    ) -> MessageRow:
        """Return the row of a message; the `payload` of an accepted one may name its source, with metadata."""
        sequence, self.sequence = self.sequence, self.sequence + 1
        return to_row(
            message,
            agent_id=self.agent.id,
            batch_id=self.batch_id,
            batch_type=self.batch_type,
            session_id=self.history.session_id,
            sequence=sequence,
            source=None if payload is None else payload.get("source", self.source),
            source_metadata=None if payload is None else payload.get("source_metadata"),
            arguments=arguments,
            trust=self.trust,
        )

    def _usage(self, asking: Asking, usage: Usage, at: str) -> UsageRow:
        """Return the usage of the open step's model call, for the last called model."""
        link = asking.chain.links[asking.index]
        cost = asking.facts(link.provider, link.model).cost(usage)
        return reservations.usage_row(self._call(link, self.step, self.attempt), usage, cost, at)

    def _call(self, link: Link, step: int, attempt: int) -> reservations.ModelCall:
        asks = self.key, step, attempt, self.agent.id, link.provider, link.model
        return reservations.ModelCall(*asks, group_id=self.group_id)


def _said(message: Message, text: str) -> Draft:
    """Return the event that the agent said this."""
    about = {"message_id": message.id, "role": message.role}
    return Draft("message", {**about, PARTIAL: message.cut_off} if message.cut_off else about, {"content": text})


def _store_result(rows: UnitOfWork, finished: FinishedCall, row: MessageRow) -> None:
    """Store the end of a call with `row`, the message that holds its result."""
    call = finished.row
    rows.store(messages.append, [row])
    rows.store(steps.finish_call, call.key, status=finished.status, message_id=row.id, ended_at=row.created_at)
    rows.drafts.append(
        resulted(call, finished.content, status=finished.status, message_id=row.id, duration_ms=finished.duration_ms)
    )


def _settle(batch: Sequence[Recorded], *, committed: bool) -> None:
    for one in batch:
        if one.work is not None:
            one.work.settle(committed=committed)
        one.rows.settle(committed=committed)
