"""What a constellation delivers by itself, at least once: events to webhooks, and messages that found no agent.

A row is tried until it is delivered, at growing intervals, then kept until a person sends it again or discards it. One
row of a target at a time, in their order, so that a target that does not answer holds up no other. One that wants less
at once (`Overloaded`) gets its rows when it says, however often. What a delivery
stores and that it was made are one transaction; only what leaves the process can happen twice, under the same id.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import Any, TypeAlias

import trio

from pattern_core.errors import Conflict, NotFound, Overloaded, PatternError, instead_of
from pattern_core.timers import sleep_until
from pattern_core.unit_of_work import Storage, UnitOfWork
from pattern_db.columns import iso
from pattern_db.enums import DeliveryStatus
from pattern_db.errors import RowConflict, RowNotFound
from pattern_db.tables import outbox
from pattern_db.tables.outbox import OutboxRow

AT_ONCE_MAX = 8  # targets
ATTEMPTS_MAX = 8  # in about a day, then a person decides
FIRST_WAIT_S = 10.0  # after the first failed attempt; five times that after the second …
WAIT_S_MAX = 12 * 3600.0
ERROR_CHARS_MAX = 500
IS_FINAL = "is_final"  # in an error's details: the row is not tried again by itself

Undelivered = OutboxRow
Send: TypeAlias = Callable[[OutboxRow, UnitOfWork], Awaitable[None]]
"""Delivers a row, or adds to the unit of work what does. Raises a `PatternError` if it cannot be delivered now."""


class Outbox:
    """The deliveries of one constellation. Every kind of target has a function that delivers, added by `on_due`."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._sends: dict[str, Send] = {}
        self._busy: set[str] = set()  # targets
        self._changed = trio.Event()
        self._is_running = self._is_looking = False

    def on_due(self, kind: str, send: Send) -> None:
        """Have `send` deliver what is for targets of this kind."""
        self._sends[kind] = send

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being delivered, or about to be."""
        return not self._is_running or not (self._busy or self._is_looking or self._changed.is_set())

    def changed(self) -> None:
        """Look for what is due: a row was stored."""
        self._changed.set()

    async def run(self) -> None:
        """Deliver what is due, until cancelled.

        Raises:
            StorageFailed: the disk failed.
        """
        self._busy.clear()
        self._is_running = True
        async with trio.open_nursery() as nursery:
            while True:
                self._changed, self._is_looking = trio.Event(), True
                room = AT_ONCE_MAX - len(self._busy)
                rows, upcoming = await self._storage.database.read(outbox.due, self._storage.now(), self._busy, room)
                for row in rows:
                    self._busy.add(row.target)
                    nursery.start_soon(self._try, row)
                self._is_looking = False
                await sleep_until(upcoming, self._storage.clock, self._changed)

    async def newest(self, kinds: str, limit: int, **which: Any) -> list[OutboxRow]:
        """Return deliveries to targets like `kinds`, newest first; `which` is as in the table's `newest`."""
        return await self._storage.database.read(outbox.newest, kinds, limit, **which)

    async def get(self, row_id: str, kinds: tuple[str, ...]) -> OutboxRow:
        """Return the delivery with this id, to a target of one of these kinds.

        Raises:
            NotFound: there is none.
        """
        try:
            row = await self._storage.database.read(outbox.get, row_id)
        except RowNotFound:
            row = None
        if row is None or row.target.partition(":")[0] not in kinds:
            raise NotFound(f"there is no delivery {row_id!r} in this constellation")
        return row

    async def retry(self, row: OutboxRow) -> None:
        """Deliver now, to the row's target.

        Raises:
            Conflict: it is being delivered, or was.
            PatternError: it cannot be delivered; the row stays as it was.
        """
        if row.target in self._busy or row.status is DeliveryStatus.DELIVERED:
            raise Conflict(f"{row.id} is being delivered, or was; look at it again in a moment")
        self._busy.add(row.target)
        try:
            await self._deliver(row)
        except RowConflict as error:
            raise Conflict(error.message) from None
        finally:
            self._busy.discard(row.target)
            self.changed()

    async def discard(self, row: OutboxRow) -> None:
        """Delete a row: it is not delivered any more."""
        work = UnitOfWork()
        work.store(outbox.discard, row.id)
        with instead_of(RowNotFound, NotFound(f"there is no delivery {row.id!r} any more")):
            await self._storage.commit(work)

    async def _try(self, row: OutboxRow) -> None:
        try:
            await self._deliver(row)
        except PatternError as error:
            work, now_ms = UnitOfWork(), self._storage.clock.now_ms()
            is_held = isinstance(error, Overloaded)  # the target wants less at once; the attempt does not count
            attempts = row.attempts + (not is_held)
            wait_s = None if error.details.get(IS_FINAL) else wait_before(row.id, attempts)
            asked_s = error.details.get("retry_after_s")
            if wait_s is not None and isinstance(asked_s, int | float):
                wait_s = max(0.0 if is_held else wait_s, min(asked_s, WAIT_S_MAX))
            next_at = None if wait_s is None else iso(now_ms + round(wait_s * 1000))
            work.store(outbox.failed, row, attempts, error.message[:ERROR_CHARS_MAX], next_at)
            await self._storage.commit(work)
        except RowConflict:
            pass  # it was discarded or delivered by a person's request
        finally:
            self._busy.discard(row.target)
            self.changed()

    async def _deliver(self, row: OutboxRow) -> None:
        work = UnitOfWork()
        await self._sends[row.target.partition(":")[0]](row, work)
        work.store(outbox.delivered, [row], self._storage.now())
        await self._storage.commit(work)


def wait_before(row_id: str, failed: int) -> float | None:
    """Return how long to wait after so many failed attempts, in seconds; None: it is not tried again by itself.

    Rows wait up to half as long again, each a different time, so that they do not all return together.
    """
    if failed >= ATTEMPTS_MAX:
        return None
    share = int.from_bytes(blake2b(f"{row_id}:{failed}".encode(), digest_size=4).digest()) / 2**32
    wait_s: float = min(WAIT_S_MAX, FIRST_WAIT_S * 5 ** max(0, failed - 1))
    return wait_s * (1 + share / 2)
