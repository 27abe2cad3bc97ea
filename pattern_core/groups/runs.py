"""The turns of groups: each message to a group is a turn of the group, run by its coordination, one at a time.

| moment | stored in one transaction |
|---|---|
| accepted | the turn, its message, `turn.queued` |
| started | turn running, the plan (coordination, config, members, state, seed), `turn.started` |
| a member is asked | the member's turn and message, its place in the run, the events before it, `group.selected` |
| ended | status, answer, the coordination's state, what observers see of it, the one terminal event |

After a restart the coordination runs again from its beginning with the same plan. Where a place has a turn already, its
answer is read, or waited for: no member is asked twice, none is skipped.
"""

from __future__ import annotations

import json
import logging
import math
from bisect import insort
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import trio
from pydantic import TypeAdapter

from pattern_core import images
from pattern_core.agents import Roster
from pattern_core.errors import (
    Conflict,
    InvalidInput,
    LimitReached,
    NotFound,
    Overloaded,
    PatternError,
)
from pattern_core.events import Draft, Event, append, ended
from pattern_core.groups.coordination import (
    DEADLINE_S,
    OBSERVER,
    UNAVAILABLE,
    Answer,
    Line,
    Question,
    Room,
    Terminated,
    asking,
    missed,
    quoted,
)
from pattern_core.groups.group import Group, coordination_of, read_group
from pattern_core.ids import message_id, seeded_randomness
from pattern_core.journal import Journal
from pattern_core.limits import Limits
from pattern_core.messages import Image, Text
from pattern_core.outbox import Outbox
from pattern_core.turns import admission
from pattern_core.turns.admission import RETRY_AFTER_S, Arrival, IncomingMessage, Ticket, TurnOptions
from pattern_core.turns.state import COMPLETED, Ending, cancelled
from pattern_db.columns import iso, to_json, unix_ms
from pattern_db.connection import Connection
from pattern_db.enums import Role, TurnStatus
from pattern_db.errors import DiskFull, RowConflict
from pattern_db.journal import group_runs, turns, usage
from pattern_db.journal.group_runs import AskRow, MemberTurn, RunRow
from pattern_db.journal.turns import NewTurn, Started, TurnRow
from pattern_db.tables import activity, agents, messages, outbox
from pattern_db.tables import groups as group_table
from pattern_db.tables.messages import MessageRow

_log = logging.getLogger("pattern.turns")
GROUPS_KEPT = 64  # groups with their last messages kept in memory between turns
LINES_KEPT = 50  # last messages of a group; a member is shown those that it has missed
POLICIES = (None, "enqueue", "reject", "interrupt")

Accept: TypeAlias = Callable[[Connection], tuple[Ticket, list[Event]]]


class _Open(NamedTuple):
    """A turn that has not ended, its run, and what it has asked. `group` is its plan, if it was started just now."""

    row: TurnRow
    run: RunRow
    asked: Sequence[MemberTurn] = ()
    group: Group | None = None


_PLANS = TypeAdapter(Group)  # a run's plan is its group as it was when the turn started
_NOT_STORED = {"id": "", "created_at": "", "updated_at": ""}  # in plans of older versions


