"""Timers: fired once, with what they do, when the wall clock says so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio
import trio.testing

from pattern_core.testing import StoppedClock
from pattern_core.timers import LOOK_S, sleep_until
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.columns import iso
from pattern_db.errors import RowConflict
from pattern_db.tables import timers
from pattern_db.tables.timers import TimerRow
from tests.support import Running, running


@dataclass
class World:
    """A constellation with timers of the kind `test`."""

    running: Running
    clock: StoppedClock
    fired: list[str] = field(default_factory=list)
    fails: bool = False

    async def fire(self, timer: TimerRow, work: UnitOfWork) -> None:
        if self.fails:
            self.fails = False
            raise_conflict(work)
        work.event("fired", {"ref": timer.ref})
        work.when_settled(lambda committed: self.fired.append(timer.ref) if committed else None)

    async def put(self, ref: str, in_s: float) -> None:
        due_at = iso(self.clock.now_ms() + round(in_s * 1000))
        await self.running.database.write(timers.put, TimerRow("test", ref, due_at))
        self.running.constellation.timers.changed()

    async def pass_time(self, clock_s: float, slept_s: float | None = None) -> None:
        """Let the wall clock advance, and the machine be awake for `slept_s` of that."""
        self.clock.advance(round(clock_s * 1000))
        await trio.sleep(clock_s if slept_s is None else slept_s)
        await trio.testing.wait_all_tasks_blocked()


def raise_conflict(work: UnitOfWork) -> None:
    def refuse(_connection: object) -> None:
        raise RowConflict("another writer was first")

    work.store(refuse)


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    clock = StoppedClock()
    async with running(clock=clock) as one:
        here = World(one, clock)
        one.constellation.timers.on_due("test", here.fire)
        yield here


async def test_each_fires_once_when_it_is_due(autojump_clock: trio.testing.MockClock) -> None:
    async with world() as here:
        for ref, in_s in (("second", 20), ("first", 10), ("moved", 5), ("gone", 5)):
            await here.put(ref, in_s)
        await here.put("moved", 30)
        await here.running.database.write(timers.delete, "test", "gone")
        for passed, fired in (
            (9.9, []),
            (0.1, ["first"]),
            (10, ["first", "second"]),
            (600, ["first", "second", "moved"]),
        ):
            await here.pass_time(passed)
            assert here.fired == fired
        assert await here.running.database.read(timers.first_due) is None
        assert [event.name for event in await here.running.events()].count("fired") == 3


async def test_a_clock_that_is_set_is_noticed(autojump_clock: trio.testing.MockClock) -> None:
    async with world() as here:
        await here.put("far", 3600)
        await here.pass_time(3599, slept_s=LOOK_S)  # the laptop was shut
        assert here.fired == []
        await here.pass_time(1, slept_s=LOOK_S)
        assert here.fired == ["far"]
        await here.put("back", 10)
        await here.pass_time(-3600, slept_s=20)
        assert here.fired == ["far"]
        await here.pass_time(3610, slept_s=LOOK_S)
        assert here.fired == ["far", "back"]


async def test_what_is_not_stored_fires_again(autojump_clock: trio.testing.MockClock) -> None:
    async with world() as here:
        here.fails = True
        await here.put("one", 0)
        await here.pass_time(1)
        assert here.fired == ["one"]


async def test_sleep_ends_at_the_time_or_when_something_changed(autojump_clock: trio.testing.MockClock) -> None:
    clock, changed = StoppedClock(), trio.Event()
    await sleep_until(iso(clock.now_ms()), clock, changed)
    with trio.move_on_after(2 * LOOK_S) as patience:
        await sleep_until(iso(clock.now_ms() + 1_000), clock, changed)
    assert patience.cancelled_caught
    changed.set()
    await sleep_until(None, clock, changed)
