"""Schedules, killed after each of their commits: each occurrence exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing

from pattern_core.errors import leaves
from pattern_core.testing import StoppedClock
from pattern_db.columns import iso
from pattern_db.database import Database
from pattern_db.tables import timers
from tests.pattern_core.groups.rig import DyingMeters, Killed
from tests.pattern_core.schedule.rig import HOUR_S, found, scheduled, speak, turns_of
from tests.support import in_memory, rows, running

NEVER = "9"  # later than any time
PLAN = {"every": float(HOUR_S), "missed": "all"}


async def live(
    database: Database, clock: StoppedClock, *, kill_at: int, seed: int, jumps_ms: Sequence[int] = (0,), **options: Any
) -> tuple[bool, int]:
    """Run a constellation until nothing is due, or it dies after a commit; whether it survived, and its commits. The
    first jump of the clock is before its start, the others are while it runs.
    """
    meters = DyingMeters(kill_at)
    clock.advance(jumps_ms[0])
    try:
        async with running(otherwise=speak, clock=clock, database=database, meters=meters, seed=seed, **options) as one:
            for jump_ms in (0, *jumps_ms[1:]):
                clock.advance(jump_ms)
                one.constellation.timers.changed()
                while (await database.read(timers.first_due) or NEVER) <= iso(clock.now_ms()):
                    await trio.lowlevel.checkpoint()
                await trio.testing.wait_all_tasks_blocked()
                while not one.constellation.is_idle:  # a thread may be slow
                    await trio.sleep(0.001)
            return True, meters.commits
    except* Killed as killed:
        assert all(isinstance(error, Killed) for error in leaves(killed))
    return False, meters.commits


@pytest.mark.parametrize("policy", ["all", "last"])
async def test_a_kill_after_any_commit_repeats_and_loses_nothing(policy: str) -> None:
    async def lived(kill_at: int) -> tuple[list[tuple[object, ...]], int, int]:
        async with in_memory() as database:
            async with scheduled(database) as here:
                await here.schedule({**PLAN, "missed": policy})
            clock = StoppedClock()
            clock.advance((3 * HOUR_S + 5) * 1000)
            survived, commits = await live(database, clock, kill_at=kill_at, seed=2)
            if not survived:
                await live(database, clock, kill_at=0, seed=3)
            assert await turns_that_ended(database) == await turns_of(database)
            return await found(database), await turns_of(database), commits

    whole, turns, commits = await lived(0)
    assert [one[1] for one in whole] == (["fired"] * 3 if policy == "all" else ["missed", "missed", "fired"])
    assert commits >= 3
    for kill_at in range(1, commits + 1):
        assert (await lived(kill_at))[:2] == (whole, turns), f"killed after commit {kill_at}"


async def turns_that_ended(database: Database) -> int:
    [(count,)] = await database.read(rows, "SELECT count(*) FROM turn WHERE status = 'completed'")
    assert isinstance(count, int)
    return count
