"""Waking, parking, crashing, quarantine and drain, with a stand-in constellation and leaping time."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from pattern_core.errors import Unavailable
from pattern_core.testing import StoppedClock
from pattern_db.columns import iso
from pattern_db.errors import DiskFull, IOFailed, SchemaOutdated
from pattern_server.sections import SupervisorConfig
from pattern_server.supervisor import Supervisor, Wakeups


class Sleeper:
    """A constellation that does nothing, until it is told to crash."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_idle = True
        self.pending_approvals = 0
        self.crash: Exception | None = None
        self.crashing = trio.Event()
        self.drained = False
        self.drain_s = 0.0

    def fail(self, error: Exception) -> None:
        self.crash = error
        self.crashing.set()

    async def drain(self) -> None:
        await trio.sleep(self.drain_s)
        self.drained = True


class World:
    """What the supervisor runs, with counts of lives and a script of failures at start."""

    def __init__(self) -> None:
        self.lives: Counter[str] = Counter()
        self.running: Counter[str] = Counter()
        self.last: dict[str, Sleeper] = {}
        self.at_start: Callable[[str], None] = lambda name: None
        self.start_s = 0.01

    async def run(self, name: str, started: Callable[[Sleeper], None]) -> None:
        self.lives[name] += 1
        self.running[name] += 1
        assert self.running[name] == 1, "two lives at once"
        try:
            async with trio.open_nursery() as nursery:
                await trio.sleep(self.start_s)
                self.at_start(name)
                sleeper = self.last[name] = Sleeper(name)
                started(sleeper)
                nursery.start_soon(trio.sleep_forever)
                await sleeper.crashing.wait()
                if sleeper.crash is not None:
                    raise sleeper.crash
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(0.01)  # closing takes a moment
            self.running[name] -= 1


@asynccontextmanager
async def supervised(**settings: float) -> AsyncIterator[tuple[World, Supervisor[Sleeper]]]:
    world = World()
    supervisor = Supervisor(world.run, SupervisorConfig.model_validate({"max_open": 100, **settings}))
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        yield world, supervisor
        nursery.cancel_scope.cancel()


async def touch(supervisor: Supervisor[Sleeper], name: str) -> Sleeper:
    async with supervisor.use(name) as sleeper:
        return sleeper


async def test_first_users_share_one_start(autojump_clock: trio.testing.MockClock) -> None:
    async with supervised() as (world, supervisor):
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(touch, supervisor, "a")
        assert world.lives["a"] == 1
        assert len(supervisor.handles()) == 1
    assert world.running["a"] == 0


async def test_an_impatient_first_user_does_not_stop_the_start(autojump_clock: trio.testing.MockClock) -> None:
    async with supervised() as (world, supervisor):
        with trio.move_on_after(0.005):
            await touch(supervisor, "a")
        await touch(supervisor, "a")
        assert world.lives["a"] == 1


async def test_idle_ones_are_parked_and_woken_again(autojump_clock: trio.testing.MockClock) -> None:
    async with supervised(idle_park_s=10) as (world, supervisor):
        assert supervisor.state_of("a") == ("parked", None)
        await touch(supervisor, "a")
        assert supervisor.state_of("a") == ("awake", None)
        await trio.sleep(9)
        assert len(supervisor.handles()) == 1
        await trio.sleep(6)
        assert len(supervisor.handles()) == 0
        assert world.running["a"] == 0
        await touch(supervisor, "a")
        assert world.lives["a"] == 2


async def test_what_parked_ones_leave_behind_is_freed(autojump_clock: trio.testing.MockClock) -> None:
    class Left:
        """An object that refers to itself, so that only a collection frees it."""

        def __init__(self) -> None:
            self.itself = self

    left: list[weakref.ref[Left]] = []
    gc.disable()  # that which comes by itself, sooner or later
    try:
        async with supervised(idle_park_s=10) as (world, supervisor):
            world.at_start = lambda _name: left.append(weakref.ref(Left()))
            await touch(supervisor, "a")
            assert left[0]() is not None
            await trio.sleep(60)
            assert len(supervisor.handles()) == 0
            assert left[0]() is None
    finally:
        gc.enable()


async def test_used_or_busy_ones_are_not_parked(autojump_clock: trio.testing.MockClock) -> None:
    async with supervised(idle_park_s=10) as (_world, supervisor), supervisor.use("used"):
        (await touch(supervisor, "busy")).is_idle = False
        await trio.sleep(100)
        assert len(supervisor.handles()) == 2


async def test_states_and_questions_of_all_that_were_awake(autojump_clock: trio.testing.MockClock) -> None:
    async with supervised(idle_park_s=10, max_open=2) as (_world, supervisor):
        (await touch(supervisor, "busy")).is_idle = False
        (await touch(supervisor, "asks")).pending_approvals = 3
        (await touch(supervisor, "busy")).pending_approvals = 1
        states = supervisor.states()
        assert states.pop("busy") == states.pop("idle") == 1
        assert states == dict.fromkeys(("queued", "starting", "restarting", "parking", "quarantined"), 0)
        assert supervisor.pending_approvals() == 4
        await trio.sleep(20)
        assert supervisor.states()["idle"] == 0, "one is parked"
        assert supervisor.pending_approvals() == 4
        async with supervisor.use("other"), trio.open_nursery() as nursery:
            nursery.start_soon(touch, supervisor, "asks")
            await trio.sleep(0.1)
            assert supervisor.states()["queued"] == 1, "two others are in use"
            nursery.cancel_scope.cancel()
        assert supervisor.states()["queued"] == 0
        async with supervisor.aside("asks"):
            pass
        assert supervisor.pending_approvals() == 1, "its files may be others now"


