"""`pattern handoff …`: notes for agents."""

from __future__ import annotations

import click

from pattern_server.cli.command import Home, PlainGroup
from pattern_server.cli.names import AGENT, Named
from pattern_server.cli.output import Output, cut, in_line

COLUMNS = ("id", "left=created_at?", "from=author", "to=to_agent", "read=read_at?", "note=content*")
NOTE_CHARS_MAX = 100  # in a list
ANYONE = "anyone"

NOTE = Named("constellations/{constellation}/handoffs", field="id")

handoff = PlainGroup("handoff", help="Notes that agents are shown with the next message that they answer.")


@handoff.add("list", "--unread")
@click.option("-a", "--agent", metavar="NAME", type=AGENT, help="Only notes for this agent.")
@click.option("--unread", is_flag=True, help="Only notes that no agent was shown yet.")
async def list_all(home: Home, output: Output, agent: str | None, unread: bool) -> None:
    """List notes, newest first."""
    await home.name_people(output)
    rows = await home.pages("handoffs", to=agent, unread=unread)
    output.table(
        COLUMNS,
        rows,
        empty="There are no such notes. Leave one: pattern handoff add --help",
        shown=lambda row: {
            **row,
            "to_agent": row["to_agent"] or ANYONE,
            "content": cut(in_line(row["content"]), NOTE_CHARS_MAX),
        },
    )


@handoff.add("add", "'The draft is in docs/plan.md.' -a bob")
@click.argument("content")
@click.option("-a", "--agent", metavar="NAME", type=AGENT, help="For this agent.  [default: the first that reads it]")
async def add(home: Home, output: Output, content: str, agent: str | None) -> None:
    """Leave the note CONTENT; it starts no turn."""
    made = await home.call("POST", "handoffs", body={"content": content, "to": agent})
    output.result(made, f"Left the note {made['id']} for {agent or ANYONE}.")


@handoff.add("delete", "note_01k")
@click.argument("id_", metavar="ID", type=NOTE)
async def delete(home: Home, output: Output, id_: str) -> None:
    """Delete the note ID."""
    await home.call("DELETE", "handoffs", id_)
    output.result({"deleted": id_}, f"Deleted {id_}.")
