"""The turns of groups: each message to a group is a turn of the group, run by its coordination, one at a time.

| moment | stored in one transaction |
|---|---|
| accepted | the turn, its message, `turn.queued` |
| started | turn running, the plan (coordination, config, members, state, seed), `turn.started` |
| a member is asked | the member's turn and message, its place in the run, the events before it, `group.selected` |
| ended | status, answer, the coordination's state, the one terminal event |

After a restart the coordination runs again from its beginning with the same plan. Where a place has a turn already, its
answer is read, or waited for: no member is asked twice, none is skipped.
"""

from __future__ import annotations

import json
import logging
import math
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

import trio
from pydantic import TypeAdapter

from pattern_core import images
from pattern_core.agents import Roster
from pattern_core.errors import (
    Conflict,
    IdempotencyMismatch,
    InvalidInput,
    LimitReached,
    NotFound,
    Overloaded,
    PatternError,
)
from pattern_core.events import Draft, Event, append, ended
from pattern_core.groups.coordination import OBSERVER, UNAVAILABLE, Answer, CommonConfig, Member, Question, Room
from pattern_core.groups.group import Group, Groups, coordination_of
from pattern_core.ids import seeded_randomness
from pattern_core.journal import Journal
from pattern_core.limits import Limits
from pattern_core.messages import Image, Text
from pattern_core.turns import admission
from pattern_core.turns.admission import DIGEST_BYTES, RETRY_AFTER_S, Arrival, IncomingMessage, Ticket
from pattern_core.turns.state import Ending, cancelled
from pattern_core.untrusted import plain
from pattern_db.columns import iso, to_json, unix_ms
from pattern_db.connection import Connection
from pattern_db.enums import TurnStatus
from pattern_db.errors import DiskFull, RowConflict
from pattern_db.journal import group_runs, turns, usage
from pattern_db.journal.group_runs import AskRow, MemberTurn, RunRow
from pattern_db.journal.turns import NewTurn, Started, TurnRow
from pattern_db.tables import agents
from pattern_db.tables import groups as group_table

_log = logging.getLogger("pattern.turns")
GROUPS_KEPT = 64  # groups with their last messages kept in memory between turns
LINES_KEPT = 50  # last messages of a group; a member is shown those that it has missed
SHOWN_CHARS = 8_000  # of others' messages since a member was last asked; the oldest are left out
POLICIES = (None, "enqueue", "reject", "interrupt")


class Line(NamedTuple):
    """A message in a group: the key of its turn, the speaker's id and name, and the text."""

    key: int
    speaker: str
    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """What determines a run, as it was when the turn started: the group's name, coordination, config, state and
    members.
    """

    name: str
    pattern_type: str
    pattern_config: dict[str, Any]
    state: dict[str, Any]
    members: tuple[Member, ...]


_PLANS = TypeAdapter(RunPlan)


@dataclass(slots=True, kw_only=True)
class _Running:
    """A running turn of a group. `stop_reason` says why it is to be cancelled; None if the server stops."""

    row: TurnRow
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    stop_reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class GroupServices:
    """What runs need of the constellation. `wake` makes an agent check its inbox, `cancel` cancels a turn."""

    journal: Journal
    roster: Roster
    groups: Groups
    limits: Limits
    wake: Callable[[str], None]
    cancel: Callable[[str, str], Awaitable[object]]
    is_draining: Callable[[], bool]


