"""What an operator runs on the files, killed at random moments or with a disk that fails at a random call.

    python -m tests.faults.operations --kills 200 --faults 100 --seed 7 [OPERATION…]

Each trial begins with a copy of the same data directory, runs one command line in a forked child and ends it by SIGKILL
or lets one call of its disk fail. Then what it read from must have the same rows, what it makes must be absent or
complete, and the same command must succeed and leave nothing half done. Ends with 0 if all of that was so, else 1.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TypeAlias

import apsw
import trio

from pattern_core.car import ArchiveInvalid
from pattern_core.portable import verify as verify_archive
from pattern_db import template
from pattern_db.backup import content_digest, ordinary_tables, replaced, verify
from pattern_db.connection import Connection, open_connection, transaction
from pattern_db.errors import DatabaseError
from pattern_db.files import DataDirLock
from pattern_db.migrate import migrations_of
from pattern_db.testing.disks import FaultyDisk, Op, Trouble
from pattern_server.backups import newest_copies
from pattern_server.cli import run
from pattern_server.cli.backup import whole
from tests.pattern_server.age_program import install, recipient_of

NOW = "2026-01-01T00:00:00.000Z"
KEY = "AGE-SECRET-KEY-1"  # what the copies of later are encrypted for
SEALED, OPENED = f"--age-recipient {recipient_of(KEY)}", "--identity $given/key.txt"
OLD = 30  # the schema version that is migrated from
MESSAGES, SAID_LATER = 400, 7
TROUBLES = ((Op.WRITE, Trouble.FULL), (Op.WRITE, Trouble.IO), (Op.SYNC, Trouble.IO), (Op.OPEN, Trouble.IO))
HANGS_S = 120.0
SHOWN_MAX = 5
CODES = (0, 1, 2, 3)  # done, refused, a question that no one was there to answer, done in part: all else is a crash
# What a start writes, or every use: not what was stored.
_OWN = ("meta", "tokens", "audit_log", "signing_keys", "sign_ins")
_LITTER = (".pattern-new", ".restoring", ".removed-", ".making", ".restore")
# A first import in each child would be most of its life.
_LOADED = ("serve", "http.app", "cli.backup", "cli.db", "cli.portable", "portable", "backups")
_FOLDERS = tuple(Path(name) for name in ("/dev/shm",) if Path(name).is_dir())

Rows: TypeAlias = Mapping[str, frozenset[tuple[object, ...]]]


@dataclass(frozen=True, kw_only=True)
class Place:
    """A folder with a data directory (`data`), what operations are given (`given`), and what they make (`made`)."""

    folder: Path

    @property
    def data(self) -> Path:
        """The data directory."""
        return self.folder / "data"

    @property
    def made(self) -> Path:
        """Where operations write to."""
        return self.folder / "made"

    @property
    def given(self) -> Path:
        """What operations read from."""
        return self.folder / "given"

    def database(self, name: str) -> Path | None:
        """The file of a constellation; None if the registry does not know it."""
        with closing(open_connection(self.data / "global.db")) as connection:
            found = connection.execute("SELECT db_path FROM constellations WHERE name = ?", (name,)).get
        return None if found is None else self.data / str(found)

    def home(self) -> Path:
        """The file of the constellation that is always there."""
        found = self.database("home")
        assert found is not None
        return found


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A command line, by the folder that it works in; `before` makes the files ready. `is_sound` says what is wrong
    with what the command has made so far, `is_done` says so of what it must have made in the end.
    """

    words: str
    is_sound: Callable[[Place], str]
    is_done: Callable[[Place], str]
    before: Callable[[Place], None] = lambda _place: None
    is_source: bool = True  # the constellation only reads from
    again: str = ""  # words for the second time


def stored(path: Path) -> Rows:
    """All rows of the ordinary tables of a file, without those of `_OWN`."""
    with closing(open_connection(path)) as connection:
        tables = [table for table in ordinary_tables(connection) if table not in _OWN]
        return {table: frozenset(connection.execute(f"SELECT * FROM {table}").fetchall()) for table in tables}


def differs(path: Path | None, wanted: Rows, what: str) -> str:
    """What is wrong with the rows of a file; empty if they are these."""
    if path is None or not path.exists():
        return f"{what} is not there"
    there = stored(path)
    wrong = [table for table in wanted if there.get(table) != wanted[table]]
    return f"{what} has other rows in {', '.join(wrong)}" if wrong else ""


