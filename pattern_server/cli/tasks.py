"""`pattern task …`: what people and agents have to do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import click

from pattern_db.enums import Priority, TaskStatus
from pattern_server.cli.client import Json
from pattern_server.cli.command import Home, PlainGroup, options, yes_option
from pattern_server.cli.names import AGENT, TASK, WORKSPACE
from pattern_server.cli.output import Output

COLUMNS = ("task*", "status", "priority", "due=due_at?", "agent=agent_id?", "id")
ENDED = ("completed", "cancelled")
PRIORITIES, STATUSES = [*map(str, Priority)], [*map(str, TaskStatus)]  # click would offer the names of enumerations

task = PlainGroup("task", help="Tasks of agents and of the whole constellation.")

# What `add` and `edit` share.
fields = options(
    click.option(
        "-a", "--agent", metavar="NAME", type=AGENT, help="The agent that is to do it.  [default: the parent's]"
    ),
    click.option("--parent", "parent_task_id", metavar="TASK", type=TASK, help="The task that it is a part of."),
    click.option("--description", metavar="TEXT", help="More about it."),
    click.option("--priority", type=click.Choice(PRIORITIES), help="How urgent it is.  [default: medium]"),
    click.option("--due", "due_at", metavar="TIME", help="When it must be done, such as 2026-01-31."),
    click.option(
        "--start", "scheduled_at", metavar="TIME", help="When its agent is started, such as 2026-01-31T09:00:00Z."
    ),
    click.option("--tag", "tags", multiple=True, metavar="TAG", help="A tag; repeatable."),
    click.option("--workspace", metavar="WORKSPACE", type=WORKSPACE, help="The project that it belongs to."),
    click.option("--estimate", "estimated_minutes", metavar="MINUTES", type=int, help="How long it should take."),
)


def body_of(given: Json) -> Json:
    """Return what was given; an empty text removes a value."""
    named = {name: list(value) if name == "tags" else value for name, value in given.items() if value not in (None, ())}
    return {name: None if value == "" else value for name, value in named.items()}


@task.add("add", "'Pay the rent' --due 2026-01-31 --priority high")
@click.argument("title")
@fields
async def add(home: Home, output: Output, **given: Any) -> None:
    """Create the task TITLE, of an agent or of the whole constellation."""
    made = await home.call("POST", "tasks", body=body_of(given))
    output.result(made, f"Created the task {made['title']} ({made['id']}).")


@task.add("list", "-a ada")
@click.option("-a", "--agent", metavar="NAME", type=AGENT, help="Only this agent's tasks.")
@click.option("--due", "due_before", metavar="TIME", help="Only tasks that are due before this time.")
@click.option("--workspace", metavar="WORKSPACE", type=WORKSPACE, help="Only tasks of this project.")
@click.option("--status", type=click.Choice(STATUSES), help="Only tasks with this status.")
@click.option("--all", "everything", is_flag=True, help="Also completed and cancelled ones.")
async def list_all(home: Home, output: Output, status: str | None, everything: bool, **given: Any) -> None:
    """List the open tasks as a tree, the most urgent first."""
    await home.name_people(output)
    rows = await home.pages("tasks", status=status, **given)
    if not (everything or status):
        rows = [row for row in rows if row["status"] not in ENDED]
    output.table(COLUMNS, tree_of(rows), empty="There is no such task. Create one: pattern task add TITLE", data=rows)


def tree_of(rows: Sequence[Json]) -> list[Json]:
    """Return the rows with `task`, their title behind branches, each directly followed by those below it."""
    there = {row["id"] for row in rows}
    below = defaultdict[str | None, list[Json]](list)
    for row in rows:
        below[row["parent_task_id"] if row["parent_task_id"] in there else None].append(row)
    drawn: list[Json] = []

    def draw(row: Json, before: str, mark: str) -> None:
        drawn.append({**row, "task": f"{before}{mark}{row['title']}"})
        before += {"": "", "├ ": "│ ", "└ ": "· "}[mark]
        for number, one in enumerate(below[row["id"]], start=1):
            draw(one, before, "├ " if number < len(below[row["id"]]) else "└ ")

    for row in below[None]:
        draw(row, "", "")
    return drawn


@task.add("show", "task_01k")
@click.argument("task_id", metavar="TASK", type=TASK)
async def show(home: Home, output: Output, task_id: str) -> None:
    """Show the task TASK (an id) and those below it."""
    await home.name_people(output)
    found = await home.get("tasks", task_id)
    steps = await home.pages("tasks", parent=found["id"])
    output.record({name: value for name, value in found.items() if value}, data={**found, "tasks": steps})
    if steps and not output.is_json:
        output.table(COLUMNS, tree_of(steps), empty="")


@task.add("edit", "task_01k --status blocked --reason 'Waits for the bank.'")
@click.argument("task_id", metavar="TASK", type=TASK)
@click.option("--title", metavar="TEXT", help="A new title.")
@click.option("--status", type=click.Choice(STATUSES), help="A new status.")
@click.option("--reason", "blocked_reason", metavar="TEXT", help="What a blocked task waits for.")
@click.option("--notes", metavar="TEXT", help="Notes on it.")
@fields
async def edit(home: Home, output: Output, task_id: str, **given: Any) -> None:
    """Change the task TASK. What is not given stays the same; '' removes a value."""
    body = body_of(given)
    if not body:
        raise click.UsageError("No change was given. Use one of the options below --help.")
    changed = await home.call("PATCH", "tasks", task_id, body=body)
    output.result(changed, f"Changed {changed['title']}: {', '.join(name.replace('_', ' ') for name in body)}.")


@task.add("done", "task_01k --minutes 25")
@click.argument("task_id", metavar="TASK", type=TASK)
@click.option("--minutes", "actual_minutes", type=int, metavar="MINUTES", help="How long it lasted.")
async def done(home: Home, output: Output, task_id: str, actual_minutes: int | None) -> None:
    """Complete the task TASK."""
    body = {"status": "completed", **({} if actual_minutes is None else {"actual_minutes": actual_minutes})}
    changed = await home.call("PATCH", "tasks", task_id, body=body)
    output.result(changed, f"Completed {changed['title']}.")


@task.add("delete", "task_01k")
@click.argument("task_id", metavar="TASK", type=TASK)
@yes_option
async def delete(home: Home, output: Output, task_id: str, yes: bool) -> None:
    """Delete the task TASK with those below it."""
    found = await home.get("tasks", task_id)
    output.confirm(f"Delete the task {found['title']} with those below it?", yes=yes)
    await home.call("DELETE", "tasks", found["id"])
    output.result({"deleted": found["id"]}, f"Deleted {found['title']}.")
