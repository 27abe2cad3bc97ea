"""`pattern constellation …`: the sets of agents that this server holds."""

from __future__ import annotations

import click

from pattern_server.cli.client import Api, Json, path
from pattern_server.cli.command import ExitCode, connected
from pattern_server.cli.output import Output

COLUMNS = ("name", "id", "created_at")


@click.group()
def constellation() -> None:
    """Constellations: one owner's agents with their own database file."""


@constellation.command("create")
@click.argument("name")
@connected
async def create(api: Api, output: Output, name: str) -> ExitCode:
    """Make an empty constellation called NAME."""
    made = await api.call("POST", path("constellations"), body={"name": name})
    output.data(made)
    output.say(f"Created the constellation {made['name']} ({made['id']}).")
    output.say(f"Next: pattern agent create NAME -c {made['name']}")
    return None


@constellation.command("list")
@connected
async def list_all(api: Api, output: Output) -> ExitCode:
    """List the constellations."""
    rows = await api.pages(path("constellations"))
    output.table(COLUMNS, rows, empty="There is no constellation yet: pattern constellation create NAME")
    return None


@constellation.command("show")
@click.argument("name")
@connected
async def show(api: Api, output: Output, name: str) -> ExitCode:
    """Show one constellation, by name or id."""
    output.record(await api.get(path("constellations", name)))
    for line in halt_lines(name, await api.get(path("constellations", name, "halt"))):
        output.note(line)
    return None


def halt_lines(name: str, halt: Json) -> list[str]:
    """What to say of a halt, as the API tells it; nothing if there is none."""
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
async def rename(api: Api, output: Output, name: str, new_name: str) -> ExitCode:
    """Call the constellation NAME from now on NEW_NAME."""
    changed = await api.call("PATCH", path("constellations", name), body={"name": new_name})
    output.data(changed)
    output.say(f"{name} is called {changed['name']} now.")
    return None


@constellation.command("resume")
@click.argument("name")
@connected
async def resume(api: Api, output: Output, name: str) -> ExitCode:
    """Let the constellation NAME go on, which one of its agents halted."""
    ended = await api.call("POST", path("constellations", name, "resume"))
    output.data(ended)
    output.say(f"{name} goes on. {ended['agent_name']} had halted it at {ended['at']}: {ended['reason']}")
    return None


@constellation.command("delete")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@connected
async def delete(api: Api, output: Output, name: str, yes: bool) -> ExitCode:
    """Delete the constellation NAME with all its agents and everything that they remember."""
    found = await api.get(path("constellations", name))
    if not yes:
        output.note(f"To keep a copy: pattern backup -c {found['name']} -o {found['name']}.db")
        output.confirm(f"Delete {found['name']} ({found['id']}) for ever?", flag="--yes")
    await api.call("DELETE", path("constellations", found["id"]))
    output.data({"deleted": found["id"]})
    output.say(f"Deleted {found['name']}.")
    return None
