"""The moments of a turn, each one transaction: what is stored before and after every step.

| moment | method | in one transaction |
|---|---|---|
| T0 accepted | `admission.accept` | turn (queued), inbox row, `turn.queued` |
| T1 started, T2 asks | `begin` | inbox row becomes a message, turn running, step open, `turn.started`, `step.started` |
| T2 asks again | `open_step` | step open; after a crash the dead attempt superseded and charged at an estimate |
| T2′ streams | `stream` | pieces of the answer |
| T3 decided | `decide` | step done, message, usage, one effect per tool call, `message`, `tool.call` |
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
from pattern_core.agents.prompt import Prompt
from pattern_core.agents.rows import (
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
from pattern_core.clock import Clock, now_text
from pattern_core.events import Draft, Event, EventLog, append
from pattern_core.ids import Ids
from pattern_core.messages import Message, Part, Text
from pattern_core.models.model import ModelReply, Usage
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.journal import effects, inbox, steps, turns, usage
from pattern_db.journal import events as event_table
from pattern_db.journal.effects import EffectRow
from pattern_db.journal.steps import StepRow
from pattern_db.tables import messages
from pattern_db.timestamps import iso

T = TypeVar("T")
Told = list[Event]


class Journal:
    """Stores the moments of one constellation's turns and tells their events. `on_commit` must not wait or raise."""

    def __init__(
        self,
        *,
        database: Database,
        events: EventLog,
        clock: Clock,
        ids: Ids,
        epoch: int,
        on_commit: Callable[[], None] = lambda: None,
    ) -> None:
        self.epoch = epoch
        self._database = database
        self._events = events
        self._clock = clock
        self._ids = ids
        self._on_commit = on_commit

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
        self._on_commit()

    async def commit_work(self, work: UnitOfWork) -> None:
        """Store a unit of work that belongs to no turn, such as an edit through the API, and settle it.

        Raises:
            DatabaseError: the transaction was refused; nothing of it is stored.
        """
        now = now_text(self._clock)

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

    def new_message(self, role: str, *parts: Part) -> Message:
        """A message at the next position, not yet stored."""
        return make_message(role, parts, position=self._ids.position(), created_at=now_text(self._clock))

    async def begin(self, turn: ActiveTurn, incoming: Message, origin: Mapping[str, object], prompt: Prompt) -> None:
        """T1 and T2: take the accepted message into the conversation and open the first step.

        Raises:
            Conflict: it was cancelled meanwhile, or another message goes before it; nothing is stored.
        """
        now = now_text(self._clock)
        row = message_row(turn, incoming, origin=origin)
        step = step_row(turn, prompt, now)
        started = turn_started(turn, incoming)

        def store(connection: Connection) -> tuple[None, Told]:
            inbox.take_first(connection, turn.agent.id, turn.key)
            turns.start(
                connection,
                turn.key,
                batch_id=turn.batch_id,
                epoch=self.epoch,
                started_at=now,
                deadline_at=turn.deadline_at,
            )
            messages.append(connection, [row])
            steps.open_step(connection, step)
            return None, _append(connection, turn, [started, step_started(step)], now)

        await self.commit(store)

    async def open_step(
        self, turn: ActiveTurn, prompt: Prompt, *, dead: StepRow | None = None, spent: Usage | None = None
    ) -> None:
        """T2: open a step; a `dead` attempt of it is superseded and charged `spent` in the same transaction."""
        now = now_text(self._clock)
        step = step_row(turn, prompt, now)
        drafts = [step_started(step)] if dead is None else [step_superseded(dead), step_started(step)]

        def store(connection: Connection) -> tuple[None, Told]:
            if dead is not None:
                _supersede(connection, turn, dead, spent, now)
            steps.open_step(connection, step)
            return None, _append(connection, turn, drafts, now)

        await self.commit(store)

    async def stream(self, turn: ActiveTurn, drafts: Sequence[Draft]) -> None:
        """T2′: store pieces of an answer that is still arriving."""
        now = now_text(self._clock)
        turn.is_streamed = True
        await self.commit(lambda connection: (None, _append(connection, turn, drafts, now)))

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
        now = now_text(self._clock)
        message = self.new_message("assistant", *(reply.parts or (Text(text=""),)))
        row = message_row(turn, message)
        spent = usage_row(turn, reply.usage)
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
            )
            messages.append(connection, [row])
            usage.add(connection, spent)
            if planned:
                effects.plan(connection, planned)
            if ending is None:
                return None, _append(connection, turn, drafts, now)
            return None, _end(connection, turn, ending, drafts, now)

        await self.commit(store)
        turn.history.append(message)

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
        next_prompt: Callable[[], Awaitable[Prompt]] | None = None,
    ) -> Prompt | None:
        """T6: store a call's own writes, its result and its end; with `next_prompt` also T2 of the next step (T7).

        The prompt is made with the result in view, before the commit, and returned.

        Raises:
            DatabaseError: the call's own writes were refused; nothing is stored and the history is as before.
        """
        now = now_text(self._clock)
        result = self.new_message("tool", finished.result)
        row = message_row(turn, result, arguments=arguments)
        drafts = [*work.drafts, call_finished(finished, result)]
        turn.history.append(result)
        prompt, step, stored = None, None, False
        try:
            if next_prompt is not None:
                prompt = await next_prompt()
                turn.step, turn.attempt = turn.step + 1, 1
                step = step_row(turn, prompt, now)
                drafts.append(step_started(step))

            def store(connection: Connection) -> tuple[None, Told]:
                told = work.run(connection)
                messages.append(connection, [row])
                _finish(connection, finished, result, now)
                if step is not None:
                    steps.open_step(connection, step)
                return None, [*told, *_append(connection, turn, drafts, now)]

            await self._settling(work, store)
            stored = True
            return prompt
        finally:
            if not stored:
                work.settle(committed=False)
                turn.history.drop(result)
                if step is not None:
                    turn.step -= 1

    async def resume(self, turn: ActiveTurn) -> None:
        """Note that this process takes up an unfinished turn."""

        def store(connection: Connection) -> tuple[None, Told]:
            turns.resume(connection, turn.key, epoch=self.epoch, step=turn.step)
            return None, []

        await self.commit(store)

    async def end(
        self,
        turn: ActiveTurn,
        ending: Ending,
        *,
        closed: Sequence[Finished] = (),
        open_step: StepRow | None = None,
    ) -> None:
        """T8: end the turn. `closed` are results for calls that had none, so that no call is left unanswered;
        `open_step` is the model call that was cut off, if any.
        """
        now = now_text(self._clock)
        results = [(finished, self.new_message("tool", finished.result)) for finished in closed]
        rows = [message_row(turn, message) for _finished, message in results]
        drafts = [call_finished(finished, message) for finished, message in results]

        def store(connection: Connection) -> tuple[None, Told]:
            if open_step is not None:
                key = (open_step.turn, open_step.no, open_step.attempt)
                steps.close(connection, key, status="failed", ended_at=now)
            messages.append(connection, rows)
            for finished, message in results:
                _finish(connection, finished, message, now)
            return None, _end(connection, turn, ending, drafts, now)

        await self.commit(store)
        for _finished, message in results:
            turn.history.append(message)


def _append(connection: Connection, turn: ActiveTurn, drafts: Sequence[Draft], now: str) -> Told:
    return append(connection, (turn.key, turn.id), drafts, created_at=now)


def _supersede(connection: Connection, turn: ActiveTurn, dead: StepRow, spent: Usage | None, now: str) -> None:
    """The attempt died: nobody knows what it cost, so an estimate is charged."""
    steps.close(connection, (dead.turn, dead.no, dead.attempt), status="superseded", ended_at=now)
    if spent is not None:
        charged = usage_row(turn, spent)
        usage.add(connection, replace(charged, attempt=dead.attempt, is_estimate=True))


def _finish(connection: Connection, finished: Finished, message: Message, now: str) -> None:
    key = effect_key(finished.row)
    effects.finish(connection, key, status=finished.status, message_id=message.id, ended_at=now)


def _end(connection: Connection, turn: ActiveTurn, ending: Ending, drafts: Sequence[Draft], now: str) -> Told:
    turns.end(connection, turn.key, status=ending.status, ended_at=now, steps=turn.step, error=ending.error)
    told = _append(connection, turn, [*drafts, turn_ended(ending)], now)
    if turn.is_streamed:
        event_table.prune_deltas(connection, turn.key)
    return told
