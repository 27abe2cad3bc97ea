"""Schedules, killed after each of their commits, and in random places with a clock that jumps: each occurrence exactly
once, or visibly missed; none early.

`python -m tests.pattern_core.schedule.test_kill_points --schedules 1000 --kills 200 --seed 7` is the long run.
"""

from __future__ import annotations

import argparse
import random
import sys

import pytest
import trio
import trio.lowlevel
import trio.testing

from pattern_core.errors import leaves
from pattern_core.testing import StoppedClock
from pattern_db.columns import iso, unix_ms
from pattern_db.database import Database
from pattern_db.tables import timers
from tests.pattern_core.groups.rig import DyingMeters, Killed
from tests.pattern_core.schedule.rig import HOUR_S, START_MS, Scheduled, found, scheduled, speak, turns_of
from tests.support import in_memory, rows, running

PLAN = {"every": float(HOUR_S), "missed": "all"}


async def live(database: Database, clock: StoppedClock, *, kill_at: int, seed: int) -> tuple[bool, int]:
    """Run a constellation until nothing is due, or it dies after a commit; whether it survived, and its commits."""
    meters = DyingMeters(kill_at)
    try:
        async with running(otherwise=speak, clock=clock, database=database, meters=meters, seed=seed):
            while True:
                first = await database.read(timers.first_due)
                if first is None or first > iso(clock.now_ms()):
                    break
                await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked()
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
    assert commits >= 4
    for kill_at in range(1, commits + 1):
        assert (await lived(kill_at))[:2] == (whole, turns), f"killed after commit {kill_at}"


async def turns_that_ended(database: Database) -> int:
    [(count,)] = await database.read(rows, "SELECT count(*) FROM turn WHERE status = 'completed'")
    assert isinstance(count, int)
    return count


async def many(count: int, kills: int, seed: int, days: int = 30) -> int:
    """Run schedules over a month of virtual time with kills and jumps of the clock; return how many occurrences there
    were.
    """
    chance, clock = random.Random(seed), StoppedClock()
    every = [chance.choice([6, 24, 48]) * HOUR_S for _ in range(count)]
    async with in_memory() as database:
        async with running(otherwise=speak, clock=clock, database=database) as one:
            for number in range(count):
                if number % 50 == 0:
                    await one.agent(f"a{number // 50}")
                here = Scheduled(one, clock)
                plan = {"every": float(every[number]), "missed": chance.choice(["all", "last", "skip"])}
                await here.schedule(plan, name=f"s{number}", target=f"a{number // 50}")
        killed, end_ms = 0, START_MS + days * 24 * HOUR_S * 1000
        while clock.now_ms() < end_ms or killed < kills:
            jump_h = chance.choice([1, 1, 2, 6, 6, -1, 240 if chance.random() < 0.02 else 3])
            clock.advance(jump_h * HOUR_S * 1000)
            kill_at = chance.randint(1, 30) if killed < kills else 0
            survived, _ = await live(database, clock, kill_at=kill_at, seed=chance.getrandbits(30))
            killed += not survived
        await live(database, clock, kill_at=0, seed=1)
        return await check(database, every, clock.now_ms())


async def check(database: Database, every: list[int], now_ms: int) -> int:
    """Each nominal time until now has its row or is in another one's count; each that fired has one turn."""
    total = 0
    for number, seconds in enumerate(every):
        occurred = await database.read(
            rows,
            "SELECT nominal_at, o.at, o.count, o.status, (SELECT count(*) FROM turn WHERE id = o.turn_id)"
            " FROM schedule_occurrence AS o JOIN schedule AS s ON s.id = o.schedule_id WHERE name = ? ORDER BY 1",
            f"s{number}",
        )
        nominal_ms = START_MS
        for nominal_at, at, count, status, turns in occurred:
            nominal_ms += int(str(count)) * seconds * 1000
            assert unix_ms(str(nominal_at)) == nominal_ms, f"s{number}: an occurrence is lost or repeated"
            assert str(nominal_at) <= str(at), f"s{number}: early"
            assert turns == int(status == "fired")
            total += int(str(count))
        assert nominal_ms + seconds * 1000 > now_ms, f"s{number}: not all that was due"
    [(fired,)] = await database.read(rows, "SELECT count(*) FROM schedule_occurrence WHERE status = 'fired'")
    assert await turns_of(database) == fired
    return total


async def test_a_month_of_kills_and_clock_jumps() -> None:
    assert await many(40, 20, 1) > 1_000


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=1_000)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    total = trio.run(many, options.schedules, options.kills, options.seed)
    sys.stdout.write(f"{total:,} occurrences, {options.kills} kills, 0 violations\n")
