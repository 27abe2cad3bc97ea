"""`pattern state …`: state that agents and people share."""

from __future__ import annotations

import click

from pattern_server.cli.client import json_or_words
from pattern_server.cli.command import Home, PlainGroup, yes_option
from pattern_server.cli.names import Named
from pattern_server.cli.output import Output, cut, in_line

COLUMNS = ("key", "value*", "version", "changed=updated_at", "by=updated_by")
VALUE_CHARS_MAX = 100  # in a list

KEY = Named("constellations/{constellation}/state", field="key")
version_option = click.option("--version", type=click.IntRange(1), help="Only if it still has this version.")

state = PlainGroup("state", help="Shared state: values by key that agents and people read and change.")


@state.add("list")
async def list_all(home: Home, output: Output) -> None:
    """List the values by key."""
    await home.name_people(output)
    rows = await home.pages("state")
    output.table(
        COLUMNS,
        rows,
        empty=f"There is no shared state yet: pattern state set KEY VALUE -c {home.name}",
        shown=lambda row: {**row, "value": cut(in_line(row["value"]), VALUE_CHARS_MAX)},
    )


@state.add("get", "release.owner")
@click.argument("key", type=KEY)
async def get(home: Home, output: Output, key: str) -> None:
    """Show the value of KEY."""
    await home.name_people(output)
    output.record(await home.get("state", key))


@state.add("set", "release.owner ada")
@click.argument("key", type=KEY)
@click.argument("value")
@version_option
async def set_value(home: Home, output: Output, key: str, value: str, version: int | None) -> None:
    """Set KEY to VALUE: JSON, or text."""
    made = await home.call("PUT", "state", key, body={"value": json_or_words(value)}, headers=_at(version))
    output.result(made, f"Set {made['key']}; it is at version {made['version']}.")


@state.add("delete", "release.owner")
@click.argument("key", type=KEY)
@version_option
@yes_option
async def delete(home: Home, output: Output, key: str, version: int | None, yes: bool) -> None:
    """Delete KEY."""
    output.confirm(f"Delete the key {key}?", yes=yes)
    await home.call("DELETE", "state", key, headers=_at(version))
    output.result({"deleted": key}, f"Deleted {key}.")


def _at(version: int | None) -> dict[str, str]:
    return {} if version is None else {"If-Match": f'"{version}"'}
