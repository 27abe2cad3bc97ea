"""Schedules and reminders over a month, with kills, a clock that is set, and a constellation that is parked: each
occurrence exactly once, or visibly missed by its policy; none early.

`python -m tests.scenarios.test_month --count 10000 --kills 200 --seed 7` is the long run, of some ten minutes.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby, takewhile
from typing import Any

import trio

from pattern_core.limits import Limits
from pattern_core.occurrences import nominal_times
from pattern_core.schedule.plan import LATE_MS, jitter_ms, plan_of
from pattern_core.testing import StoppedClock
from pattern_core.timing import moments
from pattern_db.columns import iso, unix_ms
from pattern_db.database import Database
from pattern_db.tables import calendars, outbox, schedules
from tests.pattern_core.schedule.rig import HOUR_S, START_MS, speak, turn_ids
from tests.pattern_core.schedule.test_kill_points import live
from tests.support import in_memory, rows, running

HOUR_MS = HOUR_S * 1000
PER_AGENT = 50  # schedules and reminders: what they catch up together fits an inbox
DAY_MS = 24 * HOUR_MS
LIMITS = Limits(approvals_pending_max=100_000, approval_expiry_s=366 * 24 * HOUR_S)
ZONES = ("UTC", "Europe/Berlin", "America/New_York")
RULES = (None, "FREQ=DAILY;INTERVAL=2", "FREQ=WEEKLY;BYDAY=MO,TH", "FREQ=DAILY;INTERVAL=3", "FREQ=MONTHLY")


@dataclass
class Month:
    """What came of it: occurrences by decision, lives, and how many of them ended with a kill."""

    decided: Counter[str] = field(default_factory=Counter)
    lives: int = 0
    killed: int = 0


def plan(chance: random.Random) -> dict[str, Any]:
    """A schedule's times, and its policy."""
    at = f"{chance.randint(0, 59)} {chance.randint(0, 23)}"
    times: list[dict[str, Any]] = [
        {"every": float(chance.choice([36, 48, 100]) * HOUR_S)},
        {"cron": f"{at} * * {chance.choice(['MON-FRI/2', 'SUN', '*/3'])}"},
        {"rrule": f"FREQ=WEEKLY;BYDAY={chance.choice(['TU', 'WE,SU'])}"},
        {"at": iso(START_MS + chance.randint(1, 30 * 24 * 60) * 60_000)},
    ]
    return {
        **chance.choice(times),
        "zone": chance.choice(ZONES),
        "jitter_s": chance.choice([0.0, 0.0, 900.0]),
        "missed": chance.choice(["all", "last", "skip", "ask"]),
    }


def event(chance: random.Random, agent_id: str | None) -> dict[str, Any]:
    """An event with a reminder."""
    return {
        "starts_at": f"2026-01-{chance.randint(1, 20):02}T{chance.randint(3, 23):02}:{chance.randint(0, 59):02}",
        "zone": chance.choice(ZONES),
        "rrule": chance.choice(RULES),
        "reminder_minutes": chance.choice([0, 5, 90]),
        "missed": chance.choice(["all", "last", "skip"]),
        "agent_id": agent_id,
    }


