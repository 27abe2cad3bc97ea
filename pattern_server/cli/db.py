"""`pattern db …`: maintenance of the database files, under their locks or through the API of a running server."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote
from typing import Any

import click
import trio

from pattern_core.errors import Unavailable
from pattern_core.ids import SystemClock, now_text
from pattern_core.memory.damage import damaged_blocks
from pattern_db import maintenance
from pattern_db.backup import hot_backup, replaced, restore, rows_since, verify
from pattern_db.connection import Connection, opened_at
from pattern_db.database import Database, DatabaseThreads
from pattern_db.enums import CONSTELLATION_OWNER as EVERYONE
from pattern_db.errors import DatabaseError, DiskFull, OwnedElsewhere, RowNotFound, translated
from pattern_db.files import DataDirLock, free_bytes
from pattern_db.migrate import Estimate, Kind, Migrations, ledger, migrations_of, require_ledger
from pattern_db.tables import agents, audit_log, constellations
from pattern_server.cli.client import Api, ServerFailed
from pattern_server.cli.command import ExitCode, PlainGroup, connected, local, yes_option
from pattern_server.cli.names import CONSTELLATION
from pattern_server.cli.output import DONE, FAILED, SKIPPED, Output
from pattern_server.config import REGISTRY_NAME, Config, require_data

IN_USE = (OwnedElsewhere.code, Unavailable.code)  # codes of errors that may be gone at the next try
BACKUPS_NAME = "backups"
_BEFORE = ".before-migration."  # in the names of copies, between the id and the time
BACK_COLUMNS = ("database", "version", "back_to", "lost*")
COLUMNS = ("database", "version", "state*", "size", "free?", "log?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One database file, with its name for people; the lock of the folder that it is in protects it."""

    name: str
    kind: Kind
    path: Path

    @property
    def id(self) -> str:
        """The first part of the names of its copies."""
        return self.path.parent.name if self.kind == "constellation" else "global"

    @property
    def migrations(self) -> Migrations:
        """The migrations that it should have."""
        return migrations_of(self.kind)


def targets(config: Config, constellation: str | None = None) -> list[Target]:
    """Return the databases of the data directory, the global one first; with a name or id, that constellation's alone.

    Raises:
        NotFound: there is no data directory.
        RowNotFound: there is no such constellation.
    """
    require_data(config)
    with opened_at(config.data_dir / REGISTRY_NAME, readonly=True) as connection:
        return registered(connection, config.data_dir, constellation)


def registered(connection: Connection, data_dir: Path, constellation: str | None = None) -> list[Target]:
    """Return the databases that a registry lists, in the places that they have in a data directory; see `targets`.

    Raises:
        RowNotFound: there is no such constellation.
        DatabaseError: it is not a registry.
    """
    with translated():
        require_ledger(connection)
        rows = constellations.places(connection)
        if constellation is not None:
            same = [row for row in rows if row[0].startswith(constellation)]
            only = same[0][0] if len(same) == 1 else constellations.find(connection, constellation).id
            rows = [row for row in rows if row[0] == only]
    found = [Target(name=name, kind="constellation", path=data_dir / path) for _, name, path in rows]
    own = Target(name="(global)", kind="global", path=data_dir / REGISTRY_NAME)
    return [own, *found] if constellation is None else found


constellation_option = click.option(
    "-c", "--constellation", metavar="NAME", type=CONSTELLATION, help="Only this constellation, by name or id."
)

db = PlainGroup("db", help="The database files: status, migrations, checks and maintenance.")


@db.add("status", runs=local)
@constellation_option
def status(config: Config, output: Output, constellation: str | None) -> ExitCode:
    """Show each file's schema version and size."""
    shown = [_status(target) for target in targets(config, constellation)]
    output.table(COLUMNS, shown, empty="")
    if any(row["pending"] for row in shown):
        output.note("To bring them up to date: pattern db migrate")
    return FAILED if any(row["error"] for row in shown) else DONE


def _status(target: Target) -> dict[str, object]:
    try:
        with opened_at(target.path, readonly=True) as connection:
            found = maintenance.status(connection, target.migrations)
    except DatabaseError as error:
        return {"database": target.name, "state": error.message, "error": error.code, "pending": []}
    return {
        **asdict(found),
        "database": target.name,
        "path": str(target.path),
        "state": f"{len(found.pending)} pending" if found.pending else "up to date",
        "size": _size(found.file_bytes),
        "free": _size(found.free_bytes),
        "log": _size(found.wal_bytes),
        "error": None,
    }


def _size(count: int) -> str:
    return f"{count / 1024:.0f} KiB" if count < 1024 * 1024 else f"{count / 1024 / 1024:.1f} MiB"


