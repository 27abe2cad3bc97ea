"""`pattern memory sync`: blocks as files that a person edits in any editor."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

import click
import trio

from pattern_core.errors import PatternError
from pattern_db.enums import CONSTELLATION_OWNER as EVERYONE
from pattern_server.cli.client import Api, ServerFailed, ServerUnreachable, connection, open_api, path, running_server
from pattern_server.cli.command import ExitCode, constellation_option, local
from pattern_server.cli.mirror.plan import Do
from pattern_server.cli.mirror.remote import Memory
from pattern_server.cli.mirror.report import SETTLE_S, Event
from pattern_server.cli.mirror.rounds import Rules, is_passing
from pattern_server.cli.mirror.session import Mirror, Outcome, opened
from pattern_server.cli.mirror.watch import RETRY_S, Bell, listen, watch_files
from pattern_server.cli.output import DONE, SKIPPED, Output
from pattern_server.config import Config

ONCE_PATIENCE_S = 10.0  # how long --once waits for files that are being saved
RETRY_MAX_S = 15.0
INTERVAL_S = 30.0

_SIGNS = MappingProxyType(
    {
        Do.WRITE: "←",
        Do.PUSH: "→",
        Do.DELETE: "→",
        Do.RETIRE: "←",
        Do.REMEMBER: "·",
        Do.FORGET: "·",
        Do.ASIDE: "!",
        Do.REFUSE: "!",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What to mirror where: the constellation and the agents by name or id (none: all and everybody)."""

    root: Path
    constellation: str
    agents: tuple[str, ...]
    rules: Rules
    interval_s: float


@click.command("sync")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@constellation_option
@click.option("-a", "--agent", "agents", multiple=True, metavar="NAME", help="Only this agent's blocks; repeatable.")
@click.option("--everyone", is_flag=True, help="Beside --agent, also the blocks that all agents see.")
@click.option("--once", is_flag=True, help="Bring both sides together once, and end.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option("--delete", "deletes", is_flag=True, help="A file that is deleted takes its block with it.")
@click.option("--yes", is_flag=True, help="Do not ask about --delete.")
@click.option("--interval", type=click.FloatRange(1, 3600), default=INTERVAL_S, show_default=True, metavar="SECONDS",
              help="How often to look at everything, besides being told of changes.")  # fmt: skip
@local
def sync(
    config: Config,
    output: Output,
    folder: Path,
    constellation: str,
    agents: tuple[str, ...],
    everyone: bool,
    once: bool,
    dry_run: bool,
    deletes: bool,
    yes: bool,
    interval: float,
) -> ExitCode:
    """Keep the memory of a constellation in DIR as files: Markdown for texts, JSON for the rest.

    Edit them with any editor: what you and the agents change is merged. A file that is deleted or emptied is written
    again; a new Markdown file in an agent's folder becomes a block. What cannot be taken stays as it is, with the
    reason in a file beside it. It goes on until Ctrl-C; exit code 3 says that something waits for you.
    """
    if deletes and not yes and not dry_run:
        output.confirm(f"Shall a file that is deleted in {folder} take its block with it?", flag="--yes")
    if everyone and agents:
        agents = (*agents, EVERYONE)
    elif everyone:
        agents = (EVERYONE,)
    rules = Rules(deletes=deletes, is_dry=dry_run)
    asked = Asked(root=folder, constellation=constellation, agents=agents, rules=rules, interval_s=interval)
    if once or dry_run:
        return trio.run(_once, config, output, asked)
    return trio.run(_until_stopped, config, output, asked)


async def _once(config: Config, output: Output, asked: Asked) -> ExitCode:
    told: list[Event] = []
    failed: PatternError | OSError | None = None
    skipped: Sequence[str] = ()
    async with open_api(config) as api:
        # Carried out by hand: nurseries inside the API would wrap it in a group.
        try:
            skipped = await bring_together(api, asked, told.append)
        except (PatternError, OSError) as error:
            failed = error
    if failed is not None:
        raise failed
    output.data({"events": [as_data(event) for event in told], "skipped": list(skipped)})
    for event in told:
        _show(output, event)
    if not told:
        output.say("Nothing to do: both sides say the same.")
    return SKIPPED if skipped else DONE


async def bring_together(api: Api, asked: Asked, tell: Callable[[Event], None]) -> Sequence[str]:
    """Rounds until every file is at rest; the paths that wait for a person.

    Raises:
        ServerFailed: the server refused, or knows no such agent.
        ServerUnreachable: it did not answer.
        Conflict: the folder is in use, or mirrors another constellation.
        OSError: the disk failed.
    """
    found = await api.get(path("constellations", asked.constellation))
    memory = Memory(api, found["id"])
    with opened(asked.root, found["id"], asked.rules, tell) as mirror:
        deadline = trio.current_time() + ONCE_PATIENCE_S
        while True:
            outcome = await mirror.round(memory, asked.agents)
            if not outcome.is_unsettled or asked.rules.is_dry:
                return outcome.skipped
            if trio.current_time() > deadline:
                return [*outcome.skipped, "(files that are being changed all the time)"]
            await trio.sleep(SETTLE_S)


async def _until_stopped(config: Config, output: Output, asked: Asked) -> ExitCode:
    """Mirror until a signal; what stands against it from the beginning is raised."""
    if running_server(config.data_dir) is None:
        raise ServerUnreachable(
            "no server runs on this data directory: start `pattern serve` first, or add --once to do it one time"
        )
    failed: PatternError | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_stop_on_signal, nursery.cancel_scope)
        try:
            await keep(config, output, asked)
        except PatternError as error:
            failed = error
        nursery.cancel_scope.cancel()
    if failed is not None:
        raise failed
    output.note("Stopped; the files stay as they are, and what you change in them is taken up the next time.")
    return DONE


