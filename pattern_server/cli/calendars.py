"""`pattern calendar …`: events and their reminders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import trio

from pattern_server.cli.command import ExitCode, Home, PlainGroup, yes_option
from pattern_server.cli.names import AGENT, EVENT
from pattern_server.cli.output import DONE, SKIPPED, Output, when

COLUMNS = ("when=local", "zone", "title*", "location?", "for?", "id=event_id")
STATE_COLUMNS = ("time=nominal_at", "starts=starts_at", "status", "reminder", "reason?", "notes?", "turn=turn_id?")
SHOWN_MAX = 20  # occurrences that `show` lists

calendar = PlainGroup("calendar", help="Events of a calendar, with reminders for people and agents.")
occurrence_option = click.option("--occurrence", metavar="TIME", help="Only this occurrence, by its time in the rule.")


@calendar.add("list", "--since 2026-11-01")
@click.option("--since", metavar="TIME", help="From this time on.  [default: now]")
@click.option("--until", metavar="TIME", help="Up to this time.  [default: 30 days later]")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="How many at most.")
async def list_all(home: Home, output: Output, limit: int, **given: Any) -> None:
    """List what takes place, by time."""
    await home.name_people(output)
    rows = await home.pages("calendar", most=limit, **given)
    empty = "Nothing is in the calendar for this time: pattern calendar add --help"
    output.table(COLUMNS, rows, empty=empty, shown=lambda row: {**row, "for": row["agent_id"]})


@calendar.add("add", "Dentist 2026-11-21T09:00 --zone Europe/Berlin --remind 30")
@click.argument("title")
@click.argument("starts_at")
@click.option("--until", "ends_at", metavar="TIME", help="When it ends; of an all-day event, the day after the last.")
@click.option("--zone", metavar="ZONE", help="The time zone of its times, such as Europe/Berlin.  [default: UTC]")
@click.option("--rrule", metavar="RULE", help="How it repeats, such as 'FREQ=WEEKLY;BYDAY=MO'.")
@click.option("--location", metavar="TEXT", help="Where it takes place.")
@click.option("--description", metavar="TEXT", help="What it is about.")
@click.option("-a", "--agent", metavar="NAME", type=AGENT, help="The agent that is reminded.  [default: people]")
@click.option("--remind", "reminder_minutes", metavar="MINUTES", type=int, help="Remind so many minutes before.")
@click.option("--missed", type=click.Choice(["skip", "last", "all"]), help="Late reminders that fire.  [default: last]")
async def add(home: Home, output: Output, starts_at: str, **given: Any) -> None:
    """Add the event TITLE at STARTS_AT, a local time of its zone; a date alone lasts all day."""
    fields = {name: value for name, value in given.items() if value is not None}
    body = {"starts_at": starts_at, "all_day": "T" not in starts_at, **fields}
    made = await home.call("POST", "calendar", "events", body=body)
    reminder = f" The next reminder is due at {when(made['reminder_at'])}." if made["reminder_at"] else ""
    output.result(made, f"Added {made['title']} ({made['id']}).{reminder}")


@calendar.add("show", "Dentist")
@click.argument("event", type=EVENT)
async def show(home: Home, output: Output, event: str) -> None:
    """Show EVENT, which of its occurrences were changed, and what happened to its reminders."""
    await home.name_people(output)
    found = await home.get("calendar", "events", event)
    rows = await home.pages("calendar", "events", found["id"], "occurrences", most=SHOWN_MAX)
    output.record({name: value for name, value in found.items() if value}, data={**found, "occurrences": rows})
    if not output.is_json:
        output.table(STATE_COLUMNS, rows, empty="None of its occurrences was changed or reminded of.")


@calendar.add("move", "Dentist 2026-11-22T10:00")
@click.argument("event", type=EVENT)
@click.argument("starts_at")
@click.option("--until", "ends_at", metavar="TIME", help="When it then ends.  [default: after the same time]")
@occurrence_option
async def move(home: Home, output: Output, event: str, occurrence: str | None, **times: str | None) -> None:
    """Move EVENT to STARTS_AT, a local time of its zone, with all its occurrences or only one."""
    body = {name: value for name, value in times.items() if value is not None}
    moved = await home.call("PATCH", *_below(event, occurrence), body=body)
    output.result(moved, f"Moved {moved['title']} to {moved['starts_at']}.")


@calendar.add("cancel", "Walk 2026-11-23T08:00")
@click.argument("event", type=EVENT)
@click.argument("occurrence")
async def cancel(home: Home, output: Output, event: str, occurrence: str) -> None:
    """Cancel the OCCURRENCE of EVENT, named by its time in the rule. The others stay."""
    found = await home.call("PATCH", *_below(event, occurrence), body={"status": "cancelled"})
    output.result(found, f"Cancelled {found['title']} at {found['local']}.")


@calendar.add("delete", "Dentist")
@click.argument("event", type=EVENT)
@yes_option
async def delete(home: Home, output: Output, event: str, yes: bool) -> None:
    """Delete EVENT with all its occurrences."""
    found = await home.get("calendar", "events", event)
    output.confirm(f"Delete {found['title']}?", yes=yes)
    await home.call("DELETE", "calendar", "events", found["id"])
    output.result({"deleted": found["id"]}, f"Deleted {found['title']}.")


@calendar.add("import", "holidays.ics")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--zone", metavar="ZONE", help="The time zone of times without one.  [default: the file's]")
async def import_file(home: Home, output: Output, file: Path, zone: str | None) -> ExitCode:
    """Create or update the events of an iCalendar FILE. Importing it again changes nothing."""
    data = await trio.to_thread.run_sync(file.read_bytes)
    made = await home.call("POST", "calendar", "import", data=data, params={"zone": zone})
    output.result(made, f"Events created: {made['created']}, updated: {made['updated']}.")
    for reason in made["skipped"]:
        output.note(f"Skipped: {reason}")
    return SKIPPED if made["skipped"] else DONE


@calendar.add("export", "-o calendar.ics")
@click.option("-o", "--output", "target", required=True, type=click.Path(path_type=Path), help="The file.")
async def export(home: Home, output: Output, target: Path) -> None:
    """Write all events into an iCalendar file."""
    text = await home.text("calendar", "export")
    await trio.to_thread.run_sync(target.write_bytes, text.encode())
    output.result({"file": str(target), "bytes": len(text.encode())}, f"Wrote {target}.")


def _below(event: str, occurrence: str | None) -> tuple[str, ...]:
    return ("calendar", "events", event, *(() if occurrence is None else ("occurrences", occurrence)))
