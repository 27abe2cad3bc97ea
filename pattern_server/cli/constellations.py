"""`pattern constellation …`: the constellations of this server."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from pattern_core.errors import InvalidInput
from pattern_server.cli.client import Api, Json
from pattern_server.cli.command import PlainGroup, connected, creating, yes_option
from pattern_server.cli.names import CONSTELLATION
from pattern_server.cli.output import Output, when

COLUMNS = ("name", "id", "created=created_at?")

constellation = PlainGroup("constellation", help="Constellations: sets of agents, each in its own database file.")


@constellation.add("create", "home --from support", runs=creating)
@click.argument("name")
@click.option(
    "--from",
    "starter",
    help="What it begins with: minimal, pair, research or support, or a file of yours, such as mine.toml.",
)
async def create(api: Api, output: Output, name: str, starter: str | None) -> None:
    """Create a constellation called NAME, empty or from a starter: agents with memory, groups and schedules."""
    body: Json = {"name": name}
    if starter is not None:
        body["from"] = _read(Path(starter)) if starter.endswith(".toml") else starter
    made = await api.call("POST", "constellations", body=body)
    output.result(
        made,
        f"Created the constellation {made['name']} ({made['id']}).",
        f"Next: pattern agent {'create NAME' if starter is None else 'list'} -c {made['name']}",
    )


def _read(file: Path) -> Json:
    """Return the starter in a file.

    Raises:
        InvalidInput: it is not TOML.
        OSError: it cannot be read.
    """
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidInput(f"{file} is not valid TOML: {error}") from None


@constellation.add("list", runs=connected)
async def list_all(api: Api, output: Output) -> None:
    """List the constellations."""
    rows = await api.pages("constellations")
    output.table(COLUMNS, rows, empty="There is no constellation yet: pattern constellation create NAME")


@constellation.add("show", "home", runs=connected)
@click.argument("name", type=CONSTELLATION)
async def show(api: Api, output: Output, name: str) -> None:
    """Show one constellation."""
    output.record(await api.get("constellations", name))
    for line in halt_lines(name, await api.get("constellations", name, "halt")):
        output.note(line)


def halt_lines(name: str, halt: Json) -> list[str]:
    """Return the lines about a halt, as the API shows it; none if there is none."""
    if not halt["halted"]:
        return []
    return [
        f"{halt['agent_name']} halted it ({when(halt['at'])}): {halt['reason']}",
        f"Resume it with: pattern constellation resume {name}",
    ]


@constellation.add("rename", "home family", runs=connected)
@click.argument("name", type=CONSTELLATION)
@click.argument("new_name")
async def rename(api: Api, output: Output, name: str, new_name: str) -> None:
    """Rename the constellation NAME to NEW_NAME."""
    changed = await api.call("PATCH", "constellations", name, body={"name": new_name})
    output.result(changed, f"Renamed {name} to {changed['name']}.")


@constellation.add("fork", "home what-if", runs=connected)
@click.argument("name", type=CONSTELLATION)
@click.argument("new_name")
async def fork(api: Api, output: Output, name: str, new_name: str) -> None:
    """Create the constellation NEW_NAME, which begins with all that NAME holds now; both work on.

    In the new one open turns are cancelled, schedules and reminders are paused, and there are no webhooks, no tokens
    and no consent that was given before.
    """
    made = await api.call("POST", "constellations", name, "fork", body={"name": new_name})
    output.result(
        made,
        f"Forked {name} as {made['name']} ({made['id']}). Its schedules are paused.",
        f"To bring its changes back: pattern constellation merge {made['name']} {name}",
    )


@constellation.add("merge", "what-if home", runs=connected)
@click.argument("source", metavar="FROM", type=CONSTELLATION)
@click.argument("into", type=CONSTELLATION)
@click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")
async def merge(api: Api, output: Output, source: str, into: str, dry_run: bool) -> None:
    """Let what the constellation FROM holds join INTO, such as a fork its original; FROM stays as it is.

    What both have stays as it is in INTO. Memory blocks that both have from before a fork get the versions of both,
    with their authors. The same again changes nothing.
    """
    done = await api.call("POST", "constellations", into, "merge", body={"from": source, "dry_run": dry_run})
    added = done["report"]["audit_log"]["added"]
    rows = ", ".join(f"{table.replace('_', ' ')}: {count}" for table, count in sorted(added.items())) or "none"
    said = f"Merged {source} into {into}. New rows: {rows}."
    if done["is_replay"]:
        said = f"Nothing to do: {source} was merged into {into} before, and has not changed since."
    elif dry_run:
        said = f"Nothing was changed. New rows would be: {rows}."
    output.result(done, said, *([] if done["is_replay"] else decided(done["report"])))


@constellation.add("resume", "home", runs=connected)
@click.argument("name", type=CONSTELLATION)
async def resume(api: Api, output: Output, name: str) -> None:
    """Resume the constellation NAME after one of its agents halted it."""
    ended = await api.call("POST", "constellations", name, "resume")
    output.result(ended, f"Resumed {name}. {ended['agent_name']} halted it ({when(ended['at'])}): {ended['reason']}")


@constellation.add("delete", "home", runs=connected)
@click.argument("name", type=CONSTELLATION)
@yes_option
async def delete(api: Api, output: Output, name: str, yes: bool) -> None:
    """Delete the constellation NAME with its agents and all their data."""
    found = await api.get("constellations", name)
    if not yes:
        output.note(f"To keep a copy: pattern backup -c {found['name']} -o {found['name']}.db")
        output.confirm(f"Delete {found['name']} ({found['id']}) permanently?", yes=yes)
    await api.call("DELETE", "constellations", found["id"])
    output.result({"deleted": found["id"]}, f"Deleted {found['name']}.")


def decided(report: Mapping[str, Any] | None) -> list[str]:
    """Return a line for each decision of an import."""
    lines = []
    for one in report["audit_log"]["decisions"] if report else []:
        more = f" to {one['to']}" if "to" in one else ""
        more += f" ({one['severity']}: {one['evidence']})" if "severity" in one else ""
        lines.append(f"  {one['kind']} {one['name']}: {one['decision']}{more}")
    return lines
