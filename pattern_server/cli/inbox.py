"""`pattern inbox …`: messages that found no agent to answer them."""

from __future__ import annotations

import click

from pattern_db.enums import DeliveryStatus
from pattern_server.cli.command import Home, PlainGroup, yes_option
from pattern_server.cli.names import AGENT, Named
from pattern_server.cli.output import Output, cut, in_line

COLUMNS = ("id", "for", "status", "attempts", "next=next_at?", "message*", "error=last_error*")
TEXT_CHARS_MAX = 60
MESSAGE = Named("constellations/{constellation}/inbox", field="id")

inbox = PlainGroup("inbox", help="Messages that could not be delivered.")


@inbox.add("list", "--status dead")
@click.option("--status", type=click.Choice([one.value for one in DeliveryStatus]), help="Only those with this status.")
async def list_all(home: Home, output: Output, status: str | None) -> None:
    """List messages that could not be delivered, newest first; those that are dead wait for you."""
    await home.name_people(output)
    rows = await home.pages("inbox", status=status)

    def shown(row: dict[str, object]) -> dict[str, object]:
        words = cut(in_line(str(row["content"])), TEXT_CHARS_MAX)
        return {**row, "for": row["agent_id"] or row["group_id"], "message": words}

    output.table(COLUMNS, rows, empty="No message waits.", shown=shown)


@inbox.add("retry", "turn_01k")
@click.argument("id_", metavar="ID", type=MESSAGE)
@click.option("-a", "--agent", metavar="NAME", type=AGENT, help="Send it to this agent instead.")
async def retry(home: Home, output: Output, id_: str, agent: str | None) -> None:
    """Send the message ID again."""
    await home.call("POST", "inbox", id_, "retry", body={"agent": agent})
    output.result({"retried": id_}, f"Sent {id_} again.")


@inbox.add("discard", "turn_01k")
@click.argument("id_", metavar="ID", type=MESSAGE)
@yes_option
async def discard(home: Home, output: Output, id_: str, yes: bool) -> None:
    """Discard the message ID: it is not delivered any more."""
    output.confirm(f"Discard the message {id_}?", yes=yes)
    await home.call("DELETE", "inbox", id_)
    output.result({"discarded": id_}, f"Discarded {id_}.")
