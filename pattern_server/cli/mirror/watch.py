"""When to look again: a file was saved, a block was changed, or some time has gone by."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import trio

from pattern_server.cli.client import Api, ServerFailed, ServerUnreachable
from pattern_server.cli.mirror.disk import OWN

GATHER_MS = 100  # saves that come within this are one
STOP_LOOK_MS = 500  # how long the watching thread may go on after it was told to stop
RETRY_S = 1.0
POLL_S = 1.0  # where the system cannot watch the folder
EVENT_NUMBER_MAX = 2**40  # no constellation lives to see it


class Bell:
    """Rung by whoever saw something change; many rings before anybody looks are one."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[None](1)

    def ring(self) -> None:
        """Ask for a look. Never waits."""
        with suppress(trio.WouldBlock):
            self._send.send_nowait(None)

    async def wait(self, timeout_s: float) -> None:
        """Wait until it rings, at most so long."""
        with trio.move_on_after(timeout_s):
            await self._receive.receive()

    def close(self) -> None:
        """Nobody looks any more."""
        self._send.close()
        self._receive.close()


async def watch_files(root: Path, bell: Bell, note: Callable[[str], None]) -> None:
    """Ring whenever something below `root` changes, but for the mirror's own notes; until cancelled."""
    stop = threading.Event()
    try:
        await trio.to_thread.run_sync(partial(_watch, root, bell, stop), abandon_on_cancel=True)
    except OSError as error:
        note(f"The folder cannot be watched ({error}); it is looked at every {POLL_S:g} s instead.")
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


async def listen(api: Api, where: str, bell: Bell) -> None:
    """Ring whenever a block changes; returns when the server is gone. `where` is the path of the events."""
    place: int | None = None
    while True:
        try:
            if place is None:
                place = await newest_event(api, where)
            async with api.events(where, after=place) as events:
                async for event in events:
                    place = event.seq
                    if event.name == "memory.changed":
                        bell.ring()
        except ServerUnreachable:
            return
        except ServerFailed:
            place = None
        await trio.sleep(RETRY_S)


async def newest_event(api: Api, where: str) -> int:
    """The number of the newest event, by halves: the server takes any number up to it, and no later one.

    To read all events from the first would be the other way to know it.

    Raises:
        ServerFailed: the server refuses for another reason.
        ServerUnreachable: it does not answer.
    """
    low, high = 0, EVENT_NUMBER_MAX
    while low < high:
        middle = (low + high + 1) // 2
        try:
            async with api.events(where, after=middle):
                low = middle
        except ServerFailed as error:
            if error.problem_code != "invalid_input":
                raise
            high = middle - 1
    return low