async def month(count: int, kills: int, seed: int) -> Month:
    """Live through it, half of `count` being schedules; then check that all that was due happened once."""
    done, chance, clock = Month(), random.Random(seed), StoppedClock()
    async with in_memory() as database:
        await _fill(database, clock, chance, count)
        end_ms, newest_ms = START_MS + 30 * DAY_MS, START_MS
        while clock.now_ms() < end_ms or done.killed < kills:
            first = await database.read(outbox.first_due)  # all that a server knows of what is parked
            if first is not None and chance.random() < 0.5:
                jumps_ms = [max(0, unix_ms(first) - clock.now_ms())]
            else:
                jumps_ms = [chance.choice([1, 2, 5, -1]) * HOUR_MS for _ in range(chance.randint(1, 3))]
            if done.lives == 20:
                jumps_ms = [10 * DAY_MS]
            newest_ms = max(newest_ms, *accumulate(jumps_ms, initial=clock.now_ms()))
            kill_at = chance.randint(1, max(2, count // 30)) if done.killed < kills else 0
            survived, _ = await live(
                database, clock, kill_at=kill_at, seed=chance.getrandbits(30), jumps_ms=jumps_ms, limits=LIMITS
            )
            done.killed += not survived
            done.lives += 1
        await live(database, clock, kill_at=0, seed=1, jumps_ms=[newest_ms - clock.now_ms()], limits=LIMITS)
        await _check(database, clock.now_ms(), done)
    return done


async def _fill(database: Database, clock: StoppedClock, chance: random.Random, count: int) -> None:
    async with running(otherwise=speak, clock=clock, database=database, limits=LIMITS) as one:
        agents = [await one.agent(f"a{number}") for number in range(count // PER_AGENT + 1)]
        for number in range(count):
            agent = agents[number // PER_AGENT]
            if number % 2:
                await one.constellation.schedules.create(
                    name=f"s{number}", target=agent, message="Look around.", plan=plan(chance)
                )
            else:
                fields = event(chance, chance.choice([None, agent.id]))
                await one.constellation.calendar.create({"title": f"e{number}", **fields})


async def _check(database: Database, now_ms: int, done: Month) -> None:
    """Compare the decision about each occurrence, the turns and the events with what the rules say."""
    wanted: dict[tuple[object, int], tuple[int, str, bool]] = {}  # of which row, nominal → due, policy, has an agent
    for row, _ in await database.read(schedules.list_all):
        times = plan_of(row.plan)
        for nominal in takewhile(now_ms.__ge__, moments(times, START_MS)):
            if nominal + jitter_ms(row.id, times, nominal) <= now_ms:
                wanted[row.id, nominal] = nominal + jitter_ms(row.id, times, nominal), times.missed, True
    for each, _ in await database.read(calendars.list_all):
        lead_ms = (each.reminder_minutes or 0) * 60_000
        for nominal in takewhile((now_ms + lead_ms).__ge__, nominal_times(each, 0)):
            wanted[each.id, nominal] = nominal - lead_ms, each.missed, each.agent_id is not None
    found = await database.read(
        rows,
        "SELECT schedule_id AS ref, nominal_at, at AS decided_at, status, turn_id FROM schedule_occurrence UNION ALL"
        " SELECT event_id, nominal_at, reminded_at, reminder, turn_id FROM event_occurrences ORDER BY 1, 3, 2",
    )
    assert {(ref, unix_ms(str(at))) for ref, at, *_ in found} == wanted.keys(), "an occurrence is lost, or early"
    for (_ref, decided_at), several in groupby(found, key=lambda one: (one[0], one[2])):
        together = [(wanted[ref, unix_ms(str(at))], str(status)) for ref, at, _, status, _ in several]
        late_ms = [unix_ms(str(decided_at)) - due_ms for (due_ms, *_), _ in together]
        assert min(late_ms) >= 0, "early"
        statuses = [status for _, status in together]
        assert statuses == decisions(together[0][0][1], late_ms), f"{_ref} at {decided_at}"
        done.decided.update(statuses)
    fired = [one for one in found if one[3] == "fired"]
    assert all((turn_id is not None) == wanted[ref, unix_ms(str(at))][2] for ref, at, *_, turn_id in fired)
    announced = await database.read(
        rows,
        "SELECT coalesce(data ->> 'schedule_id', data ->> 'event_id'), data ->> 'nominal_at' FROM event"
        " WHERE name IN ('schedule.fired', 'calendar.reminder')",
    )
    assert sorted(announced) == sorted((ref, at) for ref, at, *_ in fired), "an event is lost or repeated"
    started = sorted(str(turn_id) for *_, turn_id in fired if turn_id is not None)
    assert sorted(await turn_ids(database)) == started, "a turn is lost or repeated"


def decisions(policy: str, late_ms: Sequence[int]) -> list[str]:
    """What the policy says about occurrences that are decided together, the first ones first."""
    found = ["missed"] * len(late_ms)
    on_time = late_ms[-1] <= LATE_MS
    if on_time or policy == "last":
        found[-1] = "fired"
    for place in range(len(late_ms) - on_time)[-10 if policy == "all" else -1 :]:
        found[place] = {"all": "fired", "ask": "asked"}.get(policy, found[place])
    return found


async def test_a_month_of_kills_and_clock_jumps() -> None:
    done = await month(160, 20, 1)
    assert done.killed == 20 and done.decided.total() > 800
    assert done.decided.keys() == {"fired", "missed", "asked"}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("count", 10_000), ("kills", 200), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    sys.stdout.write(f"{trio.run(month, given.count, given.kills, given.seed)}\n0 violations\n")
