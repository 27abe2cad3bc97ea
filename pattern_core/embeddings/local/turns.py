"""Whose turn it is to use the one model: questions before passages, each kind in the order in which it came."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from trio.lowlevel import ParkingLot

from pattern_core.embeddings.embedder import Purpose, unavailable

WAITING_MAX = 1_000
_BUSY_S = 5.0


class Turns:
    """Like a lock that lets those go first who ask for a query."""

    def __init__(self, *, waiting_max: int = WAITING_MAX) -> None:
        self._waiting_max = waiting_max
        self._is_taken = False
        self._queries = ParkingLot()
        self._passages = ParkingLot()

    @asynccontextmanager
    async def taken(self, purpose: Purpose) -> AsyncIterator[None]:
        """Wait for a turn and hold it for as long as the context lasts.

        Raises:
            EmbedderUnavailable: too many wait already.
        """
        await self._take(self._queries if purpose == "query" else self._passages)
        try:
            yield
        finally:
            self._pass_on()

    async def _take(self, lot: ParkingLot) -> None:
        if not self._is_taken:
            self._is_taken = True
            return
        if len(self._queries) + len(self._passages) >= self._waiting_max:
            raise unavailable(
                f"The embedding model is busy: {self._waiting_max} callers wait for it. Ask again later.",
                retry_after_s=_BUSY_S,
            )
        await lot.park()  # whoever passes the turn on has left it taken

    def _pass_on(self) -> None:
        for lot in (self._queries, self._passages):
            if lot:
                lot.unpark()
                return
        self._is_taken = False
