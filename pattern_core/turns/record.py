"""What is stored of one turn: recorded first, then flushed before anything leaves the process.

`record` keeps a write for the turn's next commit, `flush` commits all that was recorded, in order, with one write of
its own. So whatever was recorded is on disk before a 2xx, an event, a model call or a call that reaches outside.

| moment | method | stored | flushed |
|---|---|---|---|
| T0 accepted | `accept` | turn, `turn.queued` (`admission.accept`) | before the 2xx |
| T1 started | `start` | turn running, the message, what the turn may spend, `turn.started` | before the model call |
| T2 asks | `open_step` | step open, `step.started`; a dead attempt superseded and charged at an estimate | at once |
| T2' streams | `stream` | pieces of the answer | at once |
| T3 decided | `decide` | step done, message, usage, an effect per call, `message`, `tool.call` | before a call leaves |
| T4 asks people | `ask` | calls that wait, a question for each, `approval.requested` | when the turn rests |
| T4' rests | `wait` | turn waiting, `turn.waiting` | at once |
| T5 about to act | `start_calls` | calls started: the intent is on disk before anything leaves | at once |
| T6 acted | `finish` | the tool's own writes, call ended, message, `tool.result` | with the next step |
| is joined | `join` | an inbox row becomes a message of this turn, its own turn ends, `message.joined` | at once |
| is resumed | `resume` | turn running here, `turn.resumed`; what a dead process held is charged | with the next write |
| T8 ended | `end` | turn's status, what was open closed, the one terminal event | at once |
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from pattern_core.agents import Agent
from pattern_core.approvals import requested
from pattern_core.budgets import ledger
from pattern_core.budgets.turn_budget import TurnBudget
from pattern_core.conversation.history import History, to_row
from pattern_core.events import Draft, Event, append, called, ended, resulted
from pattern_core.journal import Journal
from pattern_core.messages import Message, Text, ToolCall
from pattern_core.models.model import ModelReply, Usage
from pattern_core.models.tokens import estimate_usage
from pattern_core.turns.admission import parts_of
from pattern_core.turns.rows import (
    CallRefused,
    Recorded,
    Store,
    finish_row,
    finishing,
    step_row,
    usage_row,
)
from pattern_core.turns.state import Asking, Ending, FinishedCall
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.columns import iso, unix_ms
from pattern_db.connection import Connection
from pattern_db.enums import ApprovalStatus, BatchType, EffectStatus, TurnStatus
from pattern_db.errors import Conflict
from pattern_db.journal import approvals, inbox, steps, turns
from pattern_db.journal import events as event_table
from pattern_db.journal.approvals import ApprovalRow
from pattern_db.journal.inbox import InboxRow
from pattern_db.journal.steps import EffectRow
from pattern_db.journal.usage import UsageRow
from pattern_db.tables import messages
from pattern_db.tables.messages import MessageRow

T = TypeVar("T")
Flush = Callable[[Connection], tuple[T, Sequence[Draft]]]
"""Writes rows within a transaction; returns a value and the turn's events about them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadAttempt:
    """A model call that was cut off or did not help. If it is charged, then for its prompt, as an estimate.

    `asking` is what it asked; None where an earlier process did.
    """

    is_charged: bool
    asking: Asking | None = None


def _nothing(_connection: Connection) -> tuple[None, Sequence[Draft]]:
    return None, ()


