"""`pattern guidance …`: what agents and people learned about the work in a project, and checks of Delia's folders."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from pattern_core.errors import InvalidInput, NotFound
from pattern_core.guidance_quality import band
from pattern_core.ids import SystemClock, now_text
from pattern_core.playbooks import FolderCheck, check
from pattern_db import files
from pattern_db.enums import GuidanceState, GuidanceVerdict
from pattern_server.cli.client import Json
from pattern_server.cli.command import ExitCode, Home, PlainGroup, local, yes_option
from pattern_server.cli.names import WORKSPACE
from pattern_server.cli.output import DONE, FAILED, SKIPPED, Output, when
from pattern_server.config import Config

FOLDER = ".delia"
PARTS = {"playbooks": "*.json", "profiles": "*.md", "memories": "*.md"}
COLUMNS = ("id", "type=task_type", "state?", "utility?", "helpful?", "harmful?", "content*")
WAITING_COLUMNS = ("id", "type=task_type", "reason*", "content*")

workspace_option = click.option(
    "--workspace", default=".", metavar="WORKSPACE", type=WORKSPACE, help="A name, id or folder.  [default: .]"
)
guidance = PlainGroup("guidance", help="Advice on the work in a project, and the evidence for and against it.")


@guidance.add("list", "--workspace shop")
@workspace_option
@click.option("--state", type=click.Choice([*map(str, GuidanceState)]), help="Which.  [default: proposed and active]")
async def list_all(home: Home, output: Output, workspace: str, state: str | None) -> None:
    """List guidance of a workspace, the best first."""
    rows = await home.pages("guidance", workspace=workspace, state=state)
    output.table(COLUMNS, rows, empty="There is no guidance.", shown=_row)


@guidance.add("show", "gd_01k")
@click.argument("guidance_id", metavar="ID")
async def show(home: Home, output: Output, guidance_id: str) -> None:
    """Show the guidance ID, and who said that it helped or did harm."""
    found = await home.get("guidance", guidance_id)
    said = found.pop("feedback")
    output.record(_row(found), data={**found, "feedback": said})
    for one in said:
        note = f": {one['note']}" if one["note"] else ""
        times = f" {one['weight']} times" if one["weight"] > 1 else ""
        said_by = f"{one['author']} ({one['turn'] or 'no turn'})"
        output.say(f"  {when(one['created_at'])} {said_by}: {one['verdict']}{times}{note}")


@guidance.add("add", '"Run make check before a push" --workspace shop --type git')
@click.argument("content")
@workspace_option
@click.option("--type", "task_type", default="project", show_default=True, help="The type of task that it is about.")
async def add(home: Home, output: Output, content: str, workspace: str, task_type: str) -> None:
    """Add CONTENT as guidance, which is active at once."""
    body = {"workspace": workspace, "content": content, "task_type": task_type}
    made = await home.call("POST", "guidance", body=body)
    output.result(made, f"{made['id']} is {made['state']}: {made['content']}")


@guidance.add("review", "gd_01k --accept")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@workspace_option
@click.option("--accept", "state", flag_value="active", help="Show it to agents from now on.")
@click.option("--archive", "state", flag_value="archived", help="Do not show it; it is kept.")
async def review(home: Home, output: Output, ids: Sequence[str], workspace: str, state: str | None) -> None:
    """List proposals and what does not help, or accept or archive the guidance ID."""
    if bool(ids) != bool(state):
        raise click.UsageError("Name guidance together with --accept or --archive.")
    if not ids:
        found = await home.get("guidance", "review", workspace=workspace)
        output.table(WAITING_COLUMNS, found["items"], empty="Nothing waits for a decision.", data=found)
        return
    rows = [await home.call("PATCH", "guidance", one, body={"state": state}) for one in ids]
    for row in rows:
        output.say(f"{row['id']} is {row['state']}: {row['content']}")
    if output.is_json:
        output.data({"items": rows})


@guidance.add("merge", "gd_01k gd_01j")
@click.argument("guidance_id", metavar="ID")
@click.argument("into", metavar="INTO")
async def merge(home: Home, output: Output, guidance_id: str, into: str) -> None:
    """Let the guidance INTO replace ID, and have the feedback on it."""
    row = await home.call("PATCH", "guidance", guidance_id, body={"state": "merged", "merged_into": into})
    output.result(row, f"{guidance_id} was merged into {into}.")


@guidance.add("delete", "gd_01k")
@click.argument("guidance_id", metavar="ID")
@yes_option
async def delete(home: Home, output: Output, guidance_id: str, yes: bool) -> None:
    """Delete the guidance ID, the feedback on it, and what was merged into it; archived guidance is kept."""
    output.confirm(f"Delete the guidance {guidance_id}?", yes=yes)
    await home.call("DELETE", "guidance", guidance_id)
    output.result({"deleted": guidance_id}, f"Deleted {guidance_id}.")


@guidance.add("rate", "gd_01k helpful")
@click.argument("guidance_id", metavar="ID")
@click.argument("verdict", type=click.Choice([*map(str, GuidanceVerdict)]))
@click.option("--note", metavar="TEXT", help="Why.")
@click.option("--turn", metavar="TURN", help="The turn in which it was seen.  [default: outside of turns]")
@click.option("--take-back", is_flag=True, help="Remove the verdict that was given.")
@click.option("--by", metavar="AUTHOR", help="With --take-back: who gave it, as `show` has it.  [default: you]")
async def rate(
    home: Home,
    output: Output,
    guidance_id: str,
    verdict: str,
    note: str | None,
    turn: str | None,
    take_back: bool,
    by: str | None,
) -> None:
    """Say that the guidance ID was helpful, harmful or used, or take that back."""
    if (note if take_back else by) is not None:
        raise click.UsageError("--note is for a new verdict, --by for one that is removed.")
    said = {"verdict": verdict, "turn": turn or ""}
    if take_back:
        row = await home.call("DELETE", "guidance", guidance_id, "feedback", params={**said, "author": by})
    else:
        row = await home.call("POST", "guidance", guidance_id, "feedback", body={**said, "note": note})
    output.result(row, f"{row['id']}: helpful {row['helpful']}, harmful {row['harmful']}, used {row['used']}.")


@guidance.add("validate", "~/src/shop --fix", runs=local)
@click.argument("path", default=".", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--fix", is_flag=True, help="Bring playbooks to the current version; the old ones are kept next to them.")
@click.option("--strict", is_flag=True, help="Exit with code 3 if there are warnings.")
def validate(_config: Config, output: Output, path: Path, fix: bool, strict: bool) -> ExitCode:
    """Check the folder .delia in the directory PATH, by default this one. What --fix does not understand stays."""
    folder = folder_of(path)
    now = now_text(SystemClock())
    done = check(read_folder(folder), now, is_fixed=fix)
    for name, text in done.fixed.items():
        target = folder / name
        shutil.copy2(target, backup := target.with_name(f"{target.name}.bak-{now.translate({58: None, 46: None})}"))
        with files.written(target) as beside:
            beside.write_text(text, encoding="utf-8", newline="")
        output.say(f"Fixed {name}; it was as in {backup.name}.")
    _report(output, done)
    return FAILED if done.errors else SKIPPED if strict and done.warnings else DONE


def _report(output: Output, done: FolderCheck) -> None:
    for line in done.files:
        output.say(f"  {line}")
    for kind, lines in (("Error", done.errors), ("Warning", done.warnings)):
        for line in lines:
            output.say(f"{kind}: {line}")
    if done.errors:
        said = f"Validation failed: {len(done.errors)} errors, {len(done.warnings)} warnings"
    elif done.warnings:
        said = f"Validation passed with {len(done.warnings)} warnings"
    else:
        said = f"Validation passed: {done.bullets} bullets valid"
    output.result({**asdict(done), "fixed": [*done.fixed]}, said)


def folder_of(path: Path) -> Path:
    """Return the folder `.delia` that a path is, or that lies in it.

    Raises:
        NotFound: there is none.
    """
    folder = path if path.resolve().name == FOLDER else path / FOLDER
    if not folder.is_dir():
        raise NotFound(f"No {FOLDER} directory found in {path}")
    return folder


def read_folder(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder `.delia` by their paths in it. Links that lead out of it are left out.

    Raises:
        InvalidInput: a file cannot be read.
    """
    found, real = dict[str, bytes](), folder.resolve()
    for part, pattern in PARTS.items():
        for file in sorted((folder / part).glob(pattern)):
            if file.is_file() and file.resolve().is_relative_to(real):
                try:
                    found[f"{part}/{file.name}"] = file.read_bytes()
                except OSError as error:
                    raise InvalidInput(f"{file} cannot be read: {error.strerror}") from None
    return found


def _row(row: Json) -> Json:
    score = row["utility_score"]
    kept = {key: value for key, value in row.items() if key != "utility_score"}
    return {**kept, "utility": f"{score:.2f} ({band(score)})"}
