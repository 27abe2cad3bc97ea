"""A disk that fails, is full, hangs or loses its power: typed errors, and nothing acknowledged is missing."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from pattern_core.groups.group import MemberSpec
from pattern_core.limits import Limits
from pattern_core.testing.model import Paced, says
from pattern_core.turns.actor import _Delivery
from pattern_core.turns.admission import IncomingMessage
from pattern_db.connection import Connection
from pattern_db.database import Database, DatabaseThreads
from pattern_db.enums import UpdateSource
from pattern_db.errors import DatabaseError, DiskFull, IOFailed, StorageFailed
from pattern_db.maintenance import check
from pattern_db.tables import block_versions, memory_blocks
from pattern_db.testing.disks import Call, FaultyDisk, Op, Trouble, WatchedDisk
from tests.crash.series import Tally, tally_of
from tests.faults.endings import leaves
from tests.sources import ROOT
from tests.support import USER, acting, on_file, rows, running

FAULTS, POWER_CUTS = 160, 126
BALLAST_BYTES = 1_000_000
HUNG_S = 0.4


def run(kind: str, trials: int, *more: str) -> Tally:
    return tally_of("-m", "tests.faults", kind, "--trials", str(trials), "--json", *more)


@pytest.mark.slow
def test_a_power_cut_loses_nothing_that_was_acknowledged() -> None:
    tally = run("power", POWER_CUTS)
    assert not tally.violations, "\n".join(tally.violations[:20])
    assert tally.killed >= POWER_CUTS
    for left in ("nothing", "everything", "chance"):
        for pages in (8, 40, 1_000):
            assert tally.kills[f"power cut, {left}, wal_autocheckpoint = {pages}"] >= POWER_CUTS / 18
    assert tally.counts["completed"] > POWER_CUTS
    assert tally.counts["mail in_doubt"] > 0


@pytest.mark.slow
def test_without_syncs_acknowledged_work_is_lost_and_that_is_found() -> None:
    tally = run("unsynced", 60, "--discard")
    assert any(violation.startswith("lost: the acknowledged turn") for violation in tally.violations), tally.violations


@pytest.mark.slow
def test_faults_at_random_calls_lose_nothing_and_have_names() -> None:
    tally = run("disk", FAULTS)
    assert not tally.violations, "\n".join(tally.violations[:20])
    assert tally.killed >= FAULTS
    for label in ("write fails with io", "sync fails with io", "read fails with io", "write fails with full"):
        for how in ("once", "from then on"):
            assert tally.kills[f"{label}, {how}"] > 0
    assert tally.kills["no room left"] > 0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pattern.db"


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    made = FaultyDisk()
    yield made
    made.unregister()


async def made(path: Path, threads: DatabaseThreads) -> None:
    """A constellation's file with the agent ada."""
    async with await on_file(path, threads) as database, acting(database=database):
        pass


@contextmanager
def ending_in(kind: type[StorageFailed]) -> Iterator[None]:
    """The block raises this, in groups or not, as often as there are tasks that met it, and nothing else."""
    with pytest.raises((BaseExceptionGroup, kind)) as caught:
        yield
    found = leaves(caught.value)
    assert {type(error) for error in found} == {kind}, found


def store_edit(connection: Connection) -> None:
    """Write what an edit of a block writes, on a connection that has read nothing yet."""
    block = memory_blocks.list_all(connection)[0]
    block_versions.store_update(connection, block.id, b"u" * 3_000, UpdateSource.AGENT, "2026-11-22T00:00:00.000Z")


@pytest.mark.parametrize("batch", [1, 2], ids=["alone", "sharing a commit"])
async def test_a_read_that_fails_anywhere_in_a_write_is_reported_as_such(
    path: Path, disk: FaultyDisk, batch: int
) -> None:
    """SQLite then rolls back by itself, and no error of going back to a savepoint may hide why."""
    failed = 0
    with DatabaseThreads() as threads:
        await made(path, threads)
        for nth in range(1, 60):
            async with await Database.open(path, threads, vfs=disk.name) as database:
                disk.failed.clear()
                disk.fail(Op.READ, nth=nth)
                try:
                    async with trio.open_nursery() as nursery:
                        for _number in range(batch):
                            nursery.start_soon(database.write, store_edit)
                except* IOFailed:
                    failed += 1
                assert disk.failed[Op.READ] == 0 or failed
                disk.heal()
    assert failed > 5


