"""The tool `shell`: commands on the server's machine, below the configured directories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from pattern_core.errors import Unavailable
from pattern_core.shell.policy import ShellSettings, verdict
from pattern_core.shell.shell import TIMEOUT_MAX_S, TIMEOUT_S, Command, Shell
from pattern_core.tools.tool import Tool, ToolContext, ToolSettings, done, needed, tool
from pattern_db.enums import EffectClass
from pattern_db.tables import sessions

Operation = Literal["execute", "spawn", "output", "kill", "status"]
SETTLING_S = 15.0  # for a command that does not end by itself when its time is up
SHOWN_CHARS_MAX = 12_000  # of what was printed in one answer; JSON makes it longer


def consent(arguments: Mapping[str, object], settings: ShellSettings | None = None) -> str | None:
    """Return why a person must approve a call with these arguments; None if it may run immediately. Pure.

    What is refused is not asked for: the call itself says why.
    """
    command = arguments.get("command")
    if arguments.get("op") not in ("execute", "spawn") or not isinstance(command, str) or not command.strip():
        return None
    judged = verdict(command, settings or ShellSettings())
    return judged.reason if judged.action == "ask" else None


def _configure(tool: Tool, settings: ToolSettings) -> Tool:
    return tool if settings.shell is None else replace(tool, consent=partial(consent, settings=settings.shell))


@tool(
    effect=EffectClass.UNSAFE,
    timeout_s=TIMEOUT_MAX_S + SETTLING_S,
    consent=consent,
    configure=_configure,
    for_strangers=True,
)
async def shell(
    context: ToolContext,
    op: Annotated[
        Operation,
        "execute: run `command` and wait. spawn: run it in the background. output: what a task printed."
        " kill: end a task. status: your tasks.",
    ],
    command: Annotated[str | None, "For execute and spawn: a command line for bash."] = None,
    directory: Annotated[str | None, "For execute and spawn: where to run it, as project/src."] = None,
    timeout: Annotated[float, "For execute: seconds after which it is ended, up to 600."] = TIMEOUT_S,
    task_id: Annotated[str | None, "For output and kill: the task, as spawn named it."] = None,
    since: Annotated[int, "For output: continue after so many bytes, as the last answer said."] = 0,
) -> dict[str, object]:
    """Run commands in a sandbox. Each starts in the same directory; spawn what takes minutes. Commands that
    change something may need a person's consent; a single program that only reads, or several joined by |, need none.
    """
    service, agent_id = service_of(context), context.agent_id
    match op:
        case "execute":
            line, place = needed(command, "command", op), await placed(context, directory)
            ended = await service.execute(line, agent_id=agent_id, directory=place, timeout_s=timeout)
            return _finished(ended, timeout)
        case "spawn":
            line, place = needed(command, "command", op), await placed(context, directory)
            task = await service.spawn(line, agent_id=agent_id, directory=place)
            return done(f"It runs as {task.id}; output shows what it prints", **_shown(task))
        case "output":
            return _output(service.find(needed(task_id, "task_id", op), agent_id=agent_id), since)
        case "kill":
            task = service.find(needed(task_id, "task_id", op), agent_id=agent_id)
            await task.end()
            return done("It is over", **_shown(task))
        case "status":
            tasks = service.status(agent_id=agent_id)
            count = sum(task.is_running for task in tasks)
            words = f"{count} of {len(tasks)} tasks run" if tasks else "You have no tasks"
            return done(words, tasks=[_shown(task) for task in tasks])


def service_of(context: ToolContext) -> Shell:
    """Return the shell.

    Raises:
        Unavailable: the server has none.
    """
    if context.toolbox.shell is None:
        raise Unavailable(
            "this server runs no commands; an administrator names a directory for them in pattern.toml, as"
            ' roots = ["/srv/work"] in the section [shell]'
        )
    return context.toolbox.shell


async def placed(context: ToolContext, directory: str | None) -> str | None:
    """Return the directory as meant in the turn's session, which may have one of its own."""
    if context.session_id is None:
        return directory
    own = await context.storage.database.read(sessions.working_dir, context.session_id)
    return directory if own is None else str(Path(own) / (directory or ""))


def _shown(task: Command) -> dict[str, object]:
    return {
        "task_id": task.id,
        "command": task.line,
        "started_at": task.started_at,
        "seconds": round(task.seconds, 1),
        "is_running": task.is_running,
        "exit_code": task.exit_code,
        "printed": task.output.total,
        "note": task.note,
    }


def _finished(ended: Command, timeout_s: float) -> dict[str, object]:
    if ended.is_timeout:
        words = f"Its {timeout_s:g} seconds were up, so it was ended; what it printed until then is here"
    elif ended.exit_code is None:
        words = ended.note
    else:
        words = f"It ended with exit code {ended.exit_code}"
    note = f". {ended.note}" if ended.note and ended.note not in words else ""
    answer = done(
        words + note,
        output=shortened(ended.output.text()),
        exit_code=ended.exit_code,
        duration_ms=round(ended.seconds * 1000),
        timeout=ended.is_timeout,
    )
    return answer if ended.exit_code is not None or ended.is_timeout else {**answer, "success": False}


def _output(task: Command, since: int) -> dict[str, object]:
    text, lost = task.output.since(max(0, since))
    over = task.note.rstrip(".") if task.exit_code is None else f"It is over, with exit code {task.exit_code}"
    state = "It runs" if task.is_running else over
    gap = f"; {lost} bytes before this are lost" if lost else ""
    position = task.output.total
    words = f"{state}{gap}; continue with since={position}"
    return done(words, output=shortened(text), since=position, is_running=task.is_running, exit_code=task.exit_code)


def shortened(text: str) -> str:
    """Return the beginning and, since errors come last, twice as much of the end."""
    if len(text) <= SHOWN_CHARS_MAX:
        return text
    head, tail = SHOWN_CHARS_MAX // 3, 2 * SHOWN_CHARS_MAX // 3
    return f"{text[:head]}\n[… {len(text) - head - tail} characters left out …]\n{text[-tail:]}"
