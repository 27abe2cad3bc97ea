"""Running agents: one turn at a time per agent, exactly one terminal event per turn.

Mailboxes are rows; `wake` only says that there may be one. A task exists for an agent only while it has work.
"""

from __future__ import annotations

import copy
import json
import logging
import math
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import trio

from pattern_core.agent_settings import NO_SETTINGS, settings_of
from pattern_core.agents import Agent, Roster
from pattern_core.conversation.history import History, load_history
from pattern_core.errors import InvalidInput, LimitReached, NotFound, PatternError, Unavailable
from pattern_core.events import Event, append, ended
from pattern_core.rules import facts
from pattern_core.turns import admission, recovery
from pattern_core.turns.admission import Arrival, NotAtRest, Ticket, TurnOptions
from pattern_core.turns.calls import TurnServices
from pattern_core.turns.record import Record
from pattern_core.turns.recovery import FoundTurn, RunCalls
from pattern_core.turns.state import DeadAttempt, Ending, cancelled
from pattern_core.turns.turn import Turn
from pattern_db.columns import iso, unix_ms
from pattern_db.connection import Connection
from pattern_db.enums import AgentStatus, BatchType, DeliveryStatus, EffectStatus, TrustLevel, TurnStatus
from pattern_db.errors import DatabaseError, DiskFull, RowConflict, StorageFailed
from pattern_db.journal import turns
from pattern_db.journal.turns import NewTurn, TurnRow
from pattern_db.tables import outbox

HISTORIES_MAX = 64  # conversations kept in memory between turns
_BATCHES = {  # by the author of a turn's message
    "user": BatchType.USER_REQUEST,
    "conversant": BatchType.USER_REQUEST,
    "agent": BatchType.AGENT_TO_AGENT,
}
LATE_S = 0.025  # interval of checks for recorded data while calls run; it is flushed at the second check


_log = logging.getLogger("pattern.turns")


@dataclass(slots=True, kw_only=True)
class _Delivery:
    """A message for an idle agent. `is_known` is set once it is on disk (`ticket`), or refused."""

    arrival: Arrival
    ticket: Ticket | None = None
    error: NotAtRest | PatternError | DatabaseError | None = None
    is_known: trio.Event = field(default_factory=trio.Event)


Take: TypeAlias = Callable[[str], Awaitable[None]]  # runs an agent's or group's next turn, if there is one


@dataclass(slots=True, kw_only=True)
class _Worker:
    """The task of an agent or a group: whether it was woken since its last check (`take`), and what is called when it
    rests; of an agent a delivered message, and its turn.

    The sender of that message holds `receiving` until it is accepted.
    """

    take: Take
    rest: Callable[[str], None] = lambda _owner_id: None
    is_woken: bool = False
    delivery: _Delivery | None = None
    turn: Turn | None = None
    receiving: trio.Lock = field(default_factory=trio.Lock)

    @property
    def is_about_to_rest(self) -> bool:
        """Whether its turn has ended: the next message can be delivered."""
        return not self.receiving.locked() and self.turn is not None and self.turn.record.is_ending