async def test_trouble_within_a_turn_ends_the_constellation_and_the_turn_continues_later(
    path: Path, disk: FaultyDisk
) -> None:
    gate = trio.Event()
    with DatabaseThreads() as threads:
        await made(path, threads)
        async with await Database.open(path, threads, vfs=disk.name) as database:
            with ending_in(IOFailed):
                async with running([Paced(answer=says("late"), gate=gate)], database=database) as world:
                    turn_id = await world.submit("hello")
                    while world.provider.running == 0:
                        await trio.sleep(0.001)
                    disk.fail(Op.SYNC, count=math.inf)
                    gate.set()
                    await trio.sleep(60)  # cut short by the trouble
            disk.heal()
        async with (
            await Database.open(path, threads, vfs=disk.name) as database,
            running(otherwise=says("answer"), database=database) as world,
        ):
            view = await world.constellation.wait(turn_id)
            assert (view.status, view.messages[-1].content) == ("completed", "answer")
            assert await database.write(check) == []


@pytest.mark.parametrize("nth", [1, 17, 33])
async def test_a_full_disk_at_the_end_of_a_groups_turn_ends_it_once_when_there_is_room(
    path: Path, disk: FaultyDisk, nth: int
) -> None:
    """The last answer ends it in the member's transaction: if that is not stored, neither has ended."""
    gate = trio.Event()
    late = Paced(answer=says("late"), gate=gate)
    limits = replace(Limits(), room_wait_s=0.01)
    with DatabaseThreads() as threads:
        await made(path, threads)
        async with (
            await Database.open(path, threads, vfs=disk.name) as database,
            running([says("first"), late], otherwise=says("again"), database=database, limits=limits) as world,
        ):
            groups = world.constellation.groups
            await groups.create(name="desk", pattern_type="round_robin", members=[MemberSpec("ada")])

            async def say(content: str) -> str:
                incoming = IncomingMessage(agent_id="", content=content, sender=USER)
                return (await world.constellation.submit_to_group("desk", incoming)).turn_id

            with trio.fail_after(60):
                assert (await world.constellation.wait(await say("hello"))).status == "completed"
                turn_id = await say("and now?")
                while world.provider.running == 0:
                    await trio.sleep(0.001)
                disk.fail(Op.WRITE, nth=nth, trouble=Trouble.FULL)
                gate.set()
                view = await world.constellation.wait(turn_id)
                assert disk.failed[Op.WRITE] == 1
                assert (view.status, view.messages[-1].content) in [("completed", "late"), ("completed", "again")]
                assert (await world.constellation.wait(await say("once more"))).status == "completed"
            ends = await database.read(rows, "SELECT count(*) FROM event WHERE name = 'turn.completed' GROUP BY turn")
            assert ends == [(1,)] * 6, "of each turn of the group, and of its member's"
            assert await database.write(check) == []


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


async def test_a_full_disk_refuses_with_its_name_and_keeps_what_it_accepted(path: Path, disk: FaultyDisk) -> None:
    async with acting(path=path):
        pass
    disk.limit(path.stat().st_size + 200_000)
    assert await fill(path, disk.heal, vfs=disk.name) > 0


async def test_a_message_for_a_busy_agent_is_refused_with_the_disks_name_too(path: Path, disk: FaultyDisk) -> None:
    async with acting(path=path):
        pass
    with DatabaseThreads() as threads:
        async with (
            await Database.open(path, threads, vfs=disk.name) as database,
            running(otherwise=says("ok"), database=database) as world,
        ):
            actors, agent = world.constellation._actors, await world.constellation.roster.get("ada")
            incoming = IncomingMessage(agent_id=agent.id, content="x" * 100_000, sender=USER)
            delivery = _Delivery(arrival=world.constellation._arrival(incoming, agent))
            disk.limit(path.stat().st_size)
            actors._stopped[agent.id] = "so that it is not at rest"
            await actors._receive(agent.id, delivery)
            assert isinstance(delivery.error, DiskFull)
            disk.heal()


