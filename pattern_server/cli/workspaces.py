"""`pattern workspace …`: the projects that messages, entries, blocks, tasks and sessions belong to."""

from __future__ import annotations

import os
from pathlib import Path

import click

from pattern_server.cli.client import Json
from pattern_server.cli.command import Home, PlainGroup, in_constellation, yes_option
from pattern_server.cli.names import WORKSPACE
from pattern_server.cli.output import Output

COLUMNS = ("name", "folders=roots*", "also called=aliases*", "id")

workspace = PlainGroup("workspace", help="Projects that messages, entries, blocks, tasks and sessions belong to.")


@workspace.add("list")
async def list_all(home: Home, output: Output) -> None:
    """List workspaces by name."""
    rows = await home.pages("workspaces")
    output.table(
        COLUMNS, rows, empty="There are no workspaces. Create one: pattern workspace add-root NAME", shown=_row
    )


@workspace.add("show", ".")
@click.argument("name", metavar="WORKSPACE", type=WORKSPACE)
async def show(home: Home, output: Output, name: str) -> None:
    """Show WORKSPACE: a name, an id, or a folder of it."""
    if os.sep in name:
        [found] = (await home.get("workspaces", path=name))["items"]
    else:
        found = await home.get("workspaces", name)
    output.record({key: value for key, value in _row(found).items() if value}, data=found)


@workspace.add("add-root", "shop ~/src/shop")
@click.argument("name", metavar="WORKSPACE", type=WORKSPACE)
@click.argument("path", default=os.curdir)
async def add_root(home: Home, output: Output, name: str, path: str) -> None:
    """Let the folder PATH, by default this one, belong to WORKSPACE, which is created if there is none."""
    made = await home.call("POST", "workspaces", body={"workspace": name})
    found = await home.call("POST", "workspaces", made["id"], "roots", body={"path": str(Path(path).absolute())})
    output.result(found, f"{found['name']} has the folders {', '.join(found['roots'])}.")


@workspace.add("remove-root", "shop ~/src/shop")
@click.argument("name", metavar="WORKSPACE", type=WORKSPACE)
@click.argument("path", default=os.curdir)
async def remove_root(home: Home, output: Output, name: str, path: str) -> None:
    """Take the folder PATH, by default this one, from WORKSPACE; what is stored in it stays."""
    found = await home.call("DELETE", "workspaces", name, "roots", params={"path": str(Path(path).absolute())})
    output.result(found, f"{found['name']} has the folders {', '.join(found['roots']) or 'none'}.")


@workspace.add("prompts", "shop off")
@click.argument("name", metavar="WORKSPACE", type=WORKSPACE)
@click.argument("state", type=click.Choice(["on", "off"]))
async def prompts(home: Home, output: Output, name: str, state: str) -> None:
    """Say whether agents are shown a map of WORKSPACE in its sessions: on or off."""
    found = await home.call("PATCH", "workspaces", name, body={"in_prompts": state == "on"})
    shown = "show" if found["in_prompts"] else "do not show"
    output.result(found, f"Prompts {shown} {found['name']}.")


@workspace.add("alias", "shop delta home_ada_shop-main")
@click.argument("name", metavar="WORKSPACE", type=WORKSPACE)
@click.argument("system")
@click.argument("alias")
async def alias(home: Home, output: Output, name: str, system: str, alias: str) -> None:
    """Say that the program SYSTEM calls WORKSPACE by the name ALIAS."""
    found = await home.call("POST", "workspaces", name, "aliases", body={"system": system, "alias": alias})
    output.result(found, f"{system} calls {found['name']} {alias}.")


@workspace.add("merge", "shop-2 shop")
@click.argument("name", metavar="WORKSPACE", type=WORKSPACE)
@click.argument("into", metavar="INTO", type=WORKSPACE)
@yes_option
async def merge(home: Home, output: Output, name: str, into: str, yes: bool) -> None:
    """Let everything of WORKSPACE belong to INTO."""
    found = await home.get("workspaces", name)
    output.confirm(f"Merge the workspace {found['name']} into {into}?", yes=yes)
    left = await home.call("POST", "workspaces", found["id"], "merge", body={"into": into})
    output.result(left, f"Merged {found['name']} into {left['name']}.")


@click.command(epilog="Example: pattern context --workspace . --format delta")
@click.option(
    "--workspace",
    "name",
    default=os.curdir,
    metavar="WORKSPACE",
    type=WORKSPACE,
    help="A name, id or folder.  [default: .]",
)
@click.option("--format", "_format", type=click.Choice(["delta"]), default="delta", help="The form of the text.")
@in_constellation
async def context(home: Home, output: Output, name: str, _format: str) -> None:
    """Print what is remembered of a workspace, for the prompt of another agent."""
    found = await home.get("context", workspace=name)
    output.result(found, found["text"])


def _row(row: Json) -> Json:
    also = ", ".join(f"{one['system']}:{one['alias']}" for one in row["aliases"])
    return {**row, "roots": ", ".join(row["roots"]), "aliases": also}