@dataclass(eq=False, kw_only=True)
class GroupRuns:
    """The turns of all groups of one constellation. `nursery` is the constellation's own. `wake_agent` makes an agent
    check its inbox, `cancel_turn` cancels a member's turn, `forget_history` has an agent's conversation read again.
    """

    journal: Journal
    roster: Roster
    limits: Limits
    nursery: trio.Nursery
    wake_agent: Callable[[str], None]
    submit_to_agent: Callable[[Arrival], Awaitable[Ticket]]
    cancel_turn: Callable[[str, str], Awaitable[object]]
    forget_history: Callable[[str], None]
    is_draining: Callable[[], bool]
    outbox: Outbox
    _awake: dict[str, bool] = field(default_factory=dict)  # group id → whether there may be another turn
    running: dict[str, _Run] = field(default_factory=dict)  # by turn id
    _said: OrderedDict[tuple[str, str | None], Sequence[Line]] = field(default_factory=OrderedDict)  # by group, session
    _rest: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)

    @property
    def is_idle(self) -> bool:
        """Whether no group is busy."""
        return not self._awake

    async def submit(self, group: str, incoming: IncomingMessage) -> Ticket:
        """Accept a message for a group (by id or name); return once it is on disk.

        Raises:
            NotFound: there is no such group.
            InvalidInput: the policy is none that a group has.
            Conflict: the group is busy, and the policy is `reject`.
            IdempotencyMismatch: the key was used for another message.
            Overloaded: too many messages wait for the group.
        """
        _turn_id, accept, wake = self.accepting(group, incoming)
        ticket = await self.journal.commit(accept)
        wake()
        if ticket.stops is not None:
            await self.cancel_turn(*ticket.stops)
        return ticket

    def accepting(self, group: str, incoming: IncomingMessage) -> tuple[str, Accept, Callable[[], None]]:
        """Return the id of a message's turn, what accepts it in a transaction, and what wakes the group after it.

        Raises:
            InvalidInput: the policy is none that a group has.
        """
        if incoming.policy not in POLICIES:
            raise InvalidInput(f"a group has no policy {incoming.policy!r}; use enqueue, reject or interrupt")
        turn_id, seed, now = self.journal.ids.new("turn"), self.journal.ids.seed(), self.journal.now()
        payload = to_json(admission.payload_of(incoming))
        group_id, started = "", None  # set within the transaction

        def accept(connection: Connection) -> tuple[Ticket, list[Event]]:
            nonlocal group_id, started
            found, started = read_group(connection, group), None
            group_id = found.id
            turn = NewTurn(group_id, turn_id, incoming.sender, seed, now, incoming.parent_turn, incoming.depth)
            turn = turn._replace(
                session_id=incoming.session_id, options=incoming.options.stored, fingerprint=incoming.fingerprint
            )
            if incoming.idempotency_key is not None:
                idempotency, fingerprint = admission.digests(incoming, group_id)
                turn = turn._replace(idempotency=idempotency, fingerprint=fingerprint)
            if (known := admission.replayed(connection, turn)) is not None:
                return known, []
            admission.check_session(connection, incoming, group_id)
            waiting = group_runs.count_open(connection, group_id)
            if waiting and incoming.policy == "reject":
                raise Conflict("the group is busy; wait for its turn to end, or use the policy enqueue", busy=True)
            if waiting >= self.limits.inbox_per_agent_max:
                raise Overloaded(
                    f"{waiting} messages wait for this group; try again later", retry_after_s=RETRY_AFTER_S
                )
            running = group_runs.first_open(connection, group_id) if incoming.policy == "interrupt" else None
            if running is not None and running[0].session_id != incoming.session_id:
                running = None
            start = None if waiting else self.plan(found)
            row = group_runs.accept(connection, turn, payload, start)
            images.store(connection, incoming.images, now)
            drafts = [Draft("turn.queued", {}, {"group_id": group_id, "sender": incoming.sender})]
            if not waiting:
                drafts.append(_started(group_id))
                started = _Open(row, RunRow(row.key, payload), group=found)
            events = append(connection, (row.key, turn_id), drafts, created_at=now)
            return Ticket(turn_id=turn_id, stops=None if running is None else (running[0].id, "superseded")), events

        return turn_id, accept, lambda: self.wake(group_id, started)

    def wake(self, group_id: str, started: _Open | None = None) -> None:
        """Make the group check for a turn to run, or run the one that has just `started`. Harmless without one."""
        if self.is_draining():
            return
        if group_id in self._awake:
            self._awake[group_id] = True
            return
        try:
            self.nursery.start_soon(self._work, group_id, started and _Run(self, started), name=f"group {group_id}")
        except RuntimeError:  # the constellation has just stopped; its next start finds the row
            return
        self._awake[group_id] = started is None

    def cancel(self, turn_id: str, reason: str) -> bool:
        """Stop a turn; return False if it is not running."""
        run = self.running.get(turn_id)
        if run is None:
            return False
        run.stop_reason = reason
        run.scope.cancel()
        return True

    def cancel_all(self, reason: str) -> None:
        """Stop every turn."""
        for turn_id in self.running:
            self.cancel(turn_id, reason)

    async def drain(self) -> None:
        """Stop the running turns, which stay as they are stored; return when none runs."""
        for run in self.running.values():
            run.scope.cancel()
        while self._awake:
            await self._rest.park()

    def forget(self) -> None:
        """Drop the messages kept in memory: an agent was renamed or deleted."""
        self._said.clear()

    async def _work(self, group_id: str, run: _Run | None) -> None:
        try:
            while (run is not None or self._awake[group_id]) and not self.is_draining():
                try:
                    if run is None:
                        self._awake[group_id] = False
                        found = await self.journal.database.read(_find_open, group_id)
                        self._awake[group_id] |= found is not None  # others may wait
                        run = found and _Run(self, found)
                    if run is not None:
                        await self._take(run)
                except* RowConflict:  # cancelled before it started: check for the next one
                    pass
                except* DiskFull:
                    _log.error("no room on the disk for the work of a group", {"group": group_id})
                    self._awake[group_id] = True  # what is stored continues when there is room, as after a restart
                    await trio.sleep(self.limits.room_wait_s)
                run = None
        finally:
            del self._awake[group_id]
            self._rest.unpark_all()

    async def _take(self, run: _Run) -> None:
        """Run a turn to its end, from its stored state."""
        row, key = run.row, (run.group_id, run.row.session_id)
        try:
            said = self._said.pop(key, None)
            if row.cancel_reason is not None:
                return await run.end(cancelled(row.cancel_reason))
            if row.status == TurnStatus.QUEUED:
                await run.start()
            elif row.epoch != self.journal.epoch:
                await self.journal.database.write(turns.resume, run.key, epoch=self.journal.epoch, step=0)
            run.lines = await self.journal.database.read(_said_before, run.row) if said is None else [*said]
            await run.run()
            self._said[key] = run.said
            if len(self._said) > GROUPS_KEPT:
                self._said.popitem(last=False)
        finally:
            del self.running[row.id]

    def plan(self, group: Group) -> tuple[Started, str]:
        """Return what is stored of a turn that starts now, and its plan."""
        try:
            deadline_s = coordination_of(group.pattern_type, group.pattern_config).deadline_s
        except InvalidInput:  # the run reports it
            deadline_s = DEADLINE_S
        now_ms = self.journal.clock.now_ms()
        started = Started(
            batch_id=self.journal.ids.position(now_ms),
            epoch=self.journal.epoch,
            started_at=iso(now_ms),
            deadline_at=iso(now_ms + round(deadline_s * 1000)),
        )
        return started, _PLANS.dump_json(group).decode()


