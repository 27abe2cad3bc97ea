"""Agents at work: one serial turn at a time per agent, exactly one terminal event per turn.

Mailboxes are rows; `wake` only says that there may be one. A task exists for an agent only while it has work.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import trio

from pattern_core.agents import recovery
from pattern_core.agents.active import ActiveTurn, Ending
from pattern_core.agents.history import History, load_history
from pattern_core.agents.roster import Roster
from pattern_core.agents.services import TurnServices
from pattern_core.agents.turn import run_turn
from pattern_core.errors import LimitReached, NotFound, PatternError
from pattern_core.messages import Text
from pattern_db.connection import Connection
from pattern_db.errors import Conflict
from pattern_db.journal import inbox, turns
from pattern_db.journal.turns import TurnRow
from pattern_db.tables import messages
from pattern_db.timestamps import iso, unix_ms

HISTORIES_MAX = 64  # conversations kept in memory between turns


@dataclass(frozen=True, slots=True, kw_only=True)
class NextTurn:
    """A queued turn that an agent may start, as it was accepted."""

    key: int
    id: str
    seed: int
    sender: str
    depth: int
    payload: Mapping[str, object]


@dataclass(slots=True, kw_only=True)
class _Running:
    agent_id: str
    scope: trio.CancelScope
    reason: str | None = None

    def stop(self, reason: str) -> None:
        self.reason = reason
        self.scope.cancel()


class Actors:
    """The working agents of one constellation. `nursery` is the constellation's own: no task outlives it."""

    def __init__(self, services: TurnServices, roster: Roster, nursery: trio.Nursery) -> None:
        self._services = services
        self._roster = roster
        self._nursery = nursery
        self._awake: dict[str, bool] = {}  # agent id → woken again meanwhile
        self._running: dict[str, _Running] = {}
        self._histories: OrderedDict[str, History] = OrderedDict()
        self._rest = trio.lowlevel.ParkingLot()
        self._stopped: dict[str, str] = {}  # agent id → why it may not work

    @property
    def is_idle(self) -> bool:
        """Whether no agent works."""
        return not self._awake

    async def rested(self) -> None:
        """Wait until some agent has stopped working."""
        await self._rest.park()

    def wake(self, agent_id: str, following: NextTurn | None = None) -> None:
        """See to it that the agent looks into its inbox. Cheap, and harmless when there is nothing.

        `following` is what was just accepted: an agent at rest has nothing else to do and starts it without looking.
        """
        if agent_id in self._awake:
            self._awake[agent_id] = True
        elif agent_id not in self._stopped:
            try:
                self._nursery.start_soon(self._work, agent_id, following, name=f"agent {agent_id}")
            except RuntimeError:  # the constellation has just stopped; its next start finds the row
                return
            self._awake[agent_id] = following is None

    async def stop(self, agent_id: str, reason: str) -> None:
        """Cancel what the agent does and keep it from starting anything, until `release`."""
        self._stopped[agent_id] = reason
        for running in self._running.values():
            if running.agent_id == agent_id:
                running.stop(reason)
        while agent_id in self._awake:
            await self._rest.park()

    def release(self, agent_id: str) -> None:
        """Let a stopped agent work again."""
        self._stopped.pop(agent_id, None)
        self.wake(agent_id)

    def forget(self, agent_id: str) -> None:
        """Drop what is remembered of the agent's conversation; the rows are read again."""
        self._histories.pop(agent_id, None)

    def cancel(self, turn_id: str, reason: str) -> bool:
        """Stop a turn under way; False if it does not run."""
        running = self._running.get(turn_id)
        if running is None:
            return False
        running.stop(reason)
        return True

    async def _work(self, agent_id: str, following: NextTurn | None) -> None:
        try:
            if following is not None:
                await self._start(agent_id, following)
            while self._awake[agent_id] and agent_id not in self._stopped and not self._services.is_draining():
                self._awake[agent_id] = False
                await self._look(agent_id)
        finally:
            del self._awake[agent_id]
            self._rest.unpark_all()

    async def _look(self, agent_id: str) -> None:
        """Take up the agent's unfinished turn or start the next one, and look again; nothing if there is none."""
        found = await self._services.database.read(_find_work, agent_id)
        if found is None:
            return
        self._awake[agent_id] = True
        if isinstance(found, NextTurn):
            await self._start(agent_id, found)
        else:
            await self._take_up(agent_id, found)

    async def _start(self, agent_id: str, following: NextTurn) -> None:
        """T1 with T2, then the turn."""
        services = self._services
        try:
            agent = await self._roster.get(agent_id)
        except NotFound:
            return  # deleted meanwhile, and its turns with it
        incoming = services.journal.new_message("user", Text(text=str(following.payload["content"])))
        timeout_s = services.limits.turn.turn_timeout_s
        turn = ActiveTurn(
            key=following.key,
            id=following.id,
            agent=agent,
            seed=following.seed,
            sender=following.sender,
            depth=following.depth,
            batch_id=incoming.position,
            deadline=trio.current_time() + timeout_s,
            deadline_at=iso(services.clock.now_ms() + int(timeout_s * 1000)),
            history=await self._history(agent_id, is_unfinished=False),
        )
        turn.history.append(incoming)
        prompt = await services.prompt(turn)
        with self._listed(agent_id, turn.id, turn.deadline) as listed:
            try:
                await services.journal.begin(turn, incoming, following.payload, prompt)
            except Conflict:
                # Cancelled before it started, or another message was accepted earlier: look what is next.
                self.forget(agent_id)  # its place in the history is another's
                self._awake[agent_id] = True
                return
            await self._conduct(turn, listed, lambda: run_turn(services, turn, prompt))

    async def _take_up(self, agent_id: str, row: TurnRow) -> None:
        """Go on with a turn that a dead process left."""
        services = self._services
        now_ms = services.clock.now_ms()
        left_s = 0.0 if row.deadline_at is None else (unix_ms(row.deadline_at) - now_ms) / 1000
        with self._listed(agent_id, row.id, trio.current_time() + left_s) as listed:
            # Read again: who asked to stop it before it was listed left only a row.
            await self._resume(agent_id, await services.database.read(turns.by_key, row.key), listed)

    async def _resume(self, agent_id: str, row: TurnRow, listed: _Running) -> None:
        services = self._services
        found = await services.database.read(recovery.find, row.key)
        now_ms = services.clock.now_ms()
        verdict = recovery.decide(row, found, services.limits.turn, iso(now_ms))
        agent = await self._roster.get(agent_id)
        step = found.step
        turn = ActiveTurn(
            key=row.key,
            id=row.id,
            agent=agent,
            seed=row.seed,
            sender=row.sender,
            depth=row.depth,
            batch_id=row.batch_id or "",
            deadline=listed.scope.deadline,
            deadline_at=row.deadline_at or iso(now_ms),
            history=await self._history(agent_id, is_unfinished=True),
            step=1 if step is None else step.no,
            attempt=1 if step is None else step.attempt,
            sequence=await services.database.read(_messages_of_batch, agent_id, row.batch_id or ""),
            calls=len(found.calls) - len(found.of_step),
            is_streamed=True,  # it may have stored pieces
            in_doubt={call.args_hash for call in found.calls if call.status == "in_doubt"},
        )
        if isinstance(verdict, Ending):
            await self._end(turn, verdict)
            return
        await services.journal.resume(turn)
        await self._conduct(turn, listed, lambda: recovery.resume(services, turn, found, verdict))

    async def _history(self, agent_id: str, *, is_unfinished: bool) -> History:
        known = self._histories.get(agent_id)
        if known is None:
            limits = self._services.limits.prompt
            known = await self._services.database.read(load_history, agent_id, limits, is_unfinished=is_unfinished)
            self._histories[agent_id] = known
            while len(self._histories) > HISTORIES_MAX:
                self._histories.popitem(last=False)
        self._histories.move_to_end(agent_id)
        return known

    @contextmanager
    def _listed(self, agent_id: str, turn_id: str, deadline: float) -> Iterator[_Running]:
        """Let a turn be stopped from now on: from before its rows say that it runs, or a wish would be overheard."""
        running = self._running[turn_id] = _Running(agent_id=agent_id, scope=trio.CancelScope(deadline=deadline))
        if agent_id in self._stopped:
            running.stop(self._stopped[agent_id])
        try:
            yield running
        finally:
            del self._running[turn_id]

    async def _conduct(self, turn: ActiveTurn, running: _Running, body: Callable[[], Awaitable[None]]) -> None:
        """Run the turn's body in its own scope and see to its one end. Outer cancellation leaves the turn open."""
        ending: Ending | None = None
        with running.scope:
            try:
                await body()
            except PatternError as error:
                ending = _ending(error)
        if running.scope.cancelled_caught:
            limit = f"the turn took longer than {self._services.limits.turn.turn_timeout_s:g} s"
            ending = (
                recovery.cancelled(running.reason)
                if running.reason is not None
                else Ending(status="limit", error={"code": "deadline", "message": limit})
            )
        if ending is not None:
            await self._end(turn, ending)

    async def _end(self, turn: ActiveTurn, ending: Ending) -> None:
        found = await self._services.database.read(recovery.find, turn.key)
        await self._services.journal.end(
            turn,
            ending,
            closed=recovery.close_calls(found.unanswered),
            open_step=found.step if found.step is not None and found.step.status == "open" else None,
        )
        self.forget(turn.agent.id)


def _find_work(connection: Connection, agent_id: str) -> TurnRow | NextTurn | None:
    """The agent's unfinished turn, or the queued one to start next."""
    unfinished = turns.unfinished(connection, agent_id)
    if unfinished is not None:
        return unfinished
    waiting = inbox.first(connection, agent_id)
    if waiting is None:
        return None
    row = turns.by_key(connection, waiting.turn)
    return NextTurn(
        key=row.key,
        id=row.id,
        seed=row.seed,
        sender=row.sender,
        depth=row.depth,
        payload=json.loads(waiting.payload),
    )


def _messages_of_batch(connection: Connection, agent_id: str, batch_id: str) -> int:
    return len(messages.by_batch(connection, agent_id, batch_id))


def _ending(error: PatternError) -> Ending:
    status = "limit" if isinstance(error, LimitReached) else "failed"
    return Ending(status=status, error={"code": error.code, "message": error.message})
