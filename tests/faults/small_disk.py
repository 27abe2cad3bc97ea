"""Fill a disk with a constellation until it is refused, make room, and see that nothing is missing.

    python -m tests.faults.small_disk FOLDER

The folder is the root of a file system of a few megabytes; `test_disk_trouble.py` mounts one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import trio

from pattern_core.testing.model import says
from pattern_db.database import Database, DatabaseThreads
from pattern_db.errors import DatabaseError, DiskFull
from pattern_db.maintenance import check
from tests.faults.endings import leaves
from tests.support import acting, rows, running

BALLAST_BYTES = 1_000_000


async def fill(path: Path, make_room: Callable[[], object], *, vfs: str | None = None) -> int:
    """How many messages were accepted before the disk was full; the file at `path` has the agent ada.

    Raises:
        AssertionError: the trouble is not said to be a full disk, something accepted is missing afterwards, or the
            file is damaged.
    """
    accepted: list[str] = []
    with DatabaseThreads() as threads:
        try:
            async with (
                await Database.open(path, threads, vfs=vfs) as database,
                running(otherwise=says("ok"), database=database) as world,
            ):
                while True:
                    accepted.append(await world.submit("x" * 5_000))
        except (BaseExceptionGroup, DatabaseError) as error:
            assert all(isinstance(leaf, DiskFull) for leaf in leaves(error)), leaves(error)
            assert all("Free some space" in str(leaf) for leaf in leaves(error)), leaves(error)
        make_room()
        async with (
            await Database.open(path, threads, vfs=vfs) as database,
            running(otherwise=says("ok"), database=database) as world,
        ):
            for turn_id in accepted:
                assert (await world.constellation.wait(turn_id)).status == "completed"
            (stored,) = (await database.read(rows, "SELECT count(*) FROM turn"))[0]
            assert stored in (len(accepted), len(accepted) + 1), "the last one may be stored, unacknowledged"
            assert await database.write(check) == []
    return len(accepted)


async def fill_folder(folder: Path) -> int:
    """As `fill`, with a constellation and ballast that make_room removes, in the root of a small file system."""
    path, ballast = folder / "pattern.db", folder / "ballast"
    ballast.write_bytes(bytes(BALLAST_BYTES))
    async with acting(path=path):
        pass
    return await fill(path, ballast.unlink)


if __name__ == "__main__":
    sys.stdout.write(f"full after {trio.run(fill_folder, Path(sys.argv[1]))} messages\n")
