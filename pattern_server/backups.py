"""Scheduled backups: verified copies of every constellation and of the registry, made while they work, kept by age.

`<folder>/<id>/<time>.db` is a copy, `<time>.json` next to it its manifest; a copy counts if both are there. What has
not changed is not copied again. One copy of each round is restored on trial, and its documents are opened. With a
recipient, `<time>.db.age` is the same copy, encrypted by the program age.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from pattern_core.children import ChildFailed, run_command
from pattern_core.errors import Conflict, NotFound, PatternError, Unavailable
from pattern_core.ids import Clock, now_text
from pattern_core.timers import sleep_until
from pattern_db import backup, files
from pattern_db.backup import DATABASE_NAME, Report
from pattern_db.columns import iso, unix_ms
from pattern_db.connection import open_immutable
from pattern_db.database import Database, DatabaseThreads
from pattern_db.errors import BackupInvalid, DatabaseError, translated
from pattern_db.migrate import migrations_of
from pattern_server.accounts import Accounts
from pattern_server.accounts import Constellation as Registered
from pattern_server.files import ConstellationFiles
from pattern_server.sections import BackupConfig
from pattern_server.supervisor import Supervisor

if TYPE_CHECKING:
    from pattern_core.constellation import Constellation

REGISTRY = "global"  # id of the registry among the copies
FIRST_S = 60.0  # after the start of a server, so that a copy does not delay it
RETRY_S = 3600.0  # at most, after a round in which something failed
COMMAND_TIMEOUT_S = 3600.0
STATE_NAME = "rounds.json"
AGE, AGE_SUFFIX = "age", ".age"
AGE_STARTS = (b"age-encryption.org/", b"-----BEGIN AGE")  # of encrypted files
_MAKING = ".making"  # folder of a copy that is not finished
_DRILL = ".drill"
_log = logging.getLogger("pattern.backups")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCopy:
    """A verified copy, as its manifest describes it. `id` is the constellation's, or `REGISTRY`; `rows` are numbers
    by table, without empty ones.

    `source` is the time and size of the closed file that it was made from; None if that was in use.
    """

    id: str
    file: str
    name: str
    created_at: str
    schema_version: int
    size: int
    sha256: str
    rows: Mapping[str, int]
    source: Sequence[int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """The results of rounds: when the last one began, and the last one without a failure; what failed in the last one,
    by constellation; when a copy was last restored on trial with success, and of what that was last tried.
    """

    began_at: str | None = None
    complete_at: str | None = None
    failed: Mapping[str, str] = field(default_factory=dict)
    drilled_at: str | None = None
    drilled_id: str = ""


class Backups:
    """The copies of a server's constellations. `run` makes them; one copy is made or restored at a time."""

    def __init__(
        self,
        config: BackupConfig,
        accounts: Accounts,
        supervisor: Supervisor[Constellation],
        files: ConstellationFiles,
        clock: Clock,
    ) -> None:
        self.folder = folder_of(config, files.data_dir)
        self.rounds = last_rounds(self.folder)
        self._config = config
        self._accounts = accounts
        self._supervisor = supervisor
        self._files = files
        self._clock = clock
        self._alone = trio.Lock()

    async def run(self) -> None:
        """Make copies at intervals, until cancelled; soon after the start if a round was missed."""
        if not self._config.enabled:
            return
        every_ms = round(self._config.every_hours * 3_600_000)
        now_ms = self._clock.now_ms()
        began_ms = now_ms - every_ms if self.rounds.began_at is None else unix_ms(self.rounds.began_at)
        next_ms = max(now_ms + round(FIRST_S * 1000), min(began_ms, now_ms) + every_ms)
        while True:
            await sleep_until(iso(next_ms), self._clock, trio.Event())
            next_ms = self._clock.now_ms() + every_ms
            await self.round()
            if self.rounds.failed:
                next_ms = min(next_ms, self._clock.now_ms() + round(RETRY_S * 1000))

    async def round(self) -> None:
        """Copy everything that has changed, delete what is too old, and restore one copy on trial."""
        began_at, failed = now_text(self._clock), dict[str, str]()
        named = {row.id: row.name for row in await self._accounts.every_constellation()}
        for each, name in ({REGISTRY: "users and tokens"} | named).items():
            try:
                if self._config.auto_vacuum and each != REGISTRY and self._files.closed_as(each) is not None:
                    async with self._supervisor.aside(each, if_idle=True):
                        await self._files.vacuum(each, if_much_free=True)
            except Unavailable:  # it has begun to work: in another round
                pass
            except DatabaseError as error:
                failed[f"vacuum of {each}"] = error.message
            try:
                made = await self.copy(each, name)
                await trio.to_thread.run_sync(self._prune, each)
                if self._config.age_recipient:
                    await self._encrypt(each)
                if made is not None and self._config.command:
                    await self._command(made)
            except (PatternError, DatabaseError, OSError) as error:
                failed[each] = getattr(error, "message", str(error))
        drilled_id, drilled_at = self._next_drill({REGISTRY, *named}), self.rounds.drilled_at
        try:
            if await self._drill(drilled_id):
                drilled_at = now_text(self._clock)
        except (PatternError, DatabaseError, OSError) as error:
            failed[f"drill of {drilled_id}"] = getattr(error, "message", str(error))
        complete_at = self.rounds.complete_at if failed else began_at
        self.rounds = Rounds(
            began_at=began_at, complete_at=complete_at, failed=failed, drilled_at=drilled_at, drilled_id=drilled_id
        )
        with suppress(DatabaseError), translated():
            _write(self.folder / STATE_NAME, asdict(self.rounds))
        for each, reason in failed.items():
            _log.error("backup failed", {"constellation": each, "reason": reason})

    async def copy(self, each: str, name: str) -> KeptCopy | None:
        """Copy a constellation, or the registry, unless it is as its newest copy; return the new copy, None if none.

        Raises:
            Unavailable: it cannot run now.
            BackupInvalid: the copy does not pass its checks; the original may be damaged.
            BackupFailed: there is no room for the copy.
            StorageFailed: the disk failed.
        """
        async with self._alone:
            source = None if each == REGISTRY else self._files.closed_as(each)
            newest = next(iter(await trio.to_thread.run_sync(kept, self.folder / each)), None)
            if source is not None and newest is not None and newest.source == source:
                return None
            stamp = now_text(self._clock)
            made = self.folder / _MAKING / f"{stamp.replace(':', '').replace('-', '')}.db"
            with translated(), files.emptied(made.parent):
                report = await self._copied(each, made, is_closed=source is not None)
                digest = await trio.to_thread.run_sync(files.sha256_of, made)
                new = KeptCopy(
                    id=each,
                    file=made.name,
                    name=name,
                    created_at=stamp,
                    schema_version=report.version,
                    size=report.bytes,
                    sha256=digest,
                    rows=_some(report.rows),
                    source=source,
                )
                if newest is not None and newest.sha256 == digest:
                    await trio.to_thread.run_sync(_publish, self.folder, replace(newest, source=source), None)
                    return None
                await trio.to_thread.run_sync(_publish, self.folder, new, made)
            return new

    async def _copied(self, each: str, target: Path, *, is_closed: bool) -> Report:
        state, _ = self._supervisor.state_of(each)
        if each == REGISTRY:
            return await self._accounts.database.copy(target)
        if is_closed and state in ("parked", "quarantined"):  # it is not woken for this: that would change it
            return await self._files.copy(each, target)
        async with self._supervisor.use(each) as constellation:
            return await constellation.database.read_aside(backup.hot_backup, target)

    def _prune(self, each: str) -> None:
        """Delete copies by the rule of the configuration, each with its manifest."""
        there = kept(self.folder / each)
        wanted = to_keep([one.created_at for one in there], self._config)
        for one in there:
            if one.created_at not in wanted:
                for suffix in (".json", ".db", f".db{AGE_SUFFIX}"):
                    files.discard((self.folder / each / one.file).with_suffix(suffix))

    async def _command(self, made: KeptCopy) -> None:
        """Run the configured command with the path of a new copy.

        Raises:
            Conflict: it failed or ran too long.
        """
        suffix = AGE_SUFFIX if self._config.age_recipient else ""
        words = [*self._config.command, f"{(self.folder / made.id / made.file).absolute()}{suffix}"]
        try:
            await run_command(words, COMMAND_TIMEOUT_S)
        except ChildFailed as error:
            raise Conflict(f"the command after a copy {error.reason}") from error

    async def _encrypt(self, each: str) -> None:
        """Encrypt the newest copy into a file next to it, unless that is there.

        Raises:
            Conflict: age is not installed, or failed.
            StorageFailed: the disk is full or failed.
        """
        newest = next(iter(await trio.to_thread.run_sync(kept, self.folder / each)), None)
        if newest is None:
            return
        source = self.folder / each / newest.file
        target = source.with_name(f"{source.name}{AGE_SUFFIX}")
        if not target.exists():
            await encrypt(source, target, self._config.age_recipient)

    def _next_drill(self, ids: Collection[str]) -> str:
        later = sorted(each for each in ids if each > self.rounds.drilled_id)
        return later[0] if later else min(ids)

    async def _drill(self, each: str) -> bool:
        """Restore the newest copy into a folder of its own, compare all rows, migrate it and open its documents; return
        whether there is a copy.

        Raises:
            BackupInvalid: it has other rows, or documents that cannot be opened.
        """
        newest = next(iter(await trio.to_thread.run_sync(kept, self.folder / each)), None)
        if newest is None:
            return False
        with files.emptied(self.folder / _DRILL) as folder:
            await trio.to_thread.run_sync(
                _restored, self.folder / each / newest.file, folder, each, now_text(self._clock)
            )
            if each != REGISTRY:
                # Loaded when it is needed, not when a server starts.
                damage = await trio.to_thread.run_sync(import_module, "pattern_core.memory.damage")
                with DatabaseThreads(writers=1, readers=1) as threads:
                    async with await Database.open(folder / DATABASE_NAME, threads) as database:
                        damaged = await damage.damaged_blocks(database)
                if damaged:
                    raise BackupInvalid(f"memory blocks in {newest.file} that cannot be opened: {len(damaged)}")
        return True

    async def restore(self, found: Registered, file: Path) -> Report:
        """Put a constellation back to a copy of it, by its path on this machine, migrated to this version.

        A copy of the present state is made first if that can be read; the present file itself stays as
        `pattern.db.replaced`. Open turns are cancelled, schedules and reminders paused.

        Raises:
            Conflict: the copy is of another constellation.
            BackupInvalid: it is not a sound copy.
            StorageFailed: the disk is full or failed.
        """
        report = await trio.to_thread.run_sync(verified, file)
        if report.constellation_id != found.id:
            raise Conflict(f"{file} is a copy of another constellation; restore it under a new name (--as)")
        try:
            await self.copy(found.id, found.name)
        except (PatternError, DatabaseError) as error:
            _log.warning("not copied before a restore", {"constellation": found.id, "reason": error.message})
        async with self._alone, self._supervisor.aside(found.id):
            await self._files.put_back(file, found.id)
        return report

    def path_of(self, each: str, file: str) -> Path:
        """Return the path of a copy: a scheduled one, or one that was asked for.

        Raises:
            NotFound: there is none.
        """
        for path in (self.folder / each / file, self._files.data_dir / "backups" / file):
            is_own = path.parent.name == each or file.startswith(f"{each}.")
            if is_own and path.name == file and path.suffix == ".db" and path.is_file():
                return path
        raise NotFound(f"there is no copy {file!r}; `pattern backup list` shows those that there are")

    def warnings(self) -> Iterator[str]:
        """Yield what is wrong with the copies."""
        yield from complaints(self._config, self.rounds, self._clock.now_ms())