@db.add("migrate", "--dry-run", runs=local)
@constellation_option
@click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
@click.option("--sample", metavar="N", type=click.IntRange(1), help="Try it on copies of N files first.")
def migrate(config: Config, output: Output, constellation: str | None, dry_run: bool, sample: int | None) -> ExitCode:
    """Migrate the files to this version's schema, each after a verified backup.

    A file that fails stays as it was; the others are migrated. After an interruption, run it again.
    """
    pending, results = list[tuple[Target, maintenance.Status]](), list[dict[str, object]]()
    for target in targets(config, constellation):
        with _reported(target.name, output) as result, opened_at(target.path, readonly=True) as opened:
            require_ledger(opened)
            found = maintenance.status(opened, target.migrations)
            if found.pending:
                pending.append((target, found))
        if "error" in result:
            results.append(result)
    if pending:
        _check_space(config.data_dir / BACKUPS_NAME, [found for _, found in pending], output)
    if dry_run or not pending:
        rows = [{"database": target.name, "migration": step} for target, found in pending for step in found.pending]
        empty = "No other database needs a migration." if results else "Every database is up to date."
        output.table(("database", "migration"), rows, empty=empty)
        return _verdict(results)
    if sample is not None and any(row["problems"] for row in tried([target for target, _ in pending], sample, output)):
        output.error("The sample has problems, so nothing was migrated")
        return FAILED
    with output.progress("Migrating", len(pending)) as advance:
        for target, _ in pending:
            results.append(_migrate(config.data_dir, target, output))
            advance()
    output.data(results)
    return _verdict(results)


def _check_space(folder: Path, pending: Sequence[maintenance.Status], output: Output) -> None:
    """Say what a migration takes.

    Raises:
        DiskFull: there is less space for the copies and the files that are written.
    """
    takes, free = Estimate.of([found.file_bytes + found.wal_bytes for found in pending]), free_bytes(folder)
    migration = f"migration (files: {takes.files}, {_size(takes.size)})"
    if takes.needed > free:
        raise DiskFull(
            f"the {migration} needs {_size(takes.needed)}, and {folder} has {_size(free)} free. Free some space, or"
            " migrate one constellation at a time (-c)"
        )
    output.note(
        f"The {migration} takes about {takes.seconds:.0f} s. It needs {_size(takes.needed)} of {_size(free)} free; the"
        " copies stay."
    )