@dataclass(slots=True, kw_only=True)
class Record:
    """The stored side of one turn of `agent`. Its `history` in memory is extended as things are recorded.

    `key` is known once the turn is accepted. `step` and `attempt` count from 1 and name the step that is open or was
    last. `sequence` is the place of the next message in the turn's batch. `may_hold`: something of a budget may be held
    for its calls. `is_streamed`: pieces of an answer may be stored.
    """

    journal: Journal
    agent: Agent
    history: History
    id: str
    batch_id: str
    key: int = 0
    step: int = 0
    attempt: int = 0
    sequence: int = 0
    is_started: bool = False  # on disk
    status: str = TurnStatus.RUNNING.value  # on disk, once it is started
    is_ending: bool = False  # its end is on the way to the disk, or there
    has_waited: bool = False
    is_streamed: bool = False
    may_hold: bool = False
    began_ms: int = 0
    asked_ms: int = 0  # when the open step's model was asked, unix ms
    on_refused: Callable[[FinishedCall], None] = lambda _finished: None  # told of a result that became an error
    _is_unbounded: bool = False  # found within the same transaction
    _recorded: list[Recorded] = field(default_factory=list)

    @property
    def is_flushed(self) -> bool:
        """Whether everything that was recorded is on disk."""
        return not self._recorded

    @property
    def holds_work(self) -> bool:
        """Whether a tool's writes wait for the next commit: no tool can read them before it."""
        return any(one.work is not None for one in self._recorded)

    async def flush(
        self,
        store: Flush[T] = _nothing,  # type: ignore[assignment]  # T is None then
        *,
        shows_results: bool = False,
        now: str = "",
    ) -> T:
        """Commit what was recorded, in order, then `store`, all in one transaction; return the value of `store`.

        Where the writes of a tool are refused, its result is an error from then on, and the commit is tried again:
        nothing of those writes is stored. A caller that `shows_results` is told by CallRefused instead.

        Raises:
            CallRefused: a result is an error now, nothing is stored, and everything stays recorded.
            PatternError, DatabaseError: as `store` raises; nothing is stored, and everything stays recorded.
        """
        while True:
            recorded, self._recorded = self._recorded, []
            committed = False
            if not recorded and store is _nothing:
                return None  # type: ignore[return-value]  # as `_nothing` says
            try:
                value = await self.journal.commit(partial(self._write, recorded, store, now or self.journal.now()))
                committed = True
            except CallRefused as refused:
                self._correct(recorded, refused)
                if shows_results:
                    raise
                continue
            finally:
                self._is_unbounded = False
                if not committed:
                    self._recorded = [*recorded, *self._recorded]
            self.is_started = True
            for one in recorded:
                if one.work is not None:
                    one.work.settle(committed=True)
                if one.on_commit is not None:
                    one.on_commit()
            return value

    def _write(
        self, recorded: Sequence[Recorded], store: Flush[T], now: str, connection: Connection
    ) -> tuple[T, list[Event]]:
        events: list[Event] = []
        drafts: list[Draft] = []
        for one in recorded:
            written = one.store(connection)
            if isinstance(written, list):
                events += written
            drafts += one.drafts
        value, more = store(connection)
        drafts += more
        if drafts:
            events += append(connection, (self.key, self.id), drafts, created_at=now)
        if self.is_ending and self.is_streamed:
            event_table.prune_deltas(connection, self.key)
        return value, events

    def abandon(self) -> None:
        """Give up what was not flushed: the process stops, and the next one finds what is on disk."""
        for one in self._recorded:
            if one.work is not None:
                one.work.settle(committed=False)
        self._recorded = []

    def _correct(self, recorded: list[Recorded], refused: CallRefused) -> None:
        """Put an error in the place of a result of which nothing was stored."""
        place = next(at for at, one in enumerate(recorded) if one.finished is refused.finished)
        work, shown, row = recorded[place].work, recorded[place].shown, recorded[place].row
        assert work is not None
        assert shown is not None
        assert row is not None
        work.settle(committed=False)
        failed = replace(refused.finished, status="error", content=f"Nothing was changed: {refused.reason}")
        message = replace(shown, parts=(failed.result,))
        self.history.replace(shown, message)
        row = row._replace(content=failed.content, tool_result={"is_error": True})
        recorded[place] = finishing(failed, message, row, None)
        self.on_refused(failed)

    # T0, T1

    def accept(self, store: Store, drafts: Sequence[Draft], on_commit: Callable[[], None]) -> None:
        """T0: record that the turn is accepted; `store` sets its key. `on_commit` is called after the commit."""
        self._recorded.append(Recorded(store, drafts, on_commit=on_commit))

    def start(
        self,
        incoming: Message,
        payload: Mapping[str, object],
        *,
        deadline_at: str,
        limits: TurnBudget,
        queued: bool,
        on_commit: Callable[[str], None],
    ) -> None:
        """T1: take the accepted message into the conversation. A `queued` one leaves the inbox.

        `on_commit` is called after the commit, with the time at which the turn was started.

        The commit raises Conflict where the message was cancelled, or another one goes before it.
        """
        now = self.journal.now()
        row = self._message_row(incoming, payload=payload)
        draft = Draft("turn.started", {}, {"agent_id": self.agent.id, "message_id": incoming.id})

        def started(connection: Connection) -> None:
            if queued:
                inbox.take_first(connection, self.agent.id, self.key)
            epoch = self.journal.epoch
            turns.start(
                connection, self.key, batch_id=self.batch_id, epoch=epoch, started_at=now, deadline_at=deadline_at
            )
            self._is_unbounded = not ledger.open_turn(connection, self.key, limits, self.journal.budgets)
            messages.append(connection, [row])

        self.history.append(incoming)
        self._recorded.append(Recorded(started, [draft], on_commit=partial(on_commit, now)))

    def resume(self, *, waited: bool, deadline_at: str) -> None:
        """Record that this process takes up an unfinished turn, or one that `waited` for a person."""
        now = self.journal.now()

        def resumed(connection: Connection) -> None:
            if waited:
                turns.go_on(connection, self.key, deadline_at=deadline_at)
            else:
                turns.resume(connection, self.key, epoch=self.journal.epoch, step=self.step)
                ledger.recover(connection, self.key, at=now)

        self._recorded.append(Recorded(resumed, [Draft("turn.resumed", {})] if waited else ()))

    # T2, T3

    async def open_step(
        self,
        asking: Asking,
        *,
        look: Callable[[Connection], T | None] | None = None,
        dead: DeadAttempt | None = None,
    ) -> T | None:
        """T2: open the next step, or after a `dead` attempt the next one of the same step.

        Where `look` finds something that the prompt should show, it is returned, and no step is opened.

        Raises:
            LimitReached: a budget might be passed; nothing is stored.
            CallRefused: the prompt shows a result that is an error now; make it again.
        """
        now = self.journal.now()
        step, attempt = (self.step + 1, 1) if dead is None else (self.step, self.attempt + 1)
        drafts = [Draft("step.started", {"step": step, "attempt": attempt})]
        charged: UsageRow | None = None
        if dead is not None:
            drafts.insert(0, Draft("step.superseded", {"step": self.step, "attempt": self.attempt}))
            asked = dead.asking or asking
            spent = estimate_usage(asked.prompt.request, ())
            charged = (
                usage_row(self.key, self.agent.id, asked, spent, step=self.step, attempt=self.attempt, at=now)
                if dead.is_charged
                else None
            )

        def opened(connection: Connection) -> tuple[T | None, Sequence[Draft]]:
            found = None if look is None else look(connection)
            if found is not None:
                return found, ()
            if dead is not None:
                steps.close(connection, (self.key, self.step, self.attempt), status="superseded", ended_at=now)
            if charged is not None:
                ledger.settle(connection, replace(charged, is_estimate=True))
            if not self._is_unbounded:
                self._hold(connection, asking, step, attempt, now)
            row = step_row(self.key, asking, step=step, attempt=attempt, now=now)
            steps.open_step(connection, row, self.journal.logged(self.agent.id))
            return None, drafts

        found = await self.flush(opened, shows_results=True, now=now)
        if found is None:
            self.step, self.attempt = step, attempt
            self.journal.note_logged(self.agent.id, asking.prompt.log)
        return found

    def _hold(self, connection: Connection, asking: Asking, step: int, attempt: int, now: str) -> None:
        """Hold back what the step's call may cost at most."""
        first = asking.chain.links[0]
        call = ledger.Call(
            turn=self.key,
            step=step,
            attempt=attempt,
            agent_id=self.agent.id,
            provider=first.provider,
            model=first.model,
        )
        if ledger.reserve(connection, call, asking.worst, now=now, configured=self.journal.budgets) is not None:
            self.may_hold = True

    async def stream(self, drafts: Sequence[Draft]) -> None:
        """T2': store pieces of an answer that is still arriving."""
        self.is_streamed = True
        await self.flush(lambda _connection: (None, drafts))

    async def tell(self, name: str, data: Mapping[str, object]) -> None:
        """Store an event about the open step that changes nothing."""
        draft = Draft(name, {"step": self.step, "attempt": self.attempt, **data})
        await self.flush(lambda _connection: (None, [draft]))

    def decide(
        self, reply: ModelReply, asking: Asking, planned: Sequence[EffectRow], *, rest: Sequence[Draft] = ()
    ) -> None:
        """T3: record what the model decided. `rest` are streamed pieces that were not stored yet."""
        link = asking.answered
        message = self.journal.new_message("assistant", *(reply.parts or (Text(text=""),)))
        row, now = self._message_row(message), message.created_at
        usage = usage_row(self.key, self.agent.id, asking, reply.usage, step=self.step, attempt=self.attempt, at=now)
        drafts = [*rest]
        if message.text:
            data = {"message_id": message.id, "role": message.role}
            drafts.append(Draft("message", data, {"content": message.text}))
        drafts.extend(map(called, planned))
        key = (self.key, self.step, self.attempt)

        def decided(connection: Connection) -> None:
            steps.close(
                connection,
                key,
                status="done",
                ended_at=now,
                finish_reason=reply.finish_reason,
                request_id=reply.request_id,
                answered=(link.provider, link.model),
            )
            messages.append(connection, [row])
            ledger.settle(connection, usage, may_hold=self.may_hold)
            if planned:
                steps.plan_calls(connection, planned)

        self.history.append(message)
        self._recorded.append(Recorded(decided, drafts))
        meters = self.journal.meters
        meters.step_done(link.provider, link.model, self.journal.seconds_since(self.asked_ms))
        meters.tokens(link.provider, link.model, reply.usage, usage.cost_microdollars)

    def force(self, calls: Sequence[ToolCall], planned: Sequence[EffectRow]) -> None:
        """T3, for calls that a rule makes instead of the model: record a message with them."""
        message = self.journal.new_message("assistant", *calls)
        row = self._message_row(message)

        def forced(connection: Connection) -> None:
            messages.append(connection, [row])
            steps.plan_calls(connection, planned)

        self.history.append(message)
        self._recorded.append(Recorded(forced, [called(effect) for effect in planned]))

    # T4, T5, T6

    def ask(self, questions: Sequence[tuple[EffectRow, ApprovalRow]]) -> None:
        """T4: record that calls wait for a person."""
        drafts = [Draft("approval.requested", requested(question)) for _row, question in questions]

        def asked(connection: Connection) -> None:
            for row, question in questions:
                steps.ask_about_call(connection, (row.turn, row.step, row.call))
                approvals.insert(connection, question)

        self._recorded.append(Recorded(asked, drafts))

    async def wait(self, *, left_s: float) -> None:
        """T4': let the turn rest until its questions are answered; `left_s` is what remains of its time."""
        left_ms = max(0, round(left_s * 1000))

        def waiting(connection: Connection) -> tuple[None, Sequence[Draft]]:
            turns.wait(connection, self.key, time_left_ms=left_ms)
            # Some may be answered already: the event names what is open now.
            rows = approvals.of_turn(connection, self.key)
            asked = [row.id for row in rows if row.status is ApprovalStatus.PENDING]
            return None, [Draft("turn.waiting", {"approvals": asked})]

        await self.flush(waiting)
        self.status = TurnStatus.WAITING.value

    async def start_calls(self, rows: Sequence[EffectRow], *, timeout_s: float) -> None:
        """T5: store the intent to run these calls; only then may they touch the outside."""
        now = self.journal.now()
        deadline_at = iso(unix_ms(now) + int(timeout_s * 1000))
        epoch = self.journal.epoch

        def started(connection: Connection) -> tuple[None, Sequence[Draft]]:
            for row in rows:
                key = (row.turn, row.step, row.call)
                steps.start_call(connection, key, epoch=epoch, started_at=now, deadline_at=deadline_at)
            return None, ()

        await self.flush(started)

    def finish(self, finished: FinishedCall, work: UnitOfWork, arguments: Mapping[str, object] | None) -> None:
        """T6: record a call's own writes, its result and its end. `work` is settled with the commit."""
        message = self.journal.new_message("tool", finished.result)
        self.history.append(message)
        row = self._message_row(message, arguments=arguments)
        self._recorded.append(finishing(finished, message, row, work if work.has_writes else None))
        if not work.has_writes:
            work.settle(committed=True)

    # Between steps, and the end

    async def join(self, joining: Sequence[InboxRow]) -> None:
        """Take messages that were sent during the turn into it; the turns that they had end with that.

        Raises:
            Conflict: one of them was cancelled at this moment; nothing is stored.
        """
        now = self.journal.now()
        payloads = [json.loads(row.payload) for row in joining]
        taken = [self.journal.new_message("user", *parts_of(payload)) for payload in payloads]
        rows = [self._message_row(message, payload=one) for message, one in zip(taken, payloads, strict=True)]

        drafts: list[Draft] = []

        def joined(connection: Connection) -> list[Event]:
            events: list[Event] = []
            drafts.clear()
            for row, message in zip(joining, taken, strict=True):
                inbox.take(connection, row.turn)
                turns.join(connection, row.turn, self.key, ended_at=now)
                ends = turns.by_key(connection, row.turn)
                done = ended("completed", None, {"joined": self.id})
                events += append(connection, (ends.key, ends.id), [done], created_at=now)
                place = {"turn_id": ends.id, "message_id": message.id}
                drafts.append(Draft("message.joined", place, {"content": message.text}))
            messages.append(connection, rows)
            return events

        one = Recorded(joined, drafts)
        self._recorded.append(one)
        try:
            await self.flush()
        except Conflict:
            self._recorded.remove(one)
            raise
        for message in taken:
            self.history.append(message)

    async def end(
        self,
        ending: Ending,
        *,
        closed: Sequence[FinishedCall] = (),
        cut_off: DeadAttempt | None = None,
    ) -> None:
        """T8: end the turn. `closed` are results for calls that had none, so that no call is left unanswered.

        `cut_off` is the call of the open step, if one is open.
        """
        now = self.journal.now()
        results = [(finished, self.journal.new_message("tool", finished.result)) for finished in closed]
        rows = [self._message_row(message) for _finished, message in results]
        drafts = [
            resulted(finished.row, finished.content, status=finished.status, message_id=message.id)
            for finished, message in results
        ]
        drafts.append(ended(ending.status, ending.error))
        charged: UsageRow | None = None
        if cut_off is not None and cut_off.is_charged and cut_off.asking is not None:
            asked = cut_off.asking
            spent = Usage(input_tokens=asked.prompt.tokens, output_tokens=0, is_estimate=True)
            charged = usage_row(self.key, self.agent.id, asked, spent, step=self.step, attempt=self.attempt, at=now)

        def store(connection: Connection) -> tuple[None, Sequence[Draft]]:
            if cut_off is not None:
                steps.close(connection, (self.key, self.step, self.attempt), status="failed", ended_at=now)
            if charged is not None:
                ledger.settle(connection, replace(charged, is_estimate=True))
            messages.append(connection, rows)
            for finished, message in results:
                finish_row(connection, finished, message)
            if any(finished.row.status == EffectStatus.AWAITING_APPROVAL for finished in closed):
                approvals.cancel_calls(connection, self.key, now)
            status, error = ending.status, ending.error
            turns.end(connection, self.key, status=status, ended_at=now, steps=self.step, error=error)
            if self.may_hold:
                ledger.recover(connection, self.key, at=now)  # a summary that was cut off cost something
                ledger.release(connection, self.key)
            if ending.discards:
                messages.discard_batch(connection, self.agent.id, self.batch_id)
            return None, drafts

        self.is_ending = True
        await self.flush(store, now=now)
        self.status = ending.status
        for _finished, message in results:
            self.history.append(message)
        self.journal.meters.turn_ended(ending.status, self.journal.seconds_since(self.began_ms))

    # Rows

    def _message_row(
        self,
        message: Message,
        *,
        payload: Mapping[str, object] | None = None,
        arguments: Mapping[str, object] | None = None,
    ) -> MessageRow:
        """The row of a message; the `payload` of an accepted one may name its source and the source's metadata."""
        row = to_row(
            message, agent_id=self.agent.id, batch_id=self.batch_id, sequence=self.sequence, arguments=arguments
        )
        if payload is not None and ("source" in payload or "source_metadata" in payload):
            source, metadata = payload.get("source"), payload.get("source_metadata")
            row = row._replace(
                source=source if isinstance(source, str) else None,
                source_metadata=metadata if isinstance(metadata, dict) else None,
            )
        self.sequence += 1
        return row._replace(batch_type=BatchType.CONTINUATION) if self.has_waited else row
