"""Archives and agent files with lies and damage in them: each is refused in words, or imported exactly and whole.

    python -m tests.pattern_core.test_mutated --count 10000 --seed 16 [KIND…]

KIND is `ours` (archives of version 4), `theirs` (versions 1 to 3 of the original system) or `letta` (agent files). Each
kind runs in a process of its own, which may use 256 MB. Ends with 0 if all of that was so, else 1.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from pattern_core.car import ArchiveInvalid
from pattern_core.memory.document import DocumentDamaged
from pattern_core.portable import Kind
from pattern_db import backup, portable, template
from pattern_db.connection import fetch_all, open_connection
from pattern_db.errors import BackupInvalid, SchemaTooNew
from pattern_db.migrate import migrations_of
from tests.bench.report import peak_bytes
from tests.pattern_core.legacy import test_archives, test_letta
from tests.pattern_core.legacy.theirs import Theirs, entry_of, summary_of
from tests.pattern_core.mutated import is_damaged, mutated, tables_in, tree_of
from tests.pattern_core.test_portable import NOW, exported, fill, imported
from tests.sources import ROOT

COUNT = 50  # of the test command
MODULE = "tests.pattern_core.test_mutated"
MEMORY_MAX = 256 * 1024 * 1024

Check: TypeAlias = Callable[[bytes], str]
"""Imports the content of a file: returns what is wrong with what became of it, or raises its refusal."""


def ours(rng: random.Random, folder: Path) -> Iterator[tuple[bytes, Check]]:
    """Archives of version 4 of a constellation with rows in every table, of an agent and of a group."""
    source, archive = folder / "full.db", folder / "mutated.car"
    template.create(source, migrations_of("constellation"), now=NOW)
    with closing(open_connection(source)) as connection:
        fill(connection)
        (agent,), (group,) = (
            fetch_all(connection, f"SELECT id FROM {table}")[0] for table in ("agents", "agent_groups")
        )
    named: dict[Kind, str] = {"constellation": "home", "agent": agent, "group": group}
    trees = [tree_of(exported(source, folder, kind, name)[0].read_bytes()) for kind, name in named.items()]

    def check(content: bytes) -> str:
        archive.write_bytes(content)
        path = imported(archive, folder)
        if is_damaged(content):
            return "it has a damaged block"
        said = tables_in(content)
        counts = {table: len(rows) for table, rows in said.items()}
        if counts != {table: count for table, count in tree_of(content)["rows"].items() if count}:
            return f"its manifest counts other rows than {counts}"
        with closing(open_connection(path)) as connection:
            if problems := backup.check_integrity(connection):
                return problems[0]
            for table in backup.ordinary_tables(connection):
                if table not in portable.TRAVELS:
                    continue
                rows = said.get(table, [])
                columns = sorted(set.intersection(*map(set, rows))) if rows else []
                stored = fetch_all(connection, f"SELECT {', '.join(map(json.dumps, columns)) or '1'} FROM {table}")
                expected = [[_as_stored(row[column]) for column in columns] for row in rows]
                found = [[_as_stored(value) for value in row] for row in stored]
                if sorted(map(repr, found)) != sorted(map(repr, expected)):
                    return f"{table} has other rows than the archive"
        return ""

    while True:
        yield mutated(rng.choice(trees), rng, with_blake3=False), check


def _as_stored(value: Any) -> Any:
    """A cell whatever type its column gives it: "7", 7 and 7.0 are one."""
    if isinstance(value, str):
        with suppress(ValueError):
            return int(value)
    if isinstance(value, str | float):
        with suppress(ValueError):
            number = float(value)
            return int(number) if number.is_integer() else number
    return value


def theirs(rng: random.Random, folder: Path) -> Iterator[tuple[bytes, Check]]:
    """Archives of version 3 of an agent and of a constellation."""

    def parts(theirs: Theirs) -> dict[str, Any]:
        return {
            "message_chunk_cids": theirs.messages("agent_a", ["one", ("assistant", {"Text": "two"}), "three"], most=2),
            "memory_block_cids": [theirs.block("m", "agent_a", "human", "words")],
            "archival_entry_cids": [entry_of(theirs, "e", "agent_a", "entry")],
            "archive_summary_cids": [summary_of(theirs, "s", "agent_a", "summary")],
        }

    sound = (test_archives.agent_archive(folder, parts), test_archives.constellation_archive(folder))
    trees = [tree_of(one.read_bytes()) for one in sound]
    archive = folder / "mutated.car"

    def check(content: bytes) -> str:
        archive.write_bytes(content)
        made = test_archives.Made(archive)
        if is_damaged(content):
            return "it has a damaged block"
        stored = Counter(made.old.counts())
        # What belongs to no agent of the archive is left out, and said so.
        for one in made.decisions:
            if one["kind"] == "message" and one["decision"].endswith("left out"):
                stored["messages"] -= int(one["name"].split()[0]) if one["name"].endswith("deleted ones") else 1
        return _counted(stored, made.rows, "agents", "messages", "memory_blocks", "archival_entries")

    while True:
        yield mutated(rng.choice(trees), rng, with_blake3=True), check


def letta(rng: random.Random, folder: Path) -> Iterator[tuple[bytes, Check]]:
    """Agent files of both forms."""

    def check(content: bytes) -> str:
        made = test_letta.Made(folder, content)
        return _counted(made.old.counts(), made.rows, "agents", "memory_blocks", "agent_groups")

    while True:
        yield _mutated_json(rng.choice([test_letta.NEW, test_letta.OLD]), rng), check


def _counted(counts: Mapping[str, int], rows: Callable[[str], list[Any]], *tables: str) -> str:
    """What is wrong with the numbers of rows."""
    found = {table: rows(f"SELECT count(*) FROM {table}")[0][0] for table in tables}
    return "" if found == {table: counts.get(table, 0) for table in tables} else f"it has {found}, not {counts}"


def _mutated_json(value: Any, rng: random.Random) -> bytes:
    """A file with a few lies in it: other values, keys gone, entities twice, bytes changed or cut off."""
    content = json.loads(json.dumps(value))
    for _ in range(rng.randint(1, 4)):
        where, key = rng.choice(_places(content))
        match rng.randrange(4):
            case 0:
                where[key] = rng.choice(
                    [None, [], {}, "", 7, -1, 1e300, True, "\ud800", "x" * 300, [[None]], {"a": {"b": []}}]
                )
            case 1 if isinstance(where, dict):
                del where[key]
            case 2 if isinstance(where, list):
                where.append(where[key])
            case _:
                other, its_key = rng.choice(_places(content))
                where[key] = json.loads(json.dumps(other[its_key]))
    data = bytearray(json.dumps(content).encode())
    if rng.random() < 0.2:
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data[: rng.randrange(len(data))] if rng.random() < 0.05 else data)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every container of a JSON value with each of its keys."""
    found: list[tuple[Any, Any]] = []
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            found += [(value, key), *_places(value[key])]
    return found


