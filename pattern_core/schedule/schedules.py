"""Schedules: messages that agents and groups get by themselves, each occurrence exactly once or visibly not at all.

An occurrence that fires is its row, its turn as accepted, and the timer of the next one, in one transaction. What was
missed while the server was down is decided by the schedule's policy. A heartbeat is a schedule with conditions: where
none of them holds, no model is asked, and the occurrence is visible as skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import trio

from pattern_core.agents import Agent, Roster
from pattern_core.approvals import Approval, ApprovalAnswer, ApprovalQuestion, Approvals
from pattern_core.errors import Conflict, InvalidInput, NotFound, PatternError, instead_of
from pattern_core.events import Draft, Event, append
from pattern_core.groups.group import Group, Groups
from pattern_core.groups.runs import Accept
from pattern_core.runtime import Meters
from pattern_core.schedule.plan import SchedulePlan, chosen, due_of, holding, is_quiet, jitter_ms, plan_of, seen_of
from pattern_core.timers import Timers
from pattern_core.timing import DAY_MS, moments
from pattern_core.turns.admission import IncomingMessage
from pattern_core.unit_of_work import Storage, UnitOfWork, given_or_alone
from pattern_core.untrusted import check_plain
from pattern_core.validation import without_null
from pattern_db.columns import Json, iso, unix_ms
from pattern_db.connection import Connection
from pattern_db.enums import ApprovalKind, OccurrenceStatus, ScheduleStatus
from pattern_db.errors import RowConflict, RowNotFound
from pattern_db.tables import schedules, timers
from pattern_db.tables.memory_blocks import BlockRow
from pattern_db.tables.schedules import OccurrenceRow, ScheduleRow
from pattern_db.tables.timers import TimerRow

NAME_CHARS_MAX = 100
SCHEDULES_MAX = 10_000  # of one constellation
AUDIENCE = "human"
SOURCE = "schedule"
SYSTEM, HEARTBEAT = "system", "system:heartbeat"  # senders of schedules, and of those with conditions

Schedule = ScheduleRow
Occurrence = OccurrenceRow
Timed: TypeAlias = tuple[ScheduleRow, str | None]
"""A schedule, and when it is due next; None unless it is active."""
Accepting: TypeAlias = Callable[[Agent | Group, IncomingMessage], tuple[str, Accept, Callable[[], None]]]
"""Returns the id of a message's turn, what accepts it within a transaction, and what wakes its target after that.
Raises a `PatternError` if the target cannot be sent it.
"""
Note: TypeAlias = Callable[[Connection, str, PatternError | None], list[Event]]
"""Stores what follows from a message that was sent: its turn's id, and the error if the target cannot have it."""

_TIMINGS = ("cron", "every", "at", "rrule")


