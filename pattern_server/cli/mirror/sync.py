"""`pattern memory sync`: when to compare both sides, and what is shown."""

from __future__ import annotations

import signal
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import trio

from pattern_server.cli.client import Api, ServerFailed, ServerUnreachable, connection, open_api, running_server
from pattern_server.cli.command import ExitCode, Home, unwrapped
from pattern_server.cli.mirror.disk import OWN
from pattern_server.cli.mirror.plan import Do
from pattern_server.cli.mirror.remote import Memory
from pattern_server.cli.mirror.rounds import SETTLE_S, Mirror, MirrorEvent, Rules, is_passing, opened
from pattern_server.cli.output import DONE, SKIPPED, Output
from pattern_server.config import Config

GATHER_MS = 100  # saves that come within this are one
STOP_LOOK_MS = 500  # how long the watching thread may continue after it was asked to stop
RETRY_S = 1.0
POLL_S = 1.0  # where the system cannot watch the folder
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
    stop = threading.Event()
    try:
        await trio.to_thread.run_sync(partial(_watch, root, bell, stop), abandon_on_cancel=True)
    except OSError as error:
        note(f"The folder cannot be watched ({error}). It is checked every {POLL_S:g} s instead.")
    finally:
        stop.set()
    while True:
        await trio.sleep(POLL_S)
        bell.ring()


def _watch(root: Path, bell: Bell, stop: threading.Event) -> None:
    """Watch from a thread of its own, until `stop`.

    Raises:
        OSError: the system does not let us, or the folder is gone.
    """
    # Late, because every other command does without it.
    import watchfiles

    own = root / OWN
    changes = watchfiles.watch(
        root,
        watch_filter=lambda _change, path: not Path(path).is_relative_to(own),
        debounce=GATHER_MS,
        stop_event=stop,
        rust_timeout=STOP_LOOK_MS,
        raise_interrupt=False,
    )
    with suppress(trio.RunFinishedError, trio.Cancelled):
        for _change in changes:
            trio.from_thread.run_sync(bell.ring)


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


ONCE_PATIENCE_S = 10.0  # how long --once waits for files that are being saved
RETRY_MAX_S = 15.0

_SIGNS = {
    **dict.fromkeys((Do.WRITE, Do.RETIRE), "←"),
    **dict.fromkeys((Do.PUSH, Do.DELETE), "→"),
    **dict.fromkeys((Do.REMEMBER, Do.FORGET), "·"),
    **dict.fromkeys((Do.ASIDE, Do.REFUSE), "!"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncWanted:
    """What to mirror where: the constellation and the agents by name or id (none: all of them)."""

    root: Path
    constellation: str
    agents: tuple[str, ...]
    rules: Rules
    interval_s: float


async def once(config: Config, output: Output, wanted: SyncWanted) -> ExitCode:
    """Bring both sides together once; 3 if something waits for a person."""
    reported: list[MirrorEvent] = []
    with unwrapped():
        async with open_api(config) as api:
            skipped = await bring_together(api, wanted, reported.append)
    output.data({"events": [asdict(event) for event in reported], "skipped": list(skipped)})
    for event in reported:
        _show(output, event)
    if not reported:
        output.say("Nothing to do: both sides are the same.")
    return SKIPPED if skipped else DONE


async def bring_together(api: Api, wanted: SyncWanted, tell: Callable[[MirrorEvent], None]) -> Sequence[str]:
    """Make rounds until no file changes; return the paths that wait for a person.

    Raises:
        ServerFailed: the server refused, or knows no such agent.
        ServerUnreachable: it did not answer.
        Conflict: the folder is in use, or mirrors another constellation.
        OSError: the disk failed.
    """
    found = await api.get("constellations", wanted.constellation)
    memory = Memory(Home(api, found["id"]))
    with opened(wanted.root, found["id"], wanted.rules, tell) as mirror:
        deadline = trio.current_time() + ONCE_PATIENCE_S
        while True:
            outcome = await mirror.round(memory, wanted.agents)
            if not outcome.is_unsettled or wanted.rules.is_dry:
                return outcome.skipped
            if trio.current_time() > deadline:
                return [*outcome.skipped, "(files that are being changed all the time)"]
            await trio.sleep(SETTLE_S)


async def until_stopped(config: Config, output: Output, wanted: SyncWanted) -> ExitCode:
    """Mirror until a signal; raise what prevents it from the start."""
    if running_server(config.data_dir) is None:
        raise ServerUnreachable(
            "No server runs on this data directory. Start `pattern serve`, or add --once to synchronise once"
        )
    with unwrapped():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_stop_on_signal, nursery.cancel_scope)
            await keep(config, output, wanted)
    output.note("Stopped. The files are kept; changes to them are synchronised the next time.")
    return DONE


async def _stop_on_signal(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        await anext(aiter(signals))
        scope.cancel()


async def keep(config: Config, output: Output, wanted: SyncWanted) -> None:
    """Mirror through whatever server runs on the data directory, across its restarts, until cancelled.

    Raises:
        ServerFailed: the constellation or an agent is not known, or the first round was refused.
        Conflict: the folder is in use, or mirrors another constellation.
    """
    async with open_api(config) as api:
        found = await api.get("constellations", wanted.constellation)
    with opened(wanted.root, found["id"], wanted.rules, partial(_show, output)) as mirror, unwrapped():
        output.note(f"Mirroring the memory of {found['name']} in {wanted.root}. Stop with Ctrl-C.")
        bell = Bell()
        rounds = partial(_rounds, mirror, wanted, found["id"], bell)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_files, wanted.root, bell, output.note)
            await _follow(config, output, rounds)


async def _follow(
    config: Config, output: Output, make_rounds: Callable[[Api], Awaitable[tuple[int, Exception]]]
) -> None:
    """Make rounds while there is a server and wait while there is none; end if the first round is refused."""
    pause_s, reported, has_worked = RETRY_S, "", False
    while True:
        lost: Exception = ServerUnreachable("no server runs at the moment")
        if (server := running_server(config.data_dir)) is not None:
            async with connection(server) as http:
                rounds, lost = await make_rounds(Api(http, streams=True))
            if rounds:
                pause_s, reported, has_worked = RETRY_S, "", True
            elif not has_worked and isinstance(lost, ServerFailed) and not is_passing(lost):
                raise lost
        if str(lost) != reported:
            reported = str(lost)
            output.note(f"Waiting: {reported}.")
        await trio.sleep(pause_s)
        pause_s = min(2 * pause_s, RETRY_MAX_S)


async def _rounds(
    mirror: Mirror, wanted: SyncWanted, constellation: str, bell: Bell, api: Api
) -> tuple[int, Exception]:
    """Make rounds until something goes wrong; return how many succeeded, and what it was."""
    home, rounds = Home(api, constellation), 0
    memory = Memory(home)
    try:
        with unwrapped():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(listen, home, bell)
                while True:
                    outcome = await mirror.round(memory, wanted.agents)
                    rounds += 1
                    await bell.wait(SETTLE_S if outcome.is_unsettled else wanted.interval_s)
    except (ServerFailed, ServerUnreachable, OSError) as error:
        return rounds, error


def _show(output: Output, event: MirrorEvent) -> None:
    version = "" if event.version is None else f" version {event.version}"
    note = f" ({event.note})" if event.note and version else f" {event.note}" if event.note else ""
    line = f"{event.path} {_SIGNS[event.did]}{version}{note}"
    if event.skipped:
        output.note(line)
    elif not output.is_json:
        output.say(line)
    else:
        output.data(asdict(event))
