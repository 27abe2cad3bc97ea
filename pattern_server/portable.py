"""Archives of a server's constellations: written while they work, and read into new ones, whole or not at all."""

from __future__ import annotations

import tempfile
from contextlib import closing
from functools import partial
from pathlib import Path

import trio

from pattern_core import portable
from pattern_core.car import ArchiveInvalid
from pattern_core.errors import NotFound
from pattern_core.ids import now_text
from pattern_core.memory.damage import damaged_blocks
from pattern_core.portable import Kind, Manifest
from pattern_db import backup, files
from pattern_db.connection import open_connection
from pattern_db.database import Database, DatabaseThreads
from pattern_db.errors import translated
from pattern_db.migrate import migrations_of
from pattern_server.accounts import Constellation, Principal
from pattern_server.constellations import Constellations, Copy
from pattern_server.files import DATABASE_NAME, pause

SUFFIX = ".car"
EXPORTS = "exports"  # folder of a constellation


async def export(
    constellations: Constellations, caller: Principal, id_or_name: str, kind: Kind, name: str | None
) -> tuple[Copy, Manifest]:
    """Write an archive of a constellation, or of an agent or group in it, into its folder `exports`.

    Raises:
        NotFound: there is no such constellation, agent or group, or it belongs to another user.
        Unavailable: it cannot run now.
        BackupFailed: there is no room for the copy that it is made from.
        StorageFailed: the disk is full or failed.
    """
    found = await constellations.accounts.constellation_for(caller, id_or_name)
    ending = constellations.files.new_id().removeprefix("con")
    target = constellations.files.folder(found.id) / EXPORTS / f"{kind}{ending}{SUFFIX}"
    async with constellations.use(caller, found.id) as constellation:
        with translated(), files.temporary(target.with_suffix(".db")) as copy, files.temporary(target) as new:
            await constellation.database.read_aside(backup.hot_backup, copy)
            made = await trio.to_thread.run_sync(partial(_export, copy, new, kind, name or found.name))
            files.replace(new, target)
    digest = await trio.to_thread.run_sync(files.sha256_of, target)
    return Copy(path=target.absolute(), size=target.stat().st_size, sha256=digest), made


def _export(copy: Path, new: Path, kind: Kind, id_or_name: str) -> Manifest:
    with closing(open_connection(copy)) as connection, connection:
        pause(connection)  # what an archive says is the same before and after it was imported
    with new.open("xb") as file:
        return portable.write(copy, file, kind=kind, id_or_name=id_or_name)


async def exported(constellations: Constellations, caller: Principal, id_or_name: str, file: str) -> Path:
    """Return the path of an archive in a constellation's folder `exports`.

    Raises:
        NotFound: there is none, or it belongs to another user.
    """
    found = await constellations.accounts.constellation_for(caller, id_or_name)
    path = constellations.files.folder(found.id) / EXPORTS / file
    if path.suffix != SUFFIX or path.name != file or not path.is_file():
        raise NotFound(f"there is no archive {file!r}; export it again")
    return path


async def import_archive(
    constellations: Constellations, caller: Principal, archive: Path, name: str | None
) -> Constellation:
    """Create a constellation from an archive, by its path on this machine, migrated to this version.

    Raises:
        InvalidInput: the name is invalid.
        Conflict: the caller already has one of that name.
        ArchiveInvalid: the archive is damaged, incomplete, or has documents that cannot be opened.
        BackupInvalid: its rows break the rules of their schema.
        SchemaTooNew: it comes from a newer server.
        StorageFailed: the disk is full or failed.
    """
    with tempfile.TemporaryDirectory(prefix=".import-", dir=constellations.files.data_dir) as folder:
        path = Path(folder) / DATABASE_NAME
        manifest = await trio.to_thread.run_sync(_import, archive, path, now_text(constellations.clock))
        with DatabaseThreads(writers=1, readers=1) as threads:
            async with await Database.open(path, threads) as database:
                damaged = await damaged_blocks(database, with_past=True)
        if damaged:
            raise ArchiveInvalid(
                f"the archive has {len(damaged)} memory blocks that cannot be opened; the first is"
                f" {damaged[0].block.label!r}: {damaged[0].reason}"
            )
        return await constellations.restore(caller, path, name or manifest.name)


def _import(archive: Path, path: Path, now: str) -> Manifest:
    with translated():
        manifest = portable.read(archive, path, now=now)
        migrations_of("constellation").migrate(path, backup_to=None, now=now)
    return manifest