def counted(path: Path | None, table: str = "messages") -> int | None:
    """How many rows a table of a file has; None without a file."""
    if path is None or not path.exists():
        return None
    with closing(open_connection(path)) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {table}").get)


def fill(connection: Connection, first: int, count: int) -> None:
    """Store messages of the only agent."""
    with transaction(connection):
        agent = connection.execute("SELECT id FROM agents").get
        connection.executemany(
            "INSERT INTO messages (id, agent_id, position, role, content, created_at) VALUES (?, ?, ?, 'user', ?, ?)",
            [
                (f"msg_{agent}_{n}", agent, f"{n:019d}", f"words number {n} of a long talk " * 5, NOW)
                for n in range(first, first + count)
            ],
        )


def call(place: Place, words: str, disk: FaultyDisk | None = None) -> int:
    """Run one command line in this process; its exit code."""
    os.environ.update(
        PATTERN_DATA_DIR=str(place.data),
        PATTERN_EMBEDDINGS__PROVIDER="none",
        PATTERN_LOG_LEVEL="error",
        # Else updates are merged at a start when this has run for an hour, which changes the rows of the source.
        PATTERN_LIMITS__MEMORY__CHECKPOINT_INTERVAL_S="1000000",
    )
    if disk is not None:
        disk.within(place.folder)
    given = [word.replace("$", f"{place.folder}/") for word in words.split()]
    return run(given)


