"""Eight tools under the names and with the results that a front end for coding agents knows.

They are `shell` and the confined file functions under other names: paths are meant in the directory of the turn's
session and stay within the shell's roots, commands run in the shell's sandbox, and what asks a person there asks here.
`write_file` and `edit_file` are judged as commands of these names are: `allow = ["write_file"]` lets them run.

Source: the project's seed 004; what was printed to both outputs is in `stdout`, in the order in which it came.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import trio
from pydantic import BaseModel, ConfigDict

from pattern_core.errors import InvalidInput, PatternError, PermissionDenied, instead_of
from pattern_core.files import disk
from pattern_core.files.disk import UnreadableFile
from pattern_core.messages import check_text
from pattern_core.shell.policy import ShellSettings, verdict
from pattern_core.shell.shell import working_directory
from pattern_core.tools.builtin.shell import SETTLING_S, placed, service_of, shortened
from pattern_core.tools.tool import Tool, ToolContext, ToolSettings, tool
from pattern_db.enums import EffectClass

FILE_CHARS_MAX = 200_000  # of what is read or written
COMMITS_MAX = 1_000
RUN_S, DIFF_S, GIT_S = 30.0, 30.0, 10.0
_NOT_FOUND = 'Failed to find text to replace: "{}...". Make sure old_text matches exactly (including whitespace).'
_FOUND_CHARS = 50
_Line = Callable[[Mapping[str, object]], str]


def _asking(line: _Line, *, effect: EffectClass = EffectClass.UNSAFE, timeout_s: float | None = None) -> tool:
    """Return the decorator of a tool that asks a person as for the command line that `line` makes of its arguments."""

    def consent(arguments: Mapping[str, object], settings: ShellSettings | None = None) -> str | None:
        judged = verdict(line(arguments), settings or ShellSettings())
        return judged.reason if judged.action == "ask" else None

    def configure(made: Tool, settings: ToolSettings) -> Tool:
        return made if settings.shell is None else replace(made, consent=partial(consent, settings=settings.shell))

    return tool(effect=effect, timeout_s=timeout_s, consent=consent, configure=configure, for_strangers=True)


# Files


def _writing(name: str) -> _Line:
    return lambda arguments: shlex.join([name, str(arguments.get("path"))])


async def _located(context: ToolContext, path: str, *, writing_as: str | None = None) -> tuple[Path, str]:
    """Return the root in which a path lies, and its name there; `writing_as` is the tool that writes to it.

    Raises:
        PermissionDenied: it lies in none, or the operator refuses that tool.
        NotFound: the session's directory is gone.
    """
    settings, own = service_of(context).settings, await placed(context, None)
    if writing_as is not None:
        judged = verdict(_writing(writing_as)({"path": path}), settings)
        if judged.action == "refuse":
            raise PermissionDenied(judged.reason)

    def find() -> tuple[Path, str]:
        here = working_directory(settings, own)
        whole = Path(os.path.normpath(here / path))
        for root in [working_directory(settings, str(root)) for root in settings.roots]:
            if whole.is_relative_to(root):
                return root, whole.relative_to(root).as_posix()
        raise PermissionDenied(f"{path} is not below {', '.join(map(str, settings.roots))}; give a path in {here}")

    return await trio.to_thread.run_sync(find)


async def _text(place: tuple[Path, str]) -> str:
    data = await trio.to_thread.run_sync(disk.read_file, *place)
    with instead_of(UnicodeDecodeError, UnreadableFile(f"{place[1]} is not text in UTF-8")):
        text = data.decode()
    return _bounded(text)


def _bounded(text: str) -> str:
    if len(check_text(text)) > FILE_CHARS_MAX:
        raise InvalidInput(f"a file has at most {FILE_CHARS_MAX} characters here, this one {len(text)}; use run_shell")
    return text


async def _write(place: tuple[Path, str], text: str) -> None:
    # Not abandoned when cancelled: a half-known outcome would be worse than waiting for the disk.
    await trio.to_thread.run_sync(disk.write_file, *place, _bounded(text).encode())


@tool(effect=EffectClass.PURE, for_strangers=True)
async def read_file(context: ToolContext, path: str) -> dict[str, object]:
    """Read a text file of the project."""
    return {"path": path, "content": await _text(await _located(context, path))}


@_asking(_writing("write_file"), effect=EffectClass.IDEMPOTENT)
async def write_file(context: ToolContext, path: str, content: str) -> dict[str, object]:
    """Write a text file of the project whole; missing directories are made."""
    await _write(await _located(context, path, writing_as="write_file"), content)
    return {"path": path, "status": "ok"}


class Edit(BaseModel):
    """Text that is replaced wherever it is."""

    model_config = ConfigDict(extra="forbid", strict=True)

    old_text: str
    new_text: str


@_asking(_writing("edit_file"))
async def edit_file(
    context: ToolContext,
    path: str,
    edits: Annotated[list[Edit], "In order. All occurrences of `old_text` are replaced."],
) -> dict[str, object]:
    """Replace text in a file of the project: all of the edits are made, or none."""
    place = await _located(context, path, writing_as="edit_file")
    before = after = await _text(place)
    details: list[dict[str, object]] = []
    for edit in edits:
        count = after.count(edit.old_text) if edit.old_text else 0
        if not count:
            raise InvalidInput(_NOT_FOUND.format(edit.old_text[:_FOUND_CHARS]))
        after = after.replace(edit.old_text, edit.new_text)
        warning = {"warning": f"{count} occurrences were replaced"} if count > 1 else {}
        details.append({"applied": True, "replacements": count, **warning})
    await _write(place, after)
    return {
        "path": path,
        "oldContent": before,
        "newContent": after,
        "editsApplied": len(details),
        "totalReplacements": sum(int(str(one["replacements"])) for one in details),
        "editDetails": details,
        "success": True,
    }


@tool(effect=EffectClass.PURE, for_strangers=True)
async def list_dir(context: ToolContext, path: str) -> list[dict[str, str]]:
    """List a directory of the project."""
    found = await trio.to_thread.run_sync(disk.list_directory, *await _located(context, path))
    return [{"name": name, "type": "dir" if is_directory else "file"} for name, is_directory in found]


# Commands


@_asking(lambda arguments: str(arguments.get("command")), timeout_s=RUN_S + SETTLING_S)
async def run_shell(
    context: ToolContext, command: str, cwd: Annotated[str | None, "Where to run it, as project/src."] = None
) -> dict[str, object]:
    """Run a command line for bash in a sandbox, for at most 30 seconds."""
    shown = {"command": command, "cwd": cwd or "."}
    ended = await service_of(context).execute(
        command, agent_id=context.agent_id, directory=await placed(context, cwd or None), timeout_s=RUN_S
    )
    note = f"its {RUN_S:g} seconds were up" if ended.is_timeout else ended.note
    code = 1 if ended.exit_code is None else ended.exit_code
    return {**shown, "stdout": shortened(ended.output.text()), "stderr": note, "exitCode": code}


def _diff(arguments: Mapping[str, object]) -> str:
    staged, ref = ["--staged"] if arguments.get("staged") is True else [], arguments.get("ref")
    return _git("diff", [*staged, *([str(ref)] if ref else [])], arguments)


def _status(arguments: Mapping[str, object]) -> str:
    return _git("status", ["--short"] if arguments.get("short") is True else [], {})


def _log(arguments: Mapping[str, object]) -> str:
    form = [] if arguments.get("oneline") is False else ["--oneline"]
    return _git("log", [f"--max-count={arguments.get('count', 10)}", *form], arguments)


def _git(verb: str, options: Sequence[str], arguments: Mapping[str, object]) -> str:
    path = arguments.get("path")
    return shlex.join(["git", verb, *options, "--", *([str(path)] if path else [])])


async def _answer(context: ToolContext, line: str, key: str, timeout_s: float) -> dict[str, object]:
    service = service_of(context)
    place = await placed(context, None)
    ended = await service.execute(line, agent_id=context.agent_id, directory=place, timeout_s=timeout_s)
    text = ended.output.text()
    if ended.exit_code != 0:
        why = f"its {timeout_s:g} seconds were up" if ended.is_timeout else text.strip() or ended.note
        raise PatternError(f"Git {key} failed: {why}")
    note = {"stderr": ended.note} if ended.note else {}
    return {"command": line, "cwd": place or ".", key: shortened(text), **note}


@_asking(_diff, timeout_s=DIFF_S + SETTLING_S)
async def git_diff(
    context: ToolContext, path: str | None = None, ref: str | None = None, staged: bool = False
) -> dict[str, object]:
    """Show what differs from git's index, from a commit (`ref`), or, `staged`, between both."""
    if ref is not None and ref.startswith("-"):
        raise InvalidInput(f"`ref` is a commit, a branch or a range such as main..dev; {ref!r} is an option")
    found = await _answer(context, _diff({"path": path, "ref": ref, "staged": staged}), "diff", DIFF_S)
    return {**found, "hasChanges": bool(str(found["diff"]).strip())}


@_asking(_status, timeout_s=GIT_S + SETTLING_S)
async def git_status(context: ToolContext, short: bool = False) -> dict[str, object]:
    """Show git's status of the project."""
    return await _answer(context, _status({"short": short}), "status", GIT_S)


@_asking(_log, timeout_s=GIT_S + SETTLING_S)
async def git_log(
    context: ToolContext, count: int = 10, path: str | None = None, oneline: bool = True
) -> dict[str, object]:
    """Show the newest commits."""
    count = min(max(count, 1), COMMITS_MAX)
    return await _answer(context, _log({"count": count, "path": path, "oneline": oneline}), "log", GIT_S)


CODING = (read_file, write_file, edit_file, list_dir, run_shell, git_diff, git_status, git_log)
