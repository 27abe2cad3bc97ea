"""Upkeep: a year of turns before and after retention, and the migration of many constellations.

`PATTERN_BENCH_TURNS=3650` is the number of turns in the year, `PATTERN_BENCH_FILES=1000` that of constellations.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing, redirect_stderr, redirect_stdout
from io import StringIO
from itertools import cycle
from pathlib import Path

import trio

from pattern_core.limits import Limits
from pattern_db import maintenance, template
from pattern_db.connection import open_connection
from pattern_db.files import replace, sha256_of
from pattern_db.migrate import migrations_of
from pattern_db.tables import constellations, users
from pattern_db.tables.constellations import ConstellationRow
from pattern_server.cli import run
from tests.bench.report import Figure
from tests.bench.world import NOW, words, world
from tests.pattern_db.older import create_older

TURNS = int(os.environ.get("PATTERN_BENCH_TURNS", "3650"))
FILES = int(os.environ.get("PATTERN_BENCH_FILES", "1000"))
MIGRATED_FROM = 30
MEASURED = 20  # turns
TEXTS = [words(400, seed) for seed in range(50)]
# As if they had been spread over a year until now.
AGED = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', format('-%f days', 365.0 * (?1 - {0}) / ?1))"


def measure() -> list[Figure]:
    """All figures."""
    with tempfile.TemporaryDirectory(prefix="pattern-bench-") as folder:
        return [*trio.run(_year, Path(folder) / "pattern.db"), *_migration(Path(folder) / "data")]


async def _year(path: Path) -> list[Figure]:
    async with world(steps=2, path=path) as bench:
        for _, text in zip(range(TURNS), cycle(TEXTS), strict=False):
            await bench.turn(bench.agents[0], text)
    with closing(open_connection(path)) as connection, connection:
        aged = AGED.format("key")
        connection.execute(f"UPDATE turn SET created_at = {aged}, started_at = {aged}, ended_at = {aged}", (TURNS,))
        connection.execute(f"UPDATE event SET created_at = {AGED.format('coalesce(turn, 0)')}", (TURNS,))
    full = await _looked_at(path)
    async with world(steps=2, path=path, agents=0) as bench:
        began = time.perf_counter()
        gone = await bench.constellation.prune(Limits().retention_days)
        pruned_s = time.perf_counter() - began
    with closing(open_connection(path)) as connection:
        maintenance.vacuum(connection)
    kept = await _looked_at(path)
    note = f"{TURNS:,} turns; the baseline is before retention"
    return [
        Figure(name="retention of a year", unit="s", values=[pruned_s], note=f"{gone.turns:,} turns go"),
        *(
            Figure(name=f"{what} after retention", unit=unit, values=[kept[what]], baseline=full[what], note=note)
            for what, unit in (("file", "MB"), ("first turn", "ms"), ("turn", "ms"))
        ),
    ]  # fmt: skip


async def _looked_at(path: Path) -> Mapping[str, float]:
    """The size of a copy of the file, what it takes to start it until the end of a first turn, and later turns."""
    with tempfile.TemporaryDirectory(prefix="pattern-bench-") as folder:
        copy = Path(folder) / "copy.db"
        shutil.copy(path, copy)
        size = copy.stat().st_size / 1e6
        began = time.perf_counter()
        async with world(steps=2, path=copy, agents=0) as bench:
            [agent] = await bench.constellation.roster.all()
            await bench.turn(agent, TEXTS[0])
            first = time.perf_counter() - began
            began = time.perf_counter()
            for text in TEXTS[:MEASURED]:
                await bench.turn(agent, text)
            each = (time.perf_counter() - began) / MEASURED
    return {"file": size, "first turn": first * 1000, "turn": each * 1000}


def _migration(data: Path) -> list[Figure]:
    template.create(data / "global.db", migrations_of("global"), now=NOW)
    older = data.with_name("older.db")
    create_older(older, MIGRATED_FROM)
    with closing(open_connection(data / "global.db")) as connection, connection:
        users.create(connection, users.UserRow("user_1", "ann", NOW, NOW))
        for number in range(FILES):
            each = f"con_{number:026d}"
            path = f"constellations/{each}/pattern.db"
            constellations.create(connection, ConstellationRow(each, "user_1", each, path, NOW, NOW))
            (data / path).parent.mkdir(parents=True)
            shutil.copy(older, data / path)
    began = time.perf_counter()
    with redirect_stdout(StringIO()) as said, redirect_stderr(said):
        code = run(["db", "migrate", "--data-dir", str(data)])
    migrated_s = time.perf_counter() - began
    assert code == 0, said.getvalue()[-2000:]
    began = time.perf_counter()  # what each needs of the disk at the least: a copy and the file itself, synced
    for number in range(FILES):
        for target in (data / f"{number}.db", data / f"{number}.new"):
            shutil.copy(older, target)
            sha256_of(target)
            replace(target, target.with_suffix(".done"))
    note = f"from {MIGRATED_FROM}, {older.stat().st_size / 1000:.0f} kB each; the baseline copies and syncs them twice"
    bare_s = time.perf_counter() - began
    return [
        Figure(name=f"migration of {FILES:,} constellations", unit="s", values=[migrated_s], baseline=bare_s, note=note)
    ]
