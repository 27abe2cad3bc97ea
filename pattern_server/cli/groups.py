"""`pattern group …`: agents that work together."""

from __future__ import annotations

from typing import Any

import click

from pattern_server.cli.client import Json
from pattern_server.cli.command import Home, PlainGroup, json_of, options, yes_option
from pattern_server.cli.names import GROUP
from pattern_server.cli.output import Output

COLUMNS = ("name", "pattern=pattern_type", "members", "description", "id")

# What `create` and `edit` share.
fields = options(
    click.option(
        "--members",
        metavar="A,B …",
        help="The members in order: names, each with a role if it has one, such as ada:supervisor.",
    ),
    click.option("--pattern-config", metavar="JSON", help="Settings of the pattern: JSON, or a file with it."),
    click.option("--description", help="What the group is for."),
)

group = PlainGroup("group", help="Groups of agents that work together on each message.")


def _body(given: Json) -> Json:
    """Return the fields that were given, as the API expects them."""
    body = {name: value for name, value in given.items() if value is not None}
    if "members" in body:
        pairs = [one.strip().partition(":") for one in body["members"].split(",") if one.strip()]
        body["members"] = [{"agent_id": name, **({"role": role} if role else {})} for name, _, role in pairs]
    if "pattern_config" in body:
        body["pattern_config"] = json_of("--pattern-config", body["pattern_config"])
    return body


def _row(found: Json) -> Json:
    return {**found, "members": [one["agent"] for one in found["members"]]}


@group.add("create", "desk --pattern voting --members ada,bob,cleo")
@click.argument("name")
@click.option(
    "--pattern", "pattern_type", default="round_robin", show_default=True, help="How the members work together."
)
@fields
async def create(home: Home, output: Output, **given: Any) -> None:
    """Create the group NAME of agents that exist."""
    made = await home.call("POST", "groups", body=_body({**given, "members": given["members"] or ""}))
    named = ", ".join(one["agent"] for one in made["members"]) or "no agent yet"
    output.result(
        made,
        f"Created the group {made['name']} ({made['id']}): {named}.",
        f"Next: pattern chat -c {home.name} --group {made['name']}",
    )


@group.add("list")
async def list_all(home: Home, output: Output) -> None:
    """List the groups."""
    rows = await home.pages("groups")
    output.table(COLUMNS, rows, empty=f"There is no group yet: pattern group create NAME -c {home.name}", shown=_row)


@group.add("show", "desk")
@click.argument("name", type=GROUP)
async def show(home: Home, output: Output, name: str) -> None:
    """Show the group NAME and its members."""
    found = await home.get("groups", name)
    output.record({**found, "members": None}, data=found)
    if not output.is_json:
        output.table(
            ("member=agent", "role", "domain", "capabilities", "active=is_active"),
            found["members"],
            empty="It has no members: pattern group edit NAME --members A,B",
        )


@group.add("edit", "desk --members ada:supervisor,bob")
@click.argument("name", type=GROUP)
@click.option("--name", "new_name", metavar="NEW_NAME", help="Another name.")
@click.option("--pattern", "pattern_type", help="How the members work together.")
@fields
async def edit(home: Home, output: Output, name: str, new_name: str | None, **given: Any) -> None:
    """Change the group NAME; --members replaces all. A running turn keeps what it started with."""
    body = _body({"name": new_name, **given})
    if not body:
        raise click.UsageError("Give at least one thing to change; see --help.")
    changed = await home.call("PATCH", "groups", name, body=body)
    output.result(changed, f"Changed {changed['name']}.")


@group.add("delete", "desk")
@click.argument("name", type=GROUP)
@yes_option
async def delete(home: Home, output: Output, name: str, yes: bool) -> None:
    """Delete the group NAME and its conversation; its members and what they said stay."""
    found = await home.get("groups", name)
    output.confirm(f"Delete the group {found['name']}?", yes=yes)
    await home.call("DELETE", "groups", found["id"])
    output.result({"deleted": found["id"]}, f"Deleted {found['name']}.")