async def test_a_crash_restarts_one_and_leaves_others_alone(autojump_clock: trio.testing.MockClock) -> None:
    async with supervised() as (world, supervisor):
        (await touch(supervisor, "a")).fail(ValueError("a bug"))
        other = await touch(supervisor, "b")
        await trio.sleep(1)
        assert world.lives["a"] == 2
        assert (await touch(supervisor, "b")) is other
        assert world.lives["b"] == 1


async def test_users_during_a_crash_get_an_error(autojump_clock: trio.testing.MockClock) -> None:
    async with supervised() as (_world, supervisor):
        with pytest.raises(Unavailable, match="stopped") as caught:
            async with supervisor.use("a") as sleeper:
                sleeper.fail(ValueError("a bug"))
                await trio.sleep_forever()
        assert caught.value.details["retry_after_s"] == 0.5
        await touch(supervisor, "a")


async def test_an_error_before_a_late_restart_has_its_time(autojump_clock: trio.testing.MockClock) -> None:
    async with supervised() as (_world, supervisor):
        for _ in range(4):
            (await _when_awake(supervisor, "a")).fail(ValueError("a bug"))
            await trio.sleep(0.1)
        assert supervisor.state_of("a") == ("restarting", None)
        with pytest.raises(Unavailable, match="is being restarted") as caught:
            await touch(supervisor, "a")
        left_s = float(str(caught.value.details["retry_after_s"]))
        assert 3 < left_s < 4  # 0.5, 1, 2 and then 4 s, of which 0.1 have passed
        await trio.sleep(left_s)
        assert (await touch(supervisor, "a")).name == "a"


async def test_the_fifth_crash_within_a_minute_quarantines(autojump_clock: trio.testing.MockClock) -> None:
    async with supervised() as (world, supervisor):
        for _ in range(5):
            (await _when_awake(supervisor, "a")).fail(ValueError("secret words"))
            await trio.sleep(0.1)
        assert world.lives["a"] == 5
        with pytest.raises(Unavailable, match=r"quarantined.*ValueError") as caught:
            await touch(supervisor, "a")
        assert "secret words" not in str(caught.value)
        assert 0 < float(str(caught.value.details["retry_after_s"])) <= 60
        assert supervisor.quarantined() == ["a"]
        assert supervisor.failures == {"crash": 5}
        assert supervisor.state_of("a")[0] == "quarantined"
        await touch(supervisor, "b")
        await trio.sleep(61)
        (await touch(supervisor, "a")).fail(ValueError("still"))
        await trio.sleep(0.1)
        with pytest.raises(Unavailable, match="quarantined"):  # one crash is enough after a quarantine
            await touch(supervisor, "a")


async def test_rare_crashes_do_not_quarantine(autojump_clock: trio.testing.MockClock) -> None:
    async with supervised(idle_park_s=10_000) as (world, supervisor):
        for _ in range(8):
            (await _when_awake(supervisor, "a")).fail(ValueError("a bug"))
            await trio.sleep(30)
        await touch(supervisor, "a")
        assert world.lives["a"] == 9


async def test_storage_trouble_quarantines_at_once_and_backs_off(autojump_clock: trio.testing.MockClock) -> None:
    async with supervised() as (world, supervisor):
        waits = []
        for _ in range(8):
            (await touch(supervisor, "a")).fail(DiskFull("no space is left"))
            await trio.sleep(0.05)
            with pytest.raises(Unavailable, match="no space is left") as caught:
                await touch(supervisor, "a")
            waits.append(float(str(caught.value.details["retry_after_s"])))
            await trio.sleep(waits[-1] + 0.01)
        assert [round(wait + 0.05) for wait in waits] == [1, 2, 4, 8, 16, 32, 60, 60]
        assert world.lives["a"] == 8  # only uses wake it


async def test_storage_trouble_met_by_a_user_quarantines_too(autojump_clock: trio.testing.MockClock) -> None:
    async with supervised() as (world, supervisor):
        with pytest.raises(IOFailed):
            async with supervisor.use("a"):
                raise IOFailed("the disk is broken")
        with pytest.raises(Unavailable, match="the disk is broken"):
            await touch(supervisor, "a")
        await trio.sleep(1.1)
        await touch(supervisor, "a")
        assert world.lives["a"] == 2


async def test_a_full_disk_met_by_a_user_leaves_the_constellation_awake() -> None:
    async with supervised() as (world, supervisor):
        with pytest.raises(DiskFull):
            async with supervisor.use("a"):
                raise DiskFull("no space is left")
        await touch(supervisor, "a")
        assert (supervisor.quarantined(), world.lives["a"]) == ([], 1)