class _Run:
    """One turn of a group: asks the members and ends the turn. `stop_reason` says why it is to be cancelled; None if
    the server stops.
    """

    def __init__(self, runs: GroupRuns, found: _Open) -> None:
        """Register it, so that it can be stopped. No task waits between the commit or read that `found` it and this: a
        request to stop it is in its row, or finds it here.
        """
        runs.running[found.row.id] = self
        self.row = found.row
        self.key = found.row.key
        self.group_id = found.row.group_id or ""
        self.lines: list[Line] = []  # the last messages of the group
        self.scope = trio.CancelScope()
        self.stop_reason: str | None = None
        self._runs = runs
        self._journal = runs.journal
        self._payload = json.loads(found.run.payload)
        if found.group is not None or found.run.plan is not None:
            self._group = found.group or _PLANS.validate_python(_NOT_STORED | json.loads(found.run.plan or ""))
        self._known = {one.place: one for one in found.asked}
        self._asked: Counter[str] = Counter()
        self._noted: list[Draft] = []
        self._state: dict[str, Any] | None = None

    async def start(self) -> None:
        """Start the turn, which was queued.

        Raises:
            RowConflict: it was cancelled.
        """

        def start(connection: Connection) -> tuple[tuple[TurnRow, Group], list[Event]]:
            group = read_group(connection, self.group_id)
            group_runs.start(connection, self.key, *self._runs.plan(group))
            events = append(connection, (self.key, self.row.id), [_started(group.id)], created_at=self._journal.now())
            return (turns.by_key(connection, self.key), group), events

        self.row, self._group = await self._journal.commit(start)

    async def run(self) -> None:
        """Run the coordination to its end, or until it is stopped."""
        left_s = (unix_ms(self.row.deadline_at or "") - self._journal.clock.now_ms()) / 1000
        if left_s <= 0:
            message = "the turn's time ran out while the server was down; send the message again"
            await self.end(_ending("interrupted", "deadline_passed", message))
            return
        self.scope.deadline = trio.current_time() + left_s
        ending, answer = COMPLETED, ""
        with self.scope:
            try:
                answer = await self._coordinate()
            except PatternError as error:
                status = "limit" if isinstance(error, LimitReached) else "failed"
                ending = _ending(status, error.code, error.message)
        if self.scope.cancelled_caught:
            if self.stop_reason is not None:
                ending = cancelled(self.stop_reason)
            elif self._runs.is_draining():
                return  # the next start continues it
            else:
                message = "the group exceeded its deadline_s; send the message again, or raise it"
                ending = _ending("limit", "deadline", message)
        await self.end(ending, answer)

    async def _coordinate(self) -> str:
        plan = self._group
        config = self._config = coordination_of(plan.pattern_type, plan.pattern_config)
        state = dict(plan.state)
        room = Room(
            message=str(self._payload["content"]),
            members=plan.workers,
            state=state,
            random=seeded_randomness(self.row.seed),
            config=config,
            put=self._ask,
            tell=lambda name, data: self._noted.append(Draft(name, data)),
        )
        try:
            answer = await config.run(room)
        except Terminated as terminated:
            answer = terminated.answer
        self._state = state
        return answer

    @property
    def said(self) -> list[Line]:
        """The last messages of the group, this turn's included."""
        own = Line(self.key, "", self.row.sender.partition(":")[0], str(self._payload["content"]))
        return sorted([*self.lines, own])[-LINES_KEPT:]

    async def _ask(self, questions: Sequence[Question], is_race: bool) -> list[Answer]:
        """Ask members, or read their answers where they were asked at these places before."""
        places = []
        for question in questions:
            self._asked[question.member.id] += 1
            places.append(f"{question.member.id}:{self._asked[question.member.id]}")
        new = {place: one for place, one in zip(places, questions, strict=True) if place not in self._known}
        noted, self._noted = self._noted, []
        seen = self._journal.events.latest
        if new:
            if self._asked.total() > self._config.max_turns:
                raise LimitReached(f"the group asked its members {self._config.max_turns} times, its max_turns")
            # Of questions that are asked together some may be unavailable again: their events are stored already.
            await self._put(new, noted if len(new) == len(questions) else [])
        answers: dict[str, Answer] = {}

        async def wait(place: str, question: Question) -> None:
            answers[place] = answer = await self._answer(place, question, seen if place in new else None)
            for other in places if answer.is_whole and is_race else ():
                if other != place:
                    await self._give_up(other)

        if len(places) == 1:
            await wait(places[0], questions[0])
        else:
            async with trio.open_nursery() as nursery:
                for place, question in zip(places, questions, strict=True):
                    nursery.start_soon(wait, place, question)
        return [answers[place] for place in places]

    async def _put(self, new: Mapping[str, Question], noted: Sequence[Draft]) -> None:
        """Accept turns of members, in one transaction with their places; members that cannot take part are left
        out.
        """
        now, arrivals, asked = self._journal.now(), list[Arrival](), dict[str, MemberTurn]()

        def beside(place: str, one: Question, turn: NewTurn, connection: Connection, key: int) -> list[Event]:
            group_runs.ask(connection, AskRow(self.key, place, key, one.why or None))
            drafts = [*(() if asked.keys() - {place} else noted), _selected(one, turn)]
            asked[place] = MemberTurn(key, place, turn.id, turn.agent_id, TurnStatus.QUEUED.value, None, None, None)
            return append(connection, (self.key, self.row.id), drafts, created_at=now)

        for place, question in new.items():
            with suppress(NotFound, Conflict):  # deleted, hibernated or archived since the turn started
                arrival = await self._arrival(question, now)
                arrivals.append(replace(arrival, beside=partial(beside, place, question, arrival.turn)))

        def accept(connection: Connection) -> tuple[None, list[Event]]:
            found = [admission.accept(connection, arrival, self._runs.limits)[1] for arrival in arrivals]
            return None, [event for events in found for event in events]

        if not arrivals:
            self._noted = [*noted]
        elif len(arrivals) == 1:
            await self._runs.submit_to_agent(arrivals[0])
        else:
            await self._journal.commit(accept)
            for arrival in arrivals:
                self._runs.wake_agent(arrival.turn.agent_id)
        self._known |= asked

    async def _arrival(self, question: Question, now: str) -> Arrival:
        """Return the message that asks a member, and its turn.

        Raises:
            NotFound, Conflict: the member cannot take part.
        """
        member, text = question.member, question.text or str(self._payload["content"])
        agent = await self._runs.roster.get(member.id)
        others = [one for one in self._group.workers if one.id != member.id]
        words = asking(self._group.name, member, others, missed(self.lines, member, self._config), text)
        pictures = [part for part in admission.parts_of(self._payload) if isinstance(part, Image)]
        incoming = IncomingMessage(
            agent_id=agent.id,
            content=words,
            parts=(Text(text=words), *pictures) if pictures else (),
            sender=self.row.sender,
            source="group",
            source_metadata={"group_id": self.group_id, "turn_id": self.row.id},
            parent_turn=self.key,
            depth=self.row.depth + 1,
            policy="enqueue",
            session_id=self.row.session_id,
            options=TurnOptions.of(self.row.options),
        )
        ids = self._journal.ids
        return Arrival.of(incoming, agent, turn_id=ids.new("turn"), seed=ids.seed(), now=now)

    async def _answer(self, place: str, question: Question, seen: int | None) -> Answer:
        """Wait for a member's answer; after the time limit its turn is cancelled, and has ended when this returns."""
        member = question.member
        if place not in self._known:
            return Answer(member=member, status=UNAVAILABLE)
        with trio.move_on_after(math.inf if question.timeout_s is None else question.timeout_s) as patience:
            asked = await self._ended(self._known[place], seen)
        if patience.cancelled_caught:
            await self._give_up(place)
            asked = await self._ended(self._known[place])
        words = asked.text or ""
        if asked.status == TurnStatus.COMPLETED:
            insort(self.lines, Line(asked.key, member.id, member.name, words))
        changed = [*filter(None, (asked.changed or "").split("\n"))]
        return Answer(member=member, status=asked.status, text=words, ended_at=asked.ended_at or "", changed=changed)

    async def _ended(self, asked: MemberTurn, seen: int | None = None) -> MemberTurn:
        """Return the member's turn once it has ended; it may wait for a person in between. At the event `seen` it had
        not.
        """
        events = self._journal.events
        while asked.ended_at is None:
            if seen is not None:
                await events.rested(asked.turn_id, after=seen)
            seen = events.latest
            found = await self._journal.database.read(group_runs.exchange, self.key, asked.place)
            if found is None:  # its agent was deleted
                return asked._replace(status=TurnStatus.CANCELLED.value, ended_at=self._journal.now())
            asked = found
        return asked

    async def _give_up(self, place: str) -> None:
        """Cancel the member's turn at a place, if it has not ended."""
        if place in self._known:
            await self._runs.cancel_turn(self._known[place].turn_id, "superseded")

    async def end(self, ending: Ending, answer: str = "") -> None:
        """End the turn, before it its members' running ones unless it completed."""
        journal, row, is_done = self._journal, self.row, ending.status == TurnStatus.COMPLETED
        asked = [] if is_done else await journal.database.read(group_runs.exchanges, self.key)
        for one in asked:
            if one.ended_at is None:
                await self._runs.cancel_turn(one.turn_id, "group_ended")
        for one in asked:
            await self._ended(one)
        now, note_id = journal.now(), journal.ids.new("act")
        has_failed = ending.status in (TurnStatus.FAILED, TurnStatus.INTERRUPTED)
        is_lost = has_failed and not row.sender.startswith(admission.PEOPLE)

        def store(connection: Connection) -> tuple[Draft, list[Event]]:
            steps = len(self._known)
            turns.end(connection, self.key, status=ending.status, ended_at=now, steps=steps, error=ending.error)
            group_runs.set_answer(connection, self.key, answer or None)
            if is_done and row.session_id is None:  # what is said in a session is shown in no other prompt
                said = {"group_id": self.group_id, "summary": f"{self._group.name}: {answer}"[: activity.WORDS_CHARS]}
                noted = activity.ActivityEvent(note_id, now, None, "group_answered", said, activity.HIGH)
                activity.note(connection, noted)
            if is_lost:
                why = str((ending.error or {}).get("message"))
                waits = admission.undelivered(row, self._payload, error=why, now=now, is_final=steps > 0)
                outbox.add(connection, waits)
            if self._state is not None and is_done:
                group_table.set_state(connection, self.group_id, self._state)
                if any(one.role == OBSERVER for one in self._group.members):
                    self._show(connection, now)
            rest = None, answer or None, None, usage.of_tree(connection, self.key)
            end = ended(ending.status, ending.error, rest)
            return end, append(connection, (self.key, row.id), [*self._noted, end], created_at=now)

        end = await journal.commit(store)
        for member in self._group.members if is_done else ():
            if member.role == OBSERVER:
                self._runs.forget_history(member.id)
        if is_lost:
            self._runs.outbox.changed()
        seconds = queue_s = 0.0
        if row.started_at is not None:
            began_ms = unix_ms(row.started_at)
            seconds, queue_s = journal.seconds_since(began_ms), (began_ms - unix_ms(row.created_at)) / 1000
        journal.meters.turn_ended(ending.status, seconds, queue_s)
        journal.log_end(row.id, self.group_id, end, seconds=seconds)

    def _show(self, connection: Connection, now: str) -> None:
        """Add what was said in this turn to the conversations of the observers, without turns of theirs."""
        words = quoted([line for line in self.said if line.key >= self.key])
        text = f"Group {self._group.name}, which you observe. Nothing is asked of you.\n\n{words}"
        about, session_id = {"group_id": self.group_id, "turn_id": self.row.id}, self.row.session_id
        for one in group_table.members(connection, self.group_id):  # those that are left
            if one.role == OBSERVER:
                position = self._journal.ids.position()
                seen = MessageRow(message_id(position), one.id, position, Role.USER, now, text, source="group")
                seen = seen._replace(source_metadata=about, session_id=session_id, is_archived=session_id is not None)
                messages.append(connection, [seen])


