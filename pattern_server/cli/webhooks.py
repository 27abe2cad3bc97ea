"""`pattern webhook …`: addresses that are sent events."""

from __future__ import annotations

import click

from pattern_db.enums import DeliveryStatus
from pattern_server.cli.client import Json
from pattern_server.cli.command import Home, PlainGroup, yes_option
from pattern_server.cli.names import Named
from pattern_server.cli.output import Output

COLUMNS = ("name", "url", "events", "secret", "id")
DELIVERY_COLUMNS = ("id", "event", "status", "attempts", "created=created_at", "next=next_at?", "error=last_error*")
WEBHOOK = Named("constellations/{constellation}/webhooks")

webhook = PlainGroup("webhook", help="Webhooks: addresses that are sent events.")


@webhook.add("add", "pager https://example.org/hook --secret pager --event turn.failed")
@click.argument("name")
@click.argument("url")
@click.option("--secret", metavar="NAME", required=True, help="The secret that signs: below [webhooks.secrets.NAME].")
@click.option(
    "--event", "events", multiple=True, metavar="NAME", help="An event, with * for any characters; repeatable."
)
async def add(home: Home, output: Output, name: str, url: str, secret: str, events: tuple[str, ...]) -> None:
    """Create the webhook NAME: post events to URL. Without --event: approvals, failed turns, schedules, reminders."""
    body: Json = {"name": name, "url": url, "secret": secret, **({"events": list(events)} if events else {})}
    made = await home.call("POST", "webhooks", body=body)
    output.result(made, f"Created {made['name']}. Next: pattern webhook test {made['name']} -c {home.name}")


def _row(found: Json) -> Json:
    return {**found, "events": ", ".join(found["events"])}


@webhook.add("list")
async def list_all(home: Home, output: Output) -> None:
    """List the webhooks."""
    rows = await home.pages("webhooks")
    output.table(COLUMNS, rows, empty="There is no webhook yet: pattern webhook add --help", shown=_row)


@webhook.add("show", "pager")
@click.argument("name", type=WEBHOOK)
async def show(home: Home, output: Output, name: str) -> None:
    """Show the webhook NAME."""
    found = await home.get("webhooks", name)
    output.record(_row(found), data=found)


@webhook.add("test", "pager")
@click.argument("name", type=WEBHOOK)
async def test(home: Home, output: Output, name: str) -> None:
    """Send a test event to the webhook NAME now."""
    answer = await home.call("POST", "webhooks", name, "test")
    if not answer["accepted"]:
        raise click.ClickException(f"The test was not accepted: {answer['error']}")
    output.result(answer, f"The test was accepted by {name}.")


@webhook.add("remove", "pager")
@click.argument("name", type=WEBHOOK)
@yes_option
async def remove(home: Home, output: Output, name: str, yes: bool) -> None:
    """Remove the webhook NAME; what was still to be sent is not sent."""
    output.confirm(f"Remove the webhook {name}?", yes=yes)
    await home.call("DELETE", "webhooks", name)
    output.result({"removed": name}, f"Removed {name}.")


@webhook.add("deliveries", "pager --status dead")
@click.argument("name", type=WEBHOOK)
@click.option("--status", type=click.Choice([one.value for one in DeliveryStatus]), help="Only those with this status.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="How many of the newest.")
@click.option("--retry", metavar="ID", help="Send this one again now.")
async def deliveries(home: Home, output: Output, name: str, status: str | None, limit: int, retry: str | None) -> None:
    """List what was sent to the webhook NAME, and what waits; or send one again."""
    if retry is not None:
        await home.call("POST", "webhooks", name, "deliveries", retry, "retry")
        output.result({"sent": retry}, f"Sent {retry} again.")
        return
    rows = await home.pages("webhooks", name, "deliveries", most=limit, status=status)
    output.table(DELIVERY_COLUMNS, rows, empty="Nothing was sent to it.")
