"""Lives that end with their disk: the power goes, or the disk fails or is full. The check is that of a kill.

A life runs on a stand-in disk in a forked child (see `tests/crash/series.py`). When the disk has ended it, the child
leaves the files as the disk would: after a power cut without what was not synced. The next life finds them so.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import trio

from pattern_core import errors
from pattern_db.errors import DatabaseError, DiskFull, IOFailed, StorageFailed
from pattern_db.testing.disks import FaultyDisk, Left, Op, PowerLossDisk, Trouble, WatchedDisk
from tests.crash.life import Life, Scene, Settings
from tests.crash.moments import Trigger
from tests.crash.outside import World
from tests.crash.series import MESSAGES, ChooseEnding, Ending

ROOM_AFTER_S = 0.02  # on a full disk
CHANGES_MAX = 300  # a life with two messages makes about so many writes and syncs


@dataclass(frozen=True, slots=True)
class PowerCut:
    """The power goes at the `change`-th change of a file; `pragmas` are the connection's."""

    change: int
    left: Left
    pragmas: tuple[str, ...]
    seed: int

    @property
    def label(self) -> str:
        """What was left, and how often the log was moved into the file."""
        return f"power cut, {self.left}, {self.pragmas[0]}"

    def lead(self, world: World, number: int, chance: random.Random, scene: Scene) -> bool:
        """Lead the life; leave what a power cut leaves."""
        disk = PowerLossDisk()
        disk.cut_at(self.change)
        life = Life(world, number, Trigger(None), chance, scene)
        was_cut_off = ends_by_storage(lambda: _on(life, disk, self.pragmas), IOFailed)
        disk.restore(self.left, random.Random(self.seed))
        return was_cut_off


def power_cuts(*pragmas: str) -> ChooseEnding:
    """Power cuts at random changes: each kind of what is left, with checkpoints rare and frequent."""

    def choose(_settings: Settings, number: int, chance: random.Random) -> Ending:
        left = list(Left)[number % 3]
        pages = (1_000, 8, 40)[number // 3 % 3]
        cut_at = chance.randrange(1, CHANGES_MAX)
        return PowerCut(cut_at, left, (f"wal_autocheckpoint = {pages}", *pragmas), chance.getrandbits(64))

    return choose


@dataclass(frozen=True, slots=True)
class Fault:
    """The `nth` call of a kind fails, once or from then on; or the disk has room for `room` more bytes only."""

    op: Op
    nth: int
    count: float
    trouble: Trouble
    room: int | None = None

    @property
    def label(self) -> str:
        """What fails and how."""
        if self.room is not None:
            return "no room left"
        return f"{self.op} fails with {self.trouble}, {'from then on' if self.count == math.inf else 'once'}"

    def lead(self, world: World, number: int, chance: random.Random, scene: Scene) -> bool:
        """Lead the life on the failing disk; storage's own typed error must be what ends it, if anything does.

        A full disk ends a life only where a client is refused: agents wait, and there is room again after a moment.
        """
        disk = FaultyDisk()
        if self.room is None:
            disk.fail(self.op, nth=self.nth, count=self.count, trouble=self.trouble)
        else:
            disk.limit(world.file.stat().st_size + self.room)
        life = Life(world, number, Trigger(None), chance, scene)
        if self.trouble is Trouble.FULL:
            return ends_by_storage(lambda: _until_room(life, disk), DiskFull)
        return ends_by_storage(lambda: _on(life, disk, ("wal_autocheckpoint = 40",)), IOFailed)


def faults(_settings: Settings, number: int, chance: random.Random) -> Ending:
    """Faults of each kind in turn, at random calls. A sync is never "full": SQLite calls each failure one of IO."""
    kinds: tuple[tuple[Op, Trouble, int], ...] = (
        (Op.WRITE, Trouble.IO, 200),
        (Op.SYNC, Trouble.IO, 50),
        (Op.READ, Trouble.IO, 120),
        (Op.WRITE, Trouble.FULL, 200),
        (Op.TRUNCATE, Trouble.IO, 2),
        (Op.OPEN, Trouble.IO, 3),
        (Op.WRITE, Trouble.FULL, 0),
    )
    op, trouble, most = kinds[number % len(kinds)]
    if most == 0:
        return Fault(op, 1, 0, trouble, room=chance.randrange(1_000, 120_000))
    count = math.inf if chance.random() < 0.5 else 1
    return Fault(op, chance.randint(1, most), count, trouble)


async def _on(life: Life, disk: WatchedDisk, pragmas: tuple[str, ...]) -> None:
    await life.lead(messages=MESSAGES, vfs=disk.name, pragmas=pragmas)


async def _until_room(life: Life, disk: FaultyDisk) -> None:
    async def make_room() -> None:
        while not disk.failed.total():
            await trio.sleep(ROOM_AFTER_S)
        await trio.sleep(ROOM_AFTER_S)
        disk.heal()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(make_room)
        await _on(life, disk, ("wal_autocheckpoint = 40",))
        nursery.cancel_scope.cancel()


def ends_by_storage(lead: Callable[[], object], expected: type[StorageFailed]) -> bool:
    """Run a life; True if trouble with storage ended it, of the `expected` kind and with nothing beside it.

    Raises:
        AssertionError: the trouble is of another kind, or has no words about what to do.
        BaseException: whatever else ended the life.
    """
    try:
        trio.run(lead)  # type: ignore[arg-type]  # a function that gives an awaitable, as trio wants it
    except (BaseExceptionGroup, DatabaseError) as error:
        found = leaves(error)
        others = [leaf for leaf in found if not isinstance(leaf, StorageFailed)]
        if others:
            raise
        assert any(isinstance(leaf, expected) for leaf in found), found
        assert all(len(leaf.message) > 20 for leaf in found if isinstance(leaf, StorageFailed)), found
        return True
    return False


def leaves(error: BaseException) -> list[BaseException]:
    """The single exceptions of a group, or the one."""
    return list(errors.leaves(BaseExceptionGroup("one or many", [error])))
