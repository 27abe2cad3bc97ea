"""A command that runs on this machine: each line that it prints is an event. It is confined as agents' commands are.

No one is asked before it runs, so it runs only if the operator's policy says so: it just looks, or `allow` names it. A
line belongs to its run, by the time at which that began. A run cannot be repeated: what a command says while the server
is stopped is not said, and what it printed and was not stored when the server was killed is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import trio

from pattern_core.errors import Overloaded, PatternError, PermissionDenied, Unavailable
from pattern_core.shell.child import Ended, readable, run_child
from pattern_core.shell.policy import ShellSettings, verdict
from pattern_core.shell.shell import note_of, working_directory
from pattern_core.sources.source import Arrivals, Receive, SourceAccount, SourceEvent, SourceKind, take_fields
from pattern_core.web.policy import SourceSettings
from pattern_db.columns import Json
from pattern_db.errors import DatabaseError

LINE_BYTES_MAX = 4_000
TOGETHER_MAX = 100  # lines that are stored at once
PAUSE_S = 0.5  # after each time: a command that prints more waits
DRAIN_S = 60.0  # for what was printed when a command ended
WAIT_S = 30.0  # when too many events wait


class ProcessSource(SourceKind):
    """Runs a command, again when it ended."""

    fields: ClassVar = {
        "command": "one that only reads, such as tail -F app.log, or that begins as an entry of `allow` below [shell]",
        "directory": "where it runs, within one of shell.roots; empty: the first of them",
        "every_s": "how long after its end it runs again, in seconds",
    }

    def __init__(self) -> None:
        self._running = 0  # of all accounts

    def checked(self, config: Mapping[str, Json], settings: SourceSettings) -> Mapping[str, Json]:
        """Return the configuration with its defaults, as `SourceKind.checked`."""
        found = take_fields(self, config, {"command": None, "directory": "", "every_s": 60.0})
        working_directory(_permitted(found["command"], settings), found["directory"])
        return found

    async def listen(self, account: SourceAccount, receive: Receive) -> float:
        """Run the command to its end, and hand over what it prints, as `SourceKind.listen`."""
        settings = _permitted(account.config["command"], account.settings)
        if self._running >= settings.children_max:
            raise Overloaded(f"sources run {settings.children_max} commands already, as many as `children_max` allows")
        self._running += 1
        try:
            lines = _Lines(str(account.clock.now_ms()), receive)
            ended = await _run(account.config, settings, lines)
        finally:
            self._running -= 1
        if lines.failure is not None:
            raise lines.failure
        if ended.code != 0:
            how = "" if ended.code is None else f"the command ended with the exit code {ended.code}. "
            raise Unavailable(f"{how}{note_of(ended, settings)}".strip())
        await receive(Arrivals())
        return float(account.config["every_s"])


def _permitted(command: str, settings: SourceSettings) -> ShellSettings:
    """Return the operator's settings for a command that runs without a question.

    Raises:
        PermissionDenied: it may not run, or only after a question.
    """
    if settings.shell is None:
        raise PermissionDenied("no commands run on this server; an administrator names `roots` below [shell]")
    judged = verdict(command, settings.shell)
    if judged.action != "run":
        advice = " A source asks no one; an administrator adds it to `allow` below [shell]."
        raise PermissionDenied(f"{judged.reason}{advice if judged.action == 'ask' else ''}")
    return settings.shell


async def _run(config: Mapping[str, Json], settings: ShellSettings, lines: _Lines) -> Ended:
    directory = await trio.to_thread.run_sync(working_directory, settings, config["directory"])
    try:
        ended = await run_child(config["command"], directory, settings, lines, lines.stop, drain_s=DRAIN_S)
    except OSError as error:
        raise Unavailable(f"the system refuses another process ({error.strerror})") from None
    await lines.end()
    return ended


class _Lines:
    """What a run prints, stored line by line while the command waits. `stop` is set by the first `failure`."""

    def __init__(self, run: str, receive: Receive) -> None:
        self.stop = trio.Event()
        self.failure: PatternError | DatabaseError | None = None
        self._run = run
        self._receive = receive
        self._count = 0
        self._rest = b""

    async def add(self, data: bytes) -> None:
        """Store the lines that are complete."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[: LINE_BYTES_MAX + 1]
        for at in range(0, len(lines), TOGETHER_MAX):
            await self._store(lines[at : at + TOGETHER_MAX])

    async def end(self) -> None:
        """Store the last line, which no other follows."""
        await self._store([self._rest])

    async def _store(self, lines: Sequence[bytes]) -> None:
        events = []
        for line in lines:
            self._count += 1
            more = " [the rest of the line was left out]" if len(line) > LINE_BYTES_MAX else ""
            if text := readable(line[:LINE_BYTES_MAX]).strip():
                events.append(SourceEvent(native=f"{self._run}:{self._count}", text=text + more))
        if events and self.failure is None:
            try:
                await patiently(self._receive, Arrivals(events=events))
                await trio.sleep(PAUSE_S)
            except (PatternError, DatabaseError) as error:  # raised by `listen`, outside of the command's nursery
                self.failure = error
                self.stop.set()


async def patiently(receive: Receive, arrived: Arrivals) -> None:
    """Have what cannot be asked for again stored as soon as fewer events wait.

    Raises:
        PatternError: as `Receive`, for another reason.
    """
    while True:
        try:
            return await receive(arrived)
        except Overloaded as error:
            after_s = error.details.get("retry_after_s")
            await trio.sleep(after_s if isinstance(after_s, int | float) else WAIT_S)
