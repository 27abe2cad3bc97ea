"""What agents did, what was decided and what is open, written for the other agents and for people.

The summary of an agent is written when it has rested after `MESSAGES_MIN` new messages, or hibernates: by the model of
its compaction, or where none can it quotes the last words. It is stored in one row with how far it reaches, so one that
is cut off is written again, and what is due is found in the rows. Days and weeks (UTC) are put together from rows alone
when they end, in the transaction that removes their timer; in a constellation where nothing happens there is no timer.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from operator import itemgetter

import trio

from pattern_core.compaction.compaction import Compaction
from pattern_core.compaction.summariser import DailyUsage
from pattern_core.conversation.history import from_row
from pattern_core.decisions import Decisions
from pattern_core.errors import InvalidInput, PatternError
from pattern_core.ids import earliest_position
from pattern_core.journal import DAY_MS, Journal
from pattern_core.messages import Message, check_text
from pattern_core.models.tokens import clip, message_tokens
from pattern_core.reflection import Reflector
from pattern_core.timers import Timers
from pattern_core.unit_of_work import Storage, UnitOfWork, given_or_alone
from pattern_db.columns import iso
from pattern_db.connection import Connection
from pattern_db.enums import NotableKind, TaskStatus
from pattern_db.journal import turns
from pattern_db.journal.usage import OVERVIEW
from pattern_db.tables import agents, decisions, messages, overview, tasks, timers
from pattern_db.tables.activity import HIGH
from pattern_db.tables.agents import AgentRow
from pattern_db.tables.messages import MessageRow
from pattern_db.tables.overview import AgentSummaryRow, NotableRow, PeriodRow
from pattern_db.tables.timers import TimerRow

MESSAGES_MIN = 5  # new ones since the last summary
REST_S = 60.0  # after the agent's last turn, so that a conversation is summarised once and not while it continues
READ_MAX = 200  # newest messages that one summary is made of …
READ_TOKENS_MAX = 20_000  # … and the most tokens of them
SUMMARY_TOKENS = 150
QUOTE_TOKENS = 40
NOTABLE_CHARS_MAX = 500
LISTED_MAX = 50  # agents, notable events, decisions and open tasks in the summary of a period, each
OPEN = (TaskStatus.PENDING, TaskStatus.IN_PROGRESS, TaskStatus.BLOCKED)
DAY, WEEK = "overview.day", "overview.week"  # kinds of timers

INSTRUCTIONS = (
    "Tell the other agents of the team, and the people they work for, in at most 80 words what this agent does and did:"
    " what it was asked, what it found out, decided and finished, with names, numbers and dates; and what is still"
    " open. Leave out greetings and private feelings. Write plain sentences in the language of the record, and nothing"
    " but the summary."
)

AgentSummary = AgentSummaryRow
Period = PeriodRow
NotableEvent = NotableRow

_log = logging.getLogger(__name__)


class Overview:
    """The overview of one constellation."""

    def __init__(
        self, storage: Storage, journal: Journal, compaction: Compaction, timers: Timers, decided: Decisions
    ) -> None:
        self._storage, self._journal, self._compaction, self._timers = storage, journal, compaction, timers
        self._due: dict[str, float] = {}  # agent id → when, on trio's clock
        self._changed, self._wakes_at = trio.Event(), math.inf
        self._tried: dict[str, str] = {}  # agent id → newest position of messages that the model could not summarise
        self.is_idle = True  # no model is asked; what is due is found again at the next start
        for kind in (DAY, WEEK):
            timers.on_due(kind, self._sum_up)
        decided.on_new = self._await_periods
        daily = compaction.limits.reflection_tokens_daily
        self._reflector = Reflector(storage, journal, compaction.models, daily)

    def rested(self, agent_id: str, *, after_s: float = REST_S) -> None:
        """Note that a turn of the agent has ended, or that it hibernates: there may be something to summarise."""
        at = self._due[agent_id] = trio.current_time() + after_s
        if at < self._wakes_at:  # else it sees this then: the end of most turns wakes nothing
            self._changed.set()

    async def run(self) -> None:
        """Write the summaries that are due, until cancelled.

        Raises:
            StorageFailed: the disk failed.
        """
        yesterday = earliest_position(self._storage.clock.now_ms() - DAY_MS)  # an older file costs nothing at first
        for agent_id in await self._storage.database.read(overview.due, yesterday, MESSAGES_MIN):
            self.rested(agent_id)
        while True:
            self._changed = trio.Event()
            agent_id, at = min(self._due.items(), key=itemgetter(1), default=("", math.inf))
            self._wakes_at = at
            with trio.move_on_at(at):
                await self._changed.wait()
            if self._due.get(agent_id, math.inf) > trio.current_time():
                continue
            self.is_idle = False
            try:
                await self._write(agent_id)
                await self._reflector.reflect(agent_id)
            except (PatternError, ValueError) as error:  # such as a deleted agent, or a damaged message
                _log.warning("no summary of an agent was written", {"agent": agent_id, "error": str(error)})
            finally:
                self.is_idle = True
            if self._due[agent_id] == at:
                del self._due[agent_id]

    async def _write(self, agent_id: str) -> None:
        """Write the summary of an agent if that is due and it is idle.

        Raises:
            InvalidInput: the agent's `compaction` settings are not valid.
            Conflict: the agent was deleted.
        """
        since = self._tried.get(agent_id, "")
        if (found := await self._storage.database.read(_uncovered, agent_id, since)) is None:
            return
        agent, before, new = found
        text, model = await self._text(agent, before, list(map(from_row, new)))
        if text is None:
            self._tried[agent_id] = new[-1].position
            return
        row = AgentSummary(
            agent_id=agent_id,
            name=agent.name,
            summary=text,
            messages_covered=len(new) + (before.messages_covered if before is not None and model else 0),
            generated_at=self._storage.now(),
            last_active=new[-1].created_at,
            up_to=new[-1].position,
            model=model,
        )
        async with given_or_alone(None, self._storage.commit) as work:
            work.store(overview.put_summary, row)
            self._await_periods(work)
            work.event("overview.agent", {"agent_id": agent_id, "model": model})

    async def _text(
        self, agent: AgentRow, before: AgentSummary | None, new: Sequence[Message]
    ) -> tuple[str | None, str | None]:
        """Return the text and the model that wrote it; no text where that of a model is kept until one can write."""
        models, limits = self._compaction.models, self._compaction.limits
        charged = DailyUsage(
            models=models,
            journal=self._journal,
            agent_id=agent.id,
            purpose=OVERVIEW,
            tokens_daily=limits.overview_tokens_daily,
            limit="limits.overview_tokens_daily",
        )
        deadline = trio.current_time() + models.limits(agent.model_provider).turn_timeout_s
        asked = self._compaction.summariser(agent, charged, deadline)
        asked.settings = replace(
            asked.settings, type="sliding_window", summary_tokens=SUMMARY_TOKENS, summarization_prompt=INSTRUCTIONS
        )
        reach, sizes = min(asked.reach, READ_TOKENS_MAX), accumulate(map(message_tokens, reversed(new)))
        fitting = sum(size <= reach for size in sizes)
        earlier = [] if before is None else [before.summary]
        text = await asked.summarise(new[-fitting:], earlier=earlier) if fitting else None
        if text is not None:
            return text, f"{asked.provider}/{asked.model}"
        if before is not None and before.model is not None:
            _log.info("an agent's summary stays as it is", {"agent": agent.id, "why": asked.trouble})
            return None, None
        return quoted(new), None

    async def record(
        self, kind: NotableKind, text: str, *, author: str, work: UnitOfWork | None = None
    ) -> NotableEvent:
        """Record something that the others should know later, too.

        Raises:
            InvalidInput: the text is empty or too long.
        """
        text = " ".join(check_text(text).split())
        if not 0 < len(text) <= NOTABLE_CHARS_MAX:
            raise InvalidInput(f"a notable event has 1 to {NOTABLE_CHARS_MAX} characters; say it in a sentence")
        async with given_or_alone(work, self._storage.commit) as unit:
            noted = self._storage.note(unit, kind, text, author=author, importance=HIGH)
            involved = [] if noted.agent_id is None else [noted.agent_id]
            row = NotableEvent(noted.id, noted.timestamp, kind, text, involved, HIGH, noted.timestamp)
            unit.store(overview.record, row)
            self._await_periods(unit)
            unit.event("notable.recorded", {"event_id": row.id, "event_type": kind, "by": author})
        return row

    async def summaries(self, limit: int, before: str | None = None) -> list[AgentSummary]:
        """Return summaries of agents, newest first; only those after that of an agent in this order, if given."""
        return await self._storage.database.read(overview.summaries, limit, before=before)

    async def periods(self, limit: int, before: str | None = None) -> list[Period]:
        """Return summaries of days and weeks, newest first; only those before an id, if given."""
        return await self._storage.database.read(overview.periods, limit, before=before)

    async def notable(self, limit: int, before: str | None = None) -> list[NotableEvent]:
        """Return notable events, newest first; only those before an id, if given."""
        return await self._storage.database.read(overview.notable, limit, before=before)

    async def delete(self, event_id: str) -> None:
        """Delete a notable event; summaries of days and weeks that name it stay as they are.

        Raises:
            NotFound: there is none.
        """
        async with given_or_alone(None, self._storage.commit) as work:
            work.store(overview.delete, event_id)
            work.event("notable.deleted", {"event_id": event_id})

    def _await_periods(self, work: UnitOfWork) -> None:
        """Have the day and the week summed up when they end: `work` has something for them."""
        today = self._storage.clock.now_ms() // DAY_MS
        monday = today - (today + 3) % 7  # the first day of 1970 was a Thursday
        for kind, first, days in ((DAY, today, 1), (WEEK, monday, 7)):
            work.store(timers.put, TimerRow(kind, iso(first * DAY_MS), iso((first + days) * DAY_MS)))
        work.when_settled(lambda _committed: self._timers.changed())

    async def _sum_up(self, timer: TimerRow, work: UnitOfWork) -> None:
        """Add the summary of a day or a week to the transaction that removes its timer."""
        row = await self._storage.database.read(_summed_up, timer, self._storage.ids.new("sum"), self._storage.now())
        work.store(overview.put_period, row)
        about = {"summary_id": row.id, "period_start": row.period_start, "period_end": row.period_end}
        work.event("overview.period", about)


def _uncovered(
    connection: Connection, agent_id: str, since: str
) -> tuple[AgentRow, AgentSummary | None, list[MessageRow]] | None:
    """Return the agent, its summary, and the messages that it does not cover; None if no new one is due, or it works.

    Those until the position `since` do not count, but are covered by the next one.
    """
    is_due = overview.due(connection, since, MESSAGES_MIN, only=agent_id)
    if not is_due or turns.unfinished(connection, agent_id) is not None:
        return None
    before = overview.summary_of(connection, agent_id)
    new = messages.since(connection, agent_id, "" if before is None else before.up_to, READ_MAX)
    return agents.get(connection, agent_id), before, new


def _summed_up(connection: Connection, timer: TimerRow, own_id: str, now: str) -> Period:
    start, end = timer.ref, timer.due_at
    said = overview.summaries(connection, LISTED_MAX, since=start)
    notable = overview.notable(connection, LISTED_MAX, since=start, until=end)
    decided = [(one.timestamp, f"{one.event_type}: {one.description}") for one in reversed(notable)]
    made = decisions.made_between(connection, start, end, LISTED_MAX)
    decided += [(row.created_at or "", f"decision {row.id}: {row.title}") for row in made]
    return Period(
        id=own_id,
        period_start=start,
        period_end=end,
        summary="\n".join(f"{one.name}: {' '.join(one.summary.split())}" for one in said),
        key_decisions=[said for _at, said in sorted(decided, key=itemgetter(0))],
        open_threads=[task.title for task in tasks.page(connection, LISTED_MAX, statuses=OPEN)],
        created_at=now,
    )


def quoted(said: Sequence[Message]) -> str:
    """Return what stands for a summary without a model: the last words of both sides."""
    lines = [f"{len(said)} new message{'' if len(said) == 1 else 's'}."]
    for role, how in (("user", "Asked last"), ("assistant", "Said last")):
        words = next(
            (" ".join(one.text.split()) for one in reversed(said) if one.role == role and one.text.strip()), ""
        )
        lines += [f"{how}: “{clip(words, QUOTE_TOKENS)}”."] if words else []
    return " ".join(lines)
