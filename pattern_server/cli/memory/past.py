"""`pattern memory history|diff|blame|undo|redo|rollback|repair`: what a block said, who changed it, the ways back."""

from __future__ import annotations

import json

import click

from pattern_server.cli.client import Api, Json
from pattern_server.cli.command import ExitCode, connected
from pattern_server.cli.memory.place import Place, day, filled, placed
from pattern_server.cli.output import Output

HISTORY_COLUMNS = ("version", "when", "author", "kind", "summary", "cause")
BLAME_COLUMNS = ("version", "when", "author", "text")
_VERSION = click.IntRange(min=0)


@click.command("history")
@click.argument("label")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="So many at most.")
@connected
@placed
async def history(api: Api, output: Output, place: Place, label: str, limit: int) -> ExitCode:
    """Show who changed the block LABEL, when and why, newest first."""
    edits = await api.pages(place.at(label, "history"), most=limit)
    rows = edits if output.is_json else [_edit_row(edit) for edit in edits]
    output.table(HISTORY_COLUMNS, rows, empty=f"{label} has never been changed.")
    return None


def _edit_row(edit: Json) -> Json:
    summary = str(edit.get("summary") or "")
    return {
        **edit,
        "when": day(edit.get("created_at")),
        "summary": f"{summary} (undone)".strip() if edit.get("undone") else summary,
        "cause": cause_of(edit.get("cause")),
    }


def cause_of(cause: object) -> str:
    """Why an edit was made, in a few words: `tool block_edit, turn turn_01…`."""
    match cause:
        case None:
            return ""
        case dict():
            return ", ".join(f"{name} {_short(value)}" for name, value in cause.items() if value is not None)
    return str(cause)


def _short(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@click.command("diff")
@click.argument("label")
@click.option("--from", "older", type=_VERSION, metavar="N", help="The older version.  [default: the one before]")
@click.option("--to", "newer", type=_VERSION, metavar="N", help="The newer version.  [default: as it is now]")
@connected
@placed
async def diff(api: Api, output: Output, place: Place, label: str, older: int | None, newer: int | None) -> ExitCode:
    """Show what changed in the block LABEL between two versions."""
    if newer is None:
        newer = int((await api.get(place.at(label)))["version"])
    if older is None:
        older = max(0, newer - 1)
    answer = await api.get(place.at(label, "diff"), **{"from": older, "to": newer})
    output.data(answer)
    output.say(answer["diff"].removesuffix("\n") or f"Versions {older} and {newer} say the same.")
    return None


@click.command("blame")
@click.argument("label")
@connected
@placed
async def blame(api: Api, output: Output, place: Place, label: str) -> ExitCode:
    """Show for each line of the block LABEL who wrote it, and when."""
    answer = await api.get(place.at(label, "blame"))
    if output.is_json:
        output.data(answer)
        return None
    rows = [{**line, "when": day(line.get("created_at"))} for line in answer["lines"]]
    output.table(BLAME_COLUMNS, rows, empty=f"{label} is empty.")
    return None


@click.command("undo")
@click.argument("label")
@click.option("--author", metavar="WHO", help="Whose change, as `history` names them.  [default: yours]")
@connected
@placed
async def undo(api: Api, output: Output, place: Place, label: str, author: str | None) -> ExitCode:
    """Take back the last change that somebody made to the block LABEL; what others changed since stays."""
    return await _step_back(api, output, place.at(label, "undo"), label, author)


@click.command("redo")
@click.argument("label")
@click.option("--author", metavar="WHO", help="Whose change, as `history` names them.  [default: yours]")
@connected
@placed
async def redo(api: Api, output: Output, place: Place, label: str, author: str | None) -> ExitCode:
    """Make the last change that `undo` took back once more."""
    return await _step_back(api, output, place.at(label, "redo"), label, author)


async def _step_back(api: Api, output: Output, where: str, label: str, author: str | None) -> ExitCode:
    answer = await api.call("POST", where, body={} if author is None else {"author": author})
    output.data(answer)
    block, more = answer["block"], answer.get("undo_remaining")
    output.say(f"{answer.get('note') or 'Done'}: {label} is at version {block['version']}, {filled(block)} characters.")
    if more is not None:
        output.say(f"{more} more to undo, {answer.get('redo_remaining', 0)} to redo.")
    return None


@click.command("rollback")
@click.argument("label")
@click.argument("version", type=_VERSION)
@connected
@placed
async def rollback(api: Api, output: Output, place: Place, label: str, version: int) -> ExitCode:
    """Let the block LABEL say again what it said at VERSION. It is a new change: `undo` takes it back."""
    block = await api.call("POST", place.at(label, "rollback"), body={"version": version})
    output.data(block)
    output.say(f"{label} says again what it said at version {version}; it is at version {block['version']}.")
    return None


@click.command("repair")
@click.argument("label")
@connected
@placed
async def repair(api: Api, output: Output, place: Place, label: str) -> ExitCode:
    """Bring back the block LABEL, whose stored bytes are damaged, from what is known of it.

    It becomes a new version. The bytes that cannot be read are put aside in the file, and no history goes.
    """
    answer = await api.call("POST", place.at(label, "repair"))
    output.data(answer)
    block = answer["block"]
    output.say(f"{answer['note']}. {label} is at version {block['version']}, {filled(block)} characters.")
    return None
