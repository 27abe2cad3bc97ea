"""A running constellation: one task tree over one file, and all operations that the server uses."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from functools import partial

import trio

from pattern_core import halt
from pattern_core.agents import Agent, Roster
from pattern_core.approvals import Approvals
from pattern_core.archive.entries import Archive
from pattern_core.assignments import Assignments
from pattern_core.budgets.budget import KnownBudgets
from pattern_core.budgets.usage import Budgets
from pattern_core.calendars import Calendar
from pattern_core.compaction.compaction import Compaction, Made
from pattern_core.compaction.summariser import SummaryUsage
from pattern_core.conversation.imports import HistoryImports
from pattern_core.decisions import Decisions
from pattern_core.delivery import Delivery
from pattern_core.embeddings.embedding_queue import EmbeddingQueue
from pattern_core.errors import Conflict, InvalidInput, NotFound, Unavailable, instead_of
from pattern_core.events import Draft, Event, EventLog, append, ended
from pattern_core.files.folders import Folders
from pattern_core.groups.group import Group, Groups
from pattern_core.groups.runs import Accept, GroupRuns
from pattern_core.guidance import Guidance
from pattern_core.halt import Halt, Halted, HaltRow
from pattern_core.handoffs import Handoffs
from pattern_core.ids import Ids
from pattern_core.images import sweep_daily
from pattern_core.journal import Journal
from pattern_core.mcp_servers.servers import McpServers
from pattern_core.memory.revisions import Revisions
from pattern_core.memory.sharing import Sharing
from pattern_core.memory.store import MemoryStore
from pattern_core.messages import Message
from pattern_core.models.client import ModelClient
from pattern_core.models.model import ModelReply, OnDelta
from pattern_core.outbox import Outbox, Undelivered
from pattern_core.overview import Overview
from pattern_core.prompts.activity import TURNS_MAX, RecentTurns
from pattern_core.prompts.collect import Prompts
from pattern_core.remote_files import scan_remote
from pattern_core.runtime import Runtime
from pattern_core.schedule.schedules import Schedules
from pattern_core.schedule.starts import Reminders, TaskStarts
from pattern_core.search import SearchRequest, SearchResult, search
from pattern_core.sessions import Sessions
from pattern_core.shared_state import SharedState
from pattern_core.shell.shell import Shell
from pattern_core.sources.channels import Channels
from pattern_core.sources.sources import Sources
from pattern_core.tasks import Tasks
from pattern_core.timers import Timers
from pattern_core.tools.registry import ToolRegistry
from pattern_core.tools.tool import Toolbox
from pattern_core.turns import admission
from pattern_core.turns.actor import Actors
from pattern_core.turns.admission import Arrival, IncomingMessage, Ticket, TurnOptions
from pattern_core.turns.aside import ask_aside, ignore
from pattern_core.turns.calls import TurnServices
from pattern_core.turns.consent import ToolConsent
from pattern_core.turns.state import cancelled
from pattern_core.turns.turn import window_trouble
from pattern_core.unit_of_work import Storage, UnitOfWork, given_or_alone
from pattern_core.views import TurnView, view_turn
from pattern_core.web.web import Web
from pattern_core.webhooks import Webhooks
from pattern_core.workspaces import Workspaces
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.enums import ApprovalKind, TurnStatus
from pattern_db.errors import DiskFull, RowConflict, RowNotFound
from pattern_db.journal import budgets, group_runs, turns
from pattern_db.journal import events as event_table
from pattern_db.journal.retention import Pruned
from pattern_db.tables import activity, calendars, messages, outbox, tasks
from pattern_db.tables.activity import TurnActivity
from pattern_db.tables.messages import MessageRow

DRAIN_RETRY_S = 5
AGENT_DELETED = "agent_deleted"


@dataclass(frozen=True, slots=True)
class _Opened:
    """What is read from the file when it is opened."""

    newest_position: str | None
    newest_event: int
    agents_with_work: list[str]
    groups_with_work: list[str]
    unwanted: list[tuple[str, str]]
    has_budgets: bool
    halt: HaltRow | None
    newest_turns: Sequence[TurnActivity]


@dataclass(eq=False, repr=False, kw_only=True)
class Constellation:
    """One owner's agents over one open database.

    `await nursery.start(constellation.run)` recovers unfinished work of a dead process and then serves until cancelled.
    All other methods may be called from any task while it runs.
    """

    id: str
    database: Database
    models: ModelClient
    tools: ToolRegistry
    runtime: Runtime
    _is_draining: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.mcp = McpServers(self.runtime.mcp, self.tools)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Recover, then serve until cancelled.

        Raises:
            StorageFailed: the disk failed; reopen the file.
            Exception: a bug. The caller restarts it; nothing acknowledged is lost.
        """
        opened = await self.database.read(_open)
        self._wire(opened)
        with suppress(DiskFull):  # they are ended at the next start
            for turn_id, reason in opened.unwanted:
                await self._end_queued(turn_id, reason)
        wait_s = self.runtime.limits.room_wait_s
        async with trio.open_nursery() as nursery:
            self._actors = Actors(self._services, self.roster, nursery)
            self._runs = GroupRuns(
                journal=self._journal,
                roster=self.roster,
                groups=self.groups,
                limits=self.runtime.limits,
                actors=self._actors,
                cancel_turn=lambda turn_id, reason: self.cancel(turn_id, reason=reason),
                is_draining=self._services.is_draining,
                outbox=self.outbox,
            )
            for agent_id in opened.agents_with_work:
                self._actors.wake(agent_id)
            for group_id in opened.groups_with_work:
                self._runs.wake(group_id)
            nursery.start_soon(self._actors.run_late, name="late flushes")
            nursery.start_soon(outlasting, self.memory.blocks.run, wait_s, name="memory consolidation")
            nursery.start_soon(outlasting, self.embeddings.run, wait_s, name="embeddings")
            nursery.start_soon(outlasting, self.folders.run, wait_s, name="folders")
            if self.runtime.has_timers:
                for acting in (self.timers, self.outbox, self.webhooks, self.channels, self.overview):
                    nursery.start_soon(outlasting, acting.run, wait_s, name=type(acting).__name__)
            nursery.start_soon(self.halt.run, self._stop_all, name="halt")
            nursery.start_soon(outlasting, partial(sweep_daily, self._journal), wait_s, name="unused images")
            prune = partial(self._journal.prune_daily, self.runtime.limits.retention_days)
            nursery.start_soon(outlasting, prune, wait_s, name="retention")
            nursery.start_soon(self.mcp.run, name="MCP servers")
            if self._toolbox.shell is not None:
                await nursery.start(self._toolbox.shell.run, name="shell")
            task_status.started()
            await self.database.watch(self.runtime.limits.commit_timeout_s)

    def _wire(self, opened: _Opened) -> None:
        runtime, database = self.runtime, self.database
        limits, clock = runtime.limits, runtime.clock
        self.events = EventLog(database, buffer_max=limits.event_buffer_max, latest=opened.newest_event)
        self.embeddings = EmbeddingQueue(
            database=database, embedders=runtime.embedders, clock=clock, patience_s=limits.question_timeout_s
        )
        self._journal = Journal(
            constellation_id=self.id,
            database=database,
            events=self.events,
            clock=clock,
            ids=Ids(clock, runtime.randomness, last=opened.newest_position),
            epoch=database.epoch,
            budgets=KnownBudgets(runtime.budgets, exist=bool(runtime.budgets) or opened.has_budgets),
            meters=runtime.meters,
            after_commit=self.embeddings.wake,
        )
        self.budgets = Budgets(database=database, clock=clock, known=self._journal.budgets)
        storage = Storage(database=database, commit=self._journal.commit_work, clock=clock, ids=self._journal.ids)
        self.archive = Archive(storage)
        self.timers = Timers(storage)
        self.approvals = Approvals(storage, limits, self.timers)
        self.memory = MemoryStore(storage, randomness=runtime.randomness, limits=limits, consent=self.approvals)
        self.approvals.on_answer(ApprovalKind.MEMORY, self.memory.grant)
        self.folders = Folders(storage, partial(scan_remote, runtime.sources, clock), on_change=self.embeddings.wake)
        self.roster = Roster(storage, self.memory, self.tools, limits, self.timers, on_rename=self._renamed)
        self.groups = Groups(storage, self.roster, on_change=self.memory.blocks.stored)
        self.sessions = Sessions(storage, self._end)
        self.imports = HistoryImports(
            journal=self._journal, find_agent=self.roster.get, forget=self._forget, limits=limits
        )
        self.compaction = Compaction(
            journal=self._journal,
            models=self.models,
            limits=limits,
            is_untrusted=self.tools.is_untrusted,
            forget=self._forget,
        )
        self._wire_coordination(storage)
        self.sharing, self.revisions = Sharing(self.memory.blocks), Revisions(self.memory.blocks)
        self.halt = Halt(storage, current=opened.halt, log=runtime.tools.halts_log)
        web, shell = runtime.tools.web, runtime.tools.shell
        self._toolbox = Toolbox(
            storage=storage,
            memory=self.memory,
            sharing=self.sharing,
            revisions=self.revisions,
            tasks=self.tasks,
            calendar=self.calendar,
            search=self.search,
            halt=self.halt,
            state=self.state,
            handoffs=self.handoffs,
            assignments=self.assignments,
            record=self.overview.record,
            web=None if web is None else Web(web, clock=clock),
            shell=None if shell is None else Shell(settings=shell, clock=clock, ids=storage.ids),
        )
        self._services = self._turn_services(opened)

    def _wire_coordination(self, storage: Storage) -> None:
        """Make what agents and people share, what acts by itself, and what is delivered later."""
        self.storage, self.state = storage, SharedState(storage)
        self.workspaces, self.decisions, self.guidance = Workspaces(storage), Decisions(storage), Guidance(storage)
        self.handoffs, self.assignments = Handoffs(storage, self.roster.get), Assignments(storage, self.roster.get)
        self.overview = Overview(storage, self._journal, self.compaction, self.timers, self.decisions)
        self.roster.on_hibernation = partial(self.overview.rested, after_s=0)
        self.outbox = Outbox(storage)
        for kind in ("agent", "group"):
            self.outbox.on_due(kind, self._redeliver)
        self.webhooks = Webhooks(storage, self.events, self.outbox, self.runtime.webhooks)
        self.sources = Sources(storage, self.roster, self.outbox, self.runtime.sources)
        self.channels = Channels(self.sources, self._accepting, self.events, self.sessions, self.approvals)
        meters = self.runtime.meters
        self.schedules = Schedules(
            storage, self.roster, self.groups, self.timers, self.approvals, meters, accepting=self._accepting
        )
        self.memory.blocks.on_change = self.schedules.block_changed
        self.tasks = Tasks(storage, self.timers)
        self.timers.on_due(tasks.TIMER, TaskStarts(storage, self.roster, self._accepting).start)
        self.calendar = Calendar(storage, self.timers)
        reminders = Reminders(storage, self.roster, self._accepting, self.calendar)
        self.timers.on_due(calendars.TIMER, reminders.fire)

    def _stop_all(self) -> None:
        self._runs.cancel("halted")
        self._actors.cancel_all("halted")

    def _forget(self, agent_id: str) -> None:
        self._actors.forget(agent_id)

    def _renamed(self, agent_id: str, name: str | None) -> None:
        self.memory.blocks.forget(agent_id)
        self._services.prompts.recent_turns.rename(agent_id, name)

    def _turn_services(self, opened: _Opened) -> TurnServices:
        prompts = Prompts(
            database=self.database,
            memory=self.memory,
            search=self.search,
            clock=self.runtime.clock,
            recent_turns=RecentTurns(opened.newest_turns, on_change=self.overview.rested),
        )
        return TurnServices(
            constellation_id=self.id,
            journal=self._journal,
            models=self.models,
            tools=self.tools,
            prompts=prompts,
            compaction=self.compaction,
            outbox=self.outbox,
            toolbox=self._toolbox,
            mcp=self.mcp,
            consent=ToolConsent(self.approvals, self.tools, self.roster, lambda agent_id: self._actors.wake(agent_id)),
            limits=self.runtime.limits,
            deliver=Delivery(
                journal=self._journal,
                roster=self.roster,
                groups=self.groups,
                limits=self.runtime.limits,
                accepting=self._accepting,
            ).deliver,
            flush_late=lambda record: self._actors.flush_late(record),
            is_draining=lambda: self._is_draining or self.halt.current is not None,
        )

    @property
    def is_idle(self) -> bool:
        """Whether no agent works, nothing is delivered and no command runs; one that stays idle may be parked."""
        shell, others = self._toolbox.shell, (self.outbox, self.webhooks, self.channels, self.overview)
        is_at_rest = self._actors.is_idle and all(one.is_idle for one in others)
        return is_at_rest and (shell is None or shell.running == 0)

    @property
    def pending_approvals(self) -> int:
        """How many questions wait for a person."""
        return self.timers.approvals

    async def resume(self, *, by: str) -> HaltRow:
        """Resume a halted constellation; return the halt that was ended.

        Raises:
            Conflict: it is not halted.
        """
        halt = await self.halt.resume(by=by)
        for agent_id in await self.database.read(turns.agents_with_work):
            self._actors.wake(agent_id)
        for group_id in await self.database.read(group_runs.groups_with_work):
            self._runs.wake(group_id)
        return halt

    async def window_trouble(self, agent: Agent) -> str | None:
        """Return why an agent cannot answer the shortest message in its model's window; None if it can."""
        return await window_trouble(self._services, agent)

    async def submit(self, incoming: IncomingMessage) -> Ticket:
        """Accept a message for an agent (by id or name); it is on disk when this returns, and its turn will run.

        Raises:
            InvalidInput: the message is empty, too long or malformed.
            NotFound: there is no such agent.
            Conflict: the agent is not active, or is busy and the message must not wait.
            IdempotencyMismatch: the idempotency key was used for another message.
            Overloaded: too many messages wait for the agent.
            Halted: an agent halted the constellation, and no person resumed it.
            Unavailable: the constellation is being stopped; try again in a few seconds.
        """
        self._check_open(incoming)
        agent = await self.roster.get(incoming.agent_id)
        return await self._actors.submit(self._arrival(incoming, agent))

    async def submit_to_group(self, group: str, incoming: IncomingMessage) -> Ticket:
        """Accept a message for a group (by id or name), as `submit`; its `agent_id` is ignored.

        Raises:
            PatternError: as `submit`.
        """
        self._check_open(incoming)
        return await self._runs.submit(group, incoming)

    def _check_open(self, incoming: IncomingMessage) -> None:
        if self.halt.current is not None:
            raise Halted(self.halt.current)
        if self._is_draining:
            raise Unavailable("the server is stopping; send this again in a few seconds", retry_after_s=DRAIN_RETRY_S)
        admission.check(incoming, self.runtime.limits)

    def _arrival(self, incoming: IncomingMessage, agent: Agent) -> Arrival:
        ids = self._journal.ids
        return Arrival.of(incoming, agent, turn_id=ids.new("turn"), seed=ids.seed(), now=self._journal.now())

    async def _redeliver(self, row: Undelivered, work: UnitOfWork) -> None:
        """Have a message from the outbox accepted again, within `work`.

        Raises:
            PatternError: its agent or group is gone, or cannot be sent it.
        """
        incoming = admission.again(row)
        kind, _, target_id = row.target.partition(":")
        target = await (self.roster if kind == "agent" else self.groups).get(target_id)
        _turn_id, accept, wake = self._accepting(target, incoming)
        work.store_and_tell(lambda connection: accept(connection)[1])
        work.when_settled(lambda committed: wake() if committed else None)

    def _accepting(self, target: Agent | Group, incoming: IncomingMessage) -> tuple[str, Accept, Callable[[], None]]:
        """Return the id of a message's turn, what accepts it within a transaction, and what wakes its target after it.

        Raises:
            PatternError: as `submit`.
        """
        if self.halt.current is not None:
            raise Halted(self.halt.current)
        admission.check(incoming, self.runtime.limits)
        if isinstance(target, Group):
            return self._runs.accepting(target.id, incoming)
        arrival = self._arrival(incoming, target)
        limits = self.runtime.limits
        return (
            arrival.turn.id,
            lambda connection: admission.accept(connection, arrival, limits),
            partial(self._actors.wake, target.id),
        )

    def transaction(self) -> AbstractAsyncContextManager[UnitOfWork]:
        """Return a unit of work for several changes: committed together at the end of the block, or not at all.

        Raises:
            Conflict: another writer was first.
            NotFound: its subject has been deleted.
        """
        return given_or_alone(None, self._journal.commit_work)

    async def turn(self, turn_id: str) -> TurnView:
        """Return the turn with its current status.

        Raises:
            NotFound: there is no such turn.
        """
        with instead_of(RowNotFound, NotFound(f"there is no turn {turn_id!r} in this constellation")):
            return await self.database.read(view_turn, turn_id)

    async def wait(self, turn_id: str, *, after: int | None = None) -> TurnView:
        """Return the turn once it has ended, or waits for a person. `after` is the newest event before a new turn.

        Raises:
            NotFound: there is no such turn.
        """
        if after is None:
            after = self.events.latest
            if (view := await self.turn(turn_id)).rests:
                return view
        await self.events.rested(turn_id, after=after)
        return await self.turn(turn_id)

    async def cancel(self, turn_id: str, *, reason: str = "user") -> bool:
        """Stop a turn: immediately if it waits, else at its next checkpoint. Return False if it had ended.

        A turn that is storing its last answer still completes.

        Raises:
            NotFound: there is no such turn.
        """
        await self.turn(turn_id)
        if not await self._end_queued(turn_id, reason):
            return False
        if not self._actors.cancel(turn_id, reason) and not self._runs.cancel(reason, turn_id):
            await self._actors.end_waiting(turn_id, cancelled(reason))
        return True

    async def _end_queued(self, turn_id: str, reason: str) -> bool:
        """Store the request to stop a turn, and end it if it is still queued; return False if it had ended."""
        now, ending = self._journal.now(), cancelled(reason)

        def store(connection: Connection) -> tuple[bool, list[Event]]:
            row = turns.by_id(connection, turn_id)
            if not turns.request_cancel(connection, row.key, reason):
                return False, []
            if row.status != TurnStatus.QUEUED:
                return True, []
            if row.group_id is None:
                if reason == AGENT_DELETED and not admission.is_asked(connection, row):
                    payload = json.loads(turns.message_of(connection, row.key).payload)
                    outbox.add(connection, admission.undelivered(row, payload, error=reason, now=now, is_final=True))
                turns.take_message(connection, row.key)
            turns.end(connection, row.key, status=ending.status, ended_at=now, error=ending.error)
            ends.append((row.agent_id, ended(ending.status, ending.error)))
            return True, append(connection, (row.key, row.id), [ends[-1][1]], created_at=now)

        ends: list[tuple[str, Draft]] = []
        was_open = await self._journal.commit(store)
        for agent_id, end in ends:
            self._journal.log_end(turn_id, agent_id, end)
        return was_open

    async def _end(self, turn_id: str, reason: str) -> None:
        await self.cancel(turn_id, reason=reason)
        await self.wait(turn_id)

    async def discard(self, turn_id: str) -> None:
        """Take the messages of an agent's turn out of its conversation and of every search; cancel it first.

        Raises:
            NotFound: there is no such turn.
            InvalidInput: it is a group's.
        """
        await self._end(turn_id, "discarded")
        row = await self.database.read(turns.by_id, turn_id)
        if row.group_id is not None:
            raise InvalidInput("what a group said is in its members' conversations; delete its session instead")
        work = UnitOfWork()
        work.store(messages.discard_batch, row.agent_id, row.batch_id or "")
        await self._journal.commit_work(work)
        self._forget(row.agent_id)

    async def prune(self, days: int, *, dry_run: bool = False) -> Pruned:
        """Delete old rows of the journal; return their numbers, as `Journal.prune`."""
        return await self._journal.prune(days, dry_run=dry_run)

    async def delete_agent(self, id_or_name: str) -> None:
        """Delete an agent with all its data; its turns are cancelled first, with events for waiting clients.

        Raises:
            NotFound: there is no such agent.
        """
        agent = await self.roster.get(id_or_name)
        try:
            await self._actors.stop(agent.id, AGENT_DELETED)
            while True:
                for turn_id in await self.database.read(turns.open_turns, agent.id):
                    await self.cancel(turn_id, reason=AGENT_DELETED)
                with suppress(RowConflict):  # another message has just been accepted
                    await self.roster.delete(agent.id)
                    break
            self._actors.forget(agent.id)
            self._journal.logged.pop(agent.id, None)
        finally:
            self._actors.release(agent.id)

    async def delete_group(self, id_or_name: str) -> Group:
        """Delete a group; its running turns are cancelled first.

        Raises:
            NotFound: there is no such group.
        """
        group = await self.groups.get(id_or_name)
        while True:
            while (found := await self.database.read(group_runs.oldest_open, group.id)) is not None:
                await self._end(found.id, "group_deleted")
            with suppress(Conflict):  # another message has just been accepted
                await self.groups.delete(group)
                return group

    async def messages(
        self, agent: str, *, limit: int, before: str | None = None, session_id: str | None = None
    ) -> list[MessageRow]:
        """Return the agent's newest messages, newest first; only those before the position `before` and those of one
        session, if given.

        Raises:
            NotFound: there is no such agent.
        """
        found = await self.roster.get(agent)
        return await self.database.read(messages.recent, found.id, limit=limit, before=before, session_id=session_id)

    async def search(self, request: SearchRequest) -> SearchResult:
        """Search by words, and by meaning as far as there are vectors.

        Raises:
            InvalidInput: there is nothing to look for, a bound is exceeded, or a time cannot be read.
        """
        return await search(self.database, request, self.embeddings)

    async def ask_aside(
        self, agent: Agent, conversation: Sequence[Message], options: TurnOptions, on_delta: OnDelta = ignore
    ) -> ModelReply:
        """Return the answer of an agent's model to a conversation that is not stored, as `turns.aside.ask_aside`.

        Raises:
            Halted: an agent halted the constellation, and no person resumed it.
            PatternError: as `ask_aside`.
        """
        if self.halt.current is not None:
            raise Halted(self.halt.current)
        return await ask_aside(self._services, agent, conversation, options, on_delta)

    async def compact(self, agent: Agent) -> Made:
        """Compact the agent's conversation at a person's request; the agent's budgets are charged for the summaries.

        Raises:
            Conflict: the agent is busy, or its conversation is already being compacted.
            InvalidInput: the agent's `compaction` settings are not valid.
        """
        usage = SummaryUsage(models=self.models, journal=self._journal, agent_id=agent.id)
        return await self.compaction.by_hand(agent, usage=usage)

    async def drain(self) -> None:
        """Stop accepting messages and wait until every running turn has finished its step or ended.

        Unfinished turns continue when the constellation is opened again. The caller bounds the wait.
        """
        self._is_draining = True
        self._runs.cancel(None)
        while not self._actors.is_idle:
            await self._actors.rested()


async def outlasting(run: Callable[[], Awaitable[None]], wait_s: float) -> None:
    """Run a task of a constellation; if the disk is full, wait and run it again."""
    while True:
        is_full = False
        try:
            await run()
        except* DiskFull:
            is_full = True
        if not is_full:
            return
        await trio.sleep(wait_s)


def _open(connection: Connection) -> _Opened:
    return _Opened(
        messages.newest_position(connection),
        event_table.latest(connection),
        turns.agents_with_work(connection),
        group_runs.groups_with_work(connection),
        turns.unwanted(connection),
        budgets.has_any(connection),
        halt.stored(connection),
        activity.newest_turns(connection, TURNS_MAX),
    )
