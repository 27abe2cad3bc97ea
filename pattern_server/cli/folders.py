"""`pattern folder …`: files that agents may read."""

from __future__ import annotations

from pathlib import Path

import click

from pattern_core.errors import InvalidInput
from pattern_core.files.disk import FILE_BYTES_MAX, too_long
from pattern_server.cli.client import Api, ServerFailed, path
from pattern_server.cli.command import ExitCode, connected, constellation_option
from pattern_server.cli.output import DONE, FAILED, SKIPPED, Output

COLUMNS = ("name", "path_type", "path_value", "status", "indexed_at", "description")
FILE_COLUMNS = ("name", "size_bytes", "line_count", "status", "error")

agent_option = click.option("-a", "--agent", required=True, metavar="NAME", help="The agent, by name or id.")


@click.group()
def folder() -> None:
    """Folders: files that agents may read, search and, if you allow it, write."""


@folder.command("create")
@click.argument("name")
@constellation_option
@click.option("--path", "where", type=click.Path(path_type=Path), help="A directory of the server's machine.")
@click.option("--description", help="What is in it, for agents.")
@connected
async def create(
    api: Api, output: Output, name: str, constellation: str, where: Path | None, description: str | None
) -> ExitCode:
    """Make the folder NAME: one that you fill with `add`, or with --path a view of a directory, indexed at once."""
    body: dict[str, object] = {"name": name, "description": description}
    if where is not None:
        body |= {"path_type": "local", "path": str(where.expanduser().absolute())}
    made = await api.call("POST", path("constellations", constellation, "folders"), body=body)
    output.data(made)
    output.say(f"Created the folder {name}.")
    if where is None:
        output.say(f"Fill it:  pattern folder add {name} FILE … -c {constellation}")
    else:
        report = await api.call("POST", path("constellations", constellation, "folders", made["id"], "index"))
        _say_report(output, name, report)
    output.say(f"Attach it:  pattern folder attach {name} -c {constellation} -a AGENT")
    return DONE


@folder.command("list")
@constellation_option
@connected
async def list_all(api: Api, output: Output, constellation: str) -> ExitCode:
    """List the folders."""
    rows = await api.pages(path("constellations", constellation, "folders"))
    output.table(COLUMNS, rows, empty=f"There is no folder yet: pattern folder create NAME -c {constellation}")
    return DONE


@folder.command("show")
@click.argument("name")
@constellation_option
@connected
async def show(api: Api, output: Output, name: str, constellation: str) -> ExitCode:
    """Show the folder NAME, its files, and the agents that may use it."""
    where = path("constellations", constellation, "folders", name)
    found = await api.get(where)
    files = await api.pages(f"{where}/files")
    attachments = await api.pages(f"{where}/attachments")
    output.data({**found, "files": files, "attachments": attachments})
    if not output.is_json:
        agents = [f"{one['agent']} ({one['access']})" for one in attachments]
        output.record({**found, "agents": agents})
        output.table(FILE_COLUMNS, files, empty="It holds no file.")
    return DONE


@folder.command("add")
@click.argument("name")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@constellation_option
@connected
async def add(api: Api, output: Output, name: str, files: tuple[Path, ...], constellation: str) -> ExitCode:
    """Put FILES into the folder NAME; of directories, all files in them. Those that cannot be read are named."""
    chosen = [pair for given in files for pair in _files_of(given)]
    added: list[object] = []
    refused: list[dict[str, str]] = []
    with output.progress("Adding", len(chosen)) as advance:
        for file, label in chosen:
            try:
                where = path("constellations", constellation, "folders", name, "files", *label.split("/"))
                added.append(await api.put_bytes(where, _bytes_of(file)))
            except ServerFailed as error:
                if error.status not in (400, 413, 422):
                    raise
                refused.append({"name": label, "reason": error.message})
            except (InvalidInput, OSError) as error:
                refused.append({"name": label, "reason": str(error)})
            advance()
    output.data({"added": added, "refused": refused})
    output.say(f"Added {len(added)} of {len(chosen)} files to {name}.")
    for one in refused:
        output.note(f"Not added: {one['name']}: {one['reason']}")
    return DONE if not refused else SKIPPED if added else FAILED


def _files_of(given: Path) -> list[tuple[Path, str]]:
    """The files that an argument means, with their names in the folder; hidden ones and links are passed over."""
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


@folder.command("attach")
@click.argument("name")
@constellation_option
@agent_option
@click.option("--write", is_flag=True, help="The agent may also write there.")
@connected
async def attach(api: Api, output: Output, name: str, constellation: str, agent: str, write: bool) -> ExitCode:
    """Let an agent use the folder NAME."""
    where = path("constellations", constellation, "folders", name, "attachments")
    made = await api.call("POST", where, body={"agent": agent, "access": "read_write" if write else "read"})
    output.data(made)
    output.say(f"{made['agent']} may {'read and write' if write else 'read'} the files of {name}.")
    return DONE


@folder.command("detach")
@click.argument("name")
@constellation_option
@agent_option
@connected
async def detach(api: Api, output: Output, name: str, constellation: str, agent: str) -> ExitCode:
    """Take the folder NAME away from an agent."""
    await api.call("DELETE", path("constellations", constellation, "folders", name, "attachments", agent))
    output.data({"detached": name, "agent": agent})
    output.say(f"{agent} can no longer use {name}.")
    return DONE


@folder.command("index")
@click.argument("name")
@constellation_option
@click.option("--again", is_flag=True, help="Also read files that seem unchanged.")
@connected
async def index(api: Api, output: Output, name: str, constellation: str, again: bool) -> ExitCode:
    """Look through the folder NAME now, and say what was left out."""
    where = path("constellations", constellation, "folders", name, "index")
    report = await api.call("POST", where, params={"again": str(again).lower()})
    output.data(report)
    _say_report(output, name, report)
    return SKIPPED if report["skipped"] else DONE


def _say_report(output: Output, name: str, report: dict[str, object]) -> None:
    output.say(f"Files of {name}: read {report['indexed']}, unchanged {report['unchanged']}, gone {report['removed']}.")
    skipped = report["skipped"]
    for one in skipped if isinstance(skipped, list) else []:
        output.note(f"Not read: {one['name']}: {one['reason']}")


@folder.command("delete")
@click.argument("name")
@constellation_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@connected
async def delete(api: Api, output: Output, name: str, constellation: str, yes: bool) -> ExitCode:
    """Remove the folder NAME and what was read from it; the files of a directory stay where they are."""
    where = path("constellations", constellation, "folders", name)
    await api.get(where)
    if not yes:
        output.confirm(f"Delete the folder {name} with what was uploaded into it?", flag="--yes")
    await api.call("DELETE", where)
    output.data({"deleted": name})
    output.say(f"Deleted {name}.")
    return DONE