async def test_an_outdated_schema_is_refused_with_its_own_words(autojump_clock: trio.testing.MockClock) -> None:
    def refuse(name: str) -> None:
        if name == "old":
            raise SchemaOutdated("run `pattern db migrate`")

    async with supervised() as (world, supervisor):
        world.at_start = refuse
        with pytest.raises(Unavailable, match="pattern db migrate"):
            await touch(supervisor, "old")
        await touch(supervisor, "new")


async def test_a_crash_at_start_is_tried_again(autojump_clock: trio.testing.MockClock) -> None:
    async with supervised() as (world, supervisor):

        def once(name: str) -> None:
            if world.lives[name] == 1:
                raise ValueError("first")

        world.at_start = once
        await touch(supervisor, "a")
        assert world.lives["a"] == 2


async def test_a_task_that_ends_by_itself_counts_as_a_crash(autojump_clock: trio.testing.MockClock) -> None:
    async with supervised() as (_world, supervisor):
        first = await touch(supervisor, "a")
        first.crashing.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 0)
        await trio.sleep(1)
        assert (await touch(supervisor, "a")) is not first


async def test_the_longest_unused_one_makes_room(autojump_clock: trio.testing.MockClock) -> None:
    async with supervised(max_open=2) as (world, supervisor):
        for name in ("a", "b", "a", "c"):
            await touch(supervisor, name)
            await trio.sleep(0.1)
        assert len(supervisor.handles()) == 2
        assert world.running == Counter({"a": 1, "c": 1, "b": 0})


async def test_no_room_among_busy_ones_is_said(autojump_clock: trio.testing.MockClock) -> None:
    async with supervised(max_open=1) as (_world, supervisor):
        async with supervisor.use("a"):
            with pytest.raises(Unavailable, match="awake and busy"):
                await touch(supervisor, "b")
        await touch(supervisor, "b")


async def test_drain_lets_work_end_within_its_time(autojump_clock: trio.testing.MockClock) -> None:
    async with supervised(drain_s=5) as (_world, supervisor):
        quick, slow = await touch(supervisor, "quick"), await touch(supervisor, "slow")
        quick.drain_s, slow.drain_s = 1, 100
        before = trio.current_time()
        await supervisor.drain()
        assert trio.current_time() - before < 6
        assert (quick.drained, slow.drained) == (True, False)
        assert len(supervisor.handles()) == 0
        with pytest.raises(Unavailable, match="stopping"):
            await touch(supervisor, "quick")


async def test_users_get_an_error_when_the_drain_ends(autojump_clock: trio.testing.MockClock) -> None:
    async with supervised(drain_s=1) as (_world, supervisor):
        told = []

        async def wait() -> None:
            try:
                async with supervisor.use("a"):
                    await trio.sleep_forever()
            except Unavailable as error:
                told.append(error.message)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(0.1)
            await supervisor.drain()
        assert len(told) == 1


async def test_aside_stops_and_keeps_stopped(autojump_clock: trio.testing.MockClock) -> None:
    async with supervised() as (world, supervisor):
        await touch(supervisor, "a")
        async with supervisor.aside("a"):
            assert world.running["a"] == 0
            with pytest.raises(Unavailable, match="files"):
                await touch(supervisor, "a")
        await touch(supervisor, "a")


async def _when_awake(supervisor: Supervisor[Sleeper], name: str) -> Sleeper:
    while True:
        try:
            return await touch(supervisor, name)
        except Unavailable:
            await trio.sleep(0.5)


async def test_what_is_due_is_woken_once_and_again_where_that_failed(autojump_clock: trio.testing.MockClock) -> None:
    clock = StoppedClock()
    wakeups, woken = Wakeups(clock), list[tuple[str, float]]()
    refused = Counter({"busy": 2})

    async def wake(name: str) -> float | None:
        woken.append((name, trio.current_time()))
        refused[name] -= 1
        return 5.0 if refused[name] >= 0 else None

    def due_in(seconds: int) -> str:
        return iso(clock.now_ms() + seconds * 1000)

    async def pass_time(seconds: int) -> None:
        clock.advance(seconds * 1000)
        await trio.sleep(seconds)
        await trio.testing.wait_all_tasks_blocked()

    async with trio.open_nursery() as nursery:
        wakeups.set("late", due_in(-60))
        wakeups.set("gone", due_in(10))
        nursery.start_soon(wakeups.run, wake)
        await pass_time(1)
        assert [name for name, _ in woken] == ["late"]
        wakeups.set("gone", None)
        wakeups.set("busy", due_in(20))
        wakeups.set("moved", due_in(100))
        wakeups.set("moved", due_in(33))
        for _ in range(40):
            await pass_time(1)
        assert [name for name, _ in woken] == ["late", "busy", "busy", "busy", "moved"]
        clock.advance(86_400_000)  # the laptop slept
        wakeups.set("far", due_in(-1))
        await pass_time(1)
        assert [name for name, _ in woken][-1] == "far"
        nursery.cancel_scope.cancel()
