"""`pattern export`, `pattern import`, `pattern car`: constellations, agents and groups as files for other servers."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import Any, Literal, get_args

import click
import trio

from pattern_core import portable
from pattern_core.errors import Conflict, InvalidInput
from pattern_core.ids import SystemClock, now_text
from pattern_core.playbooks import read
from pattern_db import files, program_files
from pattern_db.portable import Change
from pattern_server.cli.backup import collect
from pattern_server.cli.client import Api, Json, ServerFailed
from pattern_server.cli.command import (
    ExitCode,
    Home,
    PlainGroup,
    agent_option,
    creating,
    in_constellation,
    local,
    unless_named,
)
from pattern_server.cli.constellations import decided
from pattern_server.cli.decisions import imported_lines
from pattern_server.cli.guidance import folder_of, read_folder
from pattern_server.cli.import_review import analyze, decide, resolutions_in, show_analysis
from pattern_server.cli.markdown import export_markdown
from pattern_server.cli.names import WORKSPACE
from pattern_server.cli.output import DONE, FAILED, SKIPPED, Output
from pattern_server.config import Config

COLUMNS = ("table", "rows")
DIFF_COLUMNS = ("change", "table", "name", "fields*", "id")
DIFFERENCES_SHOWN_MAX = 100
LOG_COLUMNS = (
    "id",
    "at=imported_at?",
    "file=source_file*",
    "format=source_format",
    "version=source_version",
    "decisions=issues_resolved",
)
WHOLE, DELTA, CODEPILOT, DECISIONS = "constellation", "delta", program_files.CODEPILOT, "decisions"
DELIA, MARKDOWN = "delia", "markdown"  # those become folders
PLANS = "plans"  # the folder with Codepilot's plans
AGENT_FILE = "letta"

dry_option = click.option("--dry-run", is_flag=True, help="Say what would be done; import nothing.")
_DIRECTORY = click.Path(path_type=Path, file_okay=False)

car = PlainGroup("car", help="Archive files: show what is in one, verify it, compare two.")


@click.command(epilog="Example: pattern export agent --name ada -o ada.car")
@click.argument("kind", type=click.Choice([*get_args(portable.Kind), DELTA, CODEPILOT, DECISIONS, DELIA, MARKDOWN]))
@click.option("--name", metavar="NAME", help="The agent, group or constellation.  [default: the only constellation]")
@click.option("--workspace", metavar="WORKSPACE", type=WORKSPACE, help="Of KIND delta, decisions or delia: it.")
@click.option(
    *("--format", "form"),
    type=click.Choice(["v1", "v4", AGENT_FILE]),
    help=f"Of KIND delta: v1 or v4.  [default: v1]  {AGENT_FILE}: an agent file of Letta instead of an archive.",
)
@click.option("--plans", type=_DIRECTORY, help="Of KIND codepilot: a directory for the plans.")
@click.option(
    *("-o", "--output", "target"),
    required=True,
    type=click.Path(path_type=Path),
    help="The file; of KIND delia and markdown, the folder.",
)
@click.option("--version", type=click.Choice(["3", "4"]), default="4", help="3: for the original system.")
@click.option("--overwrite", is_flag=True, help="Replace a file that exists.")
@in_constellation
async def export(
    home: Home,
    output: Output,
    kind: str,
    name: str | None,
    workspace: str | None,
    form: str | None,
    plans: Path | None,
    target: Path,
    version: str,
    overwrite: bool,
) -> ExitCode:
    """Write an archive of an agent, of a group with its members, or of a constellation: KIND says which.

    KIND delta writes a workspace as a database that Delta's programs open; v4 has no tasks. KIND decisions writes its
    decisions as JSON, one a line; imported ones that were not changed have the same bytes. KIND codepilot writes all
    sessions of agents as one that Codepilot opens. KIND delia writes playbooks, profiles and memories into a folder.
    KIND markdown writes a folder for people, with files and images.

    Messages, memory with its history, archive, files, tasks, schedules and use travel. Keys, tokens, consent and what
    turns did step by step stay here.
    """
    if target.exists() and (not overwrite or kind == MARKDOWN or target.is_dir() != (kind == DELIA)):
        raise Conflict(f"{target} exists already. Choose another name, or add --overwrite")
    if form is not None and kind not in ((DELTA,) if form != AGENT_FILE else get_args(portable.Kind)):
        raise click.UsageError(f"KIND {kind} has no --format {form}.")
    if kind == MARKDOWN:
        return await export_markdown(home, output, target)
    if kind not in get_args(portable.Kind):
        return await _export_other(home, output, kind, workspace, "v4" if form == "v4" else "v1", target, plans)
    if kind == WHOLE:
        name = None  # it is `home`'s
    elif name is None:
        raise click.UsageError(f"No {kind} was named. Use --name NAME.")
    body = {"kind": kind, "name": name, "version": int(version), "format": AGENT_FILE if form == AGENT_FILE else "car"}
    made = await home.call("POST", "export", body=body)
    manifest = made["manifest"]
    await collect(home, made, target, "exports")
    output.result({"file": str(target), **manifest}, f"Exported {manifest['name']} to {target} ({_counts(manifest)}).")
    for column, count in manifest["cut"].items():
        what = "References to what is not exported, in" if manifest["version"] == portable.VERSION else "Rows of"
        output.say(f"  {what} {column} that are left out: {count}.")
    return None


async def _export_other(
    home: Home,
    output: Output,
    kind: str,
    workspace: str | None,
    form: Literal["v1", "v4"],
    target: Path,
    plans: Path | None,
) -> ExitCode:
    """Write what other programs read."""
    if workspace is None and kind != CODEPILOT:
        raise click.UsageError("No workspace was named. Use --workspace NAME.")
    made: Json = {"file": str(target)}
    if kind == DELIA:
        found = await home.get("programs", DELIA, workspace=workspace)
        for path, text in found.items():
            read(path, b"")  # it never leaves the folder
            with files.written(target / path) as beside:
                beside.write_bytes(text.encode())
        output.result({**made, "files": [*found]}, f"Exported {len(found)} files of {workspace} to {target}.")
        return DONE
    if kind == DECISIONS:
        with files.written(target) as beside:
            await home.download(beside, "programs", DECISIONS, workspace=str(workspace))
        output.result(made, f"Exported the decisions of {workspace} to {target}.")
        return DONE
    query = {} if kind == CODEPILOT else {"workspace": workspace, "version": form}
    tables = await home.get("programs", kind, **query)
    counts = {table: len(rows) for table, rows in tables.items()} | await _export_plans(home, plans)
    with files.written(target) as beside:
        await trio.to_thread.run_sync(program_files.write, beside, form if query else CODEPILOT, tables)
    what = f"Exported {workspace or 'the sessions'} to {target} ({_numbers(counts)})."
    output.result({**made, "rows": counts}, what)
    left = len(await home.pages("tasks", workspace=workspace)) if query and form == "v4" else 0
    if left:
        output.note(f"Delta v4 has no tasks. Left out: {left}.")
    return SKIPPED if left else DONE


async def _export_plans(home: Home, into: Path | None) -> dict[str, int]:
    """Write the plans into a directory, in place of earlier ones of their names; return their number."""
    if into is None:
        return {}
    names = await _plans(home) or []
    for name in names:
        with files.written(into / name) as beside:
            await home.download(beside, "folders", PLANS, "files", name)
    return {PLANS: len(names)}


async def _plans(home: Home) -> list[str] | None:
    """Return the names of the plans; None if there is no folder for them yet."""
    if all(folder["name"] != PLANS for folder in await home.pages("folders")):
        return None
    names = [str(file["name"]) for file in await home.pages("folders", PLANS, "files")]
    return [name for name in names if "/" not in name and name.endswith(".md")]


def _or_analyzed(command: Callable[..., None]) -> Callable[..., None]:
    """Return `import` that works on the archive alone where it is only analysed and joins nothing."""

    @wraps(command)
    def called(**given: Any) -> None:
        if given["analyze_only"] and given["interactive"]:
            raise click.UsageError("--analyze-only asks nothing. Leave it or --interactive out.")
        needs_server = any(given[name] is not None for name in ("into", "server"))
        if given["analyze_only"] and given["file"] and not needs_server:
            names = ("config_file", "data_dir", "is_json", "file", "resolutions")
            local(analyze)(**{name: given[name] for name in names})
        else:
            command(**given)

    return called


@click.group("import", cls=PlainGroup, invoke_without_command=True,
             epilog="Example: pattern import --from home.car --as home-again")  # fmt: skip
@click.option(*("--from", "file"), type=click.Path(exists=True, dir_okay=False, path_type=Path), help="The archive.")
@click.option("--as", "name", metavar="NAME", help="Name of the new constellation.  [default: the archive's own]")
@click.option("-c", "--constellation", "into", metavar="NAME", help="Join this constellation, instead of a new one.")
@click.option("--rename", "policy", flag_value="rename", help="Of names in use, give new ones to what is imported.")
@click.option("--merge", "policy", flag_value="merge", help="Of names in use, join those that have them.")
@click.option("--resolutions", metavar="FILE", help="JSON with decisions about issues of version 1 and 2.")
@click.option(
    "--interactive", is_flag=True, help="Ask about each issue, and keep the answers in that file, or next to FILE."
)
@click.option("--analyze-only", is_flag=True, help="Show content, issues, and names in use with -c; import nothing.")
@click.option("--dry-run", is_flag=True, help="Read and check the whole archive, list its issues; import nothing.")
@unless_named
@_or_analyzed
@creating
async def import_(
    api: Api,
    output: Output,
    file: Path | None,
    name: str | None,
    into: str | None,
    policy: str | None,
    resolutions: str | None,
    interactive: bool,
    analyze_only: bool,
    dry_run: bool,
) -> ExitCode:
    """Create a constellation from an archive or an agent file of Letta, or let it join one that exists: all or nothing.

    Schedules are paused. The same archive again changes nothing. Without --rename or --merge, names in use are refused.
    Archives of versions 1 and 2 may have issues; without --resolutions or --interactive only what is safe is done, and
    the exit code is 3 if an issue is left.
    """
    if file is None:
        raise click.UsageError("No archive was named. Use --from FILE.")
    body: dict[str, Any] = {"file": str(file.resolve()), "name": name, "constellation": into}
    body["policy"] = policy or "refuse"
    if interactive:
        body["resolutions"] = decide(output, file, Path(resolutions or f"{file}.resolutions.json"))
        if body["resolutions"] is None:
            return SKIPPED
    elif resolutions is not None:
        body["resolutions"] = resolutions_in(resolutions)
    if analyze_only:
        body["policy"] = policy or "rename"  # what is in use is listed instead of refused
        return show_analysis(output, file, await api.call("POST", "constellations", "import", "check", body=body))
    if dry_run:
        found = await api.call("POST", "constellations", "import", "check", body=body)
        output.result(found, f"{file} is sound ({_counts(found)}). Nothing was imported.", *decided(found["report"]))
        return _left(found["report"])
    made = await api.call("POST", "constellations", "import", body=body)
    done = "Nothing to do: imported before," if made["is_replay"] else f"Imported {file}"
    done += f" {'as' if into is None else 'into'} {made['name']} ({made['id']})."
    output.result(made, done, *decided(made["report"]))
    return _left(made["report"])


@import_.add("log", "-c home")
async def log(home: Home, output: Output) -> None:
    """List the archives that were imported into a constellation, newest first, with what was decided."""
    rows = await home.pages("imports")
    output.table(LOG_COLUMNS, rows, empty="Nothing was imported yet.", shown=lambda row: {**row, **row["audit_log"]})
    for row in rows:
        for line in decided(row):
            output.say(line)


@import_.add("delta", "~/.local/share/pi-ext-delta/srv_shop-main/delta.db --workspace shop")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--workspace", metavar="WORKSPACE", type=WORKSPACE, help="The project.  [default: as its folder]")
@dry_option
async def delta(home: Home, output: Output, paths: tuple[Path, ...], workspace: str | None, dry_run: bool) -> ExitCode:
    """Import files of Delta, or folders with its delta.db, into a workspace; the same file again changes nothing.

    Files of several branches of one project belong into one --workspace, which must be named if the folder's name does
    not tell it. What was changed in the file and not here follows the file. A file is read from a copy.
    """
    reports = []
    for path in paths:
        file = path / "delta.db" if path.is_dir() else path
        found = await trio.to_thread.run_sync(program_files.read, file)
        about = {"source": file.resolve().parent.name, "version": found.version, "workspace": workspace}
        reports.append(await _imported(home, DELTA, file, found.tables, **about, dry_run=dry_run))
        for line in imported_lines(reports[-1], is_dry=dry_run):
            output.say(line)
    output.data(reports)
    return SKIPPED if any(one["conflicts"] or one["skipped"] for one in reports) else DONE


@import_.add("codepilot", "data/codepilot.db --plans ~/shop/.codepilot/plans -a ada")
@click.argument("file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--plans", type=_DIRECTORY, help="A directory with plans; they become the files of the folder `plans`.")
@agent_option
@dry_option
async def codepilot(home: Home, output: Output, file: Path, plans: Path | None, agent: str, dry_run: bool) -> ExitCode:
    """Import the sessions of a file of Codepilot as an agent's; the same file again changes nothing.

    They keep their ids, and can be continued; one that was running is interrupted. The file is read from a copy.
    """
    found = await trio.to_thread.run_sync(program_files.read, file)
    done = await _imported(home, CODEPILOT, file, found.tables, source=file.name, agent=agent, dry_run=dry_run)
    if plans is not None:
        await _import_plans(home, plans, agent, done, is_dry=dry_run)
    return _reported(output, done, is_dry=dry_run)


@import_.add("decisions", "~/.pi/agent/memory/decisions.jsonl --workspace shop")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--workspace", metavar="WORKSPACE", type=WORKSPACE, required=True, help="The project.")
@click.option("--trust", is_flag=True, help="Important decisions stay important.")
@dry_option
async def decisions(home: Home, output: Output, file: Path, workspace: str, trust: bool, dry_run: bool) -> ExitCode:
    """Import the decisions in FILE, JSON objects, one a line, into a workspace; the same file again changes nothing.

    Lines that cannot be read are listed, and kept for an export.
    """
    data = await trio.to_thread.run_sync(file.read_bytes)
    about = {"workspace": workspace, "source": file.name, "trust": trust}
    return _reported(output, await _imported(home, DECISIONS, file, data, **about, dry_run=dry_run), is_dry=dry_run)


@import_.add("delia", "~/src/shop --workspace shop")
@click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--workspace", metavar="WORKSPACE", type=WORKSPACE, help="The project.  [default: that of PATH]")
@click.option("--trust", is_flag=True, help="Guidance is active at once, without a review.")
@click.option("--force", is_flag=True, help="Also playbooks of a newer version.")
@dry_option
async def delia(
    home: Home, output: Output, path: Path, workspace: str | None, trust: bool, force: bool, dry_run: bool
) -> ExitCode:
    """Import playbooks, profiles and memories of the folder .delia in PATH; the same again changes nothing.

    Bullets that cannot be read are listed, and kept for an export. `pattern guidance review` shows what is new.
    """
    folder = folder_of(path)
    given, unreadable = dict[str, str](), list[str]()
    for name, data in read_folder(folder).items():
        try:
            given[name] = read(name, data)
        except InvalidInput as error:
            unreadable.append(f"{name}: {error.message}")
    about = {"workspace": workspace or str(folder.absolute().parent), "trust": trust, "force": force}
    done = await _imported(home, DELIA, folder, given, **about, dry_run=dry_run)
    done["skipped"] += unreadable
    return _reported(output, done, is_dry=dry_run)


async def _imported(home: Home, program: str, file: Path, content: object, **options: object) -> Json:
    """Import what is in a file; return what was done."""
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return {"file": str(file), **await home.call("POST", "programs", program, data=data, params=options)}


def _reported(output: Output, done: Json, *, is_dry: bool = False) -> ExitCode:
    output.result(done, *imported_lines(done, is_dry=is_dry))
    return SKIPPED if done["conflicts"] or done["skipped"] else DONE


async def _import_plans(home: Home, plans: Path, agent: str, done: Json, *, is_dry: bool) -> None:
    """Add the plans in a directory to the folder `plans`, which the agent may read; note in `done` what was done."""
    chosen = sorted(file for file in plans.glob("*.md") if file.is_file())
    there = await _plans(home)
    if chosen and there is None and not is_dry:
        await home.call("POST", "folders", body={"name": PLANS, "description": "Plans of Codepilot."})
        await home.call("POST", "folders", PLANS, "attachments", body={"agent": agent, "access": "read"})
    for file in chosen:
        what = "added"
        if file.name in (there or ()):
            with tempfile.TemporaryDirectory(prefix="pattern-import-") as folder:
                await home.download(copy := Path(folder) / "plan", "folders", PLANS, "files", file.name)
                what = "present" if copy.read_bytes() == file.read_bytes() else "conflicts"
        try:
            if what == "added" and not is_dry:
                await home.call("PUT", "folders", PLANS, "files", file.name, data=file.read_bytes())
        except ServerFailed as error:
            if error.status not in (400, 413, 422):
                raise
            done["skipped"].append(f"{PLANS}: {error.message}")
            continue
        if what == "conflicts":
            done[what].append(f"the plan {file.name} is another one here")
        else:
            done[what][PLANS] = done[what].get(PLANS, 0) + 1


@car.add("show", "home.car", runs=local)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def show(_config: Config, output: Output, file: Path) -> None:
    """Show what the archive FILE says of itself."""
    found = asdict(portable.verify(file)[0])
    if output.is_json:
        output.data(found)
        return
    about = (
        f"schema {found['schema_version']}"
        if found["schema_version"]
        else f"{found['format']} {found['version'] or ''}".strip()
    )
    output.say(f"{found['kind']} {found['name']}, as of {found['exported_at']}, {about}")
    output.table(COLUMNS, [{"table": table, "rows": count} for table, count in found["rows"].items()], empty="No rows.")


@car.add("verify", "home.car", runs=local)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def verify(_config: Config, output: Output, file: Path) -> None:
    """Read the archive FILE whole, and check every block."""
    found = asdict(portable.verify(file)[0])
    output.result(found, f"{file} is sound (blocks: {found['blocks']}, {_counts(found)}).")


@car.add("diff", "before.car after.car", runs=local)
@click.argument("before", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("after", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def diff(_config: Config, output: Output, before: Path, after: Path) -> ExitCode:
    """Show how the content of the archive AFTER differs from that of BEFORE, and exit with 1 if it does.

    Rows are compared by their ids: an archive that was imported and exported again may have other ones.
    """
    with tempfile.TemporaryDirectory(prefix="pattern-diff-") as folder:
        found = [asdict(one) for one in portable.compare(before, after, Path(folder), now=now_text(SystemClock()))]
    counts: dict[str, dict[str, int]] = {}
    for one in found:
        of_table = counts.setdefault(one["table"], dict.fromkeys(get_args(Change), 0))
        of_table[one["change"]] += 1
    if output.is_json:
        output.data({"is_equal": not found, "tables": counts, "items": found})
    elif found:
        output.table(("table", *get_args(Change)), [{"table": table, **of} for table, of in counts.items()], empty="")
        output.say()
        output.table(DIFF_COLUMNS, found[:DIFFERENCES_SHOWN_MAX], empty="")
        if (more := len(found) - DIFFERENCES_SHOWN_MAX) > 0:
            output.note(f"Not shown: {more} more. To see all: --json")
    else:
        output.say("The archives have the same content.")
    return FAILED if found else DONE


def _left(report: Mapping[str, Any] | None) -> ExitCode:
    """Return the exit code: whether an issue was left."""
    return SKIPPED if report and report["issues_found"] > report["issues_resolved"] else DONE


def _numbers(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{table}: {count}" for table, count in counts.items())


def _counts(manifest: Mapping[str, Any]) -> str:
    rows = manifest["rows"]
    return ", ".join(
        f"{table.replace('_', ' ')}: {rows.get(table, 0)}" for table in ("agents", "messages", "memory_blocks")
    )