async def encrypt(source: Path, target: Path, recipient: str) -> None:
    """Write the file `source`, encrypted for the holder of a public key, to `target`.

    Raises:
        Conflict: age is not installed, or failed.
        StorageFailed: the disk is full or failed.
    """
    with translated(), files.written(target) as new:
        await run_age("-r", recipient, "-o", str(new), str(source))


async def run_age(*arguments: str) -> None:
    """Run the program age, which must be installed.

    Raises:
        Conflict: it is not, or failed.
    """
    try:
        await run_command([AGE, *arguments], COMMAND_TIMEOUT_S)
    except ChildFailed as error:
        raise Conflict(f"{AGE} {error.reason}; it must be installed, and the key must be right") from error


def complaints(config: BackupConfig, rounds: Rounds, now_ms: int) -> Iterator[str]:
    """Yield what is wrong with the last rounds."""
    if not config.enabled or rounds.began_at is None:
        return
    if rounds.failed:
        first, reason = next(iter(rounds.failed.items()))
        yield f"backups that failed: {len(rounds.failed)}, the first of {first}: {reason}"
    since = rounds.complete_at
    if since is not None and (hours := (now_ms - unix_ms(since)) / 3_600_000) > 2 * config.every_hours + 1:
        yield f"the last complete backup was made {hours:.0f} hours ago"


