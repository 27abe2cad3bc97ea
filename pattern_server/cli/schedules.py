"""`pattern schedule …`: what agents and groups do by themselves."""

from __future__ import annotations

from typing import Any

import click

from pattern_server.cli.client import Json
from pattern_server.cli.command import Duration, Home, PlainGroup, json_of, yes_option
from pattern_server.cli.names import AGENT, GROUP, SCHEDULE
from pattern_server.cli.output import Output, when

COLUMNS = ("name", "for", "times", "status", "next=due_at", "id")
OCCURRENCE_COLUMNS = ("time=nominal_at", "status", "count", "reason", "turn=turn_id")
SHOWN_MAX = 20  # occurrences that `show` lists

schedule = PlainGroup("schedule", help="Schedules: messages that agents and groups get by themselves.")


@schedule.add("create", "morning 'Plan my day.' -a ada --cron '30 7 * * MON-FRI'")
@click.argument("name")
@click.argument("message")
@click.option("-a", "--agent", metavar="NAME", type=AGENT, help="The agent that gets the message.")
@click.option("-g", "--group", metavar="NAME", type=GROUP, help="The group that gets the message.")
@click.option("--cron", metavar="EXPRESSION", help="Times as in a crontab, such as '30 7 * * MON-FRI'.")
@click.option("--every", metavar="TIME", type=Duration(), help="An interval, such as 15m, 2h or 1d.")
@click.option("--at", metavar="TIME", help="One moment, such as 2026-11-21T09:00.")
@click.option("--rrule", metavar="RULE", help="An iCalendar rule, such as 'FREQ=WEEKLY;BYDAY=MO'.")
@click.option("--zone", metavar="ZONE", help="The time zone, such as Europe/Berlin.  [default: UTC]")
@click.option("--jitter", "jitter_s", metavar="TIME", type=Duration(), help="Delay each occurrence by up to this.")
@click.option("--quiet", metavar="HH:MM-HH:MM", help="Hours in which nothing fires.")
@click.option(
    "--missed",
    type=click.Choice(["skip", "last", "all", "ask"]),
    help="What to do about times when the server was down.  [default: last]",
)
@click.option(
    "--when", "conditions", metavar="JSON", help="Fire only if one of these conditions holds: JSON, or a file with it."
)
async def create(home: Home, output: Output, conditions: str | None, **given: Any) -> None:
    """Create the schedule NAME: send MESSAGE to an agent or a group again and again."""
    body = {name: value for name, value in given.items() if value is not None}
    if conditions is not None:
        body["when"] = json_of("--when", conditions)
    made = await home.call("POST", "schedules", body=body)
    output.result(
        made, f"Created the schedule {made['name']} ({made['id']}). It is due at {when(made['due_at'])} (UTC)."
    )


def _times(found: Json) -> str:
    if found["every"] is not None:
        return f"every {found['every']:g} s"
    times = next(f"{name} {found[name]}" for name in ("cron", "at", "rrule") if found[name] is not None)
    return f"{times} ({found['zone']})"


@schedule.add("list")
async def list_all(home: Home, output: Output) -> None:
    """List the schedules."""
    await home.name_people(output)
    rows = await home.pages("schedules")

    def shown(row: Json) -> Json:
        return {**row, "for": row["agent_id"] or row["group_id"], "times": _times(row)}

    output.table(COLUMNS, rows, empty="There is no schedule yet: pattern schedule create --help", shown=shown)


@schedule.add("show", "morning")
@click.argument("name", type=SCHEDULE)
async def show(home: Home, output: Output, name: str) -> None:
    """Show the schedule NAME and what happened at its newest times."""
    await home.name_people(output)
    found = await home.get("schedules", name)
    rows = await home.pages("schedules", name, "occurrences", most=SHOWN_MAX)
    rest = {key: value for key, value in found.items() if value and key not in ("agent_id", "group_id")}
    shown = {"for": found["agent_id"] or found["group_id"], **rest}
    output.record(shown, data={**found, "occurrences": rows})
    if not output.is_json:
        output.table(OCCURRENCE_COLUMNS, rows, empty="It has not been due yet.")


@schedule.add("run", "morning")
@click.argument("name", type=SCHEDULE)
async def run(home: Home, output: Output, name: str) -> None:
    """Run the schedule NAME now; its next time stays."""
    started = await home.call("POST", "schedules", name, "run")
    turn_id = started["turn_id"]
    output.result(started, f"Started the turn {turn_id}.", f"Next: pattern turn show {turn_id} -c {home.name}")


@schedule.add("pause", "morning")
@click.argument("name", type=SCHEDULE)
async def pause(home: Home, output: Output, name: str) -> None:
    """Pause the schedule NAME until it is resumed."""
    found = await home.call("POST", "schedules", name, "pause")
    output.result(found, f"Paused {found['name']}. Next: pattern schedule resume {found['name']} -c {home.name}")


@schedule.add("resume", "morning")
@click.argument("name", type=SCHEDULE)
async def resume(home: Home, output: Output, name: str) -> None:
    """Resume the schedule NAME; it is due again from now on."""
    found = await home.call("POST", "schedules", name, "resume")
    output.result(found, f"Resumed {found['name']}. It is due at {when(found['due_at'])} (UTC).")


@schedule.add("delete", "morning")
@click.argument("name", type=SCHEDULE)
@yes_option
async def delete(home: Home, output: Output, name: str, yes: bool) -> None:
    """Delete the schedule NAME; the turns that it started stay."""
    found = await home.get("schedules", name)
    output.confirm(f"Delete the schedule {found['name']}?", yes=yes)
    await home.call("DELETE", "schedules", found["id"])
    output.result({"deleted": found["id"]}, f"Deleted {found['name']}.")
