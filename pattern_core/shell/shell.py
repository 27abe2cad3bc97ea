"""The shell of one constellation: commands that agents run, each the child of one task that sees it to its end.

`run` is the owner of all children: they start, are waited for and are ended in its task tree, so that none outlives the
constellation, and a caller that is cancelled leaves at once while its command is being ended.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import trio

from pattern_core.errors import InvalidInput, NotFound, Overloaded, PermissionDenied, Unavailable
from pattern_core.files.disk import check_root
from pattern_core.ids import Clock, Ids, now_text
from pattern_core.shell.child import CommandOutput, Ended, run_child
from pattern_core.shell.policy import ShellSettings, verdict

TIMEOUT_S = 60.0
TIMEOUT_MAX_S = 600.0
TASKS_MAX = 64  # remembered, those that are over included
REAP_S = 30.0  # between two looks for tasks that were not looked at
SPAWNED_HEAD_BYTES, SPAWNED_TAIL_BYTES = 8 * 1024, 256 * 1024
RETRY_AFTER_S = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A command that was waited for: what it printed, its exit code (None if it never began or was ended), how long it
    took in milliseconds, and whether its time was up. `note` says what else there is to know, empty if nothing.
    """

    output: str
    exit_code: int | None
    duration_ms: int
    is_timeout: bool
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """A command in the background. `seconds` is how long it has run, or ran; `exit_code` is None while it runs;
    `printed` counts bytes.
    """

    task_id: str
    command: str
    started_at: str
    seconds: float
    is_running: bool
    exit_code: int | None
    printed: int
    note: str


@dataclass(slots=True, kw_only=True)
class _Task:
    id: str
    agent_id: str
    command: str
    started_at: str
    began: float
    looked_at: float
    output: CommandOutput
    stop: trio.Event = field(default_factory=trio.Event)
    over: trio.Event = field(default_factory=trio.Event)
    ended: Ended | None = None
    took: float = 0.0
    is_spawned: bool = False


def working_directory(settings: ShellSettings, directory: str | None) -> Path:
    """Return the real path of the directory in which a command shall run. Blocks: call it on a thread.

    A relative name is meant below the first root, and no name means that root. Links are followed as long as they stay
    within the roots. A command may exchange a directory for a link afterwards; then the next one starts outside, where
    the sandbox lets it open nothing.

    Raises:
        PermissionDenied: no root is configured, or the directory is below none.
        InvalidInput: a root is not usable, or the name is none.
        NotFound: there is no such directory.
    """
    if not settings.roots:
        raise PermissionDenied(
            "the shell has no directory to work in; an administrator names one in pattern.toml, as"
            ' roots = ["/srv/work"] in the section [shell]'
        )
    roots = [check_root(str(root), allowed=None, kept_out=settings.kept_out) for root in settings.roots]
    name = directory or "."
    if "\0" in name:
        raise InvalidInput("the name of a directory holds no NUL")
    real = Path(os.path.realpath(roots[0] / name))
    if not any(real.is_relative_to(root) for root in roots):
        raise PermissionDenied(f"{name} is not below {', '.join(str(root) for root in roots)}; commands run only there")
    if not real.is_dir():
        raise NotFound(f"there is no directory {name}")
    return real


