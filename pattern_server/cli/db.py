"""`pattern db …`: the database files themselves, each worked on under its own lock; a server may run meanwhile."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote

import click
import trio

from pattern_core.errors import InvalidInput
from pattern_core.ids import SystemClock, now_text
from pattern_core.journal import DAY_MS
from pattern_core.memory.damage import damaged_blocks
from pattern_db import maintenance
from pattern_db.backup import hot_backup
from pattern_db.columns import iso
from pattern_db.connection import Connection, open_connection
from pattern_db.database import Database, DatabaseThreads
from pattern_db.enums import CONSTELLATION_OWNER as EVERYONE
from pattern_db.errors import BackupInvalid, DatabaseError, OwnedElsewhere, RowNotFound, StorageFailed, translated
from pattern_db.files import DataDirLock, holder_of
from pattern_db.journal.retention import prune_all
from pattern_db.migrate import Kind, Migrations, migrations_of
from pattern_db.tables import agents, constellations
from pattern_server.cli.command import ExitCode, local
from pattern_server.cli.output import DONE, FAILED, SKIPPED, Output
from pattern_server.config import Config

COLUMNS = ("database", "version", "state", "size", "free", "log")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One database file, with its name for people; the lock of the folder that it is in protects it."""

    name: str
    kind: Kind
    path: Path

    @property
    def migrations(self) -> Migrations:
        """The migrations that it should have."""
        return migrations_of(self.kind)


def targets(data_dir: Path, constellation: str | None = None) -> list[Target]:
    """Return the databases of a data directory, the global one first; with a name or id, that constellation's alone.

    Raises:
        RowNotFound: there is no database here, or no such constellation.
    """
    path = data_dir / "global.db"
    if not path.is_file():
        raise RowNotFound(f"{data_dir} holds no databases yet; `pattern serve` makes them, or name another --data-dir")
    with closing(open_connection(path, readonly=True)) as connection, translated():
        if constellation is None:
            rows = constellations.list_all(connection)
        else:
            rows = [constellations.find(connection, constellation)]
    found = [Target(name=row.name, kind="constellation", path=data_dir / row.db_path) for row in rows]
    if constellation is not None:
        return found
    return [Target(name="(global)", kind="global", path=path), *found]


constellation_option = click.option(
    "-c", "--constellation", metavar="NAME", help="Only this constellation, by name or id."
)


@click.group()
def db() -> None:
    """The database files: how they are, bringing them up to date, checking them, making them small."""


@db.command("status")
@constellation_option
@local
def status(config: Config, output: Output, constellation: str | None) -> ExitCode:
    """Show each file's schema version and size."""
    shown = [_status(target) for target in targets(config.data_dir, constellation)]
    output.table(COLUMNS, shown, empty="")
    if any(row["pending"] for row in shown):
        output.note("To bring them up to date: pattern db migrate")
    return FAILED if any(row["error"] for row in shown) else DONE


def _status(target: Target) -> dict[str, object]:
    try:
        with closing(open_connection(target.path, readonly=True)) as connection:
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


@db.command("migrate")
@constellation_option
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@local
def migrate(config: Config, output: Output, constellation: str | None, dry_run: bool) -> ExitCode:
    """Bring the files to this version's schema; a verified copy of each is made before."""
    plans = []
    for target in targets(config.data_dir, constellation):
        with closing(open_connection(target.path, readonly=True)) as connection:
            plans.append((target, [migration.file for migration in target.migrations.plan(connection)]))
    pending = [(target, steps) for target, steps in plans if steps]
    if dry_run or not pending:
        rows = [{"database": target.name, "migration": step} for target, steps in pending for step in steps]
        output.table(("database", "migration"), rows, empty="Every database is up to date.")
        return DONE
    results = []
    with output.progress("Migrating", len(pending)) as advance:
        for target, _ in pending:
            results.append(_migrate(config.data_dir, target, output))
            advance()
    output.data(results)
    return _verdict(results)


def _migrate(data_dir: Path, target: Target, output: Output) -> dict[str, object]:
    now = now_text(SystemClock())
    stamp = now[:19].replace(":", "").replace("-", "")
    folder = target.path.parent.name if target.kind == "constellation" else "global"
    copy = data_dir / "backups" / f"{folder}.before-migration.{stamp}.db"
    with _reported(target, output) as result:
        with DataDirLock.acquire(target.path.parent):
            done = target.migrations.migrate(target.path, backup_to=copy, now=now)
        output.say(f"{target.name}: version {done.before} -> {done.after}; the copy made before is {done.backup}")
        result.update(before=done.before, after=done.after, applied=list(done.applied), backup=str(done.backup))
    return result


@contextmanager
def _reported(target: Target, output: Output) -> Iterator[dict[str, object]]:
    """Yield one target's result; its `outcome` is done, skipped (it is in use) or failed (with the reason)."""
    result: dict[str, object] = {"database": target.name, "outcome": "done"}
    try:
        yield result
    except OwnedElsewhere as error:
        output.error(f"{target.name} was left out: {error.message}", code=error.code)
        result.update(outcome="skipped", error=error.message)
    except DatabaseError as error:
        output.error(f"{target.name}: {error.message}", code=error.code)
        result.update(outcome="failed", error=error.message)


