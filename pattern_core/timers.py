"""The timers of a constellation: one task sleeps until the next one is due, and nothing polls.

A timer that fires and what it does are one transaction, so it happens once, whenever the process dies. Times are wall
times. A clock that is set and a laptop that slept are noticed when the clock is compared again, at the latest after
`LOOK_S`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import trio

from pattern_core.ids import Clock
from pattern_core.unit_of_work import Storage, UnitOfWork
from pattern_db.columns import unix_ms
from pattern_db.errors import RowConflict
from pattern_db.journal import approvals
from pattern_db.tables import timers
from pattern_db.tables.timers import TimerRow

LOOK_S = 30.0  # how long to sleep before comparing with the wall clock again: no file is read for that
CONFLICT_S = 0.1  # how long to wait where another writer was first
FIRED_AT_ONCE = 100  # timers that are read together

Fire: TypeAlias = Callable[[TimerRow, UnitOfWork], Awaitable[None]]
"""Adds to a unit of work what a timer that is due does; the timer itself is removed in the same transaction."""


class Timers:
    """Fires what is due. Every kind of timer has a function that says what it does, added by `on_due`."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._fires: dict[str, Fire] = {}
        self._changed = trio.Event()
        self.next_ms: int | None = None  # when the next one is due, unix ms; None if there is none
        self.approvals = 0  # timers that end questions to people: how many of these are open

    def on_due(self, kind: str, fire: Fire) -> None:
        """Have `fire` say what timers of this kind do."""
        self._fires[kind] = fire

    def changed(self) -> None:
        """Look for the next timer: one was set or moved by a transaction that is committed."""
        self._changed.set()

    async def run(self) -> None:
        """Fire timers when they are due, until cancelled.

        Raises:
            StorageFailed: the disk failed.
        """
        while True:
            self._changed = trio.Event()
            if await self.fire_due():
                continue
            first, self.approvals = await self._storage.database.read(timers.outlook, approvals.TIMER)
            self.next_ms = None if first is None else unix_ms(first)
            await sleep_until(first, self._storage.clock, self._changed)

    async def fire_due(self) -> int:
        """Fire the timers that are due now, the first ones first; return how many there were."""
        storage = self._storage
        found = await storage.database.read(timers.due, storage.now(), FIRED_AT_ONCE)
        for timer in found:
            work = UnitOfWork()
            work.store(timers.take, timer)
            if fire := self._fires.get(timer.kind):
                await fire(timer, work)
            try:
                await storage.commit(work)
            except RowConflict:  # what it is about changed in this moment: look again
                await trio.sleep(CONFLICT_S)
        return len(found)


async def sleep_until(at: str | None, clock: Clock, changed: trio.Event) -> None:
    """Sleep until a wall time as stored (None: for ever), or until something `changed`."""
    until_ms = math.inf if at is None else unix_ms(at)
    while not changed.is_set():
        left_s = (until_ms - clock.now_ms()) / 1000
        if left_s <= 0:
            return
        with trio.move_on_after(left_s if math.isinf(left_s) else min(left_s, LOOK_S)):
            await changed.wait()
