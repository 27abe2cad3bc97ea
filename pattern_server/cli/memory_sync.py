"""`pattern memory sync`: when to compare both sides, and what is shown."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

import trio

from pattern_server.cli.client import ServerFailed, ServerUnreachable
from pattern_server.cli.command import ExitCode, Home, unwrapped
from pattern_server.cli.memory_files import SETTLE_S, Mirror, MirrorEvent, is_passing, opened
from pattern_server.cli.output import DONE, SKIPPED, Output

LOOK_S = 0.5  # between two looks at the times of all files, which cost little
RETRY_S = 1.0
INTERVAL_S = 30.0  # everything is checked so often, besides reacting to changes
ONCE_PATIENCE_S = 10.0  # how long --once waits for files that are being saved
SIGNS = {"write": "←", "retire": "←", "push": "→", "aside": "!", "refuse": "!"}
EVENT_NUMBER_MAX = 2**40  # no constellation reaches it; the refusal of it names the newest


class Bell:
    """Rung when something changed; many rings before the next look are one."""

    def __init__(self) -> None:
        self._rung = trio.Event()

    def ring(self) -> None:
        """Ask for a look. Never waits."""
        self._rung.set()

    async def wait(self, timeout_s: float) -> None:
        """Wait until it rings, at most so long."""
        with trio.move_on_after(timeout_s):
            await self._rung.wait()
        self._rung = trio.Event()


async def watch_files(root: Path, bell: Bell) -> None:
    """Ring whenever a file in a folder of `root` is saved, made or deleted, until cancelled."""
    before: Mapping[Path, object] | None = None
    while True:
        now: dict[Path, object] = {}
        for path in root.glob("[!.]*/*"):  # not the mirror's own
            with suppress(FileNotFoundError):
                found = path.lstat()
                now[path] = found.st_ino, found.st_size, found.st_mtime_ns
        if before not in (None, now):
            bell.ring()
        before = now
        await trio.sleep(LOOK_S)


async def listen(home: Home, bell: Bell) -> None:
    """Ring whenever a block of the constellation changes; returns when the server is gone."""
    place = EVENT_NUMBER_MAX
    while True:
        try:
            async with home.events("events", after=place) as events:
                async for event in events:
                    place = event.seq
                    if event.name == "memory.changed":
                        bell.ring()
        except ServerUnreachable:
            return
        except ServerFailed as error:
            newest = error.problem.get("newest")
            if isinstance(newest, int):  # there is no event `place`; once followed: a backup was restored
                place = newest
                continue
        await trio.sleep(RETRY_S)


async def once(home: Home, output: Output, root: Path, agents: Sequence[str], *, is_dry: bool) -> ExitCode:
    """Bring a folder and the blocks of these agents (none: of all) together once; 3 if something waits for a person.

    Rounds are made until no file changes.
    """
    reported: list[MirrorEvent] = []
    with opened(root, (await home.get())["id"], reported.append, is_dry=is_dry) as mirror:
        deadline = trio.current_time() + ONCE_PATIENCE_S
        await mirror.round(home, agents)
        while mirror.is_unsettled and not is_dry and trio.current_time() <= deadline:
            await trio.sleep(SETTLE_S)
            await mirror.round(home, agents)
    skipped = sorted(mirror.skipped)
    if mirror.is_unsettled and not is_dry:
        skipped.append("(files that are being changed all the time)")
    output.data({"events": [asdict(event) for event in reported], "skipped": skipped})
    for event in reported:
        _show(output, event)
    if not reported:
        output.say("Nothing to do: both sides are the same.")
    return SKIPPED if skipped else DONE


async def until_stopped(home: Home, output: Output, root: Path, agents: Sequence[str]) -> ExitCode:
    """Mirror through the server, across its restarts, until a signal.

    Raises:
        ServerUnreachable: no server runs at the start.
        ServerFailed: an agent is not known, or the first round was refused.
        Conflict: the folder is in use, or mirrors another constellation.
    """
    if not home.streams:
        raise ServerUnreachable(
            "No server runs on this data directory. Start `pattern serve`, or add --once to synchronise once"
        )
    bell, found = Bell(), await home.get()
    with opened(root, found["id"], partial(_show, output)) as mirror:
        output.note(f"Mirroring the memory of {found['name']} in {root}. Stop with Ctrl-C.")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_stop_on_signal, nursery.cancel_scope)
            nursery.start_soon(watch_files, root, bell)
            await _follow(mirror, home, agents, bell, output.note)
    output.note("Stopped. The files are kept; changes to them are synchronised the next time.")
    return DONE


async def _stop_on_signal(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        await anext(aiter(signals))
        scope.cancel()


async def _follow(mirror: Mirror, home: Home, agents: Sequence[str], bell: Bell, note: Callable[[str], None]) -> None:
    """Make rounds while there is a server and wait while there is none; end if the first round is refused."""
    reported, has_worked = "", False
    while True:
        try:
            with unwrapped():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(listen, home, bell)
                    while True:
                        await mirror.round(home, agents)
                        reported, has_worked = "", True
                        await bell.wait(SETTLE_S if mirror.is_unsettled else INTERVAL_S)
        except (ServerFailed, ServerUnreachable, OSError) as error:
            if not has_worked and isinstance(error, ServerFailed) and not is_passing(error):
                raise
            if str(error) != reported:
                reported = str(error)
                note(f"Waiting: {reported}.")
        await trio.sleep(RETRY_S)
        home.find_again()


def _show(output: Output, event: MirrorEvent) -> None:
    version = "" if event.version is None else f" version {event.version}"
    note = f" ({event.note})" if event.note and version else f" {event.note}" if event.note else ""
    line = f"{event.path} {SIGNS[event.did]}{version}{note}"
    if event.skipped:
        output.note(line)
    elif not output.is_json:
        output.say(line)
    else:
        output.data(asdict(event))