class GroupRuns:
    """The turns of all groups of one constellation. `nursery` is the constellation's own."""

    def __init__(self, services: GroupServices, nursery: trio.Nursery) -> None:
        self._services = services
        self._journal = services.journal
        self._nursery = nursery
        self._awake: dict[str, bool] = {}  # group id → whether there may be another turn
        self._running: dict[str, _Running] = {}  # by turn id
        self._fresh: set[str] = set()  # turns that were started when they were accepted, and do not run yet
        self._said: OrderedDict[str, Sequence[Line]] = OrderedDict()  # by group id
        self._rest = trio.lowlevel.ParkingLot()

    @property
    def is_idle(self) -> bool:
        """Whether no group is busy."""
        return not self._awake

    async def submit(self, group: Group, incoming: IncomingMessage) -> Ticket:
        """Accept a message for a group; return once it is on disk.

        Raises:
            InvalidInput: the policy is none that a group has.
            Conflict: the group is busy, and the policy is `reject`.
            IdempotencyMismatch: the key was used for another message.
            Overloaded: too many messages wait for the group.
        """
        turn_id, accept = self.accepting(group, incoming)
        ticket = await self._journal.commit(accept)
        if incoming.policy == "interrupt" and not ticket.is_replay:
            for running in self._running.values():
                if running.row.group_id == group.id and running.row.id != turn_id:
                    await self._services.cancel(running.row.id, "superseded")
        self.wake(group.id)
        return ticket

    def accepting(
        self, group: Group, incoming: IncomingMessage
    ) -> tuple[str, Callable[[Connection], tuple[Ticket, list[Event]]]]:
        """Return the id of a message's turn, and the function that accepts it in a transaction; then `wake` the group.

        Raises:
            InvalidInput: the policy is none that a group has.
        """
        if incoming.policy not in POLICIES:
            raise InvalidInput(f"a group has no policy {incoming.policy!r}; use enqueue, reject or interrupt")
        turn = self._new_turn(group.id, incoming)

        def accept(connection: Connection) -> tuple[Ticket, list[Event]]:
            known = None if turn.idempotency is None else turns.by_idempotency(connection, turn.idempotency)
            if known is not None:
                if known.fingerprint != turn.fingerprint:
                    raise IdempotencyMismatch(
                        "this idempotency key was used for a different message; use a new key for each message"
                    )
                return Ticket(turn_id=known.id, is_replay=True), []
            waiting = group_runs.count_open(connection, group.id)
            if waiting and incoming.policy == "reject":
                raise Conflict("the group is busy; wait for its turn to end, or use the policy enqueue", busy=True)
            if waiting >= self._services.limits.inbox_per_agent_max:
                raise Overloaded(
                    f"{waiting} messages wait for this group; try again later", retry_after_s=RETRY_AFTER_S
                )
            key = group_runs.accept(connection, turn, to_json(admission.payload_of(incoming)))
            images.store(connection, incoming.images, turn.created_at)
            drafts = [Draft("turn.queued", {}, {"group_id": group.id, "sender": incoming.sender})]
            if not waiting:
                self._fresh.add(turn.id)
                drafts.append(self._begin(connection, group, key))
            return Ticket(turn_id=turn.id), append(connection, (key, turn.id), drafts, created_at=turn.created_at)

        return turn.id, accept

    def _new_turn(self, group_id: str, incoming: IncomingMessage) -> NewTurn:
        idempotency = fingerprint = None
        if incoming.idempotency_key is not None:
            name = json.dumps([group_id, incoming.sender, incoming.idempotency_key])
            idempotency = blake2b(name.encode(), digest_size=DIGEST_BYTES).digest()
            payload = to_json(admission.payload_of(incoming))
            fingerprint = blake2b(payload.encode(), digest_size=DIGEST_BYTES).digest()
        ids = self._journal.ids
        return NewTurn(
            agent_id=group_id,
            id=ids.new("turn"),
            sender=incoming.sender,
            seed=ids.seed(),
            created_at=self._journal.now(),
            parent_turn=incoming.parent_turn,
            depth=incoming.depth,
            idempotency=idempotency,
            fingerprint=fingerprint,
        )

    def wake(self, group_id: str) -> None:
        """Make the group check for a turn to run. Harmless when there is none."""
        if self._services.is_draining():
            return
        if group_id in self._awake:
            self._awake[group_id] = True
            return
        try:
            self._nursery.start_soon(self._work, group_id, name=f"group {group_id}")
        except RuntimeError:  # the constellation has just stopped; its next start finds the row
            return
        self._awake[group_id] = True

    def cancel(self, turn_id: str, reason: str) -> bool:
        """Stop a turn; return False if it is not running."""
        running = self._running.get(turn_id)
        if running is None:
            return False
        running.stop_reason = reason
        running.scope.cancel()
        return True

    def cancel_all(self, reason: str) -> None:
        """Stop every turn."""
        for turn_id in self._running:
            self.cancel(turn_id, reason)

    async def drain(self) -> None:
        """Stop the running turns, which stay as they are stored; return when none runs."""
        for running in self._running.values():
            running.scope.cancel()
        while self._awake:
            await self._rest.park()

    async def _work(self, group_id: str) -> None:
        try:
            while self._awake[group_id] and not self._services.is_draining():
                self._awake[group_id] = False
                try:
                    found = await self._journal.database.read(group_runs.first_open, group_id)
                    if found is not None:
                        self._awake[group_id] = True
                        with suppress(RowConflict):  # cancelled before it started: check for the next one
                            await self._take(*found)
                except* DiskFull:
                    _log.error("no room on the disk for the work of a group", {"group": group_id})
                    self._awake[group_id] = True  # what is stored continues when there is room, as after a restart
                    await trio.sleep(self._services.limits.room_wait_s)
        finally:
            del self._awake[group_id]
            self._rest.unpark_all()

    async def _take(self, row: TurnRow, run: RunRow) -> None:
        """Run a turn to its end, from its stored state."""
        running = self._running[row.id] = _Running(row=row)
        try:
            if row.cancel_reason is not None:
                await _Run(self._services, row, run).end(cancelled(row.cancel_reason))
                return
            group_id, asked = row.group_id or "", list[MemberTurn]()
            if row.status == TurnStatus.QUEUED:
                row, run = await self._start(row)
            elif row.id not in self._fresh:
                await self._journal.database.write(turns.resume, row.key, epoch=self._journal.epoch, step=0)
                asked = await self._journal.database.read(group_runs.exchanges, row.key)
            said = self._said.pop(group_id, None)
            if said is None:
                said = await self._journal.database.read(_said_before, row)
            run_now = _Run(self._services, row, run, asked=asked, said=said)
            await self._run(running, run_now)
            self._said[group_id] = run_now.said
            if len(self._said) > GROUPS_KEPT:
                self._said.popitem(last=False)
        finally:
            self._fresh.discard(row.id)
            del self._running[row.id]

    def forget(self) -> None:
        """Drop the messages kept in memory: an agent was renamed or deleted."""
        self._said.clear()

    async def _start(self, row: TurnRow) -> tuple[TurnRow, RunRow]:
        """Start a turn that was queued."""
        group = await self._services.groups.get(row.group_id or "")

        def start(connection: Connection) -> tuple[tuple[TurnRow, RunRow], list[Event]]:
            begun, now = self._begin(connection, group, row.key), self._journal.now()
            events = append(connection, (row.key, row.id), [begun], created_at=now)
            return (turns.by_key(connection, row.key), group_runs.get(connection, row.key)), events

        return await self._journal.commit(start)

    def _begin(self, connection: Connection, group: Group, key: int) -> Draft:
        """Start a turn and store its plan, within a transaction; return the event.

        Raises:
            RowConflict: the turn is not queued any longer.
        """
        row = group_table.find(connection, group.id)  # its state may be newer
        try:
            deadline_s = coordination_of(row.pattern_type, row.pattern_config)[1].deadline_s
        except InvalidInput:  # the run reports it
            deadline_s = CommonConfig().deadline_s
        now_ms = self._journal.clock.now_ms()
        started = Started(
            batch_id=self._journal.ids.position(now_ms),
            epoch=self._journal.epoch,
            started_at=iso(now_ms),
            deadline_at=iso(now_ms + round(deadline_s * 1000)),
        )
        turns.start(connection, key, started)
        plan = RunPlan(
            name=row.name,
            pattern_type=row.pattern_type,
            pattern_config=dict(row.pattern_config),
            state=dict(row.state),
            members=tuple(group.members),
        )
        group_runs.start(connection, key, _PLANS.dump_json(plan).decode())
        return Draft("turn.started", {}, {"group_id": group.id})

    async def _run(self, running: _Running, run: _Run) -> None:
        left_s = (unix_ms(run.row.deadline_at or "") - self._journal.clock.now_ms()) / 1000
        if left_s <= 0:
            message = "the turn's time ran out while the server was down; send the message again"
            await run.end(Ending(status="interrupted", error={"code": "deadline_passed", "message": message}))
            return
        running.scope.deadline = trio.current_time() + left_s
        ending, answer = Ending(status="completed", error=None), ""
        with running.scope:
            try:
                answer = await run.coordinate()
            except PatternError as error:
                status = "limit" if isinstance(error, LimitReached) else "failed"
                ending = Ending(status=status, error={"code": error.code, "message": error.message})
        if running.scope.cancelled_caught:
            if running.stop_reason is not None:
                ending = cancelled(running.stop_reason)
            elif self._services.is_draining():
                return  # the next start continues it
            else:
                message = "the group exceeded its deadline_s; send the message again, or raise it"
                ending = Ending(status="limit", error={"code": "deadline", "message": message})
        await run.end(ending, answer)