def forked(place: Place, words: str, *, fault: tuple[Op, Trouble, int] | None = None) -> int:
    """Start one command line in a child; its process id. What it says goes to `said` in the folder."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        said = os.open(place.folder / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(said, stream)
        disk = None
        if fault is not None:
            disk = FaultyDisk(is_default=True)
            disk.fail(fault[0], nth=fault[2], trouble=fault[1])
        code = call(place, words, disk)
        if disk is not None:
            (place.folder / "calls").write_text(" ".join(str(disk.calls[op]) for op, _ in TROUBLES))
    except Exception:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def ended(child: int, *, after_s: float | None = None) -> int:
    """Wait for a child and return its exit code; with a time, kill it then if it still runs (-9)."""
    deadline = time.monotonic() + (HANGS_S if after_s is None else after_s)
    while time.monotonic() < deadline:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if after_s is None:
        raise AssertionError("the command hangs")
    return -signal.SIGKILL


def prepare(folder: Path) -> Place:
    """A data directory with a constellation that has been used, copies and archives of it."""
    place = Place(folder=folder)
    for path in (place.given, place.made):
        path.mkdir(parents=True)
    _done(place, "constellation create home", "agent create ada -c home --provider embedded --memory human=")
    _done(place, *(f"chat -c home {words}" for words in ("Hello", "Remember-that-Ruth-lives-in-Lisbon.", "Bye")))
    _done(place, "backup -c home -o $given/before.db", "backup --all -o $given/sunday")
    with closing(open_connection(place.home())) as connection:
        fill(connection, 1, MESSAGES)
    _done(place, "constellation create other", "agent create ben -c other --provider embedded --memory notes=Tea.")
    other = place.database("other")
    assert other is not None
    with closing(open_connection(other)) as connection:
        fill(connection, 1, MESSAGES // 4)
    (place.given / "key.txt").write_text(f"{KEY}\n")
    _done(
        place,
        "backup -c home -o $given/home.db",
        "backup --all -o $given/all",
        f"backup -c home -o $given/home.increment.age --since $given/before.db {SEALED}",
        f"backup --all -o $given/monday --since $given/sunday {SEALED}",
        "export constellation --name home -o $given/home.car",
        "export agent --name ben -c other -o $given/ben.car",
    )
    return place


def _done(place: Place, *lines: str) -> None:
    for line in lines:
        code = ended(forked(place, line))
        assert code == 0, f"{line}: {code}\n{(place.folder / 'said').read_text()}"


def _outdate(place: Place) -> None:
    """Make both constellations anew, as an older version would have."""
    for name in ("home", "other"):
        path = place.database(name)
        assert path is not None
        for old in path.parent.glob("pattern.db*"):
            old.unlink()
        template.create(path, migrations_of("constellation").up_to(OLD), now=NOW)
        with closing(open_connection(path)) as connection:
            connection.execute(
                "INSERT INTO agents (id, name, model_provider, model_name, system_prompt, config, enabled_tools,"
                f" created_at, updated_at) VALUES ('agent_{name}', 'a', 'p', 'm', '', '{{}}', '[]', ?1, ?1)",
                (NOW,),
            )
            fill(connection, 1, MESSAGES)


def _migrated(place: Place) -> None:
    _outdate(place)
    _done(place, "db migrate")
    with closing(open_connection(place.home())) as connection:
        fill(connection, MESSAGES + 1, SAID_LATER)


def _copy(place: Place, path: Path) -> str:
    """What is wrong with a copy of home."""
    return "" if not path.exists() else trio.run(_opened, place, path, place.home())


async def _opened(place: Place, path: Path, source: Path | None) -> str:
    async with whole(path, place.given / "key.txt") as copy:
        verify(copy)
        return "" if source is None else differs(copy, stored(source), path.name)


def _copies(place: Place) -> str:
    """What is wrong with the copies of all; users and tokens change with every use."""
    there = {path: path.name.split(".")[0] for path in (place.made / "all").glob("[!.]*")}
    found = (trio.run(_opened, place, path, place.database(name)) for path, name in there.items())
    return next(filter(None, found), "")


def _there(place: Place, path: Path) -> str:
    return _copy(place, path) if path.exists() else f"{path.name} is not there"


def _archive(place: Place) -> str:
    path = place.made / "home.car"
    if not path.exists():
        return ""
    try:
        verify_archive(path)
    except ArchiveInvalid as error:
        return str(error)
    return "" if path.read_bytes() == (place.given / "home.car").read_bytes() else "the archive has other bytes"


def _whole(place: Place, copies: str, *, is_done: bool = False) -> str:
    """What is wrong with the data directory that is made of a folder of copies."""
    new = place.made / "new"
    if not new.exists():
        return "the data directory is not there" if is_done else ""
    for each, copy in newest_copies(place.given / copies).items():
        path = next(new.glob(f"**/{each}/pattern.db"), new / "global.db")
        if trio.run(_digest, place, copy) != trio.run(_digest, place, path):
            return f"{path} has other rows than its copy"
    return ""


async def _digest(place: Place, path: Path) -> str:
    async with whole(path, place.given / "key.txt") as copy:
        with closing(open_connection(copy)) as connection:
            return content_digest(connection)


def _as(name: str, *, is_done: bool = False) -> Callable[[Place], str]:
    """What is wrong with a constellation that is made of home: as many rows of all that is copied."""

    def look(place: Place) -> str:
        path = place.database(name)
        if path is None:
            return f"{name} is not there" if is_done else ""
        for table in ("agents", "messages", "memory_blocks", "memory_block_updates"):
            if counted(path, table) != counted(place.home(), table):
                return f"{name} has other rows in {table}"
        return ""

    return look


def _joined(*allowed: tuple[int, int]) -> Callable[[Place], str]:
    def look(place: Place) -> str:
        found = (
            counted(place.home(), "agents"),
            (counted(place.home()) or 0) - (counted(place.given / "home.db") or 0),
        )
        return "" if found in allowed else f"home has {found[0]} agents and {found[1]} messages more"

    return look


def _versions(*allowed: int) -> Callable[[Place], str]:
    """What is wrong with files that are migrated or put back: each at one of these versions, with its messages."""

    def look(place: Place) -> str:
        for name in ("home", "other"):
            path = place.database(name)
            assert path is not None
            if not path.exists():
                return f"the file of {name} is not there"
            with closing(open_connection(path)) as connection:
                version = int(connection.pragma("user_version"))
            later = 0 if version == OLD else (counted(path) or 0) - MESSAGES
            if version not in allowed or counted(path) != MESSAGES + later or later not in (0, SAID_LATER):
                return f"{name} is at version {version} with {counted(path)} messages"
        for copy in (place.data / "backups").glob("*.db"):
            verify(copy)
        return ""

    return look


def _back(place: Place) -> str:
    """What is wrong after a rollback: the newer file is kept."""
    kept = counted(replaced(place.home()))
    return _versions(OLD)(place) or ("" if kept == MESSAGES + SAID_LATER else f"the newer file has {kept} messages")


def _not_lost(place: Place) -> str:
    """What is wrong during a rollback: what was said later is in the file or in the one that is kept."""
    most = max(counted(place.home()) or 0, counted(replaced(place.home())) or 0)
    return _versions(OLD, NEWEST)(place) or ("" if most == MESSAGES + SAID_LATER else f"{most} messages are left")


def _said(place: Place) -> str:
    """What is wrong with home after old events were deleted: nothing that was said is gone."""
    with closing(open_connection(place.home())) as connection:
        if (found := connection.execute("PRAGMA integrity_check").get) != "ok":
            return str(found)
    return "" if counted(place.home()) == counted(place.given / "home.db") else "messages are gone"


def _pruned(place: Place) -> str:
    return _said(place) or ("steps are left" if counted(place.home(), "step") else "")


NEWEST = migrations_of("constellation").newest
OPERATIONS: Mapping[str, Operation] = {
    "backup": Operation(
        words="backup -c home -o $made/home.db",
        again="--overwrite",
        is_sound=lambda place: _copy(place, place.made / "home.db"),
        is_done=lambda place: _there(place, place.made / "home.db"),
    ),
    "backup_since": Operation(
        words=f"backup -c home -o $made/home.increment --since $given/before.db {SEALED}",
        again="--overwrite",
        is_sound=lambda place: _copy(place, place.made / "home.increment"),
        is_done=lambda place: _there(place, place.made / "home.increment"),
    ),
    "backup_all_since": Operation(
        words=f"backup --all -o $made/all --since $given/sunday {SEALED}",
        again="--overwrite",
        is_sound=_copies,
        is_done=lambda place: (
            _copies(place) or ("" if len([*(place.made / "all").glob("*")]) == 3 else "one is missing")
        ),
    ),
    "restore": Operation(
        words="restore $given/home.db --as again", is_sound=_as("again"), is_done=_as("again", is_done=True)
    ),
    "restore_all": Operation(
        words="restore --all $given/all --to $made/new",
        is_sound=lambda place: _whole(place, "all"),
        is_done=lambda place: _whole(place, "all", is_done=True),
    ),
    "restore_since": Operation(
        words=f"restore $given/home.increment.age {OPENED} --as again",
        is_sound=_as("again"),
        is_done=_as("again", is_done=True),
    ),
    "restore_all_since": Operation(
        words=f"restore --all $given/monday {OPENED} --to $made/new",
        is_sound=lambda place: _whole(place, "monday"),
        is_done=lambda place: _whole(place, "monday", is_done=True),
    ),
    "import": Operation(
        words="import --from $given/home.car --as again", is_sound=_as("again"), is_done=_as("again", is_done=True)
    ),
    "merge": Operation(
        words="import --from $given/ben.car -c home --merge",
        is_sound=_joined((1, 0), (2, MESSAGES // 4)),
        is_done=_joined((2, MESSAGES // 4)),
        is_source=False,
    ),
    "export": Operation(
        words="export constellation --name home -o $made/home.car",
        again="--overwrite",
        is_sound=_archive,
        is_done=lambda place: _archive(place) if (place.made / "home.car").exists() else "there is no archive",
    ),
    "migrate": Operation(
        words="db migrate",
        before=_outdate,
        is_sound=_versions(OLD, NEWEST),
        is_done=_versions(NEWEST),
        is_source=False,
    ),
    "rollback": Operation(
        words="db rollback --yes", before=_migrated, is_sound=_not_lost, is_done=_back, is_source=False
    ),
    "vacuum": Operation(words="db vacuum -c home", is_sound=_said, is_done=_said),
    "retention": Operation(words="db prune -c home --days 0", is_sound=_said, is_done=_pruned, is_source=False),
}


@dataclass(kw_only=True)
class Trials:
    """Trials of one operation, each on a copy of the same place."""

    name: str
    place: Place
    chance: random.Random
    failures: list[str] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=dict)

    @property
    def operation(self) -> Operation:
        """What is tried."""
        return OPERATIONS[self.name]

    def rehearse(self) -> tuple[float, list[int]]:
        """Run the command undisturbed; how long it takes, and how many calls of `TROUBLES` its disk gets."""
        with copied(self.place) as place:
            began = time.monotonic()
            code = ended(forked(place, self.operation.words, fault=(Op.READ, Trouble.IO, 1 << 60)))
            took_s = time.monotonic() - began
            assert code == 0, (place.folder / "said").read_text()
            assert not (wrong := self.operation.is_done(place)), wrong
            return took_s, [int(count) for count in (place.folder / "calls").read_text().split()]

    def kill(self, at_s: float) -> None:
        """Kill the command at a time."""
        with copied(self.place) as place:
            before = stored(place.home())
            code = ended(forked(place, self.operation.words), after_s=at_s)
            self._check(place, before, f"killed after {at_s:.3f} s", code)

    def fail(self, fault: tuple[Op, Trouble, int]) -> None:
        """Let a call of the disk fail."""
        with copied(self.place) as place:
            before = stored(place.home())
            code = ended(forked(place, self.operation.words, fault=fault))
            self._check(place, before, f"{fault[1]} at {fault[0]} number {fault[2]}", code)

    def _check(self, place: Place, before: Rows, how: str, code: int) -> None:
        self.ends[str(code)] = self.ends.get(str(code), 0) + 1
        try:
            wrong = next(self._wrong(place, before, code), "")
        except (DatabaseError, apsw.Error, OSError) as error:  # what was left cannot be read
            wrong = repr(error)
        if wrong:
            said = (place.folder / "said").read_text()[-1500:]
            self.failures.append(f"{self.name}, {how} (exit code {code}): {wrong}\n{said}")

    def _wrong(self, place: Place, before: Rows, code: int) -> Iterator[str]:
        operation = self.operation
        if code not in (*CODES, -signal.SIGKILL) or "Traceback" in (place.folder / "said").read_text():
            yield "it crashed"
        if operation.is_source:
            yield from filter(None, [differs(place.home(), before, "the source")])
        yield from filter(None, [operation.is_sound(place)])
        is_done = not operation.is_done(place)
        again = ended(forked(place, f"{operation.words} {operation.again}"))
        if again and not is_done:
            yield f"the next run ended with {again}"
        yield from filter(None, [operation.is_done(place)])
        if operation.is_source:
            yield from filter(None, [differs(place.home(), before, "the source at last")])
        left = [path.name for path in place.folder.rglob("*") if any(word in path.name for word in _LITTER)]
        if left:
            yield f"left: {left}"
        yield from _strays(place)
        with DataDirLock.acquire(place.data):
            pass


def _strays(place: Place) -> Iterator[str]:
    """Yield the folders of constellations that no name reaches."""
    with closing(open_connection(place.data / "global.db")) as connection:
        known = {str(path).split("/")[1] for (path,) in connection.execute("SELECT db_path FROM constellations")}
    for folder in (place.data / "constellations").iterdir():
        if folder.name not in known:
            yield f"no constellation has the folder {folder.name}"


@contextmanager
def copied(place: Place) -> Iterator[Place]:
    """Yield a copy of a place, at a path of the same length."""
    with tempfile.TemporaryDirectory(dir=place.folder.parent) as folder:
        shutil.copytree(place.folder, Path(folder) / "place", ignore=shutil.ignore_patterns("said"))
        (Path(folder) / "place" / "said").touch()  # it may be killed before it can say anything
        yield Place(folder=Path(folder) / "place")


@contextmanager
def with_age(folder: Path) -> Iterator[None]:
    """Let a stand-in for age be found in a folder within the block."""
    install(folder)
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{folder}{os.pathsep}{before}"
    try:
        yield
    finally:
        os.environ["PATH"] = before


def series(names: Sequence[str], *, kills: int, faults: int, seed: int) -> Iterator[Trials]:
    """Try operations one after the other, and yield what came of each."""
    for module in _LOADED:
        import_module(f"pattern_server.{module}")
    folder = _FOLDERS[0] if _FOLDERS else None
    with tempfile.TemporaryDirectory(prefix="pattern-operations-", dir=folder) as root, with_age(Path(root)):
        first = prepare(Path(root) / "first" / "place")
        for name in names:
            with copied(first) as place:
                OPERATIONS[name].before(place)
                trials = Trials(name=name, place=place, chance=random.Random(f"{seed} {name}"))
                took_s, calls = trials.rehearse()
                for number in range(kills):
                    trials.kill(took_s * (number + trials.chance.random()) / kills)
                for number in range(faults):
                    kind = number % len(TROUBLES)
                    if calls[kind]:
                        trials.fail((*TROUBLES[kind], trials.chance.randint(1, calls[kind])))
                yield trials


def main() -> int:
    """Run; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.operations", description=__doc__.split("\n", 1)[0])
    parser.add_argument("names", nargs="*", metavar="OPERATION", help=f"of {', '.join(OPERATIONS)}; all by default")
    for name, default in (("kills", 20), ("faults", 8), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    failed = 0
    for trials in series(given.names or list(OPERATIONS), kills=given.kills, faults=given.faults, seed=given.seed):
        said = [f"{trials.name}: ends {trials.ends}, failures {len(trials.failures)}", *trials.failures[:SHOWN_MAX]]
        sys.stdout.write("\n  ".join(said) + "\n")
        sys.stdout.flush()
        failed += len(trials.failures)
    sys.stdout.write(f"seed {given.seed}: {failed} failures\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
