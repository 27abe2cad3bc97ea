"""`pattern backup` and `pattern restore`: verified copies, made on demand or by a running server itself."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from functools import partial, wraps
from pathlib import Path
from shlex import quote
from typing import Any

import click
import trio

from pattern_core.errors import Conflict, InvalidInput, NotFound, PatternError
from pattern_db import files, increments
from pattern_db.backup import Report
from pattern_db.backup import restore as restore_copy
from pattern_db.connection import open_immutable
from pattern_db.errors import BackupInvalid, DatabaseError, RowNotFound
from pattern_server.backups import (
    AGE_STARTS,
    AGE_SUFFIX,
    REGISTRY,
    KeptCopy,
    encrypt,
    folder_of,
    kept_copies,
    newest_copies,
    run_age,
    verified,
)
from pattern_server.cli.client import Api, Json
from pattern_server.cli.command import ExitCode, PlainGroup, connected, creating, local, unless_named, yes_option
from pattern_server.cli.db import Target, registered
from pattern_server.cli.names import CONSTELLATION
from pattern_server.cli.output import DONE, FAILED, SKIPPED, Output
from pattern_server.config import REGISTRY_NAME, Config

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_IDENTITY = click.option("--identity", metavar="FILE", type=_FILE, help="The key that age decrypts the copy with.")


class CopyDamaged(PatternError):
    """The copy is not what the server wrote."""

    code = "copy_damaged"
    remedy = "Check the disk of the target; the server's own copy is kept."


async def back_up(
    api: Api,
    constellation: str | None,
    target: Path,
    *,
    overwrite: bool = False,
    since: Path | None = None,
    identity: Path | None = None,
    recipient: str | None = None,
) -> Json:
    """Copy a constellation into the file `target`; return `{constellation, file, bytes, sha256}`. With `since`, an
    earlier copy, the file has only the pages that have changed; then the result has their number as `pages`, too. With
    a `recipient`, the file is encrypted.

    None is the registry: users, tokens and the list of constellations. Its result has no `constellation`.

    Raises:
        Conflict: `target` exists and `overwrite` is not set, or age failed.
        ServerFailed: the caller may not copy that.
        CopyDamaged: what arrived is not what the server wrote.
    """
    if target.exists() and not overwrite:
        raise Conflict(f"{target} exists already. Choose another name, or add --overwrite")
    route = ("backup",) if constellation is None else ("constellations", constellation, "backup")
    done: Json = {} if constellation is None else {"constellation": constellation}
    with files.temporary(target.with_name(f"{target.name}.copy")) as copy:
        await collect(api, await api.call("POST", *route), copy, *route[:-1], "backups")
        if since is not None:
            async with whole(since, identity) as before:
                done["pages"] = await trio.to_thread.run_sync(_write_since, copy, since, before, copy)
        if recipient is not None:
            await encrypt(copy, copy, recipient)
        files.replace(copy, target)
    digest = await trio.to_thread.run_sync(files.sha256_of, target)
    return {**done, "file": str(target), "bytes": target.stat().st_size, "sha256": digest}


async def collect(api: Api, made: Json, target: Path, *below: str) -> None:
    """Move a file that the server made, with its `path` and `sha256`, to `target`, possibly on another disk; it appears
    there complete or not at all. One that cannot be read from here is downloaded from `below` by its name, and stays.

    Raises:
        CopyDamaged: what arrived is not what the server wrote.
    """
    source = Path(made["path"])
    is_here = os.access(source, os.R_OK)
    with files.written(target) as beside:
        if is_here:
            await trio.to_thread.run_sync(shutil.copyfile, source, beside)
        else:
            await api.download(beside, *below, source.name)
        if await trio.to_thread.run_sync(files.sha256_of, beside) != made["sha256"]:
            raise CopyDamaged(f"{target} would differ from the server's {source}, which is kept. Check the disk")
    if is_here:
        source.unlink()


def _write_since(copy: Path, since: Path, before: Path, target: Path) -> int:
    """Write what of a copy has changed since an earlier one, whole at `before`; return the number of pages."""
    ids = [verified(path).constellation_id for path in (copy, before)]
    if ids[0] != ids[1]:
        raise InvalidInput(f"{since} is a copy of another constellation. Name one of this constellation")
    return increments.write(copy, since, before, target)


@asynccontextmanager
async def whole(file: Path, identity: Path | None = None) -> AsyncIterator[Path]:
    """Yield the path of a whole copy for the block: the file itself, or what it makes. It may be encrypted for the key
    in the file `identity`, and an increment of another one, which may be such a file again.

    Raises:
        click.UsageError: it is encrypted, and there is no `identity`.
        Conflict: it cannot be decrypted.
        DatabaseError: a copy that it builds on is missing or damaged.
    """
    chain: list[Path] = []
    with tempfile.TemporaryDirectory(prefix="pattern-copy-") as folder:
        while True:
            copy = await _decrypted(file, identity, Path(folder) / f"{len(chain)}")
            if (head := increments.head_of(copy)) is None:
                break
            chain.append(copy)
            base = file.parent / head.base
            there = [path for path in (base, base.with_name(f"{base.name}{AGE_SUFFIX}")) if path.is_file()]
            if not there:
                raise RowNotFound(f"{file} builds on {base}, which is missing; put it back there")
            if len(chain) > increments.CHAIN_MAX:
                raise BackupInvalid(f"{file} is of a chain of more than {increments.CHAIN_MAX} copies")
            file = there[0]
        if chain:
            made = Path(folder) / "whole.db"
            await trio.to_thread.run_sync(increments.assemble, copy, chain, made)
            copy = made
        yield copy


async def _decrypted(file: Path, identity: Path | None, folder: Path) -> Path:
    """Return the path of a copy that is not encrypted: this file's, or that of a new one in the folder."""
    with file.open("rb") as start:
        if not start.read(max(map(len, AGE_STARTS))).startswith(AGE_STARTS):
            return file
    if identity is None:
        raise click.UsageError(f"{file} is encrypted. Name the file with your key: --identity FILE.")
    folder.mkdir()
    copy = folder / file.name.removesuffix(AGE_SUFFIX)
    await run_age("-d", "-i", str(identity.absolute()), "-o", str(copy), str(file.absolute()))
    return copy