def _ending(status: str, code: str, message: str) -> Ending:
    return Ending(status=status, error={"code": code, "message": message})


def _selected(question: Question, turn: NewTurn) -> Draft:
    member, why = question.member, {"why": question.why} if question.why else {}
    return Draft("group.selected", {"agent_id": member.id, "agent": member.name, "member_turn": turn.id, **why})


def _started(group_id: str) -> Draft:
    return Draft("turn.started", {}, {"group_id": group_id})


def _find_open(connection: Connection, group_id: str) -> _Open | None:
    """Return the group's oldest turn that has not ended, if any: the one that runs, or the next to start."""
    found = group_runs.first_open(connection, group_id)
    return None if found is None else _Open(*found, group_runs.exchanges(connection, found[0].key))


def _said_before(connection: Connection, row: TurnRow) -> list[Line]:
    """Return the last messages of a turn's group in its session, in order, except those of the turn itself."""
    names = {one.id: one.name for one in agents.list_all(connection)}
    rows = group_runs.conversation(connection, row.group_id or "", LINES_KEPT, session_id=row.session_id)
    said = [(one, names.get(one.agent_id or "", one.sender.partition(":")[0])) for one in rows if one.turn_id != row.id]
    return sorted(Line(one.key, one.agent_id or "", name, one.content or "") for one, name in said)