def tried(chosen: Sequence[Target], sample: int | None, output: Output) -> list[dict[str, Any]]:
    """Migrate and check copies of all files, or of a sample: the largest and some of all sizes. Return a row for each,
    which is shown.
    """
    if sample is not None and sample < len(chosen):
        by_size = sorted(chosen, key=lambda target: -target.path.stat().st_size if target.path.exists() else 0)
        chosen = [by_size[number * len(by_size) // sample] for number in range(sample)]
    clock, rows = SystemClock(), []
    with output.progress("Trying", len(chosen)) as advance:
        for target in chosen:
            began_ms = clock.now_ms()
            problems = _problems_of_copy(target, migrate_at=now_text(clock))
            seconds = (clock.now_ms() - began_ms) / 1000
            rows.append({"database": target.name, "seconds": seconds, "problems": problems})
            output.say(f"{target.name}: {'no problems' if not problems else ''}".rstrip())
            for problem in problems:
                output.say(f"  {problem}")
            advance()
    return rows


def _migrate(data_dir: Path, target: Target, output: Output) -> dict[str, object]:
    now = now_text(SystemClock())
    earlier = next(iter(_kept(data_dir, target)), None)
    copy = data_dir / BACKUPS_NAME / f"{target.id}{_BEFORE}{now.replace(':', '').replace('-', '')}.db"
    with _reported(target.name, output) as result:
        with DataDirLock.acquire(target.path.parent):
            done = target.migrations.migrate(target.path, backup_to=copy, now=now, earlier=earlier)
        output.say(f"{target.name}: migrated from version {done.before} to {done.after}. Backup: {done.backup}")
        result.update(before=done.before, after=done.after, applied=list(done.applied), backup=str(done.backup))
    return result


def _kept(data_dir: Path, target: Target) -> list[Path]:
    """Return the copies that were made before migrations of a file, newest first."""
    return sorted((data_dir / BACKUPS_NAME).glob(f"{target.id}{_BEFORE}*.db"), reverse=True)


@db.add("rollback", "home --dry-run", runs=local)
@click.argument("names", metavar="[CONSTELLATION]...", nargs=-1, type=CONSTELLATION)
@click.option("--dry-run", is_flag=True, help="Show what would be lost, and change nothing.")
@yes_option
def rollback(config: Config, output: Output, names: Sequence[str], dry_run: bool, yes: bool) -> ExitCode:
    """Undo the last migration: put back the copies that were made before it. The newer files stay next to them.

    Without names, of all files, also of users and tokens. What was stored since is lost, and turns that were open then
    continue. Stop the server first, and install the version that the files are of afterwards.
    """
    chosen = [target for name in names for target in targets(config, name)] or targets(config)
    with DataDirLock.acquire(config.data_dir):
        plans, results = list[tuple[Target, dict[str, Any]]](), list[dict[str, object]]()
        for target in chosen:
            with _reported(target.name, output) as result:
                result.update(_way_back(config.data_dir, target))
            if "copy" in result:
                plans.append((target, result))
            elif "error" in result:
                results.append(result)
        if dry_run or not plans:
            rows = [row for _, row in plans]
            empty = "No database has a copy of an older version."
            output.table(BACK_COLUMNS, rows, empty=empty, shown=lambda row: {**row, "lost": _lost(row["lost"])})
            return _verdict(results)
        for target, row in plans:
            output.note(f"{target.name}: from version {row['version']} to {row['back_to']}, loses {_lost(row['lost'])}")
        output.confirm("What was stored since these migrations is lost. Continue?", yes=yes)
        for target, row in plans:
            with _reported(target.name, output) as result:
                # The lock of the data directory is held already.
                with DataDirLock.acquire(target.path.parent) if target.kind == "constellation" else nullcontext():
                    restore(Path(row["copy"]), target.path)
                output.say(f"{target.name}: version {row['back_to']} again. The newer file: {replaced(target.path)}")
                result.update(row, replaced=str(replaced(target.path)))
            results.append(result)
    output.data(results)
    return _verdict(results)


def _way_back(data_dir: Path, target: Target) -> dict[str, object]:
    """Return the copy to put back, both versions, and how many rows would be lost; nothing if it is back already.

    Raises:
        DatabaseError: the file or the copy cannot be read.
    """
    # An interrupted restore may have left no file.
    there = target.path if target.path.exists() else replaced(target.path)
    with opened_at(there, readonly=True) as connection:
        version = max(ledger(connection), default=0)
    for copy in _kept(data_dir, target)[:1]:
        if (report := verify(copy)).version < version:
            lost = rows_since(there, copy)
            return {"version": version, "back_to": report.version, "copy": str(copy), "lost": lost}
    return {}


def _lost(rows: Mapping[str, int]) -> str:
    return ", ".join(f"{table.replace('_', ' ')}: {count}" for table, count in rows.items()) or "nothing"


@contextmanager
def _reported(name: str, output: Output) -> Iterator[dict[str, object]]:
    """Yield one database's result; its `outcome` is done, skipped (it is in use) or failed (with the reason)."""
    result: dict[str, object] = {"database": name, "outcome": "done"}
    try:
        yield result
    except (DatabaseError, ServerFailed) as error:
        code = error.problem_code if isinstance(error, ServerFailed) else error.code
        is_in_use = code in IN_USE
        output.error(f"{'Skipped' if is_in_use else 'Failed'}: {name}: {error.message}", code=code)
        result.update(outcome="skipped" if is_in_use else "failed", error=error.message)


def _verdict(results: list[dict[str, object]]) -> int:
    outcomes = {result["outcome"] for result in results}
    return FAILED if "failed" in outcomes else SKIPPED if "skipped" in outcomes else DONE


@db.add("check", "-c home", runs=local)
@constellation_option
@click.option("--repair", is_flag=True, help="Rebuild search indexes and sums of usage, release what nothing uses.")
def check(config: Config, output: Output, constellation: str | None, repair: bool) -> ExitCode:
    """Check that the files and every memory block can be read. Of a file in use, a copy is checked."""
    found = targets(config, constellation)
    results = []
    with output.progress("Checking", len(found)) as advance:
        for target in found:
            found_first = _problems(target)
            left = _repaired(target) if repair and found_first else found_first
            gone = [problem for problem in found_first if problem not in left]
            results.append({"database": target.name, "problems": left, "repaired": gone})
            advance()
    output.data(results)
    for result in results:
        output.say(f"{result['database']}: {'no problems' if not result['problems'] else ''}".rstrip())
        for problem in result["problems"]:
            output.say(f"  {problem}")
        for problem in result["repaired"]:
            output.say(f"  Repaired: {problem}")
    return FAILED if any(result["problems"] for result in results) else DONE


def _repaired(target: Target) -> list[str]:
    """Repair a file, and return what is wrong with it then."""
    try:
        with DataDirLock.acquire(target.path.parent), opened_at(target.path) as connection:
            maintenance.repair(connection)
    except DatabaseError as error:
        return [*_problems(target), error.message]
    return _problems(target)


def _problems(target: Target) -> list[str]:
    try:
        with DataDirLock.acquire(target.path.parent):
            return _problems_of(target, target.path)
    except OwnedElsewhere:
        return _problems_of_copy(target)
    except DatabaseError as error:
        return [error.message]


def _problems_of(target: Target, path: Path) -> list[str]:
    """Return what is wrong with the file of `target`, or a copy of it at `path`."""
    try:
        with opened_at(path) as connection:
            problems = maintenance.check(connection)
            is_current = not target.migrations.plan(connection)
            if target.kind == "global" and is_current and not problems:
                problems = tampered(connection)
        # Blocks are only checked in a sound file, so that a bad page is reported once and as what it is.
        has_blocks = target.kind == "constellation" and is_current and not problems
        return trio.run(_damaged_blocks, target.name, path) if has_blocks else problems
    except DatabaseError as error:  # so damaged that the check itself cannot read it
        return [error.message]


def tampered(connection: Connection) -> list[str]:
    """Return what is wrong with the audit log of the global database."""
    broken_at = audit_log.follow(connection, audit_log.AuditState(), -1).broken_at
    return [] if broken_at is None else [f"the audit log was changed: entry {broken_at} does not fit the one before it"]


async def _damaged_blocks(constellation: str, path: Path) -> list[str]:
    """Return the memory blocks that cannot be opened, and how to repair each."""
    with DatabaseThreads(writers=1, readers=1) as threads:
        async with await Database.open(path, threads) as database:
            found = await damaged_blocks(database)
            owners = [await database.read(_owner_option, one.block.agent_id) for one in found]
    return [
        f"the block {one.block.label} is damaged: {one.reason}. To repair it: "
        f"pattern memory repair {quote(one.block.label)} -c {constellation} {owner}"
        for one, owner in zip(found, owners, strict=True)
    ]


def _owner_option(connection: Connection, owner: str) -> str:
    if owner == EVERYONE:
        return "--everyone"
    try:
        return f"-a {agents.get(connection, owner).name}"
    except RowNotFound:  # a group, for one
        return f"-a {owner}"


def _problems_of_copy(target: Target, *, migrate_at: str | None = None) -> list[str]:
    """Return what is wrong with a copy, which nothing writes to; it has every damage of the original. With a time, the
    copy is migrated first.
    """
    with tempfile.TemporaryDirectory(prefix="pattern-check-") as folder:
        copy = Path(folder) / "copy.db"
        try:
            with opened_at(target.path, readonly=True) as connection:
                hot_backup(connection, copy)
            if migrate_at is not None:
                target.migrations.migrate(copy, backup_to=None, now=migrate_at)
        except DatabaseError as error:
            return [error.message]
        return _problems_of(target, copy)


@db.add("prune", "--days 90 --dry-run", runs=connected)
@constellation_option
@click.option("--days", type=click.IntRange(0), help="Delete what is older.  [default: limits.retention_days]")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and delete nothing.")
async def prune(api: Api, output: Output, constellation: str | None, days: int | None, dry_run: bool) -> ExitCode:
    """Delete events, steps, tool calls and prompt records of turns that ended long ago.

    A server does this every day. Messages, memory, the archive, usage and the turns themselves are kept.
    """
    names = [constellation] if constellation else [row["name"] for row in await api.pages("constellations")]
    results = []
    for name in names:
        with _reported(name, output) as result:
            body = {"days": days, "dry_run": dry_run}
            gone = await api.call("POST", "constellations", name, "prune", body=body)
            output.say(
                f"{name}: {'would delete' if dry_run else 'deleted'} events: {gone['events']}, steps: {gone['steps']},"
                f" tool calls: {gone['calls']}, prompt records: {gone['prompts']} (turns: {gone['turns']})"
            )
            result.update(gone)
        results.append(result)
    output.data(results)
    return _verdict(results)


@db.add("vacuum", runs=connected)
@constellation_option
async def vacuum(api: Api, output: Output, constellation: str | None) -> ExitCode:
    """Compact the files and their search indexes. A constellation that is busy is skipped."""
    if constellation is not None:
        freed = (await api.call("POST", "constellations", constellation, "vacuum"))["freed_bytes"]
        output.result(
            [{"database": constellation, "outcome": "done", "freed_bytes": freed}], _freed(constellation, freed)
        )
        return DONE
    rows = await api.pages("constellations")
    found: list[tuple[str, Sequence[str]]] = [("(global)", ("vacuum",))]
    found += [(row["name"], ("constellations", row["id"], "vacuum")) for row in rows]
    results = []
    with output.progress("Vacuuming", len(found)) as advance:
        for name, where in found:
            with _reported(name, output) as result:
                result.update(await api.call("POST", *where))
                output.say(_freed(name, result["freed_bytes"]))
            results.append(result)
            advance()
    output.data(results)
    return _verdict(results)


def _freed(name: str, count: Any) -> str:
    return f"{name}: {_size(max(0, count))} freed"
