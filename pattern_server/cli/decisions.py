"""`pattern decisions …`: what was decided about projects, and files of it that other programs write, too."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
import trio

from pattern_core.decision_files import problems_of
from pattern_core.ids import SystemClock, system_randomness
from pattern_core.workspaces import GIT
from pattern_server.cli.client import Json
from pattern_server.cli.command import ExitCode, Home, PlainGroup, local
from pattern_server.cli.names import DECISION, WORKSPACE
from pattern_server.cli.output import DONE, FAILED, SKIPPED, Output
from pattern_server.config import Config
from pattern_server.decision_store import DecisionStore

COLUMNS = ("title*", "tags", "important?", "archived?", "made=created_at?", "id")
FILE = "decisions.jsonl"

decisions = PlainGroup("decisions", help="Decisions of projects, and files of them.")


@decisions.add("list", "--workspace shop")
@click.option("--workspace", metavar="WORKSPACE", type=WORKSPACE, help="Only those of this project.")
@click.option("--all", "archived", is_flag=True, help="Also archived ones.")
async def list_all(home: Home, output: Output, workspace: str | None, archived: bool) -> None:
    """List decisions in the order in which they were stored."""
    rows = await home.pages("decisions", workspace=workspace, archived=archived)
    output.table(COLUMNS, rows, empty="There is no such decision. Add one: pattern decisions add TITLE TEXT")


@decisions.add("show", "dec_01k")
@click.argument("decision_id", metavar="DECISION", type=DECISION)
async def show(home: Home, output: Output, decision_id: str) -> None:
    """Show the decision DECISION (an id)."""
    found = await home.get("decisions", decision_id)
    output.record({name: value for name, value in found.items() if value}, data=found)


@decisions.add("add", "'Use tabs' 'We decided to use tabs.'")
@click.argument("title")
@click.argument("text")
@click.option("--workspace", default=os.curdir, metavar="WORKSPACE", type=WORKSPACE, help="The project.  [default: .]")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="A tag; repeatable.")
@click.option("--important", is_flag=True, help="Show it rather than others.")
async def add(home: Home, output: Output, workspace: str, **given: Any) -> None:
    """Add a decision to a project: TITLE, and the reasons in TEXT."""
    body = {**given, "workspace": workspace, "tags": [*given["tags"]], "cwd": str(Path.cwd())}
    made = await home.call("POST", "decisions", body=body)
    output.result(made, f"Added {made['title']} ({made['id']}).")


@decisions.add("edit", "dec_01k --supersedes dec_01j")
@click.argument("decision_id", metavar="DECISION", type=DECISION)
@click.option("--title", metavar="TEXT", help="A new title.")
@click.option("--text", metavar="TEXT", help="A new text.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="The tags; repeatable.")
@click.option("--important/--unimportant", default=None, help="Whether it is shown rather than others.")
@click.option("--archived/--active", default=None, help="Whether it no longer counts.")
@click.option("--supersedes", multiple=True, metavar="DECISION", help="The decisions that it replaces; repeatable.")
@click.option("--conflicts", "conflicts_with", multiple=True, metavar="DECISION", help="What it contradicts.")
async def edit(home: Home, output: Output, decision_id: str, **given: Any) -> None:
    """Change the decision DECISION. What is not given stays the same."""
    body = {name: [*value] if isinstance(value, tuple) else value for name, value in given.items()}
    body = {name: value for name, value in body.items() if value not in (None, [])}
    if not body:
        raise click.UsageError("No change was given. Use one of the options below --help.")
    changed = await home.call("PATCH", "decisions", decision_id, body=body)
    output.result(changed, f"Changed {changed['title']}: {', '.join(name.replace('_', ' ') for name in body)}.")


@decisions.add("validate", "~/.pi/agent/memory/decisions.jsonl", runs=local)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def validate(_config: Config, output: Output, file: Path) -> ExitCode:
    """Check FILE, and change nothing.

    Errors (exit code 1) are lines that cannot be read, ids that are there twice, and decisions that supersede
    themselves; warnings are values that are unknown.
    """
    wrong, unusual = problems_of(file.read_bytes())
    found = {"file": str(file), "errors": wrong, "warnings": unusual}
    said = "is not sound" if wrong else "is sound"
    more = [f"  {line}" for line in (*wrong, *(f"warning: {line}" for line in unusual))]
    output.result(found, f"{file} {said} (errors: {len(wrong)}, warnings: {len(unusual)}).", *more)
    return FAILED if wrong else DONE


@decisions.add("sync", "~/.pi/agent/memory/decisions.jsonl --workspace shop")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--workspace", metavar="WORKSPACE", type=WORKSPACE, required=True, help="The project.")
@click.option("--trust", is_flag=True, help="Important decisions stay important.")
async def sync(home: Home, output: Output, file: Path, workspace: str, trust: bool) -> ExitCode:
    """Bring FILE and a project's decisions to the same state, while other programs may write the file.

    What was changed on one side is changed on the other; what was changed on both is listed, and stays as it is. If
    settings.json next to FILE, or `pattern workspace prompts`, keeps the project out of prompts, both do from now on.
    """
    store = DecisionStore(file.absolute(), SystemClock(), system_randomness())
    query = {"workspace": workspace, "source": file.name, "trust": trust, "sync": True}
    lines = await store.lines()
    data = b"".join(one.line for one in lines)
    done = await home.call("POST", "programs", "decisions", data=data, params=query)
    seen = {record["id"]: line.rstrip(b"\r\n") for line, record in reversed(lines) if record is not None}
    written = await store.exchange(seen, [one.encode() for one in done.pop("outgoing")])
    if written:  # so that the next change on either side is known as one
        data = b"".join(one.line for one in await store.lines())
        await home.call("POST", "programs", "decisions", data=data, params=query)
    done |= {"file": str(file), "written": written, "in_prompts": await _in_prompts(home, store, done["workspace"])}
    hidden = [] if done["in_prompts"] else ["Prompts do not show this project."]
    output.result(done, *imported_lines(done, "Synchronised"), *hidden)
    return SKIPPED if done["conflicts"] or done["skipped"] else DONE


async def _in_prompts(home: Home, store: DecisionStore, workspace: str) -> bool:
    """Keep a project out of prompts here and in the settings if one of the two does; return whether none does. The
    settings know it by its folders, to the letter, and by its ids: what the system `lodestone` calls it.
    """
    found, settings = await home.get("workspaces", workspace), await store.read_settings()
    git, ids = ([one["alias"] for one in found["aliases"] if one["system"] == name] for name in (GIT, "lodestone"))
    folders = [*found["roots"], *(str(Path(one).parent) for one in git if Path(one).name == ".git")]
    names = {"disabledProjects": folders, "disabledProjectIds": ids}
    listed = [one for key in names if isinstance(settings.get(key), list) for one in settings[key]]
    is_listed = any(one in listed for one in (*folders, *ids))
    if found["in_prompts"] and is_listed:
        await home.call("PATCH", "workspaces", workspace, body={"in_prompts": False})
    elif not found["in_prompts"] and not is_listed:
        await store.disable(names)
    return found["in_prompts"] and not is_listed


def imported_lines(done: Json, verb: str = "Imported", *, is_dry: bool = False) -> list[str]:
    """Return what an import of another program's file did, and what was left out."""
    counts = {name: sum(done[name].values()) for name in ("added", "updated", "present")}
    counts |= {"written": done["written"]} if "written" in done else {}
    said = ", ".join(f"{name}: {count}" for name, count in counts.items())
    left = (*done["conflicts"], *done["skipped"])
    return [f"{'Would import' if is_dry else verb} {done['file']}: {said}.", *(f"  {line}" for line in left)]


@decisions.add("migrate-legacy", "~/.pi/agent/memory --dry-run", runs=local)
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")
def migrate_legacy(_config: Config, output: Output, folder: Path, dry_run: bool) -> ExitCode:
    """Copy what is worth keeping of an older store in DIR to its decisions.jsonl.

    Of observations.jsonl and index.json these are: what people wrote, what was promoted or has a lasting tag, and turns
    that were used. The two files are renamed.
    """
    store = DecisionStore((folder / FILE).absolute(), SystemClock(), system_randomness())
    report = trio.run(lambda: store.migrate_legacy(is_dry=dry_run))
    verb = "Would import" if dry_run else "Imported"
    unread = [f"  observations.jsonl, line {number} cannot be read" for number in report["unread"]]
    said = f"{verb} {report['imported']} of {report['scanned']} observations; skipped: {report['skipped']}."
    output.result({"folder": str(folder), **report}, said, *unread)
    return SKIPPED if unread else DONE