@dataclass(eq=False)
class Schedules:
    """The schedules of one constellation."""

    _storage: Storage
    _roster: Roster
    _groups: Groups
    _timers: Timers
    _approvals: Approvals
    _meters: Meters
    accepting: Accepting

    def __post_init__(self) -> None:
        self._timers.on_due(schedules.TIMER, self._fire)
        self._groups.follow = self._follow
        self._approvals.on_answer(ApprovalKind.SCHEDULE, self._agreed, self._refused)

    async def get(self, id_or_name: str) -> Timed:
        """Return the schedule with this id or name, and when it is due next.

        Raises:
            NotFound: there is none.
        """
        with instead_of(RowNotFound, NotFound(f"there is no schedule {id_or_name!r} in this constellation")):
            return await self._storage.database.read(schedules.find, id_or_name)

    async def all(self) -> list[Timed]:
        """Return all schedules by name, each with the time at which it is due next."""
        return await self._storage.database.read(schedules.list_all)

    async def occurrences(self, schedule_id: str, limit: int, *, before: str | None = None) -> list[OccurrenceRow]:
        """Return what happened at the newest nominal times, newest first; only before one, if given."""
        return await self._storage.database.read(schedules.occurrences, schedule_id, limit, before=before)

    async def create(self, *, name: str, target: Agent | Group, message: str, plan: Mapping[str, Json]) -> Timed:
        """Create a schedule that sends the agent or group a message; return it, and when it is due next.

        Raises:
            InvalidInput: a field is invalid, or it would never be due.
            Conflict: the name is taken.
        """
        now = self._storage.now()
        if await self._storage.database.read(schedules.count) >= SCHEDULES_MAX:
            raise InvalidInput(f"a constellation has at most {SCHEDULES_MAX} schedules; delete one")
        row = ScheduleRow(
            id=self._storage.ids.new("sch"),
            name=name.strip(),
            message=message,
            agent_id=target.id if isinstance(target, Agent) else None,
            group_id=target.id if isinstance(target, Group) else None,
            plan={"starts_at": now, **without_null(dict(plan))},  # type: ignore[dict-item]  # of a dictionary
            created_at=now,
            updated_at=now,
        )
        return await self._save(row, schedules.create, "schedule.created")

    async def update(self, id_or_name: str, changes: Mapping[str, Any]) -> Timed:
        """Change the given fields (`name`, `message`, `status`, or those of the plan); it is due again from now on.

        Raises:
            NotFound: there is no such schedule.
            InvalidInput, Conflict: as `create`.
        """
        row, _ = await self.get(id_or_name)
        own = {name: changes[name] for name in ("name", "message", "status") if name in changes}
        if "name" in own:
            own["name"] = str(own["name"]).strip()
        given = {name: value for name, value in changes.items() if name not in own}
        plan = {**row.plan, **(dict.fromkeys(_TIMINGS) if given.keys() & set(_TIMINGS) else {}), **given}
        status = ScheduleStatus.ACTIVE if row.status is ScheduleStatus.FINISHED else row.status
        row = replace(row, **{"status": status, **own}, plan=without_null(plan), updated_at=self._storage.now())  # type: ignore[arg-type]  # by name above
        return await self._save(row, schedules.update, "schedule.changed")

    async def delete(self, id_or_name: str) -> None:
        """Delete a schedule with its occurrences; the turns that it started stay.

        Raises:
            NotFound: there is no such schedule.
        """
        row, _ = await self.get(id_or_name)
        async with given_or_alone(None, self._storage.commit) as work:
            work.store(schedules.delete, row.id)
            work.event("schedule.deleted", {"schedule_id": row.id, "name": row.name})

    async def run(self, id_or_name: str) -> str:
        """Fire now, whatever the plan says; return the id of the turn.

        Raises:
            NotFound: there is no such schedule.
            PatternError: its agent or group cannot be sent the message.
        """
        row, _ = await self.get(id_or_name)
        work = UnitOfWork()
        turn_id = await self._send(row, self._storage.clock.now_ms(), work, strict=True)
        try:
            await self._storage.commit(work)
        except RowConflict:
            raise Conflict("the schedule fired in this moment; run it again if you want another turn") from None
        return turn_id

    async def _follow(self, group: Group, plan: Mapping[str, Json] | None, work: UnitOfWork) -> None:
        """Create, change or remove the schedule of a group that works by itself, in the group's own transaction.

        Without a plan (it holds the message, too) there is no schedule.
        """
        own_id = "sch_" + group.id.partition("_")[2]
        known: ScheduleRow | None = None
        with suppress(RowNotFound):
            known, _ = await self._storage.database.read(schedules.find, own_id)
        if plan is None:
            if known is not None:
                work.store(schedules.delete, own_id)
            return
        now = self._storage.now()
        row = known or ScheduleRow(id=own_id, name="", message="", created_at=now, updated_at=now, group_id=group.id)
        plan = {"starts_at": row.created_at, **plan}
        row = replace(row, name=f"{group.name}: own work", message=plan.pop("message"), plan=plan, updated_at=now)
        await self._store(row, schedules.create if known is None else schedules.update, work)

    async def _save(self, row: ScheduleRow, store: Any, event: str) -> Timed:
        work = UnitOfWork()
        await self._store(row, store, work)
        work.event(event, {"schedule_id": row.id, "name": row.name})
        try:
            await self._storage.commit(work)
        except RowConflict:
            raise Conflict(f"the name {row.name!r} is taken by another schedule; choose another one") from None
        return await self.get(row.id)

    async def _store(self, row: ScheduleRow, store: Any, work: UnitOfWork) -> None:
        if not 0 < len(check_plain(row.name, "a schedule's name")) <= NAME_CHARS_MAX:
            raise InvalidInput(f"a schedule's name has 1 to {NAME_CHARS_MAX} characters")
        if not row.message.strip():
            raise InvalidInput("the message is empty; say in `message` what to do when it is due")
        plan = plan_of(row.plan, is_new=True)
        now_ms = self._storage.clock.now_ms()
        newest = await self.occurrences(row.id, 1)
        after_ms = max(now_ms, unix_ms(newest[0].nominal_at) if newest else 0)
        upcoming = await trio.to_thread.run_sync(lambda: next(moments(plan, after_ms), None))  # it may be slow
        if upcoming is None and store is schedules.create:
            raise InvalidInput("it would never be due; give a time in the future, or another rule")
        changes = await self._changes(row, plan, int(row.seen.get("turn", 0)))
        work.store(store, replace(row, seen=row.seen or seen_of(changes, now_ms)))
        if row.status is ScheduleStatus.ACTIVE:
            self._await_next(row, plan, upcoming, work)
        else:
            work.store(timers.delete, schedules.TIMER, row.id)

    def _await_next(self, row: ScheduleRow, plan: SchedulePlan, upcoming: int | None, work: UnitOfWork) -> None:
        if upcoming is None:
            work.store(schedules.set_status, row.id, ScheduleStatus.FINISHED)
            work.store(timers.delete, schedules.TIMER, row.id)
            return
        due_at = iso(upcoming + jitter_ms(row.id, plan, upcoming))
        work.store(timers.put, TimerRow(schedules.TIMER, row.id, due_at, iso(upcoming)))
        work.when_settled(lambda _committed: self._timers.changed())

    async def _changes(self, row: ScheduleRow, plan: SchedulePlan, since: int) -> schedules.Changes:
        labels = [one.label for one in plan.when if one.label is not None]
        names = [one.folder for one in plan.when if one.folder is not None]
        return await self._storage.database.read(schedules.changes, row, since, labels, names, self._storage.now())

    def block_changed(self, block: BlockRow, work: UnitOfWork) -> None:
        """Have groups that watch a block work soon, in the transaction that changes it."""

        def wake(connection: Connection) -> None:
            if schedules.wake(connection, block.label, block.agent_id, self._storage.now()):
                work.when_settled(lambda _committed: self._timers.changed())

        work.store(wake)

    async def _fire(self, timer: TimerRow, work: UnitOfWork) -> None:
        """Add what is due to the transaction that removes the timer."""
        try:
            row, _ = await self._storage.database.read(schedules.find, timer.ref)
        except RowNotFound:  # deleted with its agent or group
            return
        if row.status is not ScheduleStatus.ACTIVE or timer.payload is None:
            return
        now_ms = self._storage.clock.now_ms()
        first_ms = now_ms if timer.payload == schedules.WOKEN else unix_ms(timer.payload)
        try:
            plan = plan_of(row.plan)
            if timer.payload == schedules.WOKEN:
                await self._occur(row, plan, now_ms, work)
                self._await_next(row, plan, next(moments(plan, now_ms), None), work)
                return
            if plan.rrule is not None or now_ms - first_ms > DAY_MS:
                due = await trio.to_thread.run_sync(due_of, plan, row.id, first_ms, now_ms)
            else:
                due = due_of(plan, row.id, first_ms, now_ms)
        except InvalidInput as error:  # another version stored it, or the machine does not know its time zone any more
            self._note(row, first_ms, OccurrenceStatus.SKIPPED, work, reason=error.message)
            work.store(schedules.set_status, row.id, ScheduleStatus.PAUSED)
            return
        fires, asked = chosen(plan, row.id, due.nominal, now_ms)
        late_s = max(0, now_ms - unix_ms(timer.due_at)) / 1000
        work.when_settled(lambda committed: self._meters.schedule_due(late_s) if committed else None)
        for place, nominal in enumerate(due.nominal):
            if nominal in fires:
                await self._occur(row, plan, nominal, work)
            elif nominal == asked:
                await self._ask(row, nominal, work)
            else:
                count = due.older + 1 if place == 0 else 1
                reason = "the server was not running, or the clock was set forward"
                self._note(row, nominal, OccurrenceStatus.MISSED, work, reason=reason, count=count)
        self._await_next(row, plan, due.next_ms, work)

    async def _occur(self, row: ScheduleRow, plan: SchedulePlan, nominal: int, work: UnitOfWork) -> None:
        now_ms = self._storage.clock.now_ms()
        if is_quiet(plan, now_ms):
            self._note(row, nominal, OccurrenceStatus.SKIPPED, work, reason="quiet hours")
            return
        reasons: Sequence[str] = ()
        try:
            if plan.when:
                found = await self._changes(row, plan, int(row.seen.get("turn", 0)))
                reasons = await holding(plan, found, row, now_ms, self._storage.database)
                if not reasons:
                    self._note(row, nominal, OccurrenceStatus.SKIPPED, work, reason="no condition holds")
                    return
                work.store(schedules.set_seen, row.id, seen_of(found, now_ms))
            await self._send(row, nominal, work, reasons=reasons)
        except PatternError as error:  # such as an archived agent
            self._note(row, nominal, OccurrenceStatus.SKIPPED, work, reason=error.message)

    async def _send(
        self, row: ScheduleRow, nominal: int, work: UnitOfWork, *, reasons: Sequence[str] = (), strict: bool = False
    ) -> str:
        """Have the turn of an occurrence accepted with `work`; if that is refused it is skipped, unless `strict`."""
        target: Agent | Group
        if row.group_id is not None:
            target = await self._groups.get(row.group_id)
        else:
            target = await self._roster.get(row.agent_id or "")
        about = {"schedule_id": row.id, "schedule": row.name, "nominal_at": iso(nominal)}
        fired = decided = OccurrenceRow(row.id, iso(nominal), OccurrenceStatus.FIRED, self._storage.now())

        def note(connection: Connection, turn_id: str, error: PatternError | None) -> list[Event]:
            if error is not None and strict:
                raise error
            nonlocal decided
            decided = replace(fired, turn_id=turn_id)
            if error is not None:
                decided = replace(fired, status=OccurrenceStatus.SKIPPED, reason=error.message)
            schedules.note_occurrence(connection, decided)
            event = Draft("schedule.fired", {**about, "turn_id": turn_id})
            return [] if error else append(connection, None, [event], created_at=fired.at)

        turn_id = send(
            self.accepting,
            target,
            work,
            content="\n\n".join([row.message, *(["Why now: " + "; ".join(reasons)] if reasons else [])]),
            sender=HEARTBEAT if row.plan.get("when") else SYSTEM,
            source=SOURCE,
            about=about,
            note=note,
        )
        work.when_settled(lambda committed: self._meters.occurred(decided.status, 1) if committed else None)
        return turn_id

    def _note(self, row: ScheduleRow, nominal: int, status: OccurrenceStatus, work: UnitOfWork, **more: Any) -> None:
        occurrence = OccurrenceRow(row.id, iso(nominal), status, self._storage.now(), **more)
        work.store(schedules.note_occurrence, occurrence)
        if status is OccurrenceStatus.MISSED:
            about = {"schedule_id": row.id, "schedule": row.name, "nominal_at": occurrence.nominal_at}
            work.event("schedule.missed", {**about, "count": occurrence.count, "reason": occurrence.reason})
        work.when_settled(lambda committed: self._meters.occurred(status, occurrence.count) if committed else None)

    async def _ask(self, row: ScheduleRow, nominal: int, work: UnitOfWork) -> None:
        request = {"schedule_id": row.id, "schedule": row.name, "nominal_at": iso(nominal), "message": row.message}
        try:
            question = ApprovalQuestion(kind=ApprovalKind.SCHEDULE, request=request, audience=AUDIENCE)
            await self._approvals.ask(question, work)
        except PatternError as error:  # too many questions are open
            self._note(row, nominal, OccurrenceStatus.MISSED, work, reason=error.message)
            return
        self._note(row, nominal, OccurrenceStatus.ASKED, work, reason="missed: a person is asked whether it is to run")

    async def _agreed(self, approval: Approval, _answer: ApprovalAnswer, work: UnitOfWork) -> str:
        row, _ = await self.get(approval.request["schedule_id"])
        turn_id = await self._send(row, unix_ms(approval.request["nominal_at"]), work, strict=True)
        return f"It runs now: {turn_id}"

    def _refused(self, approval: Approval, work: UnitOfWork) -> None:
        row = OccurrenceRow(
            approval.request["schedule_id"],
            approval.request["nominal_at"],
            OccurrenceStatus.MISSED,
            self._storage.now(),
            reason="no person agreed to run it",
        )
        work.store(_note_if_there, row)


def send(
    accepting: Accepting,
    target: Agent | Group,
    work: UnitOfWork,
    *,
    content: str,
    sender: str,
    source: str,
    about: Mapping[str, object],
    note: Note,
) -> str:
    """Have a message that no one wrote accepted with `work`; return the id of its turn.

    `note` stores what follows from that in the same transaction, and returns its events. It is given the id of the
    turn, and the error if too many messages wait for the target.

    Raises:
        PatternError: the target cannot be sent a message.
    """
    incoming = IncomingMessage(
        agent_id=target.id, content=content, sender=sender, source=source, source_metadata=about, policy="enqueue"
    )
    turn_id, accept, wake = accepting(target, incoming)

    def store(connection: Connection) -> list[Event]:
        try:
            _, events = accept(connection)
        except PatternError as error:
            return note(connection, turn_id, error)
        return [*events, *note(connection, turn_id, None)]

    work.store_and_tell(store)
    work.when_settled(lambda committed: wake() if committed else None)
    return turn_id


def _note_if_there(connection: Connection, row: OccurrenceRow) -> None:
    if schedules.occurrences(connection, row.schedule_id, 1):  # else it was deleted
        schedules.note_occurrence(connection, row)
