"""Keeps one task per awake constellation: wakes it on first use, parks it when idle, restarts and quarantines it.

A failure in one constellation does not affect others. A crash is logged and the constellation restarted after 0.5 s, 1
s, 2 s …; at the fifth crash within a minute it is quarantined. A disk error quarantines it immediately, since nothing
may be accepted that cannot be stored; it is retried at the next use after 1 s, 2 s, 4 s … 60 s.

`_attempt` is one of the two places of the program that catch every exception (the other is the border of HTTP).
"""

from __future__ import annotations

import ctypes
import gc
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeVar

import trio

from pattern_core.errors import PatternError, Unavailable, leaves
from pattern_core.ids import Clock
from pattern_core.timers import LOOK_S
from pattern_db.columns import iso, unix_ms
from pattern_db.errors import DatabaseError, DiskFull, StorageFailed
from pattern_server.sections import SupervisorConfig

RESTART_BASE_S = 0.5
STORAGE_RETRY_MAX_S = 60.0
QUARANTINE_MAX_S = 900.0
ROOM_WAIT_S = 2.0  # how long a wake-up waits for a free place or for a pending restart
DRAIN_RETRY_S = BUSY_RETRY_S = 5.0
WAKES_AT_ONCE = 4  # constellations that are woken together: those that are due, or that resume turns after a start
GIVE_BACK_S = 30.0  # between two returns of memory to the system; longer, if one stops the loop for long:
GIVE_BACK_SHARE = 100  # the time between them is at least so many times the time that the last one lasted
UNPARKED_TIMES = 10  # so many times as long if no constellation was parked since then: there is little to return

_log = logging.getLogger("pattern.supervisor")
_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # if the C library is glibc
M_ARENA_MAX, ARENAS = -8, 2  # malloc.h; else each thread of a database has an arena, and little of it is given back


class Awake(Protocol):
    """What the supervisor needs of a running constellation."""

    @property
    def is_idle(self) -> bool:
        """Whether no turn runs or waits."""
        ...

    @property
    def pending_approvals(self) -> int:
        """How many questions wait for a person."""
        ...

    async def drain(self) -> None:
        """Stop accepting messages and let running steps reach their end."""
        ...


C = TypeVar("C", bound=Awake)
RunConstellation = Callable[[str, Callable[[C], None]], Awaitable[None]]
State = Literal["starting", "awake", "restarting", "parking"]


@dataclass(slots=True)
class _Slot(Generic[C]):
    """One constellation that is not parked."""

    id: str
    state: State = "starting"
    handle: C | None = None
    ready: trio.Event = field(default_factory=trio.Event)  # this attempt has started or failed
    ended: trio.Event = field(default_factory=trio.Event)  # the task is over
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    users: set[trio.CancelScope] = field(default_factory=set)
    last_used: float = 0.0
    restart_at: float = 0.0

    def started(self, value: C) -> None:
        self.handle = value
        self.state = "awake"
        self.ready.set()

    def is_parkable(self) -> bool:
        return self.state == "awake" and not self.users and self.handle is not None and self.handle.is_idle

    def park(self) -> None:
        self.state = "parking"
        self.scope.cancel()

    def fail(self, *, restart_at: float) -> None:
        """End this run: its users are cancelled, and the next run gets a new scope."""
        self.handle = None
        self.state = "restarting"
        self.restart_at = restart_at
        self.scope = trio.CancelScope()
        for user in self.users:
            user.cancel()
        self.ready.set()
        self.ready = trio.Event()


@dataclass(slots=True)
class _Sickness:
    """Recent failures of a constellation."""

    crashes: list[float] = field(default_factory=list)  # times within the window
    refusals: int = 0  # consecutive disk errors
    quarantines: int = 0
    until: float = 0.0  # not retried before
    reason: str = ""


