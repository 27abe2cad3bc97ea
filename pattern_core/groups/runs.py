"""The turns of groups: each message to a group is a turn of the group, run by its coordination, one at a time.

| moment | stored in one transaction |
|---|---|
| accepted | the turn, its message, `turn.queued` |
| started | turn running, the plan (coordination, config, members, state, seed), `turn.started` |
| a member is asked | the member's turn and message, its place in the run, the events before it, `group.selected` |
| ended | status, answer, the coordination's state, what observers see of it, the one terminal event |

Moments share transactions. A turn starts with its first question, and an idle group accepts its message with that, too.
The last answer completes the turn in the transaction that completes the member's.

After a restart the coordination runs again from its beginning with the same plan. Where a place has a turn already, its
answer is read, or waited for: no member is asked twice, none is skipped.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import InitVar, dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import trio
from pydantic import TypeAdapter

from pattern_core.agents import Roster
from pattern_core.errors import Conflict, InvalidInput, LimitReached, NotFound, PatternError
from pattern_core.events import Draft, Event, append, ended
from pattern_core.groups.coordination import (
    DEADLINE_S,
    OBSERVER,
    UNAVAILABLE,
    Answer,
    Asks,
    Coordination,
    Line,
    Question,
    Room,
    asking,
    missed,
    quoted,
    together,
)
from pattern_core.groups.group import Group, Groups, coordination_of, read_group
from pattern_core.ids import message_id, seeded_randomness
from pattern_core.journal import Journal
from pattern_core.limits import Limits
from pattern_core.messages import Image, Text
from pattern_core.outbox import Outbox
from pattern_core.rules.facts import trust
from pattern_core.turns import admission
from pattern_core.turns.actor import Actors
from pattern_core.turns.admission import Arrival, Asker, IncomingMessage, NotAtRest, Ticket, TurnOptions
from pattern_core.turns.state import COMPLETED, Ending, cancelled
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.columns import iso, unix_ms
from pattern_db.connection import Connection
from pattern_db.enums import Role, TurnStatus
from pattern_db.errors import RowConflict
from pattern_db.journal import group_runs, turns, usage
from pattern_db.journal.group_runs import AskRow, MemberTurn
from pattern_db.journal.turns import NewTurn, Started, TurnRow
from pattern_db.tables import activity, agents, messages, outbox
from pattern_db.tables import groups as group_table
from pattern_db.tables.messages import MessageRow

GROUPS_KEPT = 64  # groups with their last messages kept in memory between turns
LINES_KEPT = 50  # last messages of a group; a member is shown those that it has missed

Accept: TypeAlias = Callable[[Connection], tuple[Ticket, list[Event]]]

_PLANS = TypeAdapter(Group)  # a run's plan is its group as it was when the turn started
_NOT_STORED = {"created_at": "", "updated_at": ""}  # in plans of older versions


class _Kept(NamedTuple):
    """A group as its last turn left it, its config, and its last messages in the session of that turn. `changes` is how
    often groups and agents had been changed when the group was read.
    """

    changes: int
    group: Group
    config: Coordination | None
    session_id: str | None
    lines: Sequence[Line]


class _Done(NamedTuple):
    """How a turn ends, and what the group answered."""

    ending: Ending
    answer: str = ""


@dataclass(eq=False, kw_only=True)
class GroupRuns:
    """The turns of all groups of one constellation. `cancel_turn` cancels a member's turn."""

    journal: Journal
    roster: Roster
    groups: Groups
    limits: Limits
    actors: Actors
    cancel_turn: Callable[[str, str], Awaitable[object]]
    is_draining: Callable[[], bool]
    outbox: Outbox
    _running: dict[str, _Run] = field(default_factory=dict)  # by group id
    _ready: dict[str, _Run] = field(default_factory=dict)  # by group id: to run next, with a sender that waits
    _kept: dict[str, _Kept] = field(default_factory=dict)  # by group id
    _ids: dict[str, str] = field(default_factory=dict)  # of groups, by how their messages named them

    @property
    def changes(self) -> int:
        """How often groups and agents were changed."""
        return self.roster.changes + self.groups.changes

    async def submit(self, group: str, incoming: IncomingMessage) -> Ticket:
        """Accept a message for a group (by id or name); return once it is on disk.

        Raises:
            NotFound: there is no such group.
            PatternError: as `Arrival.to_group` and `admission.accept`.
        """
        group_id = self._ids.get(group, "")
        running = self._running.get(group_id)
        kept = self._kept.get(group_id) if running is None else running.left
        if kept is None or kept.changes != self.changes or group not in (group_id, kept.group.name):
            kept, group_id = None, (await self.groups.get(group)).id
            self._ids[group] = group_id
        arrival = self._arrival(group_id, incoming)
        if kept is not None and kept.session_id == incoming.session_id and group_id not in self._ready:
            payload = admission.payload_of(incoming)
            run = self._ready[group_id] = _Run(self, arrival.turn, payload, kept, is_begun=False, arrival=arrival)
            self.wake(group_id)
            await run.is_known.wait()
            if run.is_begun:
                return Ticket(turn_id=arrival.turn.id)
        ticket = await self.journal.commit(partial(self._accept, arrival))
        if not ticket.is_replay:
            self.wake(group_id)
        if ticket.stops is not None:
            await self.cancel_turn(*ticket.stops)
        return ticket

    def accepting(self, group_id: str, incoming: IncomingMessage) -> tuple[str, Accept, Callable[[], None]]:
        """Return the id of a message's turn, what accepts it in a transaction, and what wakes the group after it.

        Raises:
            InvalidInput: the policy is none that a group has.
        """
        arrival = self._arrival(group_id, incoming)
        return arrival.turn.id, partial(self._accept, arrival), partial(self.wake, group_id)

    def _arrival(self, group_id: str, incoming: IncomingMessage) -> Arrival:
        ids, now = self.journal.ids, self.journal.now()
        return Arrival.to_group(incoming, group_id, turn_id=ids.new("turn"), seed=ids.seed(), now=now)

    def _accept(self, arrival: Arrival, connection: Connection) -> tuple[Ticket, list[Event]]:
        """Accept a message, to wait."""
        read_group(connection, arrival.turn.agent_id)  # it may have been deleted
        return admission.accept(connection, arrival, self.limits)

    def wake(self, group_id: str) -> None:
        """Make the group check for a turn to run. Harmless without one."""
        self.actors.wake_group(group_id, self._take, self._rested)

    def _rested(self, group_id: str) -> None:
        if group_id in self._ready:
            self._ready.pop(group_id).is_known.set()

    def cancel(self, reason: str | None, turn_id: str | None = None) -> bool:
        """Stop a turn (None: all of them); return False if none is running. Without a reason they stay as they are
        stored.
        """
        found = [run for run in self._running.values() if turn_id in (None, run.turn.id)]
        for run in found:
            run.stop_reason = reason
            run.scope.cancel()
        return bool(found)

    async def _take(self, group_id: str) -> None:
        """Run the group's turn that is ready, else the oldest that has not ended, if there is one."""
        run = self._ready.pop(group_id, None)
        if run is None:
            # A request to stop its turn is in the row that is read, or finds the turn here.
            found = await self.journal.database.read(_find_open, group_id, self.changes)
            if found is None:
                return
            run = _Run(self, *found)
            self.wake(group_id)  # others may wait
        self._running[group_id] = run
        try:
            await run.run()
            if run.left is not None:
                if len(self._kept) >= GROUPS_KEPT:
                    self._kept.clear()
                self._kept[group_id] = run.left
        except* (RowConflict, NotAtRest):  # it is not as the rows say
            self.wake(group_id)
        finally:
            del self._running[group_id]


