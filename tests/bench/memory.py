"""A memory block that has been edited 100,000 times: how fast it opens, how much it takes, how often bytes are written.

The baseline keeps the same document as the database design describes it: updates as rows, merged by the same
thresholds into one snapshot that holds the whole history. It is built in the same run from the same edits; its
snapshots are made at every 5,000th edit only, and count for those in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from pattern_core.ids import seeded_randomness
from pattern_core.memory.document import Document, state_of
from pattern_core.memory.past.checkpoint import UPDATES_MAX, open_document, pack, unpack
from pattern_core.memory.past.consolidation import Consolidator
from pattern_core.memory.past.history import BlockHistory
from pattern_core.memory.past.undo import plan_undo
from pattern_core.testing.clock import StoppedClock
from pattern_db.connection import Connection, fetch_all
from pattern_db.database import Database
from pattern_db.enums import Encoding
from pattern_db.tables import block_checkpoints, block_updates
from tests.bench.report import Figure
from tests.pattern_core.memory.life import Life, create
from tests.pattern_core.memory.rig import constellation

EDITS = 100_000
CHARS = 4_000  # the block's size, around which the edits keep it
BASELINE_EVERY = 5_000
RUNS = 9
AUTHOR = "agent:agt_01jd7qk0000000000000000000"
WORDS = ("remember ", "prefers tea ", "likes walks\n", "🌍 ", "works at the library ", "calls on Sundays\n")


@dataclass
class Baseline:
    """The whole history in one snapshot. Sizes are in bytes."""

    document: Document = field(default_factory=lambda: Document(1))
    stored: tuple[bytes, Encoding] = (b"", Encoding.RAW)
    pending: list[bytes] = field(default_factory=list)
    received: int = 0
    snapshots_written: int = 0

    def add(self, updates: list[bytes], *, is_sampled: bool) -> None:
        """Take updates in."""
        for update in updates:
            self.document.import_update(update)
            self.received += len(update)
        if is_sampled:
            self.stored, self.pending = pack(self.document.snapshot()), []
            self.snapshots_written += len(self.stored[0]) * BASELINE_EVERY // UPDATES_MAX
        else:
            self.pending = updates

    def load(self) -> Document:
        """As it would open after a restart."""
        return Document.load(unpack(*self.stored), self.pending, peer=2)


def edit(life: Life, below: Callable[[int], int]) -> None:
    """Add a word somewhere, and take some characters away where there are too many."""
    length = life.document.length
    at = below(length + 1)
    gone = min(below(30) if length > CHARS else 0, length - at)
    life.edit(AUTHOR, lambda document: document.splice(at, gone, WORDS[below(len(WORDS))]))


async def measure(edits: int = EDITS) -> list[Figure]:
    """Build the block and the baseline, then look at both."""
    connection = constellation()
    async with Database.in_memory(connection) as database:
        life = Life(connection, create(connection), is_indexed=False)
        before, random = _disk(connection), seeded_randomness(7)
        consolidator = Consolidator(database, StoppedClock(), lambda *_: None)
        baseline, merged_ms, written = Baseline(), [], 0
        for number in range(1, edits + UPDATES_MAX):  # at the end one less than what is merged waits
            edit(life, lambda below: random.getrandbits(30) % below)
            if number % UPDATES_MAX and number != edits + UPDATES_MAX - 1:
                continue
            updates = block_updates.get_updates_since(connection, life.block_id, number - UPDATES_MAX)
            blobs = [update.update_blob for update in updates if update.seq > number // UPDATES_MAX * UPDATES_MAX - 100]
            is_whole = number % UPDATES_MAX == 0
            baseline.add(blobs, is_sampled=is_whole and number % BASELINE_EVERY == 0)
            if is_whole:
                start = time.perf_counter()
                await consolidator.consolidate(life.block_id)
                merged_ms.append((time.perf_counter() - start) * 1000)
                written += _written(connection, life.block_id)
        figures = _opening(life, baseline)
        figures.append(Figure(name="merging 100 updates", unit="ms", values=merged_ms, note=f"{edits:,} edits"))
        figures += _sizes(connection, life, baseline, written, before)
        return figures + await _past(database, life)


def _opening(life: Life, baseline: Baseline) -> list[Figure]:
    def load() -> Document:
        stored = block_checkpoints.get_checkpoint_and_updates(life.connection, life.block_id)
        return open_document(*stored, peer=2)

    def opened() -> None:
        state_of(load())

    def edited() -> None:
        document = load()
        document.append("one more")
        document.commit(AUTHOR, {}, now_ms=0)

    pending = len(block_updates.get_updates_since(life.connection, life.block_id, 0))
    note = f"{life.version:,} edits, {pending} updates wait; baseline: whole snapshot"
    plain = _timed(lambda: state_of(baseline.load()))
    first = _timed(lambda: baseline.load().append("one more"))
    return [
        _figure("opening a block", _timed(opened), plain, most=20.0, note=note),
        _figure("opening a block and editing it", _timed(edited), first, most=20.0, note=note),
    ]


def _sizes(connection: Connection, life: Life, baseline: Baseline, written: int, before: int) -> list[Figure]:
    received = baseline.received
    document = sum(
        int(fetch_all(connection, f"SELECT coalesce(sum(length({column})), 0) FROM {table}")[0][0])
        for table, column in (
            ("memory_block_checkpoints", "snapshot"),
            ("memory_block_segments", "data"),
            ("memory_block_updates", "update_blob"),
            ("memory_blocks", "loro_snapshot"),
        )
    )
    note = f"history: the bytes of all updates, {received / 1e6:.1f} MB"
    whole = len(baseline.document.snapshot())
    return [
        Figure(
            name="document on disk / history",
            unit="×",
            values=[document / received],
            most=3.0,
            baseline=(len(baseline.stored[0]) + sum(map(len, baseline.pending))) / received,
            note=f"checkpoints, segments, updates; {document / whole:.2f} × one uncompressed snapshot with all history",
        ),
        Figure(
            name="document and lines of history on disk / history",
            unit="×",
            values=[(_disk(connection) - before) / received],
            most=3.0,
            note=f"{note}; with author, cause, summary and change of every version",
        ),
        Figure(
            name="bytes written per byte of update",
            unit="×",
            values=[(received + written) / received],
            most=3.0,
            baseline=(received + baseline.snapshots_written) / received,
            note="updates, checkpoints, segments",
        ),
    ]


async def _past(database: Database, life: Life) -> list[Figure]:
    history, author = BlockHistory(database), AUTHOR
    undo = _timed(lambda: plan_undo(life.lines(), author))
    near, far, blame = [], [], []
    for _ in range(RUNS):
        start = time.perf_counter()
        await history.at(life.block_id, life.version - 500)
        near.append((time.perf_counter() - start) * 1000)
    start = time.perf_counter()
    await history.at(life.block_id, life.version // 2)
    far.append((time.perf_counter() - start) * 1000)
    start = time.perf_counter()
    await history.blame(life.block_id)
    blame.append((time.perf_counter() - start) * 1000)
    return [
        Figure(name="planning an undo", unit="ms", values=undo),
        Figure(name="a version 500 edits back", unit="ms", values=near),
        Figure(name="a version half the history back", unit="ms", values=far, note=f"of {life.version:,}"),
        Figure(name="blame", unit="ms", values=blame),
    ]


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
    values = []
    for _ in range(RUNS):
        start = time.perf_counter()
        what()
        values.append((time.perf_counter() - start) * 1000)
    return values


def _figure(name: str, values: list[float], baseline: list[float], *, most: float, note: str) -> Figure:
    return Figure(
        name=name, unit="ms", values=values, most=most, baseline=sorted(baseline)[len(baseline) // 2], note=note
    )


def run() -> list[Figure]:
    """The figures."""
    return trio.run(measure)