# kind → its files, and the smallest and largest share of them that is refused: else the mutations say nothing
KINDS: Mapping[str, tuple[Callable[[random.Random, Path], Iterator[tuple[bytes, Check]]], float, float]] = {
    "ours": (ours, 0.25, 0.9),
    "theirs": (theirs, 0.25, 0.9),
    "letta": (letta, 0.025, 0.5),
}
REFUSALS = (ArchiveInvalid, BackupInvalid, DocumentDamaged, SchemaTooNew)


def tried(kind: str, count: int, seed: int) -> str:
    """Try so many files of a kind; what was wrong with the first one that was neither refused nor exact."""
    make, least, most = KINDS[kind]
    refused = 0
    with tempfile.TemporaryDirectory(prefix="pattern-mutated-") as folder:
        files = make(random.Random(seed), Path(folder))
        for number in range(count):
            content, check = next(files)
            try:
                wrong = check(content)
            except REFUSALS as error:
                refused += 1
                wrong = "" if str(error) else "it is refused without words"
            except Exception as error:  # noqa: BLE001 - this looks for crashes, too
                wrong = f"it ended with {error!r}"
            if wrong:
                kept = Path(tempfile.gettempdir()) / f"pattern-mutated-{kind}"
                kept.write_bytes(content)
                return f"{kind}, seed {seed}: file {number}, kept as {kept}: {wrong}"
    peak = peak_bytes()
    counts = f"files {count}, refused {refused}, imported exactly {count - refused}"
    sys.stdout.write(f"{kind}: {counts}, memory {peak / 2**20:.0f} MiB\n")
    if peak > MEMORY_MAX:
        return f"{kind} needed more than {MEMORY_MAX / 2**20:.0f} MiB"
    return "" if least * count < refused < most * count else f"{kind}: {refused} of {count} are refused"


@pytest.mark.parametrize("kind", KINDS)
def test_mutated_files_are_refused_or_imported_exactly(kind: str) -> None:
    """In a process of its own, since its memory is measured."""
    line = [sys.executable, "-m", MODULE, "--count", str(COUNT), kind]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def main() -> int:
    """Run; the exit status."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__.split("\n", 1)[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}; all by default")
    parser.add_argument("--count", type=int, default=COUNT, help="files of each kind")
    parser.add_argument("--seed", type=int, default=16)
    given = parser.parse_args()
    if len(given.kinds) == 1:
        wrong = tried(given.kinds[0], given.count, given.seed)
        sys.stdout.write(wrong + "\n" if wrong else "")
        return 1 if wrong else 0
    line = [sys.executable, "-m", MODULE, "--count", str(given.count), "--seed", str(given.seed)]
    return max(abs(subprocess.run([*line, kind], cwd=ROOT, check=False).returncode) for kind in given.kinds or KINDS)


if __name__ == "__main__":
    sys.exit(main())
