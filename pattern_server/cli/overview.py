"""`pattern overview …`: what agents did, by agent, day and week, and what was notable."""

from __future__ import annotations

import click

from pattern_db.enums import NotableKind
from pattern_server.cli.command import Home, PlainGroup
from pattern_server.cli.names import Named
from pattern_server.cli.output import Output

AGENT_COLUMNS = ("agent=name", "active=last_active?", "model?", "summary*")
PERIOD_COLUMNS = ("from=period_start", "to=period_end", "summary*", "decisions=key_decisions*", "open=open_threads*")
NOTABLE_COLUMNS = ("id", "time=timestamp?", "kind=event_type", "event=description*")

NOTABLE = Named("constellations/{constellation}/overview/notable", field="id")

overview = PlainGroup("overview", help="What agents did, what was decided, and what is open.")


@overview.add("agents", "")
async def agents(home: Home, output: Output) -> None:
    """Show what each agent did, by its newest summary."""
    rows = await home.pages("overview", "agents")
    output.table(AGENT_COLUMNS, rows, empty="No agent has had much to do yet.")


@overview.add("periods", "--limit 7")
@click.option("--limit", type=click.IntRange(1), default=14, show_default=True, help="Newest ones to show.")
async def periods(home: Home, output: Output, limit: int) -> None:
    """Show days and weeks (UTC), newest first: what was done, decided and left open."""
    rows = await home.pages("overview", "periods", most=limit)
    output.table(
        PERIOD_COLUMNS,
        rows,
        empty="No day with anything to tell has ended yet.",
        shown=lambda row: {**row, **{name: "; ".join(row[name]) for name in ("key_decisions", "open_threads")}},
    )


@overview.add("notable", "--limit 20")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="Newest ones to show.")
async def notable(home: Home, output: Output, limit: int) -> None:
    """List notable events, newest first."""
    rows = await home.pages("overview", "notable", most=limit)
    output.table(NOTABLE_COLUMNS, rows, empty="Nothing notable was recorded. Record it: pattern overview record --help")


@overview.add("record", "'We move in May.'")
@click.argument("event")
@click.option(
    "--kind",
    type=click.Choice([kind.value for kind in NotableKind]),
    default="decision",
    show_default=True,
    help="What it is.",
)
async def record(home: Home, output: Output, event: str, kind: str) -> None:
    """Record the notable EVENT in a sentence; agents are shown it with their next messages."""
    made = await home.call("POST", "overview", "notable", body={"description": event, "event_type": kind})
    output.result(made, f"Recorded {made['id']}.")


@overview.add("delete", "act_01k")
@click.argument("id_", metavar="ID", type=NOTABLE)
async def delete(home: Home, output: Output, id_: str) -> None:
    """Delete the notable event ID."""
    await home.call("DELETE", "overview", "notable", id_)
    output.result({"deleted": id_}, f"Deleted {id_}.")
