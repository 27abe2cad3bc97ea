"""A constellation with an agent, a stopped wall clock, and time that passes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import trio
import trio.testing

from pattern_core.models.model import ModelReply, ModelRequest
from pattern_core.testing import StoppedClock
from pattern_core.testing.model import says
from pattern_db.columns import iso, unix_ms
from pattern_db.database import Database
from pattern_db.tables import timers
from pattern_db.tables.schedules import ScheduleRow
from tests.support import START, Running, in_memory, rows, running

START_MS = unix_ms(START)
HOUR_S = 3600


def speak(_request: ModelRequest) -> ModelReply:
    return says("Done.")


@dataclass
class Scheduled:
    """A running constellation and its wall clock."""

    running: Running
    clock: StoppedClock

    async def schedule(self, plan: Mapping[str, Any], *, name: str = "daily", target: str = "ada") -> ScheduleRow:
        """Create a schedule for the agent of this name."""
        agent = await self.running.constellation.roster.get(target)
        row, _ = await self.running.constellation.schedules.create(
            name=name, target=agent, message="Look around.", plan=plan
        )
        return row

    async def ada(self) -> str:
        """The id of the agent."""
        return (await self.running.constellation.roster.get("ada")).id

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, and what is due happen."""
        self.clock.advance(round(seconds * 1000))
        await self.look()

    async def look(self) -> None:
        """Have the timers look at the clock, and wait until everything rests."""
        await self.running.constellation.timers.fire_due()
        await trio.testing.wait_all_tasks_blocked()

    async def found(self, name: str = "daily") -> list[tuple[object, ...]]:
        """The occurrences of a schedule: nominal time without the year, status and count."""
        return await found(self.running.database, name)


async def found(database: Database, name: str = "daily") -> list[tuple[object, ...]]:
    """The occurrences of a schedule, oldest first: nominal time (month to minute), status and count."""
    return await database.read(
        rows,
        "SELECT substr(nominal_at, 6, 11), o.status, o.count FROM schedule_occurrence AS o JOIN schedule AS s"
        " ON s.id = o.schedule_id WHERE s.name = ? ORDER BY nominal_at",
        name,
    )


async def turns_of(database: Database) -> int:
    """How many turns the system asked for, without those that repeat a failed one."""
    return len(await turn_ids(database))


async def turn_ids(database: Database) -> list[str]:
    """The turns that the system asked for, without those that repeat a failed one."""
    found = await database.read(
        rows,
        "SELECT id FROM turn AS t WHERE sender LIKE 'system%' AND NOT EXISTS (SELECT 1 FROM messages AS m"
        " WHERE m.agent_id = t.agent_id AND m.position = t.batch_id AND m.source_metadata ->> '$.redelivery' > 0)",
    )
    return [str(turn_id) for (turn_id,) in found]


@asynccontextmanager
async def scheduled(database: Database | None = None, **options: Any) -> AsyncIterator[Scheduled]:
    """Start a constellation with the agent ada."""
    clock = StoppedClock()
    async with running(otherwise=speak, clock=clock, database=database, **options) as one:
        await one.agent()
        yield Scheduled(one, clock)


@asynccontextmanager
async def down(plan: Mapping[str, Any], seconds: float) -> AsyncIterator[Scheduled]:
    """A constellation with the schedule `daily` that starts again after it was down for a time."""
    async with in_memory() as database:
        async with scheduled(database) as here:
            await here.schedule(plan)
        clock = StoppedClock()
        clock.advance(round(seconds * 1000))
        async with running(otherwise=speak, clock=clock, database=database, seed=2) as one:
            while str(await database.read(timers.first_due)) <= iso(clock.now_ms()):
                await trio.sleep(0.01)
            await trio.testing.wait_all_tasks_blocked()
            yield Scheduled(one, clock)
