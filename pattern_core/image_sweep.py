"""Images that no message shows any more are removed: once a day at most, in the background, a few at a time.

An image becomes unused when its agent is deleted, when a turn is rolled back, or when the message that brought it is
cancelled in the line. None of these counts who else shows it, since it is stored once for all; so the messages are
looked through instead, piece by piece and beside the writes. What is younger than a day is left alone, and whatever
was said while this looked is looked at again in the transaction that removes.

Every transaction is whole by itself: cancelled or killed, the sweep begins anew the next time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

import trio

from pattern_core.clock import Clock
from pattern_core.events import Draft, Event, append
from pattern_core.ids import earliest_position
from pattern_core.images import media_type_of
from pattern_db.columns import iso
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.tables import blobs, meta

START_AFTER_S = 30.0  # whoever wakes a constellation wants something else first
CHECK_EVERY_S = 3_600.0
DAY_MS = 24 * 3_600_000
MARGIN_MS = 3_600_000  # of the messages that are looked at twice: a clock may be set back meanwhile
CANDIDATES_MAX = 5_000  # images that are looked for at once, by their digests
ROWS_AT_ONCE = 5_000  # messages that one read looks through
REMOVED_AT_ONCE = 20  # in one transaction: an image may have megabytes
SWEPT_AT = "images_swept_at"  # in the table of what a file knows about itself

Commit = Callable[[Callable[[Connection], tuple["Swept", list[Event]]]], Awaitable["Swept"]]


@dataclass(frozen=True, slots=True)
class Swept:
    """How many images were removed, and their bytes."""

    images: int = 0
    bytes: int = 0


class ImageSweep:
    """The sweep of one constellation. `commit` runs a function in a transaction and tells the events it returns."""

    def __init__(self, *, database: Database, clock: Clock, commit: Commit) -> None:
        self._database = database
        self._clock = clock
        self._commit = commit

    async def run(self) -> None:
        """Sweep when a day has gone by since the last time, until cancelled.

        Raises:
            StorageFailed: the disk failed; the file must be opened anew.
        """
        await trio.sleep(START_AFTER_S)
        while True:
            swept_at = await self._database.read(meta.get, SWEPT_AT)
            if swept_at is None or swept_at <= iso(self._clock.now_ms() - DAY_MS):
                await self.sweep()
            await trio.sleep(CHECK_EVERY_S)

    async def sweep(self) -> Swept:
        """Remove what is unused now. Where no image is older than a day it is one look into an index."""
        now_ms = self._clock.now_ms()
        border, since = iso(now_ms - DAY_MS), earliest_position(now_ms - MARGIN_MS)
        images, size, place = 0, 0, ("", b"")
        while True:
            found = await self._database.read_aside(blobs.older_than, border, CANDIDATES_MAX, after=place)
            unused = await self._unused([digest for _, digest, head in found if media_type_of(head) is not None])
            for begin in range(0, len(unused), REMOVED_AT_ONCE):
                batch = unused[begin : begin + REMOVED_AT_ONCE]
                swept = await self._commit(partial(_remove, digests=batch, since=since, now=iso(self._clock.now_ms())))
                images, size = images + swept.images, size + swept.bytes
            if len(found) < CANDIDATES_MAX:
                break
            place = found[-1][:2]
        if found or place[0]:  # who keeps no images writes nothing
            await self._database.write(meta.put, SWEPT_AT, iso(now_ms))
        return Swept(images, size)

    async def _unused(self, candidates: Sequence[bytes]) -> list[bytes]:
        """Those that no message shows, as far as can be told without stopping everybody else."""
        left = {digest.hex() for digest in candidates}
        newest = await self._database.read_aside(blobs.newest_message_row) if left else 0
        for row in range(0, newest, ROWS_AT_ONCE):
            left -= await self._database.read_aside(blobs.shown_between, row, row + ROWS_AT_ONCE)
            if not left:
                break
        return [digest for digest in candidates if digest.hex() in left]


def _remove(connection: Connection, *, digests: Sequence[bytes], since: str, now: str) -> tuple[Swept, list[Event]]:
    swept = Swept(*blobs.remove_unused(connection, digests, since=since))
    if not swept.images:
        return swept, []
    told = Draft("images.removed", {"images": swept.images, "bytes": swept.bytes})
    return swept, append(connection, None, [told], created_at=now)
