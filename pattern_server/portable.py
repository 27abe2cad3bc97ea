"""Archives of a server's constellations: written while they work, and read into new ones, whole or not at all."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import trio

from pattern_core import portable
from pattern_core.car import ArchiveInvalid
from pattern_core.errors import InvalidInput, NotFound
from pattern_core.files.folders import check_directories
from pattern_core.ids import Ids, now_text
from pattern_core.legacy import convert
from pattern_core.legacy.archive import Old
from pattern_core.legacy.review import Resolution, Review, review
from pattern_core.memory.damage import damaged_blocks, first_unopened
from pattern_core.memory.document import new_peer
from pattern_core.memory.joining import JoinedBlock, are_related, join_block
from pattern_core.portable import ArchiveImport, Kind, Manifest
from pattern_db import backup, files
from pattern_db.connection import opened_at
from pattern_db.database import Database, DatabaseThreads
from pattern_db.errors import translated
from pattern_db.files import DataDirLock
from pattern_db.merging import Policy, merge, merging
from pattern_db.migrate import migrations_of
from pattern_server.accounts import Constellation, Principal
from pattern_server.constellations import Constellations, Copy
from pattern_server.files import DATABASE_NAME, pause

SUFFIXES: Mapping[int | None, str] = {None: ".af"}  # of files of another format, by version
SUFFIX = ".car"
EXPORTS = "exports"  # folder of a constellation


async def export(
    constellations: Constellations,
    caller: Principal,
    id_or_name: str,
    kind: Kind,
    name: str | None,
    version: int | None = portable.VERSION,
) -> tuple[Copy, Manifest]:
    """Write an archive of a constellation, or of an agent or group in it, into its folder `exports`.

    Raises:
        NotFound: there is no such constellation, agent or group, or it belongs to another user.
        Unavailable: it cannot run now.
        ArchiveInvalid: a record is too large for version 3.
        BackupFailed: there is no room for the copy that it is made from.
        StorageFailed: the disk is full or failed.
    """
    found = await constellations.accounts.constellation_for(caller, id_or_name)
    ending = constellations.files.new_id().removeprefix("con")
    target = constellations.files.folder(found.id) / EXPORTS / f"{kind}{ending}{SUFFIXES.get(version, SUFFIX)}"
    async with constellations.use(caller, found.id) as constellation:
        with translated(), files.temporary(target.with_suffix(".db")) as copy, files.written(target) as new:
            await constellation.database.read_aside(backup.hot_backup, copy)
            made = await trio.to_thread.run_sync(partial(_export, copy, new, kind, name or found.name, version))
    digest = await trio.to_thread.run_sync(files.sha256_of, target)
    return Copy(path=target.absolute(), size=target.stat().st_size, sha256=digest), made


def _export(copy: Path, new: Path, kind: Kind, id_or_name: str, version: int | None) -> Manifest:
    with opened_at(copy) as connection, connection:
        pause(connection)  # what an archive says is the same before and after it was imported
    with files.created(new) as file:
        return portable.write(copy, file, kind=kind, id_or_name=id_or_name, version=version)


async def exported(constellations: Constellations, caller: Principal, id_or_name: str, file: str) -> Path:
    """Return the path of an archive in a constellation's folder `exports`.

    Raises:
        NotFound: there is none, or it belongs to another user.
    """
    found = await constellations.accounts.constellation_for(caller, id_or_name)
    path = constellations.files.folder(found.id) / EXPORTS / file
    if path.suffix not in (SUFFIX, *SUFFIXES.values()) or path.name != file or not path.is_file():
        raise NotFound(f"there is no archive {file!r}; export it again")
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportSpec:
    """What to import: the path of the archive on this machine, and `into` which constellation, with a policy for names
    that are in use there; without `into` a new one, with this name or the archive's own. `resolutions` are for the
    issues of archives of version 1 and 2. `called` is what its record names it, by default its file.
    """

    file: Path
    name: str | None = None
    into: str | None = None
    policy: Policy = "refuse"
    resolutions: Sequence[Resolution] = ()
    called: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportResult:
    """The constellation (None: it would be a new one), and the row of its import; with `is_replay`, that of an earlier
    one, and nothing was done.
    """

    constellation: Constellation | None
    report: ArchiveImport
    is_replay: bool = False


async def import_archive(
    constellations: Constellations, caller: Principal, asked: ImportSpec, *, dry_run: bool = False
) -> ImportResult:
    """Let an archive join a constellation, or create a constellation from it, migrated to this version: all or nothing.

    A `dry_run` stores nothing.

    Raises:
        InvalidInput: the name or a resolution is invalid.
        NotFound: there is no such constellation, or it belongs to another user.
        Conflict: the caller already has a constellation of that name.
        RowConflict: names are in use in the constellation, and the policy is to refuse.
        Unavailable: the constellation is busy.
        ArchiveInvalid: the archive is damaged, incomplete, or has documents that cannot be opened.
        BackupInvalid: its rows break the rules of their schema.
        SchemaTooNew: it comes from a newer server.
        StorageFailed: the disk is full or failed.
    """
    with translated(), tempfile.TemporaryDirectory(prefix=".import-", dir=constellations.files.data_dir) as folder:
        path = Path(folder) / DATABASE_NAME
        now, audit_id = now_text(constellations.clock), constellations.files.new_id("import")
        peer = new_peer(constellations.runtime.randomness)
        manifest, row = await prepared(asked, path, audit_id=audit_id, now=now, peer=peer)
        await trio.to_thread.run_sync(_check_folders, path, constellations.files.data_dir)
        if asked.into is not None:
            async with constellations.aside(caller, asked.into) as (found, target):
                runtime = constellations.runtime
                ids, agents_max = Ids(runtime.clock, runtime.randomness), runtime.limits.agents_max
                do = partial(_merge, target, path, row, asked.policy, ids, agents_max, is_final=not dry_run)
                done = await trio.to_thread.run_sync(do)
            return ImportResult(constellation=found, report=done, is_replay=done.id != row.id)
        if dry_run:
            return ImportResult(constellation=None, report=row)
        return ImportResult(
            constellation=await constellations.restore(caller, path, asked.name or manifest.name), report=row
        )


async def prepared(
    asked: ImportSpec, path: Path, *, audit_id: str, now: str, peer: int
) -> tuple[Manifest, ArchiveImport]:
    """Make the checked database of an archive at `path`, ready to become a constellation; return what the archive says
    of itself, and the row of its import, which the database has, too, unless it is to join another one.

    Raises:
        As `import_archive`.
    """
    manifest, old = await trio.to_thread.run_sync(partial(portable.read, asked.file, path, now=now))
    if old is not None and (unopened := await first_unopened(old.documents)) is not None:
        raise ArchiveInvalid(f"the document of the memory block {unopened[0]} cannot be opened: {unopened[1]}")
    made = await trio.to_thread.run_sync(partial(_complete, asked, path, old, now, peer))
    row = _record(audit_id, asked, manifest if old is None else replace(manifest, rows=old.counts()), made, now)
    with DatabaseThreads(writers=1, readers=1) as threads:
        async with await Database.open(path, threads) as database:
            damaged = await damaged_blocks(database, with_past=True)
            if asked.into is None:
                await database.write(portable.record_import, row)
    if damaged:
        raise ArchiveInvalid(
            f"memory blocks of the archive that cannot be opened: {len(damaged)}; the first is"
            f" {damaged[0].block.label!r}: {damaged[0].reason}"
        )
    return manifest, row


async def merge_constellations(
    constellations: Constellations, caller: Principal, source: str, into: str, *, dry_run: bool = False
) -> ImportResult:
    """Let what one constellation holds now join another one: its archive is imported with the policy to merge.

    Raises:
        InvalidInput: they are one.
        As `export` and `import_archive`.
    """
    found, target = [await constellations.accounts.constellation_for(caller, name) for name in (source, into)]
    if found == target:
        raise InvalidInput(f"{found.name} cannot be merged into itself; name two constellations")
    copy, _ = await export(constellations, caller, found.id, "constellation", None)
    try:
        asked = ImportSpec(file=copy.path, into=target.id, policy="merge", called=found.name)
        return await import_archive(constellations, caller, asked, dry_run=dry_run)
    finally:
        copy.path.unlink(missing_ok=True)


def _complete(asked: ImportSpec, path: Path, old: Old | None, now: str, peer: int) -> Review:
    """Complete the database: migrated and paused, or made of what an `old` archive holds after its review."""
    if old is not None:
        found = review(old, asked.resolutions, now)
        lost = convert.store(path, old, now=now, peer=peer)
        counts = {"found": found.found + len(lost), "resolved": found.resolved + len(lost)}
        return Review(**counts, decisions=[*found.decisions, *lost])
    if asked.resolutions:
        raise InvalidInput("only archives of version 1 and 2 have issues to resolve; send no resolutions")
    migrations_of("constellation").migrate(path, backup_to=None, now=now)
    with opened_at(path) as connection, connection:
        pause(connection)
    return Review()


def _check_folders(path: Path, data_dir: Path) -> None:
    with opened_at(path) as connection:
        check_directories(connection, [data_dir])


def _merge(
    folder: Path, source: Path, record: ArchiveImport, policy: Policy, ids: Ids, agents_max: int, *, is_final: bool
) -> ArchiveImport:
    """Let all rows of another database, at this version, join that of a stopped constellation, in one transaction.

    Return `record` with what was done, as it is stored; or that of an earlier import of the same archive, after which
    nothing is done.
    """
    with (
        DataDirLock.acquire(folder),
        opened_at(source) as there,
        merging(folder / DATABASE_NAME, source) as connection,
    ):
        migrations_of("constellation").check(connection)
        earlier = portable.find_import(connection, record.audit_log["root"])
        if earlier is not None:
            return earlier
        related = partial(are_related, connection, there)
        made = merge(connection, policy, ids.new, agents_max=agents_max, are_related=related)
        decided = [*made.decisions]
        for block_id in made.blocks:
            decided.append(_joined(join_block(connection, there, block_id, made.ids, record.imported_at), block_id))
        decisions = [*record.audit_log["decisions"], *decided]
        result = {"added": made.added, "present": made.present, "owners": made.owners, "decisions": decisions}
        record = replace(
            record,
            issues_found=record.issues_found + len(decided),
            issues_resolved=record.issues_resolved + len(decided),
            audit_log={**record.audit_log, "policy": policy, **result},
        )
        portable.record_import(connection, record)
        if is_final:
            connection.execute("COMMIT").fetchall()
        return record


def _joined(block: JoinedBlock, block_id: str) -> Mapping[str, str]:
    """Return what was decided about a block that both have."""
    decision = f"merged (new versions: {block.versions})" if block.versions else "already there"
    if block.versions and block.is_too_long:
        decision += "; its text is longer than its limit now"
    return {"kind": "memory block", "name": block.label, "decision": decision, "id": block_id}


def _record(audit_id: str, asked: ImportSpec, manifest: Manifest, made: Review, now: str) -> ArchiveImport:
    rows = {"added": dict(manifest.rows), "present": {}, "owners": []}
    log = {"format": manifest.format, "root": manifest.root, **rows, "decisions": [*made.decisions]}
    return ArchiveImport(
        id=audit_id,
        imported_at=now,
        source_file=asked.called or asked.file.name,
        source_version=manifest.version or 0,
        issues_found=made.found,
        issues_resolved=made.resolved,
        audit_log=log,
    )