class HangingDisk(WatchedDisk):
    """A disk whose syncs do not return once it `hangs`, until the end of the test."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs = trio.Event()
        self.answers = threading.Event()
        self.answers.set()

    def hang(self) -> None:
        self.answers.clear()
        self.hangs.set()

    def before(self, call: Call) -> None:
        if call.op is Op.SYNC:
            self.answers.wait()


class WatchedLate(Database):
    """A database that is watched only once its disk hangs: until then the disk may be as slow as this machine."""

    disk: HangingDisk

    async def watch(self, timeout_s: float) -> None:
        await self.disk.hangs.wait()
        await super().watch(timeout_s)


async def opened(path: Path, threads: DatabaseThreads, disk: HangingDisk) -> Database:
    """The file at `path` on this disk."""
    database = await WatchedLate.open(path, threads, vfs=disk.name)
    assert isinstance(database, WatchedLate)
    database.disk = disk
    return database


async def test_a_disk_that_hangs_is_given_up(path: Path) -> None:
    disk = HangingDisk()
    limits = Limits(commit_timeout_s=HUNG_S)
    with DatabaseThreads() as threads:
        await made(path, threads)
        database = await opened(path, threads, disk)
        async with running(otherwise=says("ok"), database=database, limits=limits) as world:
            await world.say("before")
            disk.hang()
            with trio.fail_after(60), pytest.raises(StorageFailed, match="has not responded"):
                await world.submit("hello")
            with trio.fail_after(60), pytest.raises(StorageFailed, match="has not responded"):
                await world.submit("hello again")
        with trio.fail_after(60):
            await database.aclose()
        disk.answers.set()
    with DatabaseThreads() as threads:
        async with (
            await Database.open(path, threads) as database,
            running(otherwise=says("ok"), database=database, seed=2) as world,
        ):
            assert (await world.say("after")).status == "completed"
            assert await database.write(check) == []


async def test_a_disk_that_hangs_within_a_turn_ends_the_constellation(path: Path) -> None:
    disk = HangingDisk()
    gate = trio.Event()
    with DatabaseThreads() as threads:
        await made(path, threads)
        database = await opened(path, threads, disk)
        with ending_in(StorageFailed):
            async with running(
                [Paced(answer=says("late"), gate=gate)], database=database, limits=Limits(commit_timeout_s=HUNG_S)
            ) as world:
                await world.submit("hello")
                while world.provider.running == 0:
                    await trio.sleep(0.001)
                disk.hang()
                gate.set()
                await trio.sleep(60)  # cut short by the trouble
        await database.aclose()
        disk.answers.set()


async def fill_folder(folder: Path) -> int:
    """As `fill`, with a constellation and ballast that make_room removes, in the root of a small file system."""
    path, ballast = folder / "pattern.db", folder / "ballast"
    ballast.write_bytes(bytes(BALLAST_BYTES))
    async with acting(path=path):
        pass
    return await fill(path, ballast.unlink)


@pytest.mark.slow
def test_a_file_system_that_is_really_full(tmp_path: Path) -> None:
    """A small tmpfs, mounted in a namespace of its own, which needs no rights where the system allows it."""
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare(1) to mount a small file system with")
    inside = ["unshare", "--user", "--mount", "--map-root-user", "sh", "-c"]
    mount = f"mount -t tmpfs -o size=3m tmpfs '{tmp_path}'"
    if subprocess.run([*inside, mount], capture_output=True, check=False).returncode != 0:
        pytest.skip("this system lets only root mount a small file system")
    code = "import sys, pathlib, trio, tests.faults.test_disk_trouble as here"
    code += "; print(trio.run(here.fill_folder, pathlib.Path(sys.argv[1])))"
    command = f"{mount} && '{sys.executable}' -c '{code}' '{tmp_path}'"
    done = subprocess.run([*inside, command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0
