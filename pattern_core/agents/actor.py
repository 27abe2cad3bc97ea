"""Agents at work: one serial turn at a time per agent, exactly one terminal event per turn.

Mailboxes are rows; `wake` only says that there may be one. A task exists for an agent only while it has work.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import trio

from pattern_core.admission import parts_of
from pattern_core.agents import pauses, recovery
from pattern_core.agents.active import ActiveTurn, Ending
from pattern_core.agents.history import History, load_history
from pattern_core.agents.judging import TurnStopped
from pattern_core.agents.opening import NextTurn, equip, found_turn, new_turn
from pattern_core.agents.prompting import fits, make_prompt
from pattern_core.agents.recovery import Found
from pattern_core.agents.roster import Roster
from pattern_core.agents.running import RunningTurn, RunningTurns
from pattern_core.agents.services import TurnServices
from pattern_core.agents.turn import run_turn
from pattern_core.clock import now_text
from pattern_core.errors import InvalidInput, LimitReached, NotFound, PatternError
from pattern_core.models.model import Usage
from pattern_core.prompts.prompt import Prompt
from pattern_core.rules import facts
from pattern_db.connection import Connection
from pattern_db.enums import TurnStatus
from pattern_db.errors import Conflict
from pattern_db.journal import inbox, turns
from pattern_db.journal.turns import TurnRow

HISTORIES_MAX = 64  # conversations kept in memory between turns


class Actors:
    """The working agents of one constellation. `nursery` is the constellation's own: no task outlives it."""

    def __init__(self, services: TurnServices, roster: Roster, nursery: trio.Nursery) -> None:
        self.running = RunningTurns()
        self._services = services
        self._roster = roster
        self._nursery = nursery
        self._awake: dict[str, bool] = {}  # agent id → woken again meanwhile
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
        self.running.cancel_all(reason, agent_id=agent_id)
        while agent_id in self._awake:
            await self._rest.park()

    def release(self, agent_id: str) -> None:
        """Let a stopped agent work again."""
        self._stopped.pop(agent_id, None)
        self.wake(agent_id)

    def forget(self, agent_id: str) -> None:
        """Drop what is remembered of the agent's conversation; the rows are read again."""
        self._histories.pop(agent_id, None)

    async def _work(self, agent_id: str, following: NextTurn | None) -> None:
        self._services.journal.meters.agents_working(1)
        try:
            if following is not None:
                await self._start(agent_id, following)
            while self._awake[agent_id] and agent_id not in self._stopped and not self._services.is_draining():
                self._awake[agent_id] = False
                await self._look(agent_id)
        finally:
            self._services.journal.meters.agents_working(-1)
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
        """T1, with T2 if there is room, then the turn."""
        services = self._services
        try:
            agent = await self._roster.get(agent_id)
        except NotFound:
            return  # deleted meanwhile, and its turns with it
        incoming = services.journal.new_message("user", *parts_of(following.payload))
        turn = new_turn(services, agent, following, incoming, await self._history(agent_id, active=None))
        trouble = await equip(services, turn)
        turn.history.append(incoming)
        prompt = None
        if trouble is None:
            made = await make_prompt(services, turn, step=1)
            prompt = made if fits(turn, made) else None
        with self._listed(turn) as listed:
            try:
                is_open = await services.journal.begin(turn, incoming, following.payload, prompt)
            except Conflict:
                # Cancelled before it started, or another message was accepted earlier: look what is next.
                self.forget(agent_id)  # its place in the history is another's
                self._awake[agent_id] = True
                return
            await self._conduct(turn, listed, lambda: _body(services, turn, prompt if is_open else None, trouble))

    @contextmanager
    def _listed(self, turn: ActiveTurn) -> Iterator[RunningTurn]:
        """Let a turn be stopped from now on: from before its rows say that it runs, or a wish would be overheard."""
        with self.running.listed(turn) as running:
            if turn.agent.id in self._stopped:
                running.stop(self._stopped[turn.agent.id])
            try:
                yield running
            finally:
                self._services.prompts.forget(turn.id)

    async def _take_up(self, agent_id: str, row: TurnRow) -> None:
        """Go on with a turn that a dead process left, or whose questions were answered."""
        services = self._services
        agent = await self._roster.get(agent_id)
        if row.status == TurnStatus.WAITING:
            self.forget(agent_id)  # it stands elsewhere now: behind the turns that overtook it
        history = await self._history(agent_id, active=row.batch_id)
        found = await services.database.read(recovery.find, row.key)
        turn = await found_turn(services, row, found, agent, history)
        if self.running.has(turn.id):
            self._awake[agent_id] = False  # `end_waiting` is at it, and wakes the agent afterwards
            return
        with self._listed(turn) as listed:
            # Read again: who asked to stop it before it was listed left only a row.
            row = await services.database.read(turns.by_key, row.key)
            if row.ended_at is None:
                await self._resume(turn, row, found, listed)

    async def _resume(self, turn: ActiveTurn, row: TurnRow, found: Found, listed: RunningTurn) -> None:
        services = self._services
        trouble = await equip(services, turn, await services.database.read(facts.calls_of, row.key))
        now = now_text(services.clock)
        verdict = recovery.decide(row, found, services.limits.turn, now, on_doubt=turn.settings.on_doubt)
        if trouble is not None:
            verdict = _ending(trouble)
        if isinstance(verdict, Ending):
            await self._end(turn, verdict)
            return
        await pauses.resume(services.journal, turn, waited=row.status == TurnStatus.WAITING)
        await self._conduct(turn, listed, lambda: recovery.resume(services, turn, found, verdict))

    async def end_waiting(self, turn_id: str, ending: Ending) -> bool:
        """End a turn that waits for a person, beside whatever its agent does; False if it does not wait (any more)."""
        services = self._services
        row = await services.database.read(turns.by_id, turn_id)
        if row.status != TurnStatus.WAITING or self.running.has(turn_id):
            return False
        found = await services.database.read(recovery.find, row.key)
        agent = await self._roster.get(row.agent_id)
        # Its agent may be at work: the conversation in memory is another turn's.
        turn = await found_turn(services, row, found, agent, History())
        if self.running.has(turn_id):
            return False  # its agent has just taken it up
        # While it is listed its agent leaves it alone: a turn has one end.
        with self._listed(turn):
            row = await services.database.read(turns.by_id, turn_id)
            if row.status == TurnStatus.WAITING:
                await self._end(turn, ending)
        self.wake(agent.id)
        return row.status == TurnStatus.WAITING

    async def _history(self, agent_id: str, *, active: str | None) -> History:
        known = self._histories.get(agent_id)
        if known is None:
            limits = self._services.limits.prompt
            known = await self._services.database.read(load_history, agent_id, limits, active=active)
            self._histories[agent_id] = known
            while len(self._histories) > HISTORIES_MAX:
                self._histories.popitem(last=False)
        self._histories.move_to_end(agent_id)
        return known

    async def _conduct(self, turn: ActiveTurn, running: RunningTurn, body: Callable[[], Awaitable[None]]) -> None:
        """Run the turn's body in its own scope and see to its one end. Outer cancellation leaves the turn open."""
        ending: Ending | None = None
        with running.scope:
            try:
                await body()
            except TurnStopped as stopped:
                ending = recovery.cancelled(stopped.reason)
            except PatternError as error:
                ending = _ending(error)
        if running.scope.cancelled_caught:
            wall_s = turn.settings.limits.over(self._services.limits.turn).wall_s or 0.0
            limit = f"the turn took longer than {wall_s:g} s; send a message to have it go on, or raise limits.wall_s"
            ending = (
                recovery.cancelled(running.reason)
                if running.reason is not None
                else Ending(status="limit", error={"code": "deadline", "message": limit})
            )
        if ending is not None:
            await self._end(turn, ending)
        elif turn.is_waiting:
            self.forget(turn.agent.id)
            self._awake[turn.agent.id] = True  # for other turns; and the answer may have come already

    async def _end(self, turn: ActiveTurn, ending: Ending) -> None:
        found = await self._services.database.read(recovery.find, turn.key)
        step = found.step if found.step is not None and found.step.status == "open" else None
        # A call that was cut off cost something; that of a provider who refused cost nothing.
        spent = None
        if step is not None and ending.status != TurnStatus.FAILED and turn.asking is not None:
            spent = Usage(input_tokens=turn.asking.tokens, output_tokens=0, is_estimate=True)
        await self._services.journal.end(
            turn, ending, closed=recovery.close_calls(found.unanswered), open_step=step, spent=spent
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


async def _body(services: TurnServices, turn: ActiveTurn, prompt: Prompt | None, trouble: InvalidInput | None) -> None:
    if trouble is not None:
        raise trouble
    await run_turn(services, turn, prompt)


def _ending(error: PatternError) -> Ending:
    status = "limit" if isinstance(error, LimitReached) else "failed"
    return Ending(status=status, error={"code": error.code, "message": error.message})
