"""`pattern export`, `pattern import`, `pattern car`: constellations, agents and groups as files for other servers."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, get_args

import click
import trio

from pattern_core import portable
from pattern_core.car import ArchiveInvalid
from pattern_core.errors import Conflict
from pattern_db import files
from pattern_server.cli.client import Api
from pattern_server.cli.command import Home, PlainGroup, creating, in_constellation, local
from pattern_server.cli.output import Output
from pattern_server.config import Config

COLUMNS = ("table", "rows")
WHOLE = "constellation"

car = PlainGroup("car", help="Archive files: show what is in one, verify it.")


@click.command(epilog="Example: pattern export agent --name ada -o ada.car")
@click.argument("kind", type=click.Choice(get_args(portable.Kind)))
@click.option("--name", metavar="NAME", help="The agent, group or constellation.  [default: the only constellation]")
@click.option(
    "-o", "--output", "target", required=True, type=click.Path(path_type=Path, dir_okay=False), help="The file."
)
@click.option("--overwrite", is_flag=True, help="Replace a file that exists.")
@in_constellation
async def export(home: Home, output: Output, kind: str, name: str | None, target: Path, overwrite: bool) -> None:
    """Write an archive of an agent, of a group with its members, or of a constellation: KIND says which.

    Messages, memory with its history, archive, files, tasks, schedules and use travel. Keys, tokens, consent and what
    turns did step by step stay here.
    """
    if target.exists() and not overwrite:
        raise Conflict(f"{target} exists already. Choose another name, or add --overwrite")
    if kind == WHOLE:
        name = None  # it is `home`'s
    elif name is None:
        raise click.UsageError(f"No {kind} was named. Use --name NAME.")
    made = await home.call("POST", "export", body={"kind": kind, "name": name})
    path, manifest = Path(made["path"]), made["manifest"]
    with files.temporary(target) as beside:
        with suppress(OSError):  # the server's disk may be another machine's
            await trio.to_thread.run_sync(partial(shutil.copyfile, path, beside))
        if not beside.exists():
            await home.download(beside, "exports", path.name)
        if await trio.to_thread.run_sync(files.sha256_of, beside) != made["sha256"]:
            raise ArchiveInvalid(f"the archive at {target} differs from {path}, which is kept; check the disk")
        files.replace(beside, target)
    with suppress(OSError):
        path.unlink()
    output.result({"file": str(target), **manifest}, f"Exported {manifest['name']} to {target} ({_counts(manifest)}).")
    for column, count in manifest["cut"].items():
        output.say(f"  {count} references in {column} are to what is not exported; they are left out.")


@click.command("import", epilog="Example: pattern import --from home.car --as home-again")
@click.option(
    *("--from", "file"), required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The archive.",
)  # fmt: skip
@click.option("--as", "name", metavar="NAME", help="Name of the new constellation.  [default: the archive's own]")
@click.option("--dry-run", is_flag=True, help="Read and check the whole archive; import nothing.")
@creating
async def import_(api: Api, output: Output, file: Path, name: str | None, dry_run: bool) -> None:
    """Create a constellation from an archive: all of it, or nothing. Its schedules are paused."""
    body = {"file": str(file.resolve()), "name": name}
    if dry_run:
        found = await api.call("POST", "constellations", "import", "check", body=body)
        output.result(found, f"{file} is sound: {_counts(found)}. Nothing was imported.")
        return
    made = await api.call("POST", "constellations", "import", body=body)
    output.result(made, f"Imported {file} as {made['name']} ({made['id']}).")


@car.add("show", "home.car", runs=local)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def show(_config: Config, output: Output, file: Path) -> None:
    """Show what the archive FILE says of itself."""
    found = asdict(portable.glance(file))
    if output.is_json:
        output.data(found)
        return
    output.say(f"{found['kind']} {found['name']}, as of {found['exported_at']}, schema {found['schema_version']}")
    output.table(COLUMNS, [{"table": table, "rows": count} for table, count in found["rows"].items()], empty="No rows.")


@car.add("verify", "home.car", runs=local)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def verify(_config: Config, output: Output, file: Path) -> None:
    """Read the archive FILE whole, and check every block."""
    found = asdict(portable.verify(file))
    output.result(found, f"{file} is sound: {found['blocks']} blocks, {_counts(found)}.")


def _counts(manifest: Mapping[str, Any]) -> str:
    rows = manifest["rows"]
    return ", ".join(
        f"{rows.get(table, 0)} {table.replace('_', ' ')}" for table in ("agents", "messages", "memory_blocks")
    )
