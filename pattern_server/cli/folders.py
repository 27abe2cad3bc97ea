"""`pattern folder …`: files that agents may read."""

from __future__ import annotations

from pathlib import Path

import click

from pattern_core.errors import InvalidInput
from pattern_core.files.disk import FILE_BYTES_MAX, too_long
from pattern_server.cli.client import Json, ServerFailed
from pattern_server.cli.command import (
    ExitCode,
    Home,
    PlainGroup,
    agent_option,
    yes_option,
)
from pattern_server.cli.names import FOLDER
from pattern_server.cli.output import DONE, FAILED, SKIPPED, Output

COLUMNS = ("name", "type=path_type?", "status", "indexed=indexed_at?", "path=path_value?", "description?")
FILE_COLUMNS = ("name", "status", "bytes=size_bytes?", "lines=line_count?", "error*")

folder = PlainGroup("folder", help="Folders of files that agents may read, search and, if you allow it, write.")


@folder.add("create", "notes --path ~/notes")
@click.argument("name")
@click.option("--path", "where", type=click.Path(path_type=Path), help="A directory on the server's machine.")
@click.option("--remote", metavar="ADDRESS", help="Such as webdav+https://host/path or s3://bucket/prefix.")
@click.option("--description", help="A description for agents.")
async def create(
    home: Home, output: Output, name: str, where: Path | None, remote: str | None, description: str | None
) -> None:
    """Create the folder NAME: empty, to fill with `add`; or a view of a directory (--path), or of a WebDAV server or
    an S3 bucket (--remote), indexed at once.
    """
    if where is not None and remote is not None:
        raise click.UsageError("A folder has a --path or is --remote, not both.")
    body: Json = {"name": name, "description": description}
    if where is not None:
        body |= {"path_type": "local", "path": str(where.expanduser().absolute())}
    elif remote is not None:
        body |= {"path_type": "remote", "path": remote}
    made = await home.call("POST", "folders", body=body)
    output.result(made, f"Created the folder {name}.")
    if "path" not in body:
        output.say(f"Fill it with: pattern folder add {name} FILE … -c {home.name}")
    else:
        _say_report(output, name, await home.call("POST", "folders", made["id"], "index"))
    output.say(f"Attach it with: pattern folder attach {name} -c {home.name} -a AGENT")


@folder.add("list")
async def list_all(home: Home, output: Output) -> None:
    """List the folders."""
    rows = await home.pages("folders")
    output.table(COLUMNS, rows, empty=f"There are no folders yet: pattern folder create NAME -c {home.name}")


@folder.add("show", "notes")
@click.argument("name", type=FOLDER)
async def show(home: Home, output: Output, name: str) -> None:
    """Show the folder NAME, its files, and the agents that may use it."""
    found = await home.get("folders", name)
    files = await home.pages("folders", name, "files")
    attachments = await home.pages("folders", name, "attachments")
    if output.is_json:
        output.data({**found, "files": files, "attachments": attachments})
    else:
        output.record({**found, "agents": [f"{one['agent']} ({one['access']})" for one in attachments]})
        output.table(FILE_COLUMNS, files, empty="It has no files.")


@folder.add("add", "notes todo.md plans/")
@click.argument("name", type=FOLDER)
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
async def add(home: Home, output: Output, name: str, files: tuple[Path, ...]) -> ExitCode:
    """Add FILES to the folder NAME, directories with all files in them. Files that cannot be read are listed."""
    chosen = [pair for given in files for pair in _files_of(given)]
    added: list[object] = []
    refused: list[dict[str, str]] = []
    with output.progress("Adding", len(chosen)) as advance:
        for file, label in chosen:
            try:
                where = ("folders", name, "files", *label.split("/"))
                added.append(await home.call("PUT", *where, data=_bytes_of(file)))
            except ServerFailed as error:
                if error.status not in (400, 413, 422):
                    raise
                refused.append({"name": label, "reason": error.message})
            except (InvalidInput, OSError) as error:
                refused.append({"name": label, "reason": str(error)})
            advance()
    output.result({"added": added, "refused": refused}, f"Files added to {name}: {len(added)} of {len(chosen)}.")
    for one in refused:
        output.note(f"Not added: {one['name']}: {one['reason']}")
    return DONE if not refused else SKIPPED if added else FAILED


def _files_of(given: Path) -> list[tuple[Path, str]]:
    """Return the files of an argument, with their names in the folder; without hidden files and links."""
    if not given.is_dir():
        return [(given, given.name)]
    found = sorted(file for file in given.rglob("*") if file.is_file() and not file.is_symlink())
    labels = [(file, file.relative_to(given).as_posix()) for file in found]
    return [(file, label) for file, label in labels if not any(part.startswith(".") for part in label.split("/"))]


def _bytes_of(file: Path) -> bytes:
    size = file.stat().st_size
    if size > FILE_BYTES_MAX:
        raise too_long(size)
    return file.read_bytes()


@folder.add("attach", "notes -a ada")
@click.argument("name", type=FOLDER)
@agent_option
@click.option("--write", is_flag=True, help="The agent may also write there.")
async def attach(home: Home, output: Output, name: str, agent: str, write: bool) -> None:
    """Let an agent use the folder NAME."""
    body = {"agent": agent, "access": "read_write" if write else "read"}
    made = await home.call("POST", "folders", name, "attachments", body=body)
    output.result(made, f"{made['agent']} may {'read and write' if write else 'read'} the files of {name}.")


@folder.add("detach", "notes -a ada")
@click.argument("name", type=FOLDER)
@agent_option
async def detach(home: Home, output: Output, name: str, agent: str) -> None:
    """Stop an agent from using the folder NAME."""
    await home.call("DELETE", "folders", name, "attachments", agent)
    output.result({"detached": name, "agent": agent}, f"{agent} can no longer use {name}.")


@folder.add("index", "notes")
@click.argument("name", type=FOLDER)
@click.option("--again", is_flag=True, help="Also read files that look unchanged.")
async def index(home: Home, output: Output, name: str, again: bool) -> ExitCode:
    """Index the folder NAME now, and list the files that were skipped."""
    report = await home.call("POST", "folders", name, "index", params={"again": str(again).lower()})
    output.data(report)
    _say_report(output, name, report)
    return SKIPPED if report["skipped"] else DONE


def _say_report(output: Output, name: str, report: Json) -> None:
    output.say(
        f"Files of {name}: {report['indexed']} read, {report['unchanged']} unchanged, {report['removed']} removed."
    )
    for one in report["skipped"]:
        output.note(f"Not read: {one['name']}: {one['reason']}")


@folder.add("delete", "notes")
@click.argument("name", type=FOLDER)
@yes_option
async def delete(home: Home, output: Output, name: str, yes: bool) -> None:
    """Delete the folder NAME with its index and uploaded files. Files elsewhere are kept."""
    await home.get("folders", name)
    output.confirm(f"Delete the folder {name} with its uploaded files?", yes=yes)
    await home.call("DELETE", "folders", name)
    output.result({"deleted": name}, f"Deleted {name}.")
