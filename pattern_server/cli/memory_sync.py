"""`pattern memory sync`: when to compare both sides, and what is shown."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import trio

from pattern_server.cli.client import Api, Json, ServerFailed, ServerUnreachable, open_api, running_server
from pattern_server.cli.command import ExitCode, Home, unwrapped
from pattern_server.cli.memory_files import OWN, SETTLE_S, Mirror, MirrorEvent, is_passing, opened
from pattern_server.cli.names import fill
from pattern_server.cli.output import DONE, SKIPPED, Output
from pattern_server.config import Config

GATHER_MS = 100  # saves that come within this are one
STOP_LOOK_MS = 500  # how long the watching thread may continue after it was asked to stop
RETRY_S = 1.0
INTERVAL_S = 30.0  # everything is checked so often, besides reacting to changes
RETRY_MAX_S = 15.0
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


async def watch_files(root: Path, bell: Bell, note: Callable[[str], None]) -> None:
    """Ring whenever something below `root` changes, but for the mirror's own notes; until cancelled."""
    import watchfiles  # late: every other command does without it

    own = root / OWN
    changes = watchfiles.awatch(
        root,
        watch_filter=lambda _change, path: not Path(path).is_relative_to(own),
        debounce=GATHER_MS,
        rust_timeout=STOP_LOOK_MS,
    )
    try:
        async for _change in changes:
            bell.ring()
    except OSError as error:
        note(f"The folder cannot be watched ({error}). It is checked every {INTERVAL_S:g} s instead.")


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


async def once(
    config: Config, output: Output, root: Path, constellation: str | None, agents: Sequence[str], *, is_dry: bool
) -> ExitCode:
    """Bring a folder and the blocks of these agents (none: of all) together once; 3 if something waits for a person.

    Rounds are made until no file changes.
    """
    reported: list[MirrorEvent] = []
    with unwrapped():
        async with open_api(config) as api:
            found, agents = await _found(api, config, constellation, agents)
            home = Home(api, found["id"])
            with opened(root, found["id"], reported.append, is_dry=is_dry) as mirror:
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


async def until_stopped(
    config: Config, output: Output, root: Path, constellation: str | None, agents: Sequence[str]
) -> ExitCode:
    """Mirror through whatever server runs on the data directory, across its restarts, until a signal.

    Raises:
        ServerUnreachable: no server runs at the start.
        ServerFailed: the constellation or an agent is not known, or the first round was refused.
        Conflict: the folder is in use, or mirrors another constellation.
    """
    if running_server(config.data_dir) is None:
        raise ServerUnreachable(
            "No server runs on this data directory. Start `pattern serve`, or add --once to synchronise once"
        )
    bell = Bell()
    with unwrapped():
        async with open_api(config) as api:
            found, agents = await _found(api, config, constellation, agents)
            with opened(root, found["id"], partial(_show, output)) as mirror:
                output.note(f"Mirroring the memory of {found['name']} in {root}. Stop with Ctrl-C.")
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_stop_on_signal, nursery.cancel_scope)
                    nursery.start_soon(watch_files, root, bell, output.note)
                    await _follow(mirror, Home(api, found["id"]), agents, bell, output.note)
    output.note("Stopped. The files are kept; changes to them are synchronised the next time.")
    return DONE


async def _found(
    api: Api, config: Config, constellation: str | None, agents: Sequence[str]
) -> tuple[Json, Sequence[str]]:
    given: dict[str, Any] = {"constellation": constellation, "agents": agents}
    await fill(api, config, given)
    return await api.get("constellations", given["constellation"]), given["agents"]


async def _stop_on_signal(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        await anext(aiter(signals))
        scope.cancel()


async def _follow(mirror: Mirror, home: Home, agents: Sequence[str], bell: Bell, note: Callable[[str], None]) -> None:
    """Make rounds while there is a server and wait while there is none; end if the first round is refused."""
    pause_s, reported, has_worked = RETRY_S, "", False
    while True:
        try:
            with unwrapped():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(listen, home, bell)
                    while True:
                        await mirror.round(home, agents)
                        pause_s, reported, has_worked = RETRY_S, "", True
                        await bell.wait(SETTLE_S if mirror.is_unsettled else INTERVAL_S)
        except (ServerFailed, ServerUnreachable, OSError) as error:
            if not has_worked and isinstance(error, ServerFailed) and not is_passing(error):
                raise
            if str(error) != reported:
                reported = str(error)
                note(f"Waiting: {reported}.")
        await trio.sleep(pause_s)
        pause_s = min(2 * pause_s, RETRY_MAX_S)
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
