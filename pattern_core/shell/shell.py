"""The shell of one constellation: commands of agents, each owned by one task until it ends.

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
REAP_S = 30.0  # between two checks for unread tasks
SPAWNED_HEAD_BYTES, SPAWNED_TAIL_BYTES = 8 * 1024, 256 * 1024
RETRY_AFTER_S = 10


@dataclass(slots=True, kw_only=True, eq=False)
class Command:
    """A command of an agent, while it runs and after. `stop` asks for its end, `over` says that nothing of it is left.

    `exit_code` is None while it runs, and if it never began or was ended because its time was up (`is_timeout`);
    `note` says what else there is to know of its end, empty if nothing. Times are those of trio's clock.
    """

    id: str
    agent_id: str
    line: str
    started_at: str
    began: float
    looked_at: float
    output: CommandOutput
    in_background: bool
    stop: trio.Event = field(default_factory=trio.Event)
    over: trio.Event = field(default_factory=trio.Event)
    ended: float | None = None
    exit_code: int | None = None
    is_timeout: bool = False
    note: str = ""

    @property
    def is_running(self) -> bool:
        """Whether something of it may be left."""
        return not self.over.is_set()

    @property
    def seconds(self) -> float:
        """How long it has run, or ran."""
        return (trio.current_time() if self.ended is None else self.ended) - self.began

    async def end(self) -> None:
        """End it with everything that it started, and wait until it is gone."""
        self.stop.set()
        await self.over.wait()


def working_directory(settings: ShellSettings, directory: str | None) -> Path:
    """Return the real path of the directory in which a command is to run. Blocks: call it on a thread.

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
        raise InvalidInput("the name of a directory contains NUL; remove it")
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
        self._commands: dict[str, Command] = {}

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
        """How many commands are running; a constellation with any is not idle."""
        return sum(command.is_running for command in self._commands.values())

    async def execute(
        self, line: str, *, agent_id: str, directory: str | None = None, timeout_s: float = TIMEOUT_S
    ) -> Command:
        """Run a command to its end, or until its time is up; then what it printed so far is kept.

        Raises:
            PermissionDenied: it is dangerous, or the server's settings do not allow it.
            InvalidInput: it is empty, or the time or the directory is none.
            NotFound: there is no such directory.
            Overloaded: too many commands run already.
            Unavailable: the constellation is being stopped, or the system cannot confine the command.
        """
        if not 0 < timeout_s <= TIMEOUT_MAX_S:
            raise InvalidInput(f"`timeout` is between 0 and {TIMEOUT_MAX_S:.0f} seconds; spawn what takes longer")
        command = await self._start(line, agent_id, directory, CommandOutput(), in_background=False)
        try:
            with trio.move_on_after(timeout_s):
                await command.over.wait()
            if command.is_running:
                command.is_timeout = True
                await command.end()
        finally:
            command.stop.set()  # who is cancelled need not wait; the owner ends the command
            if not command.is_running:
                self._commands.pop(command.id, None)
        return command

    async def spawn(self, line: str, *, agent_id: str, directory: str | None = None) -> Command:
        """Begin a command that runs in the background until it is over or ended.

        Raises:
            PermissionDenied, InvalidInput, NotFound, Overloaded, Unavailable: as `execute`.
        """
        output = CommandOutput(head_bytes=SPAWNED_HEAD_BYTES, tail_bytes=SPAWNED_TAIL_BYTES)
        return await self._start(line, agent_id, directory, output, in_background=True)

    def find(self, task_id: str, *, agent_id: str) -> Command:
        """Return an agent's command in the background, which counts as a read.

        Raises:
            NotFound: the agent has no such task.
        """
        command = self._commands.get(task_id)
        if command is None or command.agent_id != agent_id or not command.in_background:
            raise NotFound(f"you have no task {task_id}; the operation status lists those that you have")
        command.looked_at = trio.current_time()
        return command

    def status(self, *, agent_id: str) -> Sequence[Command]:
        """Return the agent's commands in the background, oldest first, also those that are over."""
        own = [one.id for one in self._commands.values() if one.in_background and one.agent_id == agent_id]
        return [self.find(task_id, agent_id=agent_id) for task_id in own]

    async def _start(
        self, line: str, agent_id: str, directory: str | None, output: CommandOutput, *, in_background: bool
    ) -> Command:
        if not line.strip():
            raise InvalidInput("`command` is empty; name what to run")
        judged = verdict(line, self.settings)
        if judged.action == "refuse":
            raise PermissionDenied(judged.reason)
        place = await trio.to_thread.run_sync(working_directory, self.settings, directory)
        nursery = self._admit()
        now = trio.current_time()
        command = Command(
            id=self._ids.new("task"),
            agent_id=agent_id,
            line=line,
            started_at=now_text(self._clock),
            began=now,
            looked_at=now,
            output=output,
            in_background=in_background,
        )
        self._commands[command.id] = command
        nursery.start_soon(self._run, command, place, name=f"shell {command.id}")
        return command

    def _admit(self) -> trio.Nursery:
        if self._nursery is None or self._nursery.cancel_scope.cancel_called:
            raise Unavailable("the shell does not run now; try again in a few seconds", retry_after_s=RETRY_AFTER_S)
        if self.running >= self.settings.children_max:
            raise Overloaded(
                f"{self.settings.children_max} commands run already; wait for one, or kill one",
                retry_after_s=RETRY_AFTER_S,
            )
        over = [command.id for command in self._commands.values() if not command.is_running]
        for one in over[: max(0, len(self._commands) + 1 - TASKS_MAX)]:
            del self._commands[one]
        return self._nursery

    async def _run(self, command: Command, directory: Path) -> None:
        """Run one child to its end."""
        try:
            ended = await run_child(command.line, directory, self.settings, command.output, command.stop)
        except OSError as error:  # no room for a process: that harms this command only
            reason = f"the system refuses another process ({error.strerror})"
            command.note = note_of(Ended(code=None, stopped=None, confined=(), refused=reason), self.settings)
        else:
            command.exit_code = None if command.is_timeout else ended.code
            command.note = note_of(ended, self.settings)
        finally:
            command.ended = trio.current_time()
            command.over.set()
            if not command.in_background and command.stop.is_set():
                self._commands.pop(command.id, None)

    def _reap(self) -> None:
        """End background commands that were not read for a long time."""
        now = trio.current_time()
        for command in self._commands.values():
            if command.in_background and now - command.looked_at > self.settings.idle_s:
                command.stop.set()


def note_of(ended: Ended, settings: ShellSettings) -> str:
    """Return a note about a command's end besides its exit code; empty if there is nothing to say."""
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
        notes.append(f"It was ended, because it had more than {settings.processes_max} processes.")
    elif ended.stopped is not None:
        notes.append("It was ended.")
    if "files" not in ended.confined:
        notes.append("It ran without a sandbox: this system has none.")
    return " ".join(notes)