class Supervisor(Generic[C]):
    """All awake constellations. Start `run` in the server's nursery; any task may call the other methods.

    `run_constellation(id, started)` opens the constellation, calls `started(constellation)` once it is recovered, runs
    it until cancelled and closes it. Its exception decides about restart or quarantine.
    """

    def __init__(self, run_constellation: RunConstellation[C], config: SupervisorConfig) -> None:
        self._run_constellation = run_constellation
        self._config = config
        self._slots: dict[str, _Slot[C]] = {}
        self._sick: dict[str, _Sickness] = {}
        self._aside: set[str] = set()
        self._asked: dict[str, int] = {}  # questions that waited for a person when their constellation was parked
        self._queued = 0
        self.failures = Counter[str]()  # crashes, and errors by their codes
        self._nursery: trio.Nursery | None = None
        self._draining = False

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Supervise until cancelled; then close all constellations."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await self._park_idle()

    @asynccontextmanager
    async def use(self, constellation_id: str) -> AsyncIterator[C]:
        """Yield the running constellation, woken if necessary and not parked within the block.

        Raises:
            Unavailable: it is quarantined, starting fails, too many are awake, the server is stopping, or it stopped
                within the block; `details["retry_after_s"]` says when to retry.
        """
        slot, handle = await self._awake(constellation_id)
        scope = trio.CancelScope()
        slot.users.add(scope)
        try:
            with scope:
                try:
                    yield handle
                except StorageFailed as error:
                    if not isinstance(error, DiskFull):  # nothing of it was stored, and all data can be read
                        self._storage_failed(slot, error)
                    raise
        finally:
            slot.users.discard(scope)
            slot.last_used = trio.current_time()
        if scope.cancelled_caught:
            self._refuse_sick(constellation_id)
            raise Unavailable(
                "the constellation stopped during this request; accepted work continues when it is running again",
                retry_after_s=DRAIN_RETRY_S if self._draining else RESTART_BASE_S,
            )

    @asynccontextmanager
    async def aside(self, constellation_id: str, *, if_idle: bool = False) -> AsyncIterator[None]:
        """Stop the constellation and keep it stopped within the block, so that its files can be moved or deleted.

        Raises:
            Unavailable: it must be idle, and it is not.
        """
        slot = self._slots.get(constellation_id)
        is_free = constellation_id not in self._aside and (slot is None or slot.is_parkable())
        if if_idle and not is_free:
            raise Unavailable("the constellation is busy; try again when it is idle", retry_after_s=BUSY_RETRY_S)
        self._aside.add(constellation_id)
        try:
            if slot is not None:
                slot.park()
                await slot.ended.wait()
            yield
        finally:
            self._aside.discard(constellation_id)
        self._sick.pop(constellation_id, None)
        self._asked.pop(constellation_id, None)

    async def drain(self) -> None:
        """Refuse new work, let each constellation finish its steps within `drain_s`, then stop them all."""
        self._draining = True
        async with trio.open_nursery() as nursery:
            for slot in list(self._slots.values()):
                nursery.start_soon(self._drain_one, slot)

    def handles(self) -> list[C]:
        """Return the running constellations."""
        return [slot.handle for slot in self._slots.values() if slot.handle is not None]

    def pending_approvals(self) -> int:
        """Return how many questions wait for a person, in all constellations that were awake since the start."""
        now = {slot.id: slot.handle.pending_approvals for slot in self._slots.values() if slot.handle is not None}
        return sum((self._asked | now).values())

    def states(self) -> dict[str, int]:
        """Return how many constellations are in each state; parked ones are in none. Those that are `queued` wait for
        a place.
        """
        found = dict.fromkeys(("queued", "starting", "busy", "idle", "restarting", "parking"), 0)
        for slot in self._slots.values():
            found[slot.state if slot.state != "awake" else "idle" if slot.is_parkable() else "busy"] += 1
        return found | {"queued": self._queued, "quarantined": len(self.quarantined())}

    def state_of(self, constellation_id: str) -> tuple[str, str | None]:
        """Return its state: parked, starting, awake, restarting, parking or quarantined (with the reason)."""
        if constellation_id in self.quarantined():
            return "quarantined", self._sick[constellation_id].reason
        slot = self._slots.get(constellation_id)
        return "parked" if slot is None else slot.state, None

    def quarantined(self) -> list[str]:
        """Return the ids of the quarantined constellations; `state_of` has the reasons."""
        now = trio.current_time()
        return [constellation_id for constellation_id, sickness in self._sick.items() if sickness.until > now]

    async def _awake(self, constellation_id: str) -> tuple[_Slot[C], C]:
        while True:
            if self._draining:
                raise Unavailable("the server is stopping; try again after its restart", retry_after_s=DRAIN_RETRY_S)
            if constellation_id in self._aside:
                raise Unavailable(
                    "the constellation's files are being changed or deleted; try again later", retry_after_s=1.0
                )
            if constellation_id in self._sick:
                self._refuse_sick(constellation_id)
            slot = self._slots.get(constellation_id)
            if slot is None:
                await self._make_room()
                if constellation_id in self._slots or constellation_id in self._aside or self._draining:
                    continue
                slot = self._start(constellation_id)
            if slot.state == "parking":
                await slot.ended.wait()
                continue
            if slot.state == "restarting" and slot.restart_at - trio.current_time() > ROOM_WAIT_S:
                raise Unavailable(
                    "the constellation crashed and is being restarted; try again soon",
                    retry_after_s=slot.restart_at - trio.current_time(),
                )
            await slot.ready.wait()
            if slot.state == "awake" and slot.handle is not None:
                return slot, slot.handle

    def _refuse_sick(self, constellation_id: str) -> None:
        sickness = self._sick.get(constellation_id)
        left = sickness.until - trio.current_time() if sickness else 0.0
        if sickness is not None and left > 0:
            raise Unavailable(
                f"the constellation is quarantined: {sickness.reason}", retry_after_s=left, reason=sickness.reason
            )

    async def _make_room(self) -> None:
        """Park the idle constellation that was used longest ago, if too many are awake."""
        self._queued += 1
        try:
            with trio.move_on_after(ROOM_WAIT_S):
                while len(self._slots) >= self._config.max_open:
                    parkable = [slot for slot in self._slots.values() if slot.is_parkable()]
                    if parkable:
                        oldest = min(parkable, key=lambda slot: slot.last_used)
                        oldest.park()
                        await oldest.ended.wait()
                    else:
                        await trio.sleep(0.05)
                return
        finally:
            self._queued -= 1
        raise Unavailable(
            f"{self._config.max_open} constellations are awake and busy; try again soon", retry_after_s=ROOM_WAIT_S
        )

    def _start(self, constellation_id: str) -> _Slot[C]:
        if self._nursery is None:
            raise AssertionError("Supervisor.run must run before a constellation is used")
        slot = _Slot[C](constellation_id, last_used=trio.current_time())
        self._slots[constellation_id] = slot
        self._nursery.start_soon(self._keep, slot)
        return slot

    async def _keep(self, slot: _Slot[C]) -> None:
        """Run one constellation until it is parked, the server stops, or it is quarantined."""
        try:
            while await self._attempt(slot):
                slot.fail(restart_at=trio.current_time() + RESTART_BASE_S * 2 ** (len(self._sick[slot.id].crashes) - 1))
                with slot.scope:
                    await trio.sleep_until(slot.restart_at)
                if slot.scope.cancelled_caught:
                    break
                slot.state = "starting"
        finally:
            if slot.handle is not None:
                self._asked[slot.id] = slot.handle.pending_approvals
            del self._slots[slot.id]
            slot.fail(restart_at=math.inf)
            slot.state = "parking"
            slot.ended.set()

    async def _attempt(self, slot: _Slot[C]) -> bool:
        """Return one life of the constellation; True if it is to be started again."""
        failures: list[BaseException] = []
        slot.scope = trio.CancelScope()
        with slot.scope:
            try:
                await self._run_constellation(slot.id, slot.started)
            except* Exception as group:  # noqa: BLE001  # the border of one constellation: nothing of it may reach others
                failures.extend(leaves(group))
        if slot.scope.cancelled_caught and not failures:
            return False
        return self._fell_ill(slot, failures)

    def _fell_ill(self, slot: _Slot[C], failures: list[BaseException]) -> bool:
        """Record a crash; return True if the constellation should be restarted automatically."""
        now = trio.current_time()
        sickness = self._sick.setdefault(slot.id, _Sickness())
        if sickness.until and now - sickness.until > self._config.crash_window_s:
            sickness = self._sick[slot.id] = _Sickness()
        refusal = next((error for error in failures if isinstance(error, DatabaseError | PatternError)), None)
        if refusal is not None:
            if slot.state == "parking" and sickness.until > now:
                return False  # a caller saw the same error first
            self._refused(slot.id, sickness, refusal)
            return False
        first = failures[0] if failures else RuntimeError("the constellation's task ended unexpectedly")
        self.failures["crash"] += 1
        sickness.crashes = [at for at in sickness.crashes if now - at < self._config.crash_window_s] + [now]
        _log.error(
            "constellation crashed",
            {"constellation": slot.id, "crashes": len(sickness.crashes), "error": repr(first)},
            exc_info=first,
        )
        if len(sickness.crashes) < self._config.crashes_max and not sickness.quarantines:
            return slot.state != "parking"
        sickness.quarantines += 1
        sickness.crashes.clear()
        seconds = min(QUARANTINE_MAX_S, self._config.crash_window_s * 2 ** (sickness.quarantines - 1))
        _quarantine(
            slot.id, sickness, seconds, f"it crashed again and again ({type(first).__name__}); see the server's log"
        )
        return False

    def _storage_failed(self, slot: _Slot[C], error: StorageFailed) -> None:
        """Record a file error that a caller saw before the constellation's own tasks."""
        if slot.state == "awake":
            self._refused(slot.id, self._sick.setdefault(slot.id, _Sickness()), error)
            slot.park()

    def _refused(self, constellation_id: str, sickness: _Sickness, error: DatabaseError | PatternError) -> None:
        self.failures[error.code] += 1
        sickness.refusals += 1
        seconds = min(STORAGE_RETRY_MAX_S, 2.0 ** (sickness.refusals - 1))
        _quarantine(constellation_id, sickness, seconds, error.message)

    async def _drain_one(self, slot: _Slot[C]) -> None:
        if slot.handle is not None:
            # A crash while draining ends the constellation's own task, which reports it; here it only ends the wait.
            with trio.move_on_after(self._config.drain_s) as scope:
                slot.users.add(scope)
                try:
                    await slot.handle.drain()
                except DatabaseError as error:
                    _log.warning(
                        "constellation could not be drained", {"constellation": slot.id, "reason": error.message}
                    )
                finally:
                    slot.users.discard(scope)
        slot.park()
        await slot.ended.wait()

    async def _park_idle(self) -> None:
        if _malloc_trim is not None:
            ctypes.CDLL(None).mallopt(M_ARENA_MAX, ARENAS)
        interval = min(30.0, max(0.05, self._config.idle_park_s / 4))
        given_at, pause_s, has_parked = trio.current_time(), GIVE_BACK_S, False
        while True:
            await trio.sleep(interval)
            now = trio.current_time()
            for slot in list(self._slots.values()):
                if not slot.is_parkable():
                    slot.last_used = now  # by its users or by its own turns
                elif now - slot.last_used >= self._config.idle_park_s:
                    slot.park()
                    has_parked = True
            if now >= given_at + pause_s * (1 if has_parked else UNPARKED_TIMES):
                pause_s = max(GIVE_BACK_S, await _give_memory_back() * GIVE_BACK_SHARE)
                given_at, has_parked = now, False