async def restore_file(api: Api, file: Path, name: str, *, migrate: bool = False) -> Json:
    """Create a constellation called `name` from a whole backup, and return it.

    With `migrate`, it is migrated to this version if the backup is older.

    Raises:
        ServerFailed: the file is not a valid backup, or the name is taken.
    """
    body = {"file": str(file.resolve()), "name": name, "migrate": migrate}
    return await api.call("POST", "constellations", "restore", body=body)


@click.group(cls=PlainGroup, invoke_without_command=True, epilog="Example: pattern backup -c home -o home.db")
@click.option("-c", "--constellation", metavar="NAME", type=CONSTELLATION, help="The constellation, by name or id.")
@click.option("--all", "is_all", is_flag=True, help="Copy every constellation.")
@click.option("-o", "--output", "target", type=click.Path(path_type=Path), help="The file; with --all, the folder.")
@click.option("--since", metavar="COPY", type=click.Path(exists=True, path_type=Path),
              help="Write only what has changed since this earlier copy; with --all, a folder of copies.")  # fmt: skip
@click.option("--age-recipient", "recipient", metavar="KEY", help="Encrypt for this public key; age must be installed.")
@_IDENTITY
@click.option("--overwrite", is_flag=True, help="Replace files that exist.")
@unless_named
@connected
async def backup(
    api: Api,
    output: Output,
    constellation: str | None,
    is_all: bool,
    target: Path | None,
    overwrite: bool,
    since: Path | None,
    **sealed: Any,
) -> ExitCode:
    """Copy a constellation into a file, also while a server runs, and verify the copy.

    The file has everything: agents, memory with its history, messages, the journal. Users and tokens belong to the
    server; --all copies them too, as global.db. A running server makes copies by itself, see `list`.

    A copy --since another one is restored like others, as long as that is where it was.
    """
    if target is None:
        raise click.UsageError("Missing option '-o' / '--output'.")
    if is_all == (constellation is not None):
        raise click.UsageError("No constellation was named. Use -c NAME or --all, not both.")
    if since is not None and (since.is_dir() != is_all or since.resolve() == target.resolve()):
        raise click.UsageError("--since names an earlier copy; with --all, another folder of copies.")
    if is_all:
        return await _all(api, output, target, since, overwrite=overwrite, **sealed)
    if target.is_dir():
        raise InvalidInput(f"{target} is a folder. Name a file, such as {target / str(constellation)}.db")
    made = await back_up(api, constellation, target, overwrite=overwrite, since=since, **sealed)
    size, digest = made["bytes"] // 1024, made["sha256"][:12]
    output.result(made, f"Copied {constellation} to {target} ({size} KiB, sha256 {digest}…).")
    return DONE