@dataclass(eq=False)
class _Run:
    """One turn of a group: asks the members and ends the turn. A transaction of a member's turn begins it, in a
    database thread.
    """

    runs: GroupRuns
    turn: NewTurn | TurnRow
    payload: Mapping[str, Any]
    before: _Kept
    asked: InitVar[Sequence[MemberTurn]] = ()
    is_begun: bool = True  # its start is on disk …
    arrival: Arrival | None = None  # … else the message, if that is not
    stop_reason: str | None = None  # why it is to be cancelled; None if the server stops
    left: _Kept | None = None  # of the group, once the end is on the way to the disk
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)  # of the wait for answers
    is_known: trio.Event = field(default_factory=trio.Event)  # the turn is on disk, or cannot be stored
    _counts: Counter[str] = field(default_factory=Counter)  # of the questions to each member
    _noted: list[Draft] = field(default_factory=list)  # events to store with the next question, or the end
    _open: Mapping[str, Question] = field(
        default_factory=dict
    )  # places that are asked now; their answers may complete it
    _is_ahead: bool = False  # it has used an answer that may not be on disk

    def __post_init__(self, asked: Sequence[MemberTurn]) -> None:
        self.plan, self._config = self.before.group, self.before.config
        row = self.turn if isinstance(self.turn, TurnRow) else None
        self.key = 0 if row is None else row.key  # 0: not stored
        self._journal = journal = self.runs.journal
        self._content = str(self.payload["content"])
        self._known = {one.place: one for one in asked}
        with suppress(InvalidInput):  # raised again when it coordinates
            self._config = self._config or coordination_of(self.plan.pattern_type, self.plan.pattern_config)
        if self.is_begun and row is not None:
            self._deadline_ms = unix_ms(row.deadline_at or row.created_at)
            self._began_ms = unix_ms(row.started_at or row.created_at)
        else:
            self._began_ms = now_ms = journal.clock.now_ms()
            self._deadline_ms = now_ms + round((self._config.deadline_s if self._config else DEADLINE_S) * 1000)
            times = iso(now_ms), iso(self._deadline_ms)
            started = Started(journal.ids.position(now_ms), journal.epoch, *times)
            self.start = started, _PLANS.dump_json(self.plan).decode()

    async def run(self) -> None:
        """Run the coordination to its end, or until it is stopped."""
        try:
            try:
                done = await self._coordinate()
            except PatternError as error:
                done = _Done(_failed(error))
            if done is not None and self.left is None:
                await self._end(done)
        finally:
            self.is_known.set()

    async def _coordinate(self) -> _Done | None:
        """Run the coordination; return how the turn ends, or None if the next start continues it."""
        if isinstance(self.turn, TurnRow) and self.turn.cancel_reason is not None:
            return _Done(cancelled(self.turn.cancel_reason))
        left_s, plan, rounds = (self._deadline_ms - self._journal.clock.now_ms()) / 1000, self.plan, 0
        if left_s <= 0:
            message = "the turn's time ran out while the server was down; send the message again"
            return _Done(_ending("interrupted", "deadline_passed", message))
        config = self._config or coordination_of(plan.pattern_type, plan.pattern_config)
        self._deadline = trio.current_time() + left_s
        noted = self._noted  # a room that refers to its run is left to the garbage collection
        self._room = Room(
            message=self._content,
            members=plan.workers,
            state=deepcopy(dict(plan.state)),
            random=seeded_randomness(self.turn.seed),
            config=config,
            tell=lambda name, data: noted.append(Draft(name, data)),
        )
        self._coordination = config.run(self._room)
        self._next = self._after(None)
        while not isinstance(asks := self._next, _Done):
            answers, rounds = await self._ask(asks), rounds + 1
            if self._is_ahead:
                await trio.lowlevel.checkpoint()  # the member's task was woken with this one, and knows
            if self._is_ahead:
                raise RowConflict("the last answer could not be stored")
            if answers is None and self.stop_reason is not None:
                return _Done(cancelled(self.stop_reason))
            if answers is None:
                message = "the group exceeded its deadline_s; send the message again, or raise it"
                return None if self.runs.is_draining() else _Done(_ending("limit", "deadline", message))
            if self._next is asks:
                self._next = await self._terminated(answers, rounds) or self._after(answers)
        return asks

    def _after(self, answers: list[Answer] | None) -> Asks | _Done:
        """Return what the coordination does after these answers."""
        try:
            asks: Asks = self._coordination.send(answers)
            return asks
        except StopIteration as stop:
            return _Done(COMPLETED, stop.value)
        except PatternError as error:
            return _Done(_failed(error))

    async def _terminated(self, answers: Sequence[Answer], rounds: int) -> _Done | None:
        """Return the end of the turn if the configured termination holds."""
        end, whole = self._room.config.termination, [answer for answer in answers if answer.is_whole]
        if end is None or not await end.holds(rounds, [answer.text for answer in whole]):
            return None
        self._room.tell("group.terminated", {"round": rounds})
        return _Done(COMPLETED, whole[0].text if len(whole) == 1 else together(whole))

    async def _ask(self, asks: Asks) -> list[Answer] | None:
        """Ask members, or read their answers where they were asked at these places before; None if it is stopped."""
        places, config = dict[str, Question](), self._room.config
        for question in asks.questions:
            self._counts[question.member.id] += 1
            places[f"{question.member.id}:{self._counts[question.member.id]}"] = question
        new = places.keys() - self._known
        if len(new) < len(places):
            self._noted.clear()  # stored with those that were asked before
        if new and self._counts.total() > config.max_turns:
            raise LimitReached(f"the group asked its members {config.max_turns} times, its max_turns")
        seen, said = self._journal.events.latest, self._said(places)
        for place, question in places.items():
            if place in new:
                await self._put(place, question, missed(said, question.member, config))
        self._open = {} if asks.is_race or config.termination else places

        async def wait(place: str, question: Question) -> None:
            since = seen if place in new else None
            if question.timeout_s is not None:
                with trio.move_on_after(question.timeout_s):
                    await self._ended(place, since)
                await self._give_up(place, "superseded")
            await self._ended(place, since)
            if asks.is_race and self._answer(place, question).is_whole:
                for other in places:
                    await self._give_up(other, "superseded")

        with trio.CancelScope(deadline=self._deadline) as self.scope:
            if self.stop_reason is not None or self.runs.is_draining():
                self.scope.cancel()  # that came before it could be heard
            if len(places) == 1:
                await wait(*next(iter(places.items())))
            else:
                async with trio.open_nursery() as nursery:
                    for place, question in places.items():
                        nursery.start_soon(wait, place, question)
        if self.scope.cancelled_caught:
            return None
        answers = [self._answer(place, question) for place, question in places.items()]
        whole = [answer for answer in answers if answer.is_whole]
        if asks.is_race and whole:
            # Two may have answered at the same moment. Their rows decide, so that a restart finds the same winner.
            return [min(whole, key=lambda answer: (answer.ended_at, answer.member.id))]
        return answers

    def _answer(self, place: str, question: Question) -> Answer:
        """Return a member's answer as far as it is known."""
        asked = self._known.get(place)
        if asked is None:
            return Answer(member=question.member, status=UNAVAILABLE)
        changed, text = [*filter(None, (asked.changed or "").split("\n"))], asked.text or ""
        about = {"status": asked.status, "text": text, "ended_at": asked.ended_at or ""}
        return Answer(member=question.member, changed=changed, **about)

    async def _put(self, place: str, question: Question, shown: Sequence[Line]) -> None:
        """Accept a member's turn, in one transaction with its place; nothing if the member cannot take part."""
        member, journal, turn = question.member, self._journal, self.turn
        others = [one for one in self.plan.workers if one.id != member.id]
        words = asking(self.plan.name, member, others, shown, question.text or self._content)
        pictures = [part for part in admission.parts_of(self.payload) if isinstance(part, Image)]
        asked_id, now = journal.ids.new("turn"), journal.now()
        why = {"why": question.why} if question.why else {}
        about = {"agent_id": member.id, "agent": member.name, "member_turn": asked_id, **why}

        def ask(connection: Connection, key: int) -> list[Event]:
            group_runs.ask(connection, AskRow(self.key, place, key, question.why or None))
            self._known[place] = MemberTurn(key, place, asked_id, member.id, TurnStatus.QUEUED.value, None, None, None)
            drafts = [*self._begun, *self._noted, Draft("group.selected", about)]
            return append(connection, (self.key, turn.id), drafts, created_at=now)

        incoming = IncomingMessage(
            agent_id=member.id,
            content=words,
            parts=(Text(text=words), *pictures) if pictures else (),
            sender=turn.sender,
            source="group",
            source_metadata={"group_id": self.plan.id, "turn_id": turn.id},
            parent_turn=self.key,
            depth=turn.depth + 1,
            policy="enqueue",
            session_id=turn.session_id,
            options=TurnOptions.of(turn.options),
            asker=Asker(self._store_begin, ask, partial(self._continue, place)),
        )
        try:
            agent = await self.runs.roster.get(member.id)
            arrival = Arrival.of(incoming, agent, turn_id=asked_id, seed=journal.ids.seed(), now=now)
        except (NotFound, Conflict):  # deleted, hibernated or archived since the turn started
            return
        await self.runs.actors.submit(arrival)
        self.is_begun = True
        self._noted.clear()
        self.is_known.set()

    def _store_begin(self, connection: Connection) -> int:
        """Store what comes before everything else, if it is not on disk, or raise NotAtRest; return the turn's key."""
        self._begun = list[Draft]()
        if self.is_begun:
            return self.key
        try:
            if self.arrival is None:
                group_runs.start(connection, self.key, *self.start)
            else:
                self.key, _before = admission.accept_at_rest(connection, self.arrival, *self.start)
                self._begun = [self.arrival.queued]
        except (PatternError, RowConflict):
            raise NotAtRest from None
        self._begun.append(Draft("turn.started", {}, {"group_id": self.plan.id}))
        return self.key

    def _said(self, but: Collection[str] = ()) -> list[Line]:
        """Return what was said in the group, in order: not this turn's message, nor what is said at some places."""
        names = {one.id: one.name for one in self.plan.members}
        answers = [
            Line(one.key, one.agent_id, names[one.agent_id], one.text or "")
            for place, one in self._known.items()
            if place not in but and one.status == TurnStatus.COMPLETED
        ]
        return sorted([*self.before.lines, *answers])

    async def _ended(self, place: str, seen: int | None = None) -> None:
        """Wait until a member's turn has ended; it may wait for a person in between. At the event `seen` it had not."""
        events = self._journal.events
        while (asked := self._known.get(place)) is not None and asked.ended_at is None:
            if seen is not None:
                await events.rested(asked.turn_id, after=seen)
                seen = None
            else:
                seen = events.latest
                found = await self._journal.database.read(group_runs.exchange, self.key, place)
                gone = asked._replace(status=TurnStatus.CANCELLED.value, ended_at=self._journal.now())
                self._known[place] = found or gone  # its agent was deleted

    async def _give_up(self, place: str, reason: str) -> None:
        """Cancel the member's turn at a place, if it has not ended."""
        asked = self._known.get(place)
        if asked is not None and asked.ended_at is None:
            await self.runs.cancel_turn(asked.turn_id, reason)

    def _continue(self, place: str, connection: Connection, rows: UnitOfWork) -> list[Event]:
        """Continue in the transaction that completes a member's turn, with `rows`, if that is the last answer: what the
        coordination says to it may be the end.
        """
        places = self._open  # another thread may change it
        others = [self._known.get(one) for one in places if one != place]
        mine = group_runs.exchange(connection, self.key, place) if place in places else None
        if (
            mine is None
            or mine.status != TurnStatus.COMPLETED
            or any(one is not None and one.ended_at is None for one in others)
        ):
            return []
        self._is_ahead, self._known[place], self._open = True, mine, {}
        done = self._next = self._after([self._answer(*one) for one in places.items()])
        rows.when_settled(lambda committed: setattr(self, "_is_ahead", not committed))
        if not isinstance(done, _Done) or done.ending is not COMPLETED:
            return []
        end, events = self._store_end(done, mine.ended_at or "", connection)
        rows.when_settled(lambda committed: self._has_ended(done, end) if committed else None)
        return events

    async def _end(self, done: _Done) -> None:
        """End the turn, before it its members' running ones unless it completed."""
        self._open = {}
        if done.ending is not COMPLETED:
            asked = await self._journal.database.read(group_runs.exchanges, self.key) if self.is_begun else []
            self._known = {one.place: one for one in asked}
            for place in self._known:
                await self._give_up(place, "group_ended")
            for place in self._known:
                await self._ended(place)
        self._has_ended(done, await self._journal.commit(partial(self._store_end, done, self._journal.now())))

    def _store_end(self, done: _Done, now: str, connection: Connection) -> tuple[Draft, list[Event]]:
        plan, ending, steps = self.plan, done.ending, len(self._known)
        self._store_begin(connection)
        key, turn = self.key, self.turn
        turns.end(connection, key, status=ending.status, ended_at=now, steps=steps, error=ending.error)
        group_runs.set_answer(connection, key, done.answer or None)
        own = Line(key, "", turn.sender.partition(":")[0], self._content)
        if ending is COMPLETED and turn.session_id is None:  # what is said in a session is shown in no other prompt
            said = {"group_id": plan.id, "summary": f"{plan.name}: {done.answer}"[: activity.WORDS_CHARS]}
            note_id = turn.id.replace("turn", "act", 1)
            noted = activity.ActivityEvent(note_id, now, None, "group_answered", said, activity.HIGH)
            activity.note(connection, noted)
        has_failed = ending.status in (TurnStatus.FAILED, TurnStatus.INTERRUPTED)
        if has_failed and not turn.sender.startswith(admission.PEOPLE):
            row, why = turns.by_key(connection, key), str((ending.error or {}).get("message"))
            waits = admission.undelivered(row, self.payload, error=why, now=now, is_final=steps > 0)
            outbox.add(connection, waits)
        if ending is COMPLETED:
            if self._room.state != plan.state:
                plan = replace(plan, state=self._room.state)
                group_table.set_state(connection, plan.id, plan.state)
            if any(one.role == OBSERVER for one in plan.members):
                self._show(connection, own, now)
        lines = sorted([*self._said(), own])[-LINES_KEPT:]
        self.left = self.before._replace(group=plan, config=self._config, lines=lines)
        rest = None, done.answer or None, None, usage.of_tree(connection, key)
        end = ended(ending.status, ending.error, rest)
        return end, append(connection, (key, turn.id), [*self._begun, *self._noted, end], created_at=now)

    def _has_ended(self, done: _Done, end: Draft) -> None:
        """Tell others about the end, which is on disk."""
        self.is_begun, seconds = True, self._journal.seconds_since(self._began_ms)
        for member in self.plan.members:
            if member.role == OBSERVER:
                self.runs.actors.forget(member.id)
        if done.ending is not COMPLETED:
            self.runs.outbox.changed()
        queue_s = (self._began_ms - unix_ms(self.turn.created_at)) / 1000
        self._journal.meters.turn_ended(done.ending.status, seconds, queue_s)
        self._journal.log_end(self.turn.id, self.plan.id, end, seconds=seconds)

    def _show(self, connection: Connection, own: Line, now: str) -> None:
        """Add what was said in this turn to the conversations of the observers, without turns of theirs."""
        words = quoted([own, *(line for line in self._said() if line.key > own.key)])
        text = f"Group {self.plan.name}, which you observe. Nothing is asked of you.\n\n{words}"
        about, session_id = {"group_id": self.plan.id, "turn_id": self.turn.id}, self.turn.session_id
        level = trust(connection, self.key)
        for one in group_table.members(connection, self.plan.id):  # those that are left
            if one.role == OBSERVER:
                position = self._journal.ids.position()
                seen = MessageRow(message_id(position), one.id, position, Role.USER, now, text, source="group")
                seen = seen._replace(source_metadata=about, session_id=session_id, is_archived=session_id is not None)
                seen = seen._replace(trust=level)
                messages.append(connection, [seen])


