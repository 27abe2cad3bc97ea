"""Archives and copies: how fast and in what memory they are written and read, and how long they keep others waiting.

`PATTERN_BENCH_IMAGES=2000` is the number of images of a megabyte. The bare codec decodes, encodes and hashes the blocks
of the same archive, and writes them to a file.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from hashlib import sha256
from itertools import count
from pathlib import Path

import libipld

from pattern_core import portable
from pattern_core.car import CarReader
from pattern_db import files, template
from pattern_db.backup import hot_backup
from pattern_db.connection import open_connection
from pattern_db.migrate import migrations_of
from pattern_db.tables import agents, messages
from tests.bench.report import Figure, peak_bytes, timed_ms
from tests.bench.world import NOW, words
from tests.pattern_db.conftest import make_agent, make_message

MESSAGES, CHARS = 30_000, 1_000
IMAGES = int(os.environ.get("PATTERN_BENCH_IMAGES", "200"))
IMAGE_BYTES = 1_000_000
MEMORY_MIB = 200.0
PAUSE_MS = 20.0


def measure() -> list[Figure]:
    """All figures."""
    figures = []
    for what, fill in {"messages": _fill_with_messages, "images": _fill_with_images}.items():
        with tempfile.TemporaryDirectory(prefix="pattern-bench-") as folder:
            source = Path(folder) / "source.db"
            template.create(source, migrations_of("constellation"), now=NOW)
            fill(source)
            figures += _archive(source, what)
    return figures


def _fill_with_messages(source: Path) -> None:
    with closing(open_connection(source)) as connection:
        agents.create(connection, make_agent("ada"))
        with connection:
            for first in range(0, MESSAGES, 1_000):
                messages.append(connection, [make_message(no, words(CHARS, no)) for no in range(first, first + 1_000)])


def _fill_with_images(source: Path) -> None:
    rng = random.Random(7)
    with closing(open_connection(source)) as connection:
        for _ in range(IMAGES):
            row = (rng.randbytes(32), IMAGE_BYTES, rng.randbytes(IMAGE_BYTES), NOW)
            connection.execute("INSERT INTO blob VALUES (?, 'raw', ?, ?, ?)", row)


def _archive(source: Path, what: str) -> list[Figure]:
    copy, archive, new = (source.with_name(name) for name in ("copy.db", "made.car", "new.db"))
    numbers = count()
    copying = _writer_pause(source, numbers, lambda: _copied(source, copy))
    wrote_s, wrote_mib = _alone(partial(_write, copy, archive))
    files.discard(archive)
    exporting = _writer_pause(source, numbers, lambda: _write(copy, archive))
    read_s, read_mib = _alone(partial(_read, archive, new))
    files.discard(new)
    importing = _writer_pause(source, numbers, lambda: _read(archive, new))
    codec_s = _codec(archive)
    size = archive.stat().st_size / 1e6
    bare = size / codec_s
    note = f"{size:,.0f} MB"
    # `most` bounds a figure, and the baseline of a speed is the faster one: a ratio below 1 is slower.
    return [
        Figure(name=f"bare codec: {what}", unit="MB/s", values=[bare], note=note),
        Figure(name=f"export of {what}", unit="MB/s", values=[size / wrote_s], baseline=bare, note=note),
        Figure(name=f"import of {what}", unit="MB/s", values=[size / read_s], baseline=bare, note=note),
        Figure(name=f"export of {what}: memory", unit="MiB", values=[wrote_mib], most=MEMORY_MIB, note=note),
        Figure(name=f"import of {what}: memory", unit="MiB", values=[read_mib], most=MEMORY_MIB, note=note),
        *(
            Figure(
                name=f"longest commit of others while {what} are {done}", unit="ms", values=[pause], most=PAUSE_MS,
                baseline=idle, note="the baseline is the longest one without that",
            )
            for done, (pause, idle) in {"copied": copying, "exported": exporting, "imported": importing}.items()
        ),
    ]  # fmt: skip


def _copied(source: Path, copy: Path) -> None:
    files.discard(copy)
    with closing(open_connection(source)) as connection:
        hot_backup(connection, copy)


def _write(copy: Path, archive: Path) -> None:
    with files.written(archive) as new, files.created(new) as file:
        portable.write(copy, file, kind="constellation", id_or_name="home")


def _read(archive: Path, new: Path) -> None:
    portable.read(archive, new, now=NOW)


def _codec(archive: Path) -> float:
    """Seconds for the blocks of an archive: read and checked, decoded, encoded, hashed and written."""
    with archive.open("rb") as file, tempfile.TemporaryFile(dir=archive.parent) as out:
        began = time.perf_counter()
        car = CarReader(file)
        for cid in car._places:
            is_node = cid.startswith(b"\x01\x71")
            data = libipld.encode_dag_cbor(car.node(cid)) if is_node else car.raw(cid)
            out.write(sha256(data).digest() + data)
        return time.perf_counter() - began


def _writer_pause(path: Path, numbers: Iterator[int], work: Callable[[], None]) -> tuple[float, float]:
    """The longest commit (ms) of another connection while `work` is done, and in as long a time without."""
    with _committing(path, numbers) as latencies:
        duration_s = timed_ms(work) / 1000
    with _committing(path, numbers) as calm:
        time.sleep(duration_s)
    return max(latencies), max(calm)


@contextmanager
def _committing(path: Path, numbers: Iterator[int]) -> Iterator[list[float]]:
    """Commit a row every few milliseconds, from another thread; the durations in milliseconds."""
    latencies, is_over = list[float](), threading.Event()

    def commit() -> None:
        sql = "INSERT INTO coordination_state (key, value, updated_at) VALUES (?1, '1', ?2)"
        with closing(open_connection(path)) as connection:
            while not is_over.wait(0.003):
                latencies.append(timed_ms(lambda: connection.execute(sql, (f"{next(numbers)}", NOW)).fetchall()))

    thread = threading.Thread(target=commit)
    thread.start()
    try:
        yield latencies
    finally:
        is_over.set()
        thread.join()


def _alone(work: Callable[[], None]) -> tuple[float, float]:
    """Seconds and MiB of a process that does only this."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_measured, work).result()


def _measured(work: Callable[[], None]) -> tuple[float, float]:
    seconds = timed_ms(work) / 1000
    return seconds, peak_bytes() / 2**20