async def _give_memory_back() -> float:
    """Free the memory of ended turns and parked constellations, and return it to the system. Return how many seconds of
    computing that cost the loop: some 15 ms, and half a second where a thousand constellations are awake.

    Their objects refer to one another, so only a collection frees them; and glibc keeps freed memory unless it is
    trimmed: 105 instead of 182 MiB after 40 constellations were woken and parked eight times.
    """
    began = time.thread_time()
    gc.collect()
    lasted_s = time.thread_time() - began
    if _malloc_trim is not None:
        await trio.to_thread.run_sync(_malloc_trim, 0)
    return lasted_s


class Wakeups:
    """When parked constellations have something to do. One task sleeps until the first of these moments."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due: dict[str, int] = {}  # id → unix milliseconds
        self._changed = trio.Event()

    @property
    def dues(self) -> Collection[int]:
        """When they are due, unix ms."""
        return self._due.values()

    def set(self, constellation_id: str, due_at: str | None) -> None:
        """Note when it has something to do; None for never."""
        if due_at is None:
            self._due.pop(constellation_id, None)
        else:
            self._due[constellation_id] = unix_ms(due_at)
            self._changed.set()

    async def run(self, wake: Callable[[str], Awaitable[float | None]]) -> None:
        """Call `wake` for each constellation that is due, until cancelled; where it returns a number of seconds, again
        after these.
        """
        async with trio.open_nursery() as nursery:
            limiter = trio.CapacityLimiter(WAKES_AT_ONCE)

            async def one(constellation_id: str) -> None:
                async with limiter:
                    again_s = await wake(constellation_id)
                if again_s is not None:
                    self.set(constellation_id, iso(self._clock.now_ms() + round(again_s * 1000)))

            while True:
                self._changed, now_ms = trio.Event(), self._clock.now_ms()
                for constellation_id in [name for name, due_ms in self._due.items() if due_ms <= now_ms]:
                    del self._due[constellation_id]
                    nursery.start_soon(one, constellation_id)
                left_s = (min(self._due.values()) - now_ms) / 1000 if self._due else math.inf
                # The wall clock may be set and the machine may sleep, so it is compared again every `LOOK_S`.
                with trio.move_on_after(min(left_s, LOOK_S) if self._due else math.inf):
                    await self._changed.wait()


def _quarantine(constellation_id: str, sickness: _Sickness, seconds: float, reason: str) -> None:
    sickness.until = trio.current_time() + seconds
    sickness.reason = reason
    _log.error("constellation quarantined", {"constellation": constellation_id, "reason": reason, "seconds": seconds})