def folder_of(config: BackupConfig, data_dir: Path) -> Path:
    """Return where scheduled copies are."""
    return data_dir / "backups" if config.folder is None else config.folder


def last_rounds(folder: Path) -> Rounds:
    """Return what is known of the last rounds; nothing if there were none."""
    try:
        return Rounds(**json.loads((folder / STATE_NAME).read_bytes()))
    except (OSError, ValueError, TypeError):
        return Rounds()


def kept(folder: Path) -> list[KeptCopy]:
    """Return the copies of one constellation, newest first."""
    found = []
    for manifest in sorted(folder.glob("*.json"), reverse=True):
        with suppress(OSError, ValueError, TypeError):
            one = KeptCopy(**json.loads(manifest.read_bytes()))
            if (folder / one.file).is_file():
                found.append(one)
    return found


def kept_copies(folder: Path) -> list[KeptCopy]:
    """Return all copies, by constellation, newest first."""
    return [one for place in sorted(folder.glob("[!.]*/")) for one in kept(place)]


def newest_copies(folder: Path) -> dict[str, Path]:
    """Return the newest copy of each constellation and of the registry, by id: those of `pattern backup --all`
    (`<name>.<id>.db`, or `.increment`, and `global.db`), or scheduled ones (`<id>/<time>.db`). An encrypted one
    (`.age`) only where it is the only one.
    """
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*"), key=_plain_last) + sorted(folder.glob("[!.]*/*"), key=_plain_last):
        stem, _, kind = path.name.removesuffix(AGE_SUFFIX).rpartition(".")
        if kind in ("db", "increment"):
            found[stem.rpartition(".")[2] if path.parent == folder else path.parent.name] = path
    return found


def _plain_last(path: Path) -> tuple[str, bool]:
    return path.name.removesuffix(AGE_SUFFIX), path.suffix != AGE_SUFFIX


def to_keep(times: Collection[str], config: BackupConfig) -> set[str]:
    """Return which copies stay, by their times: the newest, and the newest of each of the last days, weeks and months
    that have any.
    """
    stays = {max(times)} if times else set()
    for count, form in ((config.daily, "%Y-%m-%d"), (config.weekly, "%G-%V"), (config.monthly, "%Y-%m")):
        newest: dict[str, str] = {}
        for time in sorted(times, reverse=True):
            newest.setdefault(datetime.fromisoformat(time).strftime(form), time)
        stays |= set(list(newest.values())[:count])
    return stays


def verified(file: Path, manifest: KeptCopy | None = None) -> Report:
    """Read a copy whole, and compare it with its manifest if that is given; return its content, without empty tables.

    Raises:
        RowNotFound: there is no such file.
        BackupInvalid: it is damaged, differs from its manifest, or is not a copy but in use.
    """
    if file.with_name(f"{file.name}-wal").exists():
        raise BackupInvalid(f"{file} is not a copy: a server may have it open. Make a copy with `pattern backup`")
    report = backup.verify(file)
    report = replace(report, rows=_some(report.rows))
    if manifest is not None and (report.rows != manifest.rows or files.sha256_of(file) != manifest.sha256):
        raise BackupInvalid(f"{file} is not what its manifest describes")
    return report


def _some(rows: Mapping[str, int]) -> dict[str, int]:
    return {table: count for table, count in rows.items() if count}


def _publish(folder: Path, copy: KeptCopy, made: Path | None) -> None:
    """Write a copy's manifest, then move the copy to its place."""
    target = folder / copy.id / copy.file
    _write(target.with_suffix(".json"), asdict(copy))
    if made is not None:
        files.replace(made, target)


def _write(path: Path, content: Mapping[str, object]) -> None:
    with files.written(path) as new:
        new.write_text(json.dumps(content, indent=1), encoding="utf-8")


def _restored(file: Path, folder: Path, each: str, now: str) -> None:
    backup.restore(file, folder / DATABASE_NAME)
    digests = []
    for path in (file, folder / DATABASE_NAME):
        with closing(open_immutable(path)) as connection:
            digests.append(backup.content_digest(connection))
    if digests[0] != digests[1]:
        raise BackupInvalid(f"{file.name} has other rows when it is restored")
    kind = "global" if each == REGISTRY else "constellation"
    migrations_of(kind).migrate(folder / DATABASE_NAME, backup_to=None, now=now)