async def _all(api: Api, output: Output, folder: Path, since: Path | None, **options: Any) -> ExitCode:
    if folder.exists() and not folder.is_dir():
        raise InvalidInput(f"{folder} is a file. With --all, -o names a folder")
    rows = await api.pages("constellations")
    earlier = {} if since is None else newest_copies(since)
    wanted: list[tuple[str | None, str, str]] = [(None, "users and tokens", REGISTRY)]
    # The id keeps apart what two owners gave the same name.
    wanted += [(row["id"], row["name"], f"{row['name']}.{row['id']}") for row in rows]
    made: list[Json] = []
    skipped: list[Json] = []
    with output.progress("Copying", len(wanted)) as advance:
        for which, name, file in wanted:
            base = earlier.get(which or REGISTRY)  # what is new since then is copied whole
            suffix = (".db" if base is None else ".increment") + (AGE_SUFFIX if options["recipient"] else "")
            try:
                made.append(await back_up(api, which, folder / f"{file}{suffix}", since=base, **options))
            except (PatternError, DatabaseError) as error:
                output.error(f"{name}: {error.message}")
                failed = {"error": error.message}
                skipped.append(failed if which is None else {"constellation": which, **failed})
            advance()
    copied = sum("constellation" in one for one in made)
    also = ", users and tokens" if copied < len(made) else ""
    said = f"Copied to {folder} (constellations: {copied} of {len(rows)}{also})."
    output.result({"copied": made, "skipped": skipped}, said)
    return SKIPPED if skipped else DONE


@backup.add("list", "-c home", runs=connected)
@click.option("-c", "--constellation", metavar="NAME", type=CONSTELLATION, help="Only of this constellation.")
async def list_(api: Api, output: Output, constellation: str | None) -> None:
    """List the copies that the server made by itself."""
    below = () if constellation is None else ("constellations", constellation)
    rows = await api.pages(*below, "backups")
    output.table(("name", "created_at", "size", "path*"), rows, empty="No copies yet; a running server makes them.")


@backup.add("verify", "", runs=local)
@click.argument("file", required=False, type=_FILE)
@_IDENTITY
def verify(config: Config, output: Output, file: Path | None, identity: Path | None) -> ExitCode:
    """Read the copy FILE whole, or all copies that the server made by itself, each against its manifest."""
    folder = folder_of(config.backup, config.data_dir)
    there = {(folder / one.id / one.file).resolve(): one for one in kept_copies(folder)}
    rows: list[Json] = []
    wanted = [file.resolve()] if file is not None else [*there]
    with output.progress("Verifying", len(wanted)) as advance:
        for path in wanted:
            try:
                report = trio.run(_verified, path, there.get(path), identity)
                rows.append({"file": str(path), "state": "ok", "rows": sum(report.rows.values()), "error": None})
            except (DatabaseError, PatternError) as error:
                rows.append({"file": str(path), "state": "damaged", "rows": None, "error": error.message})
                output.error(error.message)
            advance()
    output.table(("state", "rows", "file*"), rows, empty=f"There are no copies in {folder}.")
    return FAILED if any(row["error"] for row in rows) else DONE


async def _verified(file: Path, manifest: KeptCopy | None, identity: Path | None) -> Report:
    async with whole(file, identity) as copy:
        return await trio.to_thread.run_sync(verified, copy, manifest)


def _or_all(command: Callable[..., None]) -> Callable[..., None]:
    """Return `restore` that works on files alone where it is given `--all`."""

    @wraps(command)
    def called(*, folder: Path | None, target: Path | None, **given: Any) -> None:
        if (folder is None) != (target is None) or (folder is None) == (given["file"] is None):
            raise click.UsageError("Name a FILE, or a folder of copies and a new folder: --all FOLDER --to NEW.")
        if folder is None or target is None:
            command(**given)
            return
        if any(given[name] for name in ("name", "migrate", "in_place")):
            raise click.UsageError("--all keeps all names and versions. Leave out --as, --migrate and --in-place.")
        alone = ("config_file", "data_dir", "is_json", "identity", "dry_run", "yes")
        local(_restore_all)(folder=folder, target=target, **{name: given[name] for name in alone})

    return called


