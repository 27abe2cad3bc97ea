"""`pattern assignment …`: work that agents share out."""

from __future__ import annotations

from typing import Any

import click

from pattern_db.enums import AssignmentStatus
from pattern_server.cli.command import Home, PlainGroup
from pattern_server.cli.names import AGENT, Named
from pattern_server.cli.output import Output
from pattern_server.cli.tasks import ENDED, PRIORITIES, body_of

COLUMNS = ("assignment=description*", "status", "priority", "agent=assigned_to?", "id")
STATUSES = [*map(str, AssignmentStatus)]

ASSIGNMENT = Named("constellations/{constellation}/assignments", field="id")

assignment = PlainGroup("assignment", help="Work that agents claim from one list, with the tools assign and claim.")


@assignment.add("list", "--all")
@click.option("--all", "everything", is_flag=True, help="Also completed and cancelled ones.")
async def list_all(home: Home, output: Output, everything: bool) -> None:
    """List the open assignments, newest first."""
    await home.name_people(output)
    rows = [row for row in await home.pages("assignments") if everything or row["status"] not in ENDED]
    output.table(COLUMNS, rows, empty="There is no such assignment. Add one: pattern assignment add --help")


@assignment.add("add", "'Read the report of May.' --priority high")
@click.argument("description")
@click.option("-a", "--agent", metavar="NAME", type=AGENT, help="The agent.  [default: the first that claims it]")
@click.option("--priority", type=click.Choice(PRIORITIES), help="How urgent it is.  [default: medium]")
async def add(home: Home, output: Output, **given: Any) -> None:
    """Put the work DESCRIPTION on the list; it starts no turn."""
    made = await home.call("POST", "assignments", body=body_of(given))
    output.result(made, f"Added the assignment {made['id']}.")


@assignment.add("set", "asg_01k cancelled")
@click.argument("id_", metavar="ID", type=ASSIGNMENT)
@click.argument("status", type=click.Choice(STATUSES))
async def set_status(home: Home, output: Output, id_: str, status: str) -> None:
    """Set the status of the assignment ID; one that is pending can be claimed again."""
    output.result(await home.call("PATCH", "assignments", id_, body={"status": status}), f"{id_} is {status}.")
