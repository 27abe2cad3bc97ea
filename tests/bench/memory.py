"""A memory block that was edited 100,000 times: how fast it opens, how much it takes, how much is written."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import trio

from pattern_core.ids import seeded_randomness
from pattern_core.memory.checkpoint import LIMITS, Consolidator
from pattern_core.memory.history import blame, state_at
from pattern_core.memory.revisions import plan_revert
from pattern_core.testing import StoppedClock
from pattern_db.connection import Connection, fetch_all
from pattern_db.database import Database
from pattern_db.enums import HistoryKind
from pattern_db.tables import block_versions
from tests.bench.report import Figure, timed_ms
from tests.pattern_core.memory.life import Life, Pen, create, splice
from tests.pattern_core.memory.rig import constellation

EDITS = 100_000
CHARS = 4_000  # the block's size, around which the edits keep it
RUNS = 9
UPDATES_MAX = LIMITS.checkpoint_update_count
AUTHOR = "agent:agt_01jd7qk0000000000000000000"
WORDS = ("remember ", "prefers tea ", "likes walks\n", "🌍 ", "works at the library ", "calls on Sundays\n")


def edit(life: Life, below: Callable[[int], int]) -> None:
    """Add a word somewhere, and take some characters away where there are too many."""
    length = life.document.length
    at = below(length + 1)
    gone = min(below(30) if length > CHARS else 0, length - at)
    life.edit(AUTHOR, splice(at, gone, WORDS[below(len(WORDS))]))


async def measure(edits: int = EDITS) -> list[Figure]:
    """Build the block, then look at it."""
    connection = constellation()
    async with Database.in_memory(connection) as database:
        life = Life(connection, create(connection), is_indexed=False)
        before, random = _disk(connection), seeded_randomness(7)
        consolidator = Consolidator(database, StoppedClock(), lambda *_: None)
        merged_ms, received, written = list[float](), 0, 0
        for number in range(1, edits + UPDATES_MAX):  # at the end one less than what is merged waits
            edit(life, lambda below: random.getrandbits(30) % below)
            is_last = number == edits + UPDATES_MAX - 1
            if number % UPDATES_MAX and not is_last:
                continue
            updates = block_versions.get_updates_since(connection, life.block_id, number - UPDATES_MAX)
            newest = (number - 1) // UPDATES_MAX * UPDATES_MAX  # those up to here were counted
            received += sum(len(update.update_blob) for update in updates if update.seq > newest)
            if not is_last:
                start = time.perf_counter()
                await consolidator.consolidate(life.block_id)
                merged_ms.append((time.perf_counter() - start) * 1000)
                written += _written(connection, life.block_id)
        return [
            *_opening(life),
            Figure(name="merging 100 updates", unit="ms", values=merged_ms, note=f"{edits:,} edits"),
            *_sizes(connection, received, written, before),
            *await _past(database, life),
        ]


def _opening(life: Life) -> list[Figure]:
    def load() -> Pen:
        life.reopen(2)
        return life.document

    def edited() -> None:
        document = load()
        document.append("one more")
        document.commit(AUTHOR, now_ms=0)

    note = f"{life.version:,} edits"
    return [
        Figure(name="opening a block", unit="ms", values=_timed(lambda: load().state()), most=20.0, note=note),
        Figure(name="opening a block and editing it", unit="ms", values=_timed(edited), most=20.0, note=note),
    ]


def _sizes(connection: Connection, received: int, written: int, before: int) -> list[Figure]:
    note = f"of the bytes of all updates, {received / 1e6:.1f} MB"
    sizes = {
        "document and lines of history on disk": _disk(connection) - before,
        "bytes written": received + written,
    }
    return [Figure(name=name, unit="×", values=[size / received], most=3.0, note=note) for name, size in sizes.items()]


async def _past(database: Database, life: Life) -> list[Figure]:
    asked: dict[str, Callable[[Connection], object]] = {
        "a version 500 edits back": partial(state_at, block_id=life.block_id, version=life.version - 500),
        f"a version half of {life.version:,} edits back": partial(
            state_at, block_id=life.block_id, version=life.version // 2
        ),
        "blame": partial(blame, block_id=life.block_id),
    }
    undo = _timed(lambda: plan_revert(life.lines(), AUTHOR, HistoryKind.UNDO))
    figures = [Figure(name="planning an undo", unit="ms", values=undo)]
    for name, function in asked.items():
        times = []
        for _ in range(RUNS):
            start = time.perf_counter()
            await database.read_aside(function)
            times.append((time.perf_counter() - start) * 1_000)
        figures.append(Figure(name=name, unit="ms", values=times))
    return figures


def _written(connection: Connection, block_id: str) -> int:
    """What the newest merge wrote: the snapshot (twice if it is small) and the segment."""
    newest = fetch_all(
        connection,
        "SELECT length(snapshot), (SELECT length(loro_snapshot) FROM memory_blocks WHERE id = ?1),"
        " (SELECT length(data) FROM memory_block_segments WHERE block_id = ?1 ORDER BY first_seq DESC LIMIT 1)"
        " FROM memory_block_checkpoints WHERE block_id = ?1 ORDER BY id DESC LIMIT 1",
        (block_id,),
    )
    return sum(int(size) for size in newest[0])


def _disk(connection: Connection) -> int:
    pages, size = (fetch_all(connection, f"PRAGMA {name}")[0][0] for name in ("page_count", "page_size"))
    return int(pages) * int(size)


def _timed(what: Callable[[], object]) -> list[float]:
    return [timed_ms(what) for _ in range(RUNS)]


def run() -> list[Figure]:
    """The figures."""
    return trio.run(measure)
