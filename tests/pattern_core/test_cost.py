"""What a turn costs, counted: the same on every machine and under any load. `make bench` measures times.

The turn has two steps: a message, the decision to call a local tool, its result, the answer. Nothing is streamed:
deltas have commits of their own. The conversation is within its window.
"""

from __future__ import annotations

import gc
import statistics
import sys
from collections import Counter
from collections.abc import Callable
from itertools import cycle
from types import FrameType
from typing import Any

import apsw
import pytest
import trio

from pattern_core.agents import Agent
from pattern_core.turns import actor
from pattern_db.connection import PAGE_BYTES, Connection
from pattern_db.database import DatabaseThreads
from tests.bench.world import World, words, world

# Per turn. Lower a bound when the count falls; raise one only for what was asked for, and say so in the commit.
MOST: dict[str, float] = {
    "commits": 3,
    "thread hops": 3,
    "statements": 35,  # ours, without those of full-text search
    "WAL frames": 60,
    # Of functions in Python and built in, resumed coroutines included: 1,775, and up to 15 of trio's on a busy machine.
    "calls": 1_800,
}
# The same for a message to a group that one agent answers: 2,325, and up to 50 of trio's on a busy machine.
MOST_IN_GROUP: dict[str, float] = {"commits": 3, "thread hops": 3, "statements": 50, "WAL frames": 75, "calls": 2_380}
TEXT = words(400, 2)
WARM = 20  # turns before the first that counts: statements are prepared, caches filled
BATCHES = 3
TURNS = 40
GARBAGE_MAX = 5  # objects that only a garbage collection frees; it was 62
WAL_HEADER_BYTES, FRAME_HEADER_BYTES = 32, 24


class CountingThreads(DatabaseThreads):
    """The threads of a file, and how often a task waited for them: every request of a file passes its lane."""

    hops = 0

    def lane(self, connection: Connection, reopen: Callable[[], Connection], *, reader: bool = False) -> Any:
        lane = super().lane(connection, reopen, reader=reader)
        submit = lane.submit

        async def counted(request: Any) -> Any:
            self.hops += 1
            return await submit(request)

        lane.submit = counted  # type: ignore[method-assign]  # works as before, and counts
        return lane


@pytest.mark.parametrize(("agents", "has_group"), [(1, False), (3, False), (1, True)])
async def test_what_a_two_step_turn_asks_of_the_disk(agents: int, has_group: bool) -> None:
    turns: list[Counter[str]] = [Counter()]  # the statements of each
    hops: list[int] = []

    def begin(connection: Connection) -> None:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        connection.execute("PRAGMA wal_autocheckpoint = 0").fetchall()  # the log keeps every frame
        connection.exec_trace = trace

    def trace(_cursor: object, sql: str, _values: object) -> bool:
        turns[-1][sql] += 1
        return True

    threads = CountingThreads()
    async with world(steps=2, agents=agents, threads=threads, has_group=has_group) as bench:
        taking_turns = cycle(bench.agents)
        for _ in range(WARM * agents):
            await take_turn(bench, next(taking_turns), has_group=has_group)
        await bench.constellation.database.run_alone(begin)
        for _ in range(TURNS):
            turns.append(Counter())
            before = threads.hops
            await take_turn(bench, next(taking_turns), has_group=has_group)
            hops.append(threads.hops - before)
        log_bytes = bench.path.with_name(f"{bench.path.name}-wal").stat().st_size

    frames = (log_bytes - WAL_HEADER_BYTES) / (FRAME_HEADER_BYTES + PAGE_BYTES)
    # Medians: background work falls into some turn. Frames are a mean: full-text search merges now and then.
    counted = {
        "commits": statistics.median(turn["COMMIT"] for turn in turns[1:]),
        "thread hops": statistics.median(hops),
        "statements": statistics.median(turn.total() for turn in turns[1:]),
        "WAL frames": frames / TURNS,
    }
    listing = "\n".join(f"{count:4} {sql}" for sql, count in turns[-1].most_common())
    assert 1 <= counted["commits"] < counted["statements"], counted
    assert counted["commits"] < counted["WAL frames"], counted
    if agents > 1:  # their rows stand on more pages
        counted["WAL frames"] -= 3
    excess = over(counted, MOST_IN_GROUP if has_group else MOST)
    assert not excess, f"a turn costs more than it may: {excess}\nthe last turn's statements:\n{listing}"


