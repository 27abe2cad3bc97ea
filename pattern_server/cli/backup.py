"""`pattern backup` and `pattern restore`: verified copies, also while a server runs."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import click
import trio

from pattern_core.errors import Conflict, InvalidInput, PatternError
from pattern_db import files
from pattern_server.cli.client import Api, Json
from pattern_server.cli.command import ExitCode, connected, creating
from pattern_server.cli.names import CONSTELLATION
from pattern_server.cli.output import DONE, SKIPPED, Output


class CopyDamaged(PatternError):
    """The copy is not what the server wrote."""

    code = "copy_damaged"
    remedy = "Check the disk of the target; the server's own copy is kept."


async def back_up(api: Api, constellation: str | None, target: Path, *, overwrite: bool = False) -> Json:
    """Copy a constellation into the file `target`; return `{constellation, file, bytes, sha256}`.

    None is the registry: users, tokens and the list of constellations. Its result has no `constellation`.

    Raises:
        Conflict: `target` exists and `overwrite` is not set.
        ServerFailed: the caller may not copy that.
        CopyDamaged: what arrived is not what the server wrote.
    """
    if target.exists() and not overwrite:
        raise Conflict(f"{target} exists already. Choose another name, or add --overwrite")
    route = ("backup",) if constellation is None else ("constellations", constellation, "backup")
    made = await api.call("POST", *route)
    await trio.to_thread.run_sync(partial(_take, Path(made["path"]), target, str(made["sha256"])))
    copied = {"file": str(target), "bytes": made["size"], "sha256": made["sha256"]}
    return copied if constellation is None else {"constellation": constellation, **copied}


def _take(source: Path, target: Path, sha256: str) -> None:
    """Move the server's copy to `target`, possibly on another disk; it appears there complete or not at all."""
    with files.temporary(target) as beside:
        shutil.copyfile(source, beside)
        if files.sha256_of(beside) != sha256:
            raise CopyDamaged(f"the copy at {target} differs from {source}, which is kept. Check the disk")
        files.replace(beside, target)
    source.unlink()


async def restore_file(api: Api, file: Path, name: str | None, *, migrate: bool = False) -> Json:
    """Create a constellation called `name` (if None, like the file) from a backup, and return it.

    With `migrate`, it is migrated to this version if the backup is older.

    Raises:
        ServerFailed: the file is not a valid backup, or the name is taken.
    """
    body = {"file": str(file.resolve()), "name": name or file.name.split(".")[0], "migrate": migrate}
    return await api.call("POST", "constellations", "restore", body=body)


@click.command(epilog="Example: pattern backup -c home -o home.db")
@click.option("-c", "--constellation", metavar="NAME", type=CONSTELLATION, help="The constellation, by name or id.")
@click.option("--all", "is_all", is_flag=True, help="Copy every constellation.")
@click.option(
    "-o", "--output", "target", required=True, type=click.Path(path_type=Path), help="The file; with --all, the folder."
)
@click.option("--overwrite", is_flag=True, help="Replace files that exist.")
@connected
async def backup(
    api: Api, output: Output, constellation: str | None, is_all: bool, target: Path, overwrite: bool
) -> ExitCode:
    """Copy a constellation into a file, also while a server runs, and verify the copy.

    The file has everything: agents, memory with its history, messages, the journal. Users and tokens belong to the
    server; --all copies them too, as global.db.
    """
    if is_all == (constellation is not None):
        raise click.UsageError("No constellation was named. Use -c NAME or --all, not both.")
    if constellation is not None:
        if target.is_dir():
            raise InvalidInput(f"{target} is a folder. Name a file, such as {target / constellation}.db")
        made = await back_up(api, constellation, target, overwrite=overwrite)
        size, digest = made["bytes"] // 1024, made["sha256"][:12]
        output.result(made, f"Copied {constellation} to {target} ({size} KiB, sha256 {digest}…).")
        return DONE
    return await _all(api, output, target, overwrite=overwrite)


async def _all(api: Api, output: Output, folder: Path, *, overwrite: bool) -> ExitCode:
    if folder.exists() and not folder.is_dir():
        raise InvalidInput(f"{folder} is a file. With --all, -o names a folder")
    rows = await api.pages("constellations")
    wanted: list[tuple[str | None, str, str]] = [(None, "users and tokens", "global.db")]
    # The id keeps apart what two owners gave the same name.
    wanted += [(row["id"], row["name"], f"{row['name']}.{row['id']}.db") for row in rows]
    made: list[Json] = []
    skipped: list[Json] = []
    with output.progress("Copying", len(wanted)) as advance:
        for which, name, file in wanted:
            try:
                made.append(await back_up(api, which, folder / file, overwrite=overwrite))
            except PatternError as error:
                output.error(f"{name}: {error.message}")
                failed = {"error": error.message}
                skipped.append(failed if which is None else {"constellation": which, **failed})
            advance()
    copied = sum("constellation" in one for one in made)
    also = ", and the users and tokens," if copied < len(made) else ""
    said = f"Copied {copied} of {len(rows)} constellations{also} to {folder}."
    output.result({"copied": made, "skipped": skipped}, said)
    return SKIPPED if skipped else DONE


@click.command(epilog="Example: pattern restore home.db --as home-copy")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--as", "name", metavar="NAME", help="Name of the new constellation.  [default: the file's name]")
@click.option("--migrate", is_flag=True, help="Migrate the new constellation to this version; FILE is not changed.")
@creating
async def restore(api: Api, output: Output, file: Path, name: str | None, migrate: bool) -> None:
    """Create a constellation from FILE, a backup. Existing constellations are not changed."""
    made = await restore_file(api, file, name, migrate=migrate)
    output.result(made, f"Restored {file} as {made['name']} ({made['id']}).")