class Actors:
    """The working agents of one constellation. `nursery` is the constellation's: no task outlives it."""

    def __init__(self, services: TurnServices, roster: Roster, nursery: trio.Nursery) -> None:
        self._services = self._pinned = services  # a turn keeps the models that it began with
        self._journal = services.journal
        self._database = services.journal.database
        self._roster = roster
        self._nursery = nursery
        self._awake: dict[str, _Worker] = {}  # by agent id
        self._running: dict[str, Turn] = {}  # by their ids
        self._histories: OrderedDict[tuple[str, str | None], History] = OrderedDict()  # by agent and session
        self._rest = trio.lowlevel.ParkingLot()
        self._stopped: dict[str, str] = {}  # agent id → why it may not work
        self._unflushed: list[Record] = []
        self._late = trio.lowlevel.ParkingLot()

    # Waking and stopping

    @property
    def is_idle(self) -> bool:
        """Whether no agent works."""
        return not self._awake

    async def rested(self) -> None:
        """Wait until some agent has stopped working."""
        await self._rest.park()

    async def submit(self, arrival: Arrival) -> Ticket:
        """Accept a message (T0); return once it is on disk. An idle agent starts its turn in the same transaction.

        Raises:
            PatternError: as `admission.accept`.
            StorageFailed: the disk failed.
        """
        agent_id = arrival.incoming.agent_id
        delivery = _Delivery(arrival=arrival)
        worker = self._handed_over(agent_id, delivery)
        if worker is not None:
            worker.receiving.acquire_nowait()
            try:
                await delivery.is_known.wait()
            finally:
                worker.receiving.release()
            if delivery.ticket is not None:
                return delivery.ticket
            stopped = Unavailable("the constellation has just stopped; send this again in a few seconds")
            raise delivery.error or copy.copy(self._database.failure) or stopped
        worker = self._awake.get(agent_id)
        if worker is not None and worker.receiving.locked():
            async with worker.receiving:  # messages are accepted in the order of sending
                pass
        return await self._accept(arrival)

    def _handed_over(self, agent_id: str, delivery: _Delivery) -> _Worker | None:
        """Deliver a message to an agent that is idle or about to be; return None if it is busy or not ready.

        The sender does not wait until a long main conversation is in memory; most sessions are new.
        """
        session_id = delivery.arrival.turn.session_id
        if session_id is None and (agent_id, None) not in self._histories:
            return None
        worker = self._awake.get(agent_id)
        if worker is None:
            worker = _Worker(take=self._take_next, delivery=delivery)
            return worker if self._start(agent_id, worker) else None
        if not worker.is_about_to_rest:
            return None
        worker.delivery = delivery
        return worker

    async def _accept(self, arrival: Arrival) -> Ticket:
        """T0 alone: the message waits in the inbox."""
        agent_id, limits = arrival.incoming.agent_id, self._services.limits
        ticket = await self._journal.commit(lambda connection: admission.accept(connection, arrival, limits))
        if ticket.is_replay:
            return ticket
        for turn in self._running.values():
            if ticket.stops is not None and ticket.stops[0] == turn.record.id:
                turn.stop_at_border(ticket.stops[1])
            if arrival.incoming.policy == "steer" and turn.agent.id == agent_id:
                turn.joins = turn.joins or turn.record.history.session_id == arrival.incoming.session_id
        self.wake(agent_id)
        return ticket

    def wake(self, agent_id: str) -> None:
        """Let the agent check its inbox. Cheap, and harmless if it is empty."""
        self.wake_group(agent_id, self._take_next)

    def wake_group(self, group_id: str, take: Take, rest: Callable[[str], None] = lambda _group_id: None) -> None:
        """Have a task `take` a group's turns until it is not woken; then, or if none may work, call `rest`."""
        if group_id in self._awake:
            self._awake[group_id].is_woken = True
        elif not self._start(group_id, _Worker(take=take, rest=rest, is_woken=True)):
            rest(group_id)

    def _start(self, agent_id: str, worker: _Worker) -> bool:
        """Start the agent's task; False if it may not work, or the constellation has just stopped."""
        if not self._may_work(agent_id):
            return False
        try:
            self._nursery.start_soon(self._work, agent_id, worker, name=f"agent {agent_id}")
        except RuntimeError:  # the constellation has just stopped; its next start finds the row
            return False
        self._awake[agent_id] = worker
        return True

    async def stop(self, agent_id: str, reason: str) -> None:
        """Cancel the agent's work and prevent new work, until `release`."""
        self._stopped[agent_id] = reason
        self.cancel_all(reason, agent_id=agent_id)
        while agent_id in self._awake:
            await self._rest.park()

    def release(self, agent_id: str) -> None:
        """Allow a stopped agent to work again."""
        self._stopped.pop(agent_id, None)
        self.wake(agent_id)

    def forget(self, agent_id: str) -> None:
        """Drop the agent's conversations from memory; the rows are read again."""
        for key in [key for key in self._histories if key[0] == agent_id]:
            del self._histories[key]

    def cancel(self, turn_id: str, reason: str) -> bool:
        """Stop a turn; return False if it is not running."""
        turn = self._running.get(turn_id)
        if turn is not None:
            turn.stop(reason)
        return turn is not None

    def cancel_all(self, reason: str, *, agent_id: str | None = None) -> None:
        """Stop every turn, or those of one agent."""
        for turn in self._running.values():
            if agent_id in (None, turn.agent.id):
                turn.stop(reason)

    def flush_late(self, record: Record) -> None:
        """Flush what a turn recorded, unless the turn does so within `LATE_S`."""
        self._unflushed.append(record)
        self._late.unpark_all()

    async def run_late(self) -> None:
        """Flush recorded decisions while long tools run, until cancelled."""
        older: list[Record] = []
        while True:
            if not older and not self._unflushed:
                await self._late.park()
            await trio.sleep(LATE_S)
            for record in older:
                if not record.is_flushed:
                    with suppress(PatternError, DatabaseError):  # the turn's own flush raises it again
                        await record.flush()
            older, self._unflushed = self._unflushed, []

    # Working

    async def _work(self, agent_id: str, worker: _Worker) -> None:
        self._journal.meters.working += 1
        try:
            while True:
                delivery, worker.delivery = worker.delivery, None
                try:
                    if delivery is not None:
                        await self._receive(agent_id, delivery)
                    elif worker.is_woken and self._may_work(agent_id):
                        worker.is_woken = False
                        await worker.take(agent_id)
                    else:
                        break
                except* DiskFull:
                    # The stored turn continues when there is space, as after a restart.
                    _log.error("no space left on the disk; an agent waits", {"agent": agent_id})
                    self.forget(agent_id)
                    worker.is_woken = True
                    await trio.sleep(self._services.limits.room_wait_s)
        finally:
            self._journal.meters.working -= 1
            del self._awake[agent_id]
            if worker.delivery is not None:
                worker.delivery.is_known.set()
            worker.rest(agent_id)
            self._rest.unpark_all()

    def _may_work(self, agent_id: str) -> bool:
        return agent_id not in self._stopped and not self._services.is_draining()

    async def _take_next(self, agent_id: str) -> None:
        """Resume the agent's unfinished turn or start the next one, repeatedly; return if there is none."""
        found = await self._database.read(_find_work, agent_id)
        if found is None:
            return
        self._awake[agent_id].is_woken = True
        row, payload = found
        if payload is None:
            await self._resume(agent_id, row)
        else:
            await self._begin(row, payload)

    async def _receive(self, agent_id: str, delivery: _Delivery) -> None:
        """Accept a message and start its turn, in one transaction if the agent is idle in the rows, too."""
        arrival = delivery.arrival
        try:
            if not self._may_work(agent_id):
                raise NotAtRest
            await self._begin(arrival.turn, admission.payload_of(arrival.incoming), delivery)
        except NotAtRest:
            self.forget(agent_id)  # another message has its place in the history
            try:
                delivery.ticket = await self._accept(arrival)
            except (NotAtRest, PatternError, DiskFull) as error:
                delivery.error = error
        except StorageFailed as error:
            delivery.error = copy.copy(error)
            self.forget(agent_id)  # the message is not in it
            if delivery.ticket is not None:
                raise
        finally:
            delivery.is_known.set()

    async def _begin(
        self, row: TurnRow | NewTurn, payload: Mapping[str, object], delivery: _Delivery | None = None
    ) -> None:
        """Run a turn from its message (T1) on; with a `delivery` from T0 on. `payload` is as the inbox keeps it."""
        services, agent_id = self._services, row.agent_id
        try:
            agent = await self._roster.awake(agent_id)
        except NotFound:
            return None  # deleted, and its turns with it
        if agent.status is AgentStatus.ARCHIVED and isinstance(row, TurnRow):
            return await self._give_back(row, payload, f"the agent {agent.name} is {agent.status}", is_final=False)
        try:
            incoming = self._journal.new_message("user", *admission.parts_of(payload))
        except (LookupError, TypeError, ValueError) as error:
            if not isinstance(row, TurnRow):
                raise
            return await self._give_back(row, payload, f"the message cannot be read: {error!r}", is_final=True)
        is_new = delivery is not None and delivery.arrival.incoming.new_session is not None
        history = await self._history(row, active=None, is_new=is_new)
        turn = self._turn(row, agent, history, batch_id=incoming.position, source=payload.get("source"))
        record = turn.record
        if isinstance(row, TurnRow):
            record.queue_ms = max(0, record.began_ms - unix_ms(row.created_at))
        asked_by = payload.get("source_metadata")
        if row.parent_turn is not None and payload.get("source") == "group" and isinstance(asked_by, Mapping):
            record.group_id = asked_by["group_id"]
        self._awake[agent_id].turn = turn

        def started(committed: bool) -> None:
            if committed and row.session_id is None:  # what is said in a session is shown in no other prompt
                services.prompts.recent_turns.start(row.id, agent, row.sender, incoming.text, incoming.created_at)
            if committed and delivery is not None:
                delivery.ticket = Ticket(turn_id=row.id)
                delivery.is_known.set()

        async with self._registered(turn):
            arrival = None if delivery is None else delivery.arrival
            record.start(incoming, payload, limits=turn.settings.limits, arrival=arrival).when_settled(started)
            try:
                await self._run(turn)
            except RowConflict:
                if record.is_started:
                    raise
                # Cancelled before it started, or another message was accepted earlier: check for the next.
                self.forget(agent_id)  # another message has its place in the history
                self._awake[agent_id].is_woken = True

    @asynccontextmanager
    async def _registered(self, turn: Turn) -> AsyncIterator[None]:
        """Register a turn so that it can be stopped: before its rows say that it runs, so that no request is missed."""
        self._running[turn.record.id] = turn
        if turn.agent.id in self._stopped:
            turn.stop(self._stopped[turn.agent.id])
        try:
            yield
        finally:
            await turn.record.abandon()
            del self._running[turn.record.id]
            self._services.prompts.recent_turns.change(turn.record.id, turn.record.status, turn.agent.id)

    async def _resume(self, agent_id: str, row: TurnRow) -> None:
        """Continue a turn of a dead process, or one with answered questions."""
        agent = await self._roster.awake(agent_id)
        if row.status == TurnStatus.WAITING:
            self.forget(agent_id)  # its place has changed: it is after the turns that overtook it
        found = await self._database.read(recovery.restore, row)
        turn = self._found(row, found, agent, await self._history(row, active=row.batch_id))
        if row.parent_turn is not None:  # the budgets of a group that asked count
            turn.record.group_id = (await self._database.read(turns.by_key, row.parent_turn)).group_id
        if turn.record.id in self._running:
            self.forget(agent_id)  # the data read may lack the turn's end
            self._awake[agent_id].is_woken = False  # `end_waiting` is ending it, and wakes the agent afterwards
            return
        async with self._registered(turn):
            # Read again: a request to stop it, made before it was registered, left only a row.
            row = await self._database.read(turns.by_key, row.key)
            if row.ended_at is not None:
                self.forget(agent_id)  # as above
                return
            turn.judge.calls = await self._database.read(facts.calls_of, row.key)
            verdict = recovery.decide(row, found, self._services.limits.turn, self._journal.now())
            if isinstance(verdict, Ending):
                await self._end(turn, verdict)
                return
            steering = await self._database.read(turns.steering_messages, agent_id, row.session_id)
            turn.joins = bool(steering) or turn.joins
            turn.is_addressed = found.is_addressed and isinstance(
                verdict, RunCalls
            )  # else the model is about to see it
            turn.record.resume(waited=row.status == TurnStatus.WAITING)
            await turn.record.flush()  # counted even if the process crashes next
            await self._run(turn, verdict)

    def _turn(
        self,
        row: TurnRow | NewTurn,
        agent: Agent,
        history: History,
        *,
        batch_id: str,
        source: object,
        left_s: float = math.inf,
    ) -> Turn:
        """Return a turn before its first step, with its agent's time limit; at most `left_s`."""
        settings = NO_SETTINGS
        with suppress(InvalidInput):  # it ends the turn when it has begun
            settings = settings_of(agent.config)
        now_ms, sender = self._journal.clock.now_ms(), row.sender.partition(":")[0]
        limits = self._services.models.limits(agent.model_provider)
        wall_s = min(settings.limits.wall_s or limits.turn_timeout_s, left_s)
        record = Record(
            journal=self._journal,
            agent=agent,
            history=history,
            id=row.id,
            key=row.key if isinstance(row, TurnRow) else 0,
            batch_id=batch_id,
            seed=row.seed,
            batch_type=_BATCHES.get(sender, BatchType.SYSTEM_TRIGGER),
            source=str(source or sender),
            trust=TrustLevel.SOURCE if row.parent_turn is not None else facts.trust_of(row.sender),
            depth=row.depth,
            deadline=trio.current_time() + wall_s,
            deadline_at=iso(now_ms + max(0, round(wall_s * 1000))),
            began_ms=now_ms,
        )
        if self._pinned.models is not (models := self._services.models.pinned()):
            self._pinned = replace(self._services, models=models)
        return Turn(self._pinned, record, settings, TurnOptions.of(row.options))

    def _found(self, row: TurnRow, found: FoundTurn, agent: Agent, history: History) -> Turn:
        """Return a turn from its rows; its time continues from now, and is not longer if the clock was set back."""
        left_s = _left_s(row, self._journal.clock.now_ms())
        turn = self._turn(row, agent, history, batch_id=row.batch_id or "", source=found.source, left_s=left_s)
        record = turn.record
        if found.step is not None:
            record.step, record.attempt = found.step.no, found.step.attempt
            record.model = f"{found.step.provider}/{found.step.model}"
        record.children, record.sequence, record.trust = found.children, found.messages, found.trust
        # It may have stored pieces, and reservations for its calls.
        record.is_started = record.is_streamed = record.may_hold = True
        if any(one.call is not None for one in found.approvals):
            record.batch_type = BatchType.CONTINUATION  # it has waited, and others may have overtaken it
        if row.started_at is not None:
            record.began_ms = unix_ms(row.started_at)
            record.queue_ms = record.began_ms - unix_ms(row.created_at)
        turn.calls.in_doubt.update(call.args_hash for call in found.calls if call.status == EffectStatus.IN_DOUBT)
        turn.judge.said.update(found.said)
        turn.judge.compactions.extend(found.compactions)
        turn.output_chars = found.output_chars
        return turn

    async def end_waiting(self, turn_id: str, ending: Ending) -> None:
        """End a turn that waits for a person, while its agent may work on others; do nothing if it does not wait."""
        row = await self._database.read(turns.by_id, turn_id)
        if row.status != TurnStatus.WAITING or turn_id in self._running:
            return
        agent = await self._roster.get(row.agent_id)
        # Its agent may be busy: the conversation in memory is another turn's.
        found = await self._database.read(recovery.restore, row)
        turn = self._found(row, found, agent, History(session_id=row.session_id))
        if turn_id in self._running:
            return  # its agent has just resumed it
        # While it is registered its agent does not resume it: a turn has one end.
        async with self._registered(turn):
            row = await self._database.read(turns.by_id, turn_id)
            if row.status == TurnStatus.WAITING:
                await self._end(turn, ending)
        self.wake(agent.id)

    async def _history(self, row: TurnRow | NewTurn, *, active: str | None, is_new: bool = False) -> History:
        key, is_untrusted = (row.agent_id, row.session_id), self._services.tools.is_untrusted
        known = History((), begins=(), is_untrusted=is_untrusted, session_id=row.session_id) if is_new else None
        known = self._histories.setdefault(key, known) if known is not None else self._histories.get(key)
        if known is None:
            known = await self._database.read(
                load_history,
                row.agent_id,
                self._services.limits.prompt,
                active=active,
                is_untrusted=is_untrusted,
                session_id=row.session_id,
            )
            self._histories[key] = known
            while len(self._histories) > HISTORIES_MAX:
                self._histories.popitem(last=False)
        self._histories.move_to_end(key)
        return known

    async def _run(self, turn: Turn, found: DeadAttempt | RunCalls | None = None) -> None:
        """Run the turn in its own scope and end it exactly once. Outer cancellation leaves the turn open."""
        ending: Ending | None = None
        with turn.scope:
            try:
                await turn.run(found)
            except PatternError as error:
                status = "limit" if isinstance(error, LimitReached) else "failed"
                ending = Ending(status=status, error={"code": error.code, "message": error.message})
        if turn.scope.cancelled_caught and turn.stop_reason is not None:
            ending = cancelled(turn.stop_reason)
        elif turn.scope.cancelled_caught:
            wall_s = turn.bounds.wall_s or 0.0
            limit = (
                f"the turn reached its time limit of {wall_s:g} s; send a message to continue it, or raise "
                f"limits.wall_s"
            )
            ending = Ending(status="limit", error={"code": "deadline", "message": limit})
        if ending is not None:
            await self._end(turn, ending)
        elif turn.record.status == TurnStatus.WAITING:
            self.forget(turn.agent.id)
            self._awake[turn.agent.id].is_woken = True  # for other turns; and the answer may have come already

    async def _end(self, turn: Turn, ending: Ending) -> None:
        """T8 of a turn that did not end regularly: close everything open."""
        await turn.record.flush()
        found = await self._database.read(recovery.find, turn.record.key)
        # An interrupted or discarded call costs something; one that the provider refused does not.
        is_charged = ending.status != TurnStatus.FAILED or turn.wasted is not None
        dead = DeadAttempt(is_charged=is_charged, asking=turn.asking, used=turn.wasted)
        cut_off = dead if found.is_asking else None
        streamed = found.streamed if turn.wasted is None else ()
        if ending.status in (TurnStatus.FAILED, TurnStatus.INTERRUPTED):
            waits = await self._database.read(
                admission.unanswered,
                turn.record.key,
                error=str((ending.error or {}).get("message")),
                now=self._journal.now(),
                is_final=bool(found.calls),  # what they did would be done twice
            )
            # A message that comes again is not in the conversation twice, unless something was said to it or joined it.
            comes_again = waits is not None and waits.status is DeliveryStatus.PENDING
            is_alone = turn.record.sequence == 1 and not streamed
            ending = replace(ending, undelivered=waits, discards=comes_again and is_alone)
        closed = recovery.close_calls(found.unanswered)
        await turn.record.end(ending, closed=closed, cut_off=cut_off, streamed=streamed)
        if closed:
            self._services.consent.approvals.changed()
        if ending.undelivered is not None:
            self._services.outbox.changed()
        self.forget(turn.agent.id)

    async def _give_back(self, row: TurnRow, payload: Mapping[str, object], why: str, *, is_final: bool) -> None:
        """End a queued turn that cannot start; its message is delivered later, or waits for a person, unless a group
        asked.
        """
        now, error = self._journal.now(), {"code": "undelivered", "message": why}

        def store(connection: Connection) -> tuple[None, list[Event]]:
            turns.take_message(connection, row.key)
            turns.end(connection, row.key, status=TurnStatus.FAILED, ended_at=now, error=error)
            if not admission.is_asked(connection, row):
                waits = admission.undelivered(row, payload, error=why, now=now, is_final=is_final)
                outbox.add(connection, waits)
            return None, append(connection, (row.key, row.id), [ended(TurnStatus.FAILED, error)], created_at=now)

        await self._journal.commit(store)
        self._services.outbox.changed()


def _find_work(connection: Connection, agent_id: str) -> tuple[TurnRow, Mapping[str, object] | None] | None:
    """Return the agent's unfinished turn, or the queued one to start next with the payload of its message."""
    unfinished = turns.unfinished(connection, agent_id)
    if unfinished is not None:
        return unfinished, None
    waiting = turns.first_message(connection, agent_id)
    return None if waiting is None else (turns.by_key(connection, waiting.turn), json.loads(waiting.payload))


def _left_s(row: TurnRow, now_ms: int) -> float:
    """Return the remaining time of a turn, in seconds."""
    if row.time_left_ms is not None:
        return row.time_left_ms / 1000
    return 0.0 if row.deadline_at is None else (unix_ms(row.deadline_at) - now_ms) / 1000