async def _stop_on_signal(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _signal in signals:
            scope.cancel()
            return


async def keep(config: Config, output: Output, asked: Asked) -> None:
    """Mirror through whatever server runs on the data directory, across its restarts, until cancelled.

    Raises:
        ServerFailed: the constellation or an agent is not known.
        Conflict: the folder is in use, or mirrors another constellation.
    """
    async with _connected(config) as api:
        found = await api.get(path("constellations", asked.constellation))
    with opened(asked.root, found["id"], asked.rules, partial(_show, output)) as mirror:
        keeper = _Keeper(mirror, output, asked, found["id"])
        output.note(f"{asked.root} mirrors the memory of {found['name']}; Ctrl-C ends it.")
        await keeper.run(config)


class _Keeper:
    """Rounds for as long as there is a server, and patience while there is none."""

    def __init__(self, mirror: Mirror, output: Output, asked: Asked, constellation: str) -> None:
        self._mirror = mirror
        self._output = output
        self._asked = asked
        self._constellation = constellation
        self._bell = Bell()
        self._has_worked = False

    async def run(self, config: Config) -> None:
        """Until cancelled, or until the first round is refused.

        Raises:
            ServerFailed: the first round was refused.
        """
        failed: ServerFailed | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_files, self._asked.root, self._bell, self._output.note)
            try:
                await self._follow(config)
            except ServerFailed as error:
                failed = error
            nursery.cancel_scope.cancel()
        if failed is not None:
            raise failed

    async def _follow(self, config: Config) -> None:
        pause, told = RETRY_S, ""
        while True:
            reason = "no server runs at the moment"
            if running_server(config.data_dir) is not None:
                has_worked_before, self._has_worked = self._has_worked, False
                async with _connected(config) as api:
                    reason = await self._rounds(api, is_first=not has_worked_before)
                if self._has_worked:
                    pause, told = RETRY_S, ""
                self._has_worked = self._has_worked or has_worked_before
            if reason != told:
                self._output.note(f"Waiting: {reason}.")
                told = reason
            await trio.sleep(pause)
            pause = min(2 * pause, RETRY_MAX_S)

    async def _rounds(self, api: Api, *, is_first: bool) -> str:
        """Rounds until something goes wrong; what it was."""
        memory = Memory(api, self._constellation)
        where = path("constellations", self._constellation, "events")
        lost: ServerFailed | str = ""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen, api, where, self._bell)
            while not lost:
                try:
                    outcome = await self._mirror.round(memory, self._asked.agents)
                except ServerFailed as error:
                    lost = error if is_first and not is_passing(error) else error.message
                except (ServerUnreachable, OSError) as error:
                    lost = str(error)
                else:
                    is_first, self._has_worked = False, True
                    await self._rest(outcome)
            nursery.cancel_scope.cancel()
        if isinstance(lost, ServerFailed):
            raise lost
        return lost

    async def _rest(self, outcome: Outcome) -> None:
        await self._bell.wait(SETTLE_S if outcome.is_unsettled else self._asked.interval_s)


@asynccontextmanager
async def _connected(config: Config) -> AsyncIterator[Api]:
    server = running_server(config.data_dir)
    if server is None:
        raise ServerUnreachable("the server has just stopped; start `pattern serve` again")
    async with connection(server) as http:
        yield Api(http, streams=True)


def as_data(event: Event) -> dict[str, object]:
    """An event as JSON."""
    return {
        "path": event.path,
        "did": event.did.value,
        "note": event.note,
        "version": event.version,
        "skipped": event.is_skipped,
    }


def _show(output: Output, event: Event) -> None:
    version = "" if event.version is None else f" version {event.version}"
    note = f" ({event.note})" if event.note and version else f" {event.note}" if event.note else ""
    line = f"{event.path} {_SIGNS[event.did]}{version}{note}"
    if event.is_skipped:
        output.note(line)
    elif not output.is_json:
        output.say(line)
    else:
        output.data(as_data(event))