class Shell:
    """Runs commands as the settings allow. Agents see only what they started themselves."""

    def __init__(self, *, settings: ShellSettings, clock: Clock, ids: Ids) -> None:
        self.settings = settings
        self._clock = clock
        self._ids = ids
        self._nursery: trio.Nursery | None = None
        self._tasks: dict[str, _Task] = {}

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own all children until cancelled; then everything that was started is ended before this returns."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                while True:
                    await trio.sleep(REAP_S)
                    self._reap()
            finally:
                self._nursery = None

    @property
    def running(self) -> int:
        """How many commands are under way; a constellation with any is not idle."""
        return sum(not task.over.is_set() for task in self._tasks.values())

    async def execute(
        self, command: str, *, agent_id: str, directory: str | None = None, timeout_s: float = TIMEOUT_S
    ) -> Finished:
        """Run a command to its end, or until its time is up; then what it printed so far is kept.

        Raises:
            PermissionDenied: it is dangerous, or the server's settings do not allow it.
            InvalidInput: it is empty, or the time or the directory is none.
            NotFound: there is no such directory.
            Overloaded: too many commands run already.
            Unavailable: the constellation is about to rest, or the system cannot confine the command.
        """
        if not 0 < timeout_s <= TIMEOUT_MAX_S:
            raise InvalidInput(f"`timeout` is between 0 and {TIMEOUT_MAX_S:.0f} seconds; spawn what takes longer")
        task = await self._start(command, agent_id, directory, CommandOutput(), is_spawned=False)
        try:
            with trio.move_on_after(timeout_s):
                await task.over.wait()
            is_timeout = not task.over.is_set()
            if is_timeout:
                task.stop.set()
                await task.over.wait()
        finally:
            task.stop.set()  # who is cancelled need not wait; the owner ends the command
            if task.over.is_set():
                self._tasks.pop(task.id, None)
        return Finished(
            output=task.output.text(),
            exit_code=None if is_timeout or task.ended is None else task.ended.code,
            duration_ms=round(task.took * 1000),
            is_timeout=is_timeout,
            note=self._note(task),
        )

    async def spawn(self, command: str, *, agent_id: str, directory: str | None = None) -> TaskView:
        """Begin a command that runs in the background until it is over or ended.

        Raises:
            PermissionDenied: it is dangerous, or the server's settings do not allow it.
            InvalidInput: it is empty, or the directory's name is none.
            NotFound: there is no such directory.
            Overloaded: too many commands run already.
            Unavailable: the constellation is about to rest.
        """
        output = CommandOutput(head_bytes=SPAWNED_HEAD_BYTES, tail_bytes=SPAWNED_TAIL_BYTES)
        return self._view(await self._start(command, agent_id, directory, output, is_spawned=True))

    def output(self, task_id: str, *, agent_id: str, since: int = 0) -> tuple[str, int, int]:
        """Return what a task printed after its first `since` bytes, how many bytes of that are lost, and where to go
        on.

        Raises:
            NotFound: the agent has no such task.
        """
        task = self._of(task_id, agent_id)
        text, lost = task.output.since(max(0, since))
        return text, lost, task.output.total

    def view(self, task_id: str, *, agent_id: str) -> TaskView:
        """Return a task as it is now.

        Raises:
            NotFound: the agent has no such task.
        """
        return self._view(self._of(task_id, agent_id))

    async def kill(self, task_id: str, *, agent_id: str) -> TaskView:
        """End a task with everything that it started, and wait until it is gone.

        Raises:
            NotFound: the agent has no such task.
        """
        task = self._of(task_id, agent_id)
        task.stop.set()
        await task.over.wait()
        return self._view(task)

    def status(self, *, agent_id: str) -> Sequence[TaskView]:
        """Return the agent's tasks in the background, oldest first, also those that are over."""
        found = [task for task in self._tasks.values() if task.is_spawned and task.agent_id == agent_id]
        for task in found:
            task.looked_at = trio.current_time()
        return [self._view(task) for task in found]

    async def _start(
        self, command: str, agent_id: str, directory: str | None, output: CommandOutput, *, is_spawned: bool
    ) -> _Task:
        if not command.strip():
            raise InvalidInput("`command` is empty; name what to run")
        judged = verdict(command, self.settings)
        if judged.action == "refuse":
            raise PermissionDenied(judged.reason)
        place = await trio.to_thread.run_sync(working_directory, self.settings, directory)
        nursery = self._admit()
        now = trio.current_time()
        task = _Task(
            id=self._ids.new("task"),
            agent_id=agent_id,
            command=command,
            started_at=now_text(self._clock),
            began=now,
            looked_at=now,
            output=output,
            is_spawned=is_spawned,
        )
        self._tasks[task.id] = task
        nursery.start_soon(self._live, task, place, name=f"shell {task.id}")
        return task

    def _admit(self) -> trio.Nursery:
        if self._nursery is None or self._nursery.cancel_scope.cancel_called:
            raise Unavailable("the shell does not run now; try again in a few seconds", retry_after_s=RETRY_AFTER_S)
        if self.running >= self.settings.children_max:
            raise Overloaded(
                f"{self.settings.children_max} commands run already; wait for one, or kill one",
                retry_after_s=RETRY_AFTER_S,
            )
        over = [task for task in self._tasks.values() if task.over.is_set()]
        for task in over[: max(0, len(self._tasks) + 1 - TASKS_MAX)]:
            del self._tasks[task.id]
        return self._nursery

    async def _live(self, task: _Task, directory: Path) -> None:
        """Run one child to its end."""
        try:
            task.ended = await run_child(task.command, directory, self.settings, task.output, task.stop)
        except OSError as error:  # no room for a process: that harms this command only
            reason = f"the system refuses another process ({error.strerror})"
            task.ended = Ended(code=None, stopped=None, confined=(), refused=reason)
        finally:
            task.took = trio.current_time() - task.began
            task.over.set()
            if not task.is_spawned and task.stop.is_set():
                self._tasks.pop(task.id, None)

    def _reap(self) -> None:
        """End tasks in the background that were not looked at for long."""
        now = trio.current_time()
        for task in self._tasks.values():
            if task.is_spawned and not task.over.is_set() and now - task.looked_at > self.settings.idle_s:
                task.stop.set()

    def _of(self, task_id: str, agent_id: str) -> _Task:
        task = self._tasks.get(task_id)
        if task is None or task.agent_id != agent_id or not task.is_spawned:
            raise NotFound(f"you have no task {task_id}; the operation status lists those that you have")
        task.looked_at = trio.current_time()
        return task

    def _view(self, task: _Task) -> TaskView:
        is_running = not task.over.is_set()
        return TaskView(
            task_id=task.id,
            command=task.command,
            started_at=task.started_at,
            seconds=round(trio.current_time() - task.began if is_running else task.took, 1),
            is_running=is_running,
            exit_code=None if task.ended is None else task.ended.code,
            printed=task.output.total,
            note=self._note(task),
        )

    def _note(self, task: _Task) -> str:
        ended = task.ended
        if ended is None:
            return ""
        if ended.refused is not None:
            advice = " To run commands without it, an administrator sets require_sandbox = false in [shell]."
            return f"The command did not run: {ended.refused}.{advice if 'confine' in ended.refused else ''}"
        notes: list[str] = []
        if ended.code is None:
            notes.append(
                "What watched over it was killed, so it is not known how it ended, nor whether all of it did: look at"
                " what it left behind before you run it again."
            )
        if ended.stopped == "processes":
            notes.append(f"It was ended, because it had more than {self.settings.processes_max} processes.")
        elif ended.stopped is not None:
            notes.append("It was ended.")
        if "files" not in ended.confined:
            notes.append("It ran without a sandbox: this system has none.")
        return " ".join(notes)
