"""The moments of a turn, each one transaction: what is stored before and after every step.

| moment | method | in one transaction |
|---|---|---|
| T0 accepted | `admission.accept` | turn (queued), inbox row, `turn.queued` |
| T1 started, T2 asks | `begin` | inbox row becomes a message, turn running, step open, `turn.started`, `step.started` |
| T2 asks again | `open_step` | step open; after a crash the dead attempt superseded and charged at an estimate |
| T2′ streams | `stream` | pieces of the answer |
| T3 decided | `decide` | step done, message, usage, one effect per tool call, `message`, `tool.call` |
| T4, T4′ waits for people | `agents.pauses` | |
| T5 about to act | `start_effects` | effects started: the intent is on disk before anything leaves |
| T6 acted, T7 goes on | `finish_effect` | the tool's own writes, effect ended, message, `tool.result`, the next step |
| T8 ended | `decide` or `end` | turn's status, what was left open closed, the one terminal event |

Every commit is synced before it is acted on or told, and shielded from cancellation with a deadline of its own;
nothing else is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from pattern_core.agents.active import ActiveTurn, Ending, Finished
from pattern_core.agents.history import make_message
from pattern_core.agents.rows import (
    asking_of,
    call_finished,
    call_planned,
    effect_key,
    message_row,
    said,
    step_row,
    step_started,
    step_superseded,
    turn_ended,
    turn_started,
    usage_row,
)
from pattern_core.budgets import ledger
from pattern_core.budgets.budget import Budget
from pattern_core.clock import Clock, now_text
from pattern_core.errors import LimitReached
from pattern_core.events import Draft, Event, EventLog, append
from pattern_core.ids import Ids
from pattern_core.messages import Message, Part, Text
from pattern_core.meters import Meters, Unmetered
from pattern_core.models.model import ModelReply, Usage
from pattern_core.prompts.prompt import Prompt
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.enums import EffectStatus
from pattern_db.journal import approvals, effects, inbox, steps, turns
from pattern_db.journal import events as event_table
from pattern_db.journal.effects import EffectRow
from pattern_db.journal.steps import StepRow
from pattern_db.tables import messages
from pattern_db.timestamps import iso

LOGGED_MAX = 4_096  # prompt logs that are known to be stored

T = TypeVar("T")
Told = list[Event]


class Journal:
    """Stores the moments of one constellation's turns and tells their events. `budgets` are the operator's, beside the
    stored ones.
    """

    def __init__(
        self,
        *,
        database: Database,
        events: EventLog,
        clock: Clock,
        ids: Ids,
        epoch: int,
        budgets: Sequence[Budget] = (),
        meters: Meters | None = None,
    ) -> None:
        self.epoch = epoch
        self.meters: Meters = meters or Unmetered()
        self.budgets = budgets
        self._database = database
        self._events = events
        self._clock = clock
        self._ids = ids
        self._logged: dict[str, set[bytes]] = {}  # digests of prompt logs that are stored, by agent
        self._after_commit: Callable[[], None] = lambda: None

    def when_committed(self, fn: Callable[[], None]) -> None:
        """Call `fn` after every commit; it must not wait or raise."""
        self._after_commit = fn

    async def commit(self, fn: Callable[[Connection], tuple[T, Told]]) -> T:
        """Run `fn` in a transaction, tell the events that it returns, and give back its value.

        Raises:
            StorageFailed: the disk refused, or hangs.
            DatabaseError: the transaction was refused; nothing of it is stored.
        """
        value, _told = await self._database.write_and_announce(fn, self._announce)
        return value

    def _announce(self, result: tuple[object, Told]) -> None:
        self._events.publish(result[1])
        self.meters.committed()
        self._after_commit()

    async def commit_work(self, work: UnitOfWork) -> None:
        """Store a unit of work that belongs to no turn, such as an edit through the API, and settle it.

        Raises:
            DatabaseError: the transaction was refused; nothing of it is stored.
        """
        now = self.now()

        def store(connection: Connection) -> tuple[None, Told]:
            told = work.run(connection)
            return None, [*told, *append(connection, None, work.drafts, created_at=now)]

        await self._settling(work, store)

    async def _settling(self, work: UnitOfWork, fn: Callable[[Connection], tuple[T, Told]]) -> T:
        committed = False
        try:
            value = await self.commit(fn)
            committed = True
            return value
        finally:
            work.settle(committed=committed)

    def now(self) -> str:
        """The wall time as it is stored."""
        return now_text(self._clock)

    def new_message(self, role: str, *parts: Part) -> Message:
        """A message at the next position, not yet stored."""
        return make_message(role, parts, position=self._ids.position(), created_at=now_text(self._clock))

    async def begin(
        self, turn: ActiveTurn, incoming: Message, origin: Mapping[str, object], prompt: Prompt | None
    ) -> bool:
        """T1: take the accepted message into the conversation; with a prompt also T2. Returns whether a step is open:
        without a prompt, or where a budget forbids it, it is not.

        Raises:
            Conflict: it was cancelled meanwhile, or another message goes before it; nothing is stored.
        """
        now = self.now()
        row = message_row(turn, incoming, origin=origin)
        step = None if prompt is None else step_row(turn, prompt, now)
        started = turn_started(turn, incoming)

        def store(connection: Connection) -> tuple[bool, Told]:
            inbox.take_first(connection, turn.agent.id, turn.key)
            turns.start(
                connection,
                turn.key,
                batch_id=turn.batch_id,
                epoch=self.epoch,
                started_at=now,
                deadline_at=turn.deadline_at,
            )
            is_bounded = ledger.open_turn(connection, turn.key, turn.settings.limits, self.budgets)
            messages.append(connection, [row])
            opens = step is not None and self._may_open(connection, turn, step, now, is_bounded=is_bounded)
            begun = [step_started(step)] if opens and step is not None else []
            return opens, add_events(connection, turn, [started, *begun], now)

        opened = await self.commit(store)
        self._note_logs(turn, step if opened else None)
        return opened

    def _note_logs(self, turn: ActiveTurn, step: StepRow | None) -> None:
        """What the step shows is stored: only what was told to be committed counts as known."""
        if step is None or step.shown is None:
            return
        if sum(map(len, self._logged.values())) >= LOGGED_MAX:
            self._logged.clear()  # rare, and costs a look into the table for each
        logged = self._logged.setdefault(turn.agent.id, set())
        logged.update((step.shown.stable.digest, step.shown.volatile.digest))

    def _may_open(
        self, connection: Connection, turn: ActiveTurn, step: StepRow, now: str, *, is_bounded: bool = True
    ) -> bool:
        """Open a step unless a budget forbids it; whoever asks for it alone is told why."""
        try:
            self._open(connection, turn, step, now, is_bounded=is_bounded)
        except LimitReached:
            return False
        return True

    def _open(
        self, connection: Connection, turn: ActiveTurn, step: StepRow, now: str, *, is_bounded: bool = True
    ) -> None:
        """T2, with what the call may cost at most held back, unless it is known that nothing bounds it.

        Raises:
            LimitReached: a budget might be passed; nothing is stored.
        """
        asking = asking_of(turn)
        call = ledger.Call(
            turn=turn.key,
            step=step.no,
            attempt=step.attempt,
            agent_id=turn.agent.id,
            provider=asking.first.provider,
            model=asking.first.model,
        )
        if is_bounded and ledger.reserve(connection, call, asking.worst, now=now, configured=self.budgets) is not None:
            turn.may_hold = True
        steps.open_step(connection, step, self._logged.get(turn.agent.id, ()))

    async def open_step(
        self, turn: ActiveTurn, prompt: Prompt, *, dead: StepRow | None = None, spent: Usage | None = None
    ) -> None:
        """T2: open a step; a `dead` attempt of it is superseded and charged `spent` in the same transaction.

        Raises:
            LimitReached: a budget might be passed; nothing is stored.
        """
        now = self.now()
        step = step_row(turn, prompt, now)
        drafts = [step_started(step)] if dead is None else [step_superseded(dead), step_started(step)]

        def store(connection: Connection) -> tuple[None, Told]:
            if dead is not None:
                _supersede(connection, turn, dead, spent, now)
            self._open(connection, turn, step, now)
            return None, add_events(connection, turn, drafts, now)

        await self.commit(store)
        self._note_logs(turn, step)

    async def stream(self, turn: ActiveTurn, drafts: Sequence[Draft]) -> None:
        """T2′: store pieces of an answer that is still arriving."""
        now = self.now()
        turn.is_streamed = True
        await self.commit(lambda connection: (None, add_events(connection, turn, drafts, now)))

    async def tell(self, turn: ActiveTurn, name: str, data: Mapping[str, object]) -> None:
        """Store something that people may want to know of a turn, and that changes nothing."""
        now = self.now()
        draft = Draft(name, {"step": turn.step, "attempt": turn.attempt, **data})
        await self.commit(lambda connection: (None, add_events(connection, turn, [draft], now)))

    async def decide(
        self,
        turn: ActiveTurn,
        reply: ModelReply,
        planned: Sequence[EffectRow],
        *,
        ending: Ending | None = None,
        rest: Sequence[Draft] = (),
    ) -> None:
        """T3: store what the model decided, before any tool that it asked for starts; with T8 if that is the end.

        `rest` are streamed pieces that were not stored yet.
        """
        now = self.now()
        message = self.new_message("assistant", *(reply.parts or (Text(text=""),)))
        row = message_row(turn, message)
        spent = usage_row(turn, reply.usage, at=now)
        link = asking_of(turn).answered
        drafts = [*rest]
        if message.text:
            drafts.append(said(message))
        drafts.extend(call_planned(effect) for effect in planned)

        def store(connection: Connection) -> tuple[None, Told]:
            steps.close(
                connection,
                (turn.key, turn.step, turn.attempt),
                status="done",
                ended_at=now,
                finish_reason=reply.finish_reason,
                request_id=reply.request_id,
                answered=(link.provider, link.model),
            )
            messages.append(connection, [row])
            ledger.settle(connection, spent, may_hold=turn.may_hold)
            if planned:
                effects.plan(connection, planned)
            if ending is None:
                return None, add_events(connection, turn, drafts, now)
            return None, _end(connection, turn, ending, drafts, now)

        await self.commit(store)
        turn.history.append(message)
        self.meters.step_done(link.provider, link.model, self._seconds_since(turn.step_began_ms))
        self.meters.tokens(link.provider, link.model, reply.usage, spent.cost_microdollars)
        if ending is not None:
            self.meters.turn_ended(ending.status, self._seconds_since(turn.began_ms))

    def _seconds_since(self, began_ms: int) -> float:
        return max(0, self._clock.now_ms() - began_ms) / 1000

    async def start_effects(self, turn: ActiveTurn, rows: Sequence[EffectRow], *, timeout_s: float) -> None:
        """T5: store the intent to run these calls; only then may they touch the outside."""
        now_ms = self._clock.now_ms()
        now, deadline_at = iso(now_ms), iso(now_ms + int(timeout_s * 1000))

        def store(connection: Connection) -> tuple[None, Told]:
            for row in rows:
                effects.start(connection, effect_key(row), epoch=self.epoch, started_at=now, deadline_at=deadline_at)
            return None, []

        await self.commit(store)

    async def finish_effect(
        self,
        turn: ActiveTurn,
        finished: Finished,
        work: UnitOfWork,
        arguments: Mapping[str, object],
        next_prompt: Callable[[], Awaitable[Prompt | None]] | None = None,
    ) -> Prompt | None:
        """T6: store a call's own writes, its result and its end; with `next_prompt` also T2 of the next step (T7).

        The prompt is made with the result in view, before the commit, and returned; None if there is none, or a budget
        forbids the step.

        Raises:
            DatabaseError: the call's own writes were refused; nothing is stored and the history is as before.
        """
        now = self.now()
        result = self.new_message("tool", finished.result)
        row = message_row(turn, result, arguments=arguments)
        drafts = [*work.drafts, call_finished(finished, result)]
        turn.history.append(result)
        prompt, step, stored = None, None, False
        try:
            if next_prompt is not None:
                prompt = await next_prompt()
            if prompt is not None:
                turn.step, turn.attempt = turn.step + 1, 1
                step = step_row(turn, prompt, now)

            def store(connection: Connection) -> tuple[bool, Told]:
                told = work.run(connection)
                messages.append(connection, [row])
                _finish(connection, finished, result, now)
                opens = step is not None and self._may_open(connection, turn, step, now)
                started = [step_started(step)] if opens and step is not None else []
                return opens, [*told, *add_events(connection, turn, [*drafts, *started], now)]

            opened = await self._settling(work, store)
            stored = True
            self._note_logs(turn, step if opened else None)
            if step is not None and not opened:
                turn.step -= 1
            return prompt if opened else None
        finally:
            if not stored:
                work.settle(committed=False)
                turn.history.drop(result)
                if step is not None:
                    turn.step -= 1

    async def end(
        self,
        turn: ActiveTurn,
        ending: Ending,
        *,
        closed: Sequence[Finished] = (),
        open_step: StepRow | None = None,
        spent: Usage | None = None,
    ) -> None:
        """T8: end the turn. `closed` are results for calls that had none, so that no call is left unanswered;
        `open_step` is the model call that was cut off, if any, and `spent` what it is charged.
        """
        now = self.now()
        results = [(finished, self.new_message("tool", finished.result)) for finished in closed]
        rows = [message_row(turn, message) for _finished, message in results]
        drafts = [call_finished(finished, message) for finished, message in results]

        def store(connection: Connection) -> tuple[None, Told]:
            if open_step is not None:
                key = (open_step.turn, open_step.no, open_step.attempt)
                steps.close(connection, key, status="failed", ended_at=now)
                if spent is not None:
                    charged = usage_row(turn, spent, at=now)
                    ledger.settle(connection, replace(charged, attempt=open_step.attempt, is_estimate=True))
            messages.append(connection, rows)
            for finished, message in results:
                _finish(connection, finished, message, now)
            if any(finished.row.status == EffectStatus.AWAITING_APPROVAL for finished in closed):
                approvals.cancel_calls(connection, turn.key, now)
            return None, _end(connection, turn, ending, drafts, now)

        await self.commit(store)
        for _finished, message in results:
            turn.history.append(message)
        self.meters.turn_ended(ending.status, self._seconds_since(turn.began_ms))


def add_events(connection: Connection, turn: ActiveTurn, drafts: Sequence[Draft], now: str) -> Told:
    """Store events of a turn, within the caller's transaction."""
    return append(connection, (turn.key, turn.id), drafts, created_at=now)