async def test_a_turn_compiles_no_statement() -> None:
    compiled: list[tuple[object, ...]] = []

    def allow(*what: object) -> int:  # SQLite asks while it compiles
        compiled.append(what)
        return apsw.SQLITE_OK

    def begin(connection: Connection) -> None:
        connection.authorizer = allow

    async with world(steps=2) as bench:
        await bench.constellation.database.run_alone(begin)
        for _ in range(WARM):
            await bench.turn(bench.agents[0], TEXT)
        assert compiled
        compiled.clear()
        await bench.turn(bench.agents[0], TEXT)
    assert not compiled, compiled[:20]


@pytest.mark.parametrize("has_group", [False, True])
async def test_what_a_turn_used_is_freed_at_once(has_group: bool) -> None:
    """It is not left to a garbage collection, for which the whole server waits: prompts are large."""
    async with world(steps=2, has_group=has_group) as bench:
        for _ in range(WARM):
            await take_turn(bench, bench.agents[0], has_group=has_group)
        gc.collect()
        gc.disable()
        try:
            for _ in range(TURNS):
                await take_turn(bench, bench.agents[0], has_group=has_group)
            left = gc.collect()
        finally:
            gc.enable()
    assert left / TURNS < GARBAGE_MAX


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="other versions of Python count calls differently")
@pytest.mark.parametrize("has_group", [False, True])
async def test_what_a_two_step_turn_calls(monkeypatch: pytest.MonkeyPatch, has_group: bool) -> None:
    monkeypatch.setattr(actor, "LATE_S", 3600)  # looks come by time, so a slow machine would count more per turn
    # With Hypothesis, pytest-trio has trio sort its tasks: some 25 calls a turn that a server does not make.
    monkeypatch.setattr(trio._core._run, "_ALLOW_DETERMINISTIC_SCHEDULING", False)
    batches: list[Counter[str]] = []

    def count(frame: FrameType, event: str, function: Any) -> None:
        if event == "call":
            batches[-1][f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}"] += 1
        elif event == "c_call":
            batches[-1][function.__qualname__] += 1

    async with world(steps=2, on_disk=False, has_group=has_group) as bench:  # in memory all work is done in this thread
        for _ in range(WARM):
            await take_turn(bench, bench.agents[0], has_group=has_group)
        for _ in range(BATCHES):
            batches.append(Counter())
            sys.setprofile(count)
            try:
                for _ in range(TURNS):
                    await take_turn(bench, bench.agents[0], has_group=has_group)
            finally:
                sys.setprofile(None)

    # A mean over a batch: now and then trio runs the end of a turn after the beginning of the next. Of the batches the
    # least: on a busy machine trio looks at its deadlines more often.
    calls = min(batches, key=Counter.total)
    counted = {"calls": calls.total() / TURNS}
    listing = "\n".join(f"{count / TURNS:6.1f} {name}" for name, count in calls.most_common(40))
    excess = over(counted, MOST_IN_GROUP if has_group else MOST)
    assert not excess, f"a turn calls more than it may: {excess}\nper turn, most frequent:\n{listing}"


async def take_turn(bench: World, agent: Agent, *, has_group: bool) -> None:
    if has_group:
        await bench.group_turn(TEXT)
    else:
        await bench.turn(agent, TEXT)


def over(counted: dict[str, float], most: dict[str, float]) -> dict[str, str]:
    return {name: f"{count:.1f} > {most[name]}" for name, count in counted.items() if count > most[name]}