@click.command(epilog="Example: pattern restore home.db --as home-copy")
@click.argument("file", required=False, type=_FILE)
@click.option("--as", "name", metavar="NAME", help="Name of the new constellation.  [default: the file's name]")
@click.option("--migrate", is_flag=True, help="Migrate the new constellation to this version; FILE is not changed.")
@click.option("--in-place", metavar="NAME", type=CONSTELLATION, help="Put this constellation back to FILE instead.")
@click.option("--all", "folder", metavar="FOLDER", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Restore a whole data directory, from a folder of copies.")  # fmt: skip
@click.option("--to", "target", metavar="NEW", type=click.Path(file_okay=False, path_type=Path),
              help="With --all, the new data directory: empty, or not there yet.")  # fmt: skip
@_IDENTITY
@click.option("--dry-run", is_flag=True, help="Check the copies and show what is in them; restore nothing.")
@yes_option
@_or_all
@creating
async def restore(
    api: Api,
    output: Output,
    file: Path,
    name: str | None,
    migrate: bool,
    in_place: str | None,
    identity: Path | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Create a constellation from FILE, a backup. Existing constellations are not changed, except with --in-place:
    then a copy of the present state is made first.

    With --all, users, tokens and all constellations are restored under their own ids, from `pattern backup --all` or
    from the newest of the scheduled copies.
    """
    if in_place is not None and (name or migrate):
        raise click.UsageError("--in-place keeps the name and always migrates. Leave out --as and --migrate.")
    async with whole(file, identity) as copy:
        if not dry_run and in_place is None:
            made = await restore_file(api, copy, name or file.name.split(".")[0], migrate=migrate)
            output.result(made, f"Restored {file} as {made['name']} ({made['id']}).")
            return
        body = {"file": str(copy.resolve())}
        found = await api.call("POST", "constellations", "restore", "check", body=body)
        words = f"{file} is sound (messages: {found['rows'].get('messages', 0)}, schema: {found['version']})"
        if dry_run:
            output.result(found, f"{words}. Nothing was restored.")
            return
        output.confirm(f"Everything in {in_place} after this copy is undone. Continue?", yes=yes)
        done = await api.call("POST", "constellations", str(in_place), "restore", body=body)
        output.result(done, f"Put {in_place} back to {file}; the state before is among `pattern backup list`.")


def _restore_all(_config: Config, output: Output, **given: Any) -> ExitCode:
    return trio.run(partial(_restored_all, output, **given))


async def _restored_all(
    output: Output, folder: Path, target: Path, identity: Path | None, dry_run: bool, yes: bool
) -> ExitCode:
    """Make a data directory of the newest copies in a folder; it appears when it is complete."""
    target, there = target.resolve(), newest_copies(folder)
    if target.exists() and any(target.iterdir()):
        raise Conflict(f"{target} is not empty. Name another folder with --to")
    if REGISTRY not in there:
        raise NotFound(f"{folder} has no copy of users and tokens. Name a folder that `pattern backup --all` made")
    with files.emptied(target.with_name(f".{target.name}.restoring")) as beside:
        async with whole(there[REGISTRY], identity) as copy:
            report = verified(copy)
            restore_copy(copy, beside / REGISTRY_NAME)
        with closing(open_immutable(beside / REGISTRY_NAME)) as connection:
            registry, *wanted = registered(connection, beside)
        size = sum(report.rows.values())
        rows: list[Json] = [{"database": registry.name, "rows": size, "file": str(there[REGISTRY]), "error": None}]
        with output.progress("Checking" if dry_run else "Restoring", len(wanted)) as advance:
            for one in wanted:
                rows.append(await _restored(there.get(one.id), one, identity, output, dry_run=dry_run))
                advance()
        failed = [row for row in rows if row["error"]]
        output.table(("database", "rows", "file*"), rows, empty="")
        if dry_run:
            output.note("Nothing was restored.")
            return SKIPPED if failed else DONE
        if failed:
            output.confirm(
                f"Databases that cannot be restored: {len(failed)} of {len(rows)}. Continue without?", yes=yes
            )
        beside.chmod(0o700)
        beside.rename(target)
        files.sync(target.parent)
    output.note(f"Restored to {target}. Next: pattern serve --data-dir {quote(str(target))}")
    return SKIPPED if failed else DONE


async def _restored(copy: Path | None, wanted: Target, identity: Path | None, output: Output, *, dry_run: bool) -> Json:
    """Restore a database from a copy; return what is in that, or what is wrong with it, which is shown."""
    row: Json = {"database": wanted.name, "rows": None, "file": None if copy is None else str(copy), "error": None}
    try:
        if copy is None:
            raise NotFound("there is no copy of it")
        async with whole(copy, identity) as path:
            report = verified(path)
            # Those of the first versions did not have their id.
            if report.constellation_id not in (wanted.id, None) or "users" in report.rows:
                raise Conflict(f"{copy} is a copy of another constellation")
            if not dry_run:
                restore_copy(path, wanted.path)
        row["rows"] = sum(report.rows.values())
    except (BackupInvalid, RowNotFound, Conflict, NotFound) as error:
        row["error"] = error.message
        output.error(f"{wanted.name}: {error.message}")
    return row