class _Run:
    """One running turn of a group: asks the members and ends the turn."""

    def __init__(
        self,
        services: GroupServices,
        row: TurnRow,
        run: RunRow,
        *,
        asked: Sequence[MemberTurn] = (),
        said: Sequence[Line] = (),
    ) -> None:
        """`asked` are the questions from before a restart, `said` the last messages of the group."""
        self.row = row
        self._services = services
        self._journal = services.journal
        self._payload = json.loads(run.payload)
        self._images = [part for part in admission.parts_of(self._payload) if isinstance(part, Image)]
        self._plan = None if run.plan is None else _PLANS.validate_json(run.plan)
        self._known = {one.place: one for one in asked}
        self._asked: Counter[str] = Counter()
        self._noted: list[Draft] = []
        self._lines = [*said]
        self._state: dict[str, Any] | None = None
        self._config = CommonConfig()

    async def coordinate(self) -> str:
        """Run the coordination; return the group's answer.

        Raises:
            PatternError: it cannot run, or a member failed.
        """
        plan = self._planned
        coordination, self._config = coordination_of(plan.pattern_type, plan.pattern_config)
        room = Room(
            message=str(self._payload["content"]),
            members=[one for one in plan.members if one.role != OBSERVER],
            state=plan.state,
            random=seeded_randomness(self.row.seed),
            config=self._config,
            ask_once=self._ask,
            tell=lambda name, data: self._noted.append(Draft(name, data)),
        )
        answer = await coordination.run(room, self._config)
        self._state = plan.state
        return answer

    @property
    def said(self) -> list[Line]:
        """The last messages of the group, this turn's included."""
        own = Line(self.row.key, "", self.row.sender.partition(":")[0], str(self._payload["content"]))
        return sorted([*self._lines, own])[-LINES_KEPT:]

    @property
    def _planned(self) -> RunPlan:
        assert self._plan is not None  # the turn has started
        return self._plan

    async def _ask(self, questions: Sequence[Question], is_race: bool) -> list[Answer]:
        """Ask members, or read their answers where they were asked at these places before."""
        places = []
        for question in questions:
            self._asked[question.member.id] += 1
            places.append(f"{question.member.id}:{self._asked[question.member.id]}")
        new = [(place, one) for place, one in zip(places, questions, strict=True) if place not in self._known]
        noted, self._noted = self._noted, []
        if new:
            if self._asked.total() > self._config.max_turns:
                raise LimitReached(f"the group asked its members {self._config.max_turns} times, its max_turns")
            self._known |= await self._put(new, noted)
        answers: dict[str, Answer] = {}

        async def wait(place: str, question: Question) -> None:
            answers[place] = answer = await self._answer(question, self._known.get(place))
            if answer.is_whole and is_race:
                for other in places:
                    if other != place:
                        await self._give_up(other)

        async with trio.open_nursery() as nursery:
            for place, question in zip(places, questions, strict=True):
                nursery.start_soon(wait, place, question)
        return [answers[place] for place in places]

    async def _put(self, new: Sequence[tuple[str, Question]], noted: Sequence[Draft]) -> dict[str, MemberTurn]:
        """Accept turns of members, in one transaction with their places; members that cannot take part are left
        out.
        """
        ids, now, arrivals = self._journal.ids, self._journal.now(), dict[str, tuple[Arrival, Question]]()
        for place, question in new:
            try:
                agent, words = await self._services.roster.get(question.member.id), self._words_for(question)
                incoming = IncomingMessage(
                    agent_id=agent.id,
                    content=words,
                    parts=(Text(text=words), *self._images) if self._images else (),
                    sender=self.row.sender,
                    source="group",
                    source_metadata={"group_id": self.row.group_id, "turn_id": self.row.id},
                    parent_turn=self.row.key,
                    depth=self.row.depth + 1,
                    policy="enqueue",
                )
                arrival = Arrival.of(incoming, agent, turn_id=ids.new("turn"), seed=ids.seed(), now=now)
            except (NotFound, Conflict):  # deleted, hibernated or archived since the turn started
                continue
            arrivals[place] = arrival, question

        def accept(connection: Connection) -> tuple[dict[str, MemberTurn], list[Event]]:
            drafts, asked = list(noted), dict[str, MemberTurn]()
            for arrival, question in arrivals.values():
                member, why = question.member, {"why": question.why} if question.why else {}
                about = {"agent_id": member.id, "agent": member.name, "member_turn": arrival.turn.id}
                drafts.append(Draft("group.selected", {**about, **why}))
            # Before the events of the members, so that a stream knows the member of each.
            events = append(connection, (self.row.key, self.row.id), drafts, created_at=now)
            for place, (arrival, question) in arrivals.items():
                ticket, accepted = admission.accept(connection, arrival, self._services.limits)
                key = turns.by_id(connection, ticket.turn_id).key
                group_runs.ask(connection, AskRow(self.row.key, place, key, question.why or None))
                events += accepted
                asked[place] = MemberTurn(
                    key, place, ticket.turn_id, question.member.id, TurnStatus.QUEUED.value, None, None
                )
            return asked, events

        if not arrivals:
            self._noted = [*noted]
            return {}
        asked = await self._journal.commit(accept)
        for one in asked.values():
            self._services.wake(one.agent_id)
        return asked

    async def _answer(self, question: Question, asked: MemberTurn | None) -> Answer:
        """Wait for a member's answer; after the time limit its turn is cancelled, and has ended when this returns."""
        member = question.member
        if asked is None:
            return Answer(member=member, status=UNAVAILABLE)
        with trio.move_on_after(math.inf if question.timeout_s is None else question.timeout_s) as patience:
            asked = await self._ended(asked)
        if patience.cancelled_caught:
            await self._give_up(asked.place)
            asked = await self._ended(asked)
        words = asked.text or ""
        if asked.status == TurnStatus.COMPLETED:
            self._lines.append(Line(asked.key, member.id, member.name, words))
        return Answer(member=member, status=asked.status, text=words, ended_at=asked.ended_at or "")

    def _words_for(self, question: Question) -> str:
        """Return the message to a member: the members, what was said since it was last asked, and the question."""
        member, text = question.member, question.text or str(self._payload["content"])
        others = [
            f"{one.name} ({one.role})" if one.role else one.name
            for one in self._planned.members
            if one.id != member.id and one.role != OBSERVER
        ]
        head = f"Group {self._planned.name}: you are {member.name}"
        head += f", with {', '.join(others)}." if others else "."
        if self._config.context == "task_only":
            return f"{head}\n\n{text}"
        heard = max((line.key for line in self._lines if line.speaker == member.id), default=0)
        missed, room = list[str](), SHOWN_CHARS
        for line in sorted((line for line in self._lines if line.key > heard), reverse=True):
            words = f"{line.name}: {plain(line.text)}"
            room -= len(words)
            if room < 0:
                missed.append("(earlier messages are left out)")
                break
            missed.append(words)
        if not missed:
            return f"{head}\n\n{text}"
        return f"{head}\n\nSaid since you last spoke:\n" + "\n".join(reversed(missed)) + f"\n\nNow answer:\n{text}"

    async def _ended(self, exchange: MemberTurn) -> MemberTurn:
        """Return the member's turn once it has ended; it may wait for a person in between."""
        events, database = self._journal.events, self._journal.database
        while exchange.ended_at is None:
            seen = events.latest
            found = await database.read(group_runs.exchange, self.row.key, exchange.place)
            if found is None:  # its agent was deleted
                return exchange._replace(status=TurnStatus.CANCELLED.value, ended_at=self._journal.now())
            exchange = found
            if exchange.ended_at is None:
                await events.rested(exchange.turn_id, after=seen)
        return exchange

    async def _give_up(self, place: str) -> None:
        """Cancel the member's turn at a place, if it has not ended."""
        if place in self._known:
            await self._services.cancel(self._known[place].turn_id, "superseded")

    async def end(self, ending: Ending, answer: str = "") -> None:
        """End the turn; if it did not complete, its members' running turns are cancelled first."""
        journal, row, noted = self._journal, self.row, self._noted
        if ending.status != TurnStatus.COMPLETED:
            asked = await journal.database.read(group_runs.exchanges, row.key)
            for one in asked:
                if one.ended_at is None:
                    await self._services.cancel(one.turn_id, "group_ended")
            for one in asked:
                await self._ended(one)
        now = journal.now()

        def store(connection: Connection) -> tuple[Draft, list[Event]]:
            asked = len(group_runs.exchanges(connection, row.key))
            turns.end(connection, row.key, status=ending.status, ended_at=now, steps=asked, error=ending.error)
            group_runs.set_answer(connection, row.key, answer or None)
            if self._state is not None and ending.status == TurnStatus.COMPLETED:
                group_table.set_state(connection, row.group_id or "", self._state)
            rest = None, answer or None, None, usage.of_tree(connection, row.key)
            end = ended(ending.status, ending.error, rest)
            return end, append(connection, (row.key, row.id), [*noted, end], created_at=now)

        end = await journal.commit(store)
        seconds = journal.seconds_since(unix_ms(row.started_at)) if row.started_at else 0.0
        journal.meters.turn_ended(ending.status, seconds)
        journal.log_end(row.id, row.group_id or "", end, seconds=seconds)


def _said_before(connection: Connection, row: TurnRow) -> list[Line]:
    """Return the last messages of a turn's group, except those of the turn itself."""
    names = {one.id: one.name for one in agents.list_all(connection)}
    return [
        Line(
            one.key, one.agent_id or "", names.get(one.agent_id or "", one.sender.partition(":")[0]), one.content or ""
        )
        for one in group_runs.conversation(connection, row.group_id or "", LINES_KEPT)
        if one.turn_id != row.id
    ]