def _verdict(results: list[dict[str, object]]) -> int:
    outcomes = {result["outcome"] for result in results}
    return FAILED if "failed" in outcomes else SKIPPED if "skipped" in outcomes else DONE


@db.command("check")
@constellation_option
@local
def check(config: Config, output: Output, constellation: str | None) -> ExitCode:
    """Read the files whole, open every memory block, and say what is wrong; of a file in use, a copy is read."""
    found = targets(config.data_dir, constellation)
    results = []
    with output.progress("Checking", len(found)) as advance:
        for target in found:
            results.append({"database": target.name, "problems": _problems(target)})
            advance()
    output.data(results)
    for result in results:
        output.say(f"{result['database']}: {'sound' if not result['problems'] else ''}".rstrip())
        for problem in result["problems"]:
            output.say(f"  {problem}")
    return FAILED if any(result["problems"] for result in results) else DONE


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
        with closing(open_connection(path)) as connection, translated():
            problems = maintenance.check(connection)
            is_current = not target.migrations.plan(connection)
        # Blocks are looked at in a file that is sound, so that a bad page is reported once and as what it is.
        has_blocks = target.kind == "constellation" and is_current and not problems
        return trio.run(_damaged_blocks, target.name, path) if has_blocks else problems
    except DatabaseError as error:  # so damaged that the check itself cannot read it
        return [error.message]


async def _damaged_blocks(constellation: str, path: Path) -> list[str]:
    """Return the memory blocks that cannot be opened, and how to bring each back."""
    with DatabaseThreads(writers=1, readers=1) as threads:
        async with await Database.open(path, threads) as database:
            found = await damaged_blocks(database)
            owners = [await database.read(_owner_option, one.block.agent_id) for one in found]
    return [
        f"the block {one.block.label} is damaged: {one.reason}; to bring it back: "
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


def _problems_of_copy(target: Target) -> list[str]:
    """Return what is wrong with a copy, to which nothing is written meanwhile; it has every damage of the original."""
    with tempfile.TemporaryDirectory(prefix="pattern-check-") as folder:
        copy = Path(folder) / "copy.db"
        try:
            with closing(open_connection(target.path, readonly=True)) as connection:
                hot_backup(connection, copy)
        except (BackupInvalid, StorageFailed) as error:
            return [error.message]
        return _problems_of(target, copy)


@db.command("prune")
@constellation_option
@click.option("--days", type=click.IntRange(0), help="What is older goes. Without it: limits.retention_days.")
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@local
def prune(config: Config, output: Output, constellation: str | None, days: int | None, dry_run: bool) -> ExitCode:
    """Delete old events, steps, tool calls and lists of what prompts showed, of turns that ended long ago.

    A server does so every day. Messages, memory, the archive, usage and the turns themselves stay. A file in use is
    left out.
    """
    kept = config.limits.retention_days if days is None else days
    if days is None and not kept:
        raise InvalidInput("limits.retention_days is 0, so everything is kept: say how many --days")
    before = iso(SystemClock().now_ms() - kept * DAY_MS)
    found = [target for target in targets(config.data_dir, constellation) if target.kind == "constellation"]
    results = []
    for target in found:
        with _reported(target, output) as result:
            with DataDirLock.acquire(target.path.parent), closing(open_connection(target.path)) as connection:
                target.migrations.check(connection)
                with translated():
                    gone = prune_all(connection, before, dry_run=dry_run)
            would = "would go" if dry_run else "deleted"
            output.say(
                f"{target.name}: {gone.events} events, {gone.steps} steps, {gone.calls} tool calls and {gone.prompts}"
                f" lists of prompts of {gone.turns} turns {would}"
            )
            result.update(asdict(gone))
        results.append(result)
    output.data(results)
    return _verdict(results)


@db.command("vacuum")
@constellation_option
@local
def vacuum(config: Config, output: Output, constellation: str | None) -> ExitCode:
    """Rewrite the files and their search indexes without gaps. A file in use is left out."""
    found = targets(config.data_dir, constellation)
    if constellation is not None and (holder := holder_of(found[0].path.parent)) is not None:
        raise InvalidInput(
            f"{constellation} is in use by process {holder.pid}: stop the server, or wait until it has parked it"
        )
    results = []
    with output.progress("Vacuuming", len(found)) as advance:
        for target in found:
            with _reported(target, output) as result:
                with DataDirLock.acquire(target.path.parent), closing(open_connection(target.path)) as connection:
                    target.migrations.check(connection)
                    with translated():
                        freed = maintenance.vacuum(connection)
                output.say(f"{target.name}: {_size(max(0, freed))} freed")
                result["freed_bytes"] = freed
            results.append(result)
            advance()
    output.data(results)
    return _verdict(results)