def _ending(status: str, code: str, message: str) -> Ending:
    return Ending(status=status, error={"code": code, "message": message})


def _failed(error: PatternError) -> Ending:
    return _ending("limit" if isinstance(error, LimitReached) else "failed", error.code, error.message)


def _find_open(connection: Connection, group_id: str, changes: int) -> tuple[Any, ...] | None:
    """Return the oldest turn of a group that has not ended, if any, as `_Run` needs it: the one that runs, or the next
    to start.
    """
    row = group_runs.oldest_open(connection, group_id)
    if row is None:
        return None
    run = group_runs.get(connection, row.key)
    is_begun = run.plan is not None or row.cancel_reason is not None  # a turn that is to stop does not start
    stored = {**_NOT_STORED, "id": group_id, **json.loads(run.plan or "{}")}
    plan = read_group(connection, group_id) if run.plan is None else _PLANS.validate_python(stored)
    names = {one.id: one.name for one in agents.list_all(connection)}
    rows = group_runs.conversation(connection, group_id, LINES_KEPT, session_id=row.session_id)
    said = [(one, names.get(one.agent_id or "", one.sender.partition(":")[0])) for one in rows if one.turn_id != row.id]
    lines = sorted(Line(one.key, one.agent_id or "", name, one.content or "") for one, name in said)
    before = _Kept(-1 if run.plan else changes, plan, None, row.session_id, lines)  # it may have changed since
    return row, json.loads(run.payload), before, group_runs.exchanges(connection, row.key), is_begun