def _supersede(connection: Connection, turn: ActiveTurn, dead: StepRow, spent: Usage | None, now: str) -> None:
    """The attempt died: nobody knows what it cost, so an estimate is charged."""
    steps.close(connection, (dead.turn, dead.no, dead.attempt), status="superseded", ended_at=now)
    if spent is not None:
        charged = usage_row(turn, spent, at=now)
        ledger.settle(connection, replace(charged, attempt=dead.attempt, is_estimate=True))


def _finish(connection: Connection, finished: Finished, message: Message, now: str) -> None:
    key = effect_key(finished.row)
    effects.finish(connection, key, status=finished.status, message_id=message.id, ended_at=now)


def _end(connection: Connection, turn: ActiveTurn, ending: Ending, drafts: Sequence[Draft], now: str) -> Told:
    turns.end(connection, turn.key, status=ending.status, ended_at=now, steps=turn.step, error=ending.error)
    if turn.may_hold:
        ledger.recover(connection, turn.key, at=now)  # a summary that was cut off cost something
        ledger.release(connection, turn.key)
    if ending.discards:
        messages.discard_batch(connection, turn.agent.id, turn.batch_id)
    told = add_events(connection, turn, [*drafts, turn_ended(ending)], now)
    if turn.is_streamed:
        event_table.prune_deltas(connection, turn.key)
    return told
