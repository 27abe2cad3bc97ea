"""`pattern constellation …`: the sets of agents that this server holds."""

from __future__ import annotations

import click

from pattern_server.cli.client import Api, Json, path
from pattern_server.cli.command import connected, creating, yes_option
from pattern_server.cli.output import Output

COLUMNS = ("name", "id", "created_at")


@click.group()
def constellation() -> None:
    """Constellations: one owner's agents with their own database file."""


@constellation.command("create")
@click.argument("name")
@creating
async def create(api: Api, output: Output, name: str) -> None:
    """Make an empty constellation called NAME."""
    made = await api.call("POST", path("constellations"), body={"name": name})
    output.result(
        made,
        f"Created the constellation {made['name']} ({made['id']}).",
        f"Next: pattern agent create NAME -c {made['name']}",
    )


@constellation.command("list")
@connected
async def list_all(api: Api, output: Output) -> None:
    """List the constellations."""
    rows = await api.pages(path("constellations"))
    output.table(COLUMNS, rows, empty="There is no constellation yet: pattern constellation create NAME")


@constellation.command("show")
@click.argument("name")
@connected
async def show(api: Api, output: Output, name: str) -> None:
    """Show one constellation, by name or id."""
    output.record(await api.get(path("constellations", name)))
    for line in halt_lines(name, await api.get(path("constellations", name, "halt"))):
        output.note(line)


def halt_lines(name: str, halt: Json) -> list[str]:
    """Return what to say of a halt, as the API shows it; nothing if there is none."""
    if not halt["halted"]:
        return []
    return [
        f"{halt['agent_name']} halted it at {halt['at']}: {halt['reason']}",
        f"When you have seen to that: pattern constellation resume {name}",
    ]


@constellation.command("rename")
@click.argument("name")
@click.argument("new_name")
@connected
async def rename(api: Api, output: Output, name: str, new_name: str) -> None:
    """Call the constellation NAME from now on NEW_NAME."""
    changed = await api.call("PATCH", path("constellations", name), body={"name": new_name})
    output.result(changed, f"{name} is called {changed['name']} now.")


@constellation.command("resume")
@click.argument("name")
@connected
async def resume(api: Api, output: Output, name: str) -> None:
    """Let the constellation NAME continue, which one of its agents halted."""
    ended = await api.call("POST", path("constellations", name, "resume"))
    output.result(ended, f"{name} continues. {ended['agent_name']} had halted it at {ended['at']}: {ended['reason']}")


@constellation.command("delete")
@click.argument("name")
@yes_option
@connected
async def delete(api: Api, output: Output, name: str, yes: bool) -> None:
    """Delete the constellation NAME with all its agents and everything that they remember."""
    found = await api.get(path("constellations", name))
    if not yes:
        output.note(f"To keep a copy: pattern backup -c {found['name']} -o {found['name']}.db")
        output.confirm(f"Delete {found['name']} ({found['id']}) for good?", yes=yes)
    await api.call("DELETE", path("constellations", found["id"]))
    output.result({"deleted": found["id"]}, f"Deleted {found['name']}.")
