"""A process with sources, to be killed: `python -m tests.pattern_core.sources.worker JOBS`, which are JSON.

It loads what it needs once; what is killed is a copy of it, with a constellation for each job. It prints the number of
each copy. Variants: `sound`; `early` stores a source's place before what is there; `nameless` gives an event another
name whenever it comes; `guess` sends answers where the first message came from, and not to the turn's address.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import trio

from pattern_core.ids import SystemClock
from pattern_core.models.model import ModelReply, ModelRequest
from pattern_core.models.providers.settings import Secret
from pattern_core.sources.kinds import kind_of
from pattern_core.sources.source import Arrivals, Outgoing, SourceAccount
from pattern_core.testing.model import says
from pattern_core.web.policy import SecretSource, SourceSettings
from pattern_db.connection import Connection
from pattern_db.enums import PersonStatus
from tests.pattern_core.mcp_servers.rig import program
from tests.pattern_core.sources.rig import follows
from tests.support import USER, Running, last_words, running

ANY = r"(m\d+-\d+)"  # `m{chat}-{number}`
SHOWN = {  # how an event shows in a message, where it shows more than itself
    "bluesky": rf"^(?:The post:\n)?@bot\.example {ANY}",
    "calendar": rf"^(?:New|Changed): {ANY}",
    "file": rf"^\+{ANY}",
    "http": rf"^It is: {ANY}",
    "mcp": rf"^\+{ANY}",
}
PAUSES_S = {  # between two looks
    **dict.fromkeys(("calendar", "mcp"), 0.3),  # each starts a program
    **dict.fromkeys(("bluesky", "email", "file", "rss"), 0.1),
}
EARLY_S = 2.0  # longer than a process lives


@dataclass(frozen=True, kw_only=True)
class Job:
    """A source: where its constellation is, how it is configured, what it may reach, who may talk to its agent."""

    kind: str
    path: str
    config: Mapping[str, Any]
    services: Sequence[str] = ()
    ports: Sequence[int] = ()
    secrets: Mapping[str, str] = field(default_factory=dict)
    people: Sequence[str] = ()
    variant: str = "sound"

    @property
    def reach(self) -> SourceSettings:
        """Settings by which the stand-in may be reached."""
        place = Path(self.path).parent
        return SourceSettings(
            ports=tuple(self.ports),
            allow_private=True,
            services=tuple(self.services),
            secrets={name: SecretSource(value=Secret(value)) for name, value in self.secrets.items()},
            roots=(place,),
            mcp={"it": program(place / f"{self.kind}.log")},
            timeout_s=5.0,
        )


def numbers(kind: str, text: str) -> list[str]:
    """The numbers of the events in a message."""
    return re.findall(SHOWN.get(kind, ANY), text, re.MULTILINE)


def repeats(kind: str, request: ModelRequest) -> ModelReply:
    """Answer with the numbers of the events that are answered."""
    return says(" ".join(numbers(kind, last_words(request))) or "nothing")


async def hurries(world: Running) -> None:
    """Have what failed be sent again soon, and not after minutes."""

    def due(connection: Connection) -> None:
        query = "UPDATE outbox SET next_at = created_at WHERE status = 'pending' AND target GLOB 'chat:*' AND attempts"
        connection.execute(query).fetchall()

    while True:
        await trio.sleep(0.5)
        await world.database.write(due)
        world.constellation.outbox.changed()


async def listens(world: Running, job: Job) -> None:
    """Listen again and again, as the server does, or be called."""
    sources, first = world.constellation.sources, ""
    kind, account = await sources.account("phone")
    send = kind.send
    world.nursery.start_soon(hurries, world)

    async def guesses(to: SourceAccount, _chat: str, said: Outgoing, send_id: str) -> None:
        await send(to, first, replace(said, reply_to=""), send_id)

    async def receive(arrived: Arrivals) -> None:
        nonlocal first
        if job.variant == "early" and arrived.events:
            await sources.receive(account.row.id, replace(arrived, events=()))
            await trio.sleep(EARLY_S)
        if job.variant == "nameless":
            events = [replace(one, native=world.constellation.storage.ids.new("x")) for one in arrived.events]
            arrived = replace(arrived, events=events)
        first = first or next((event.chat for event in arrived.events if event.chat), "")
        await sources.receive(account.row.id, arrived)

    if job.variant == "guess":
        kind.send = guesses  # type: ignore[method-assign,assignment]  # broken
    if not kind.is_called:
        await follows(world, "phone", receive, pause_s=PAUSES_S.get(job.kind, 0.02))

    async def called(stream: trio.SocketStream) -> None:
        headers, _, body = (await stream.receive_some(65_536)).partition(b"\n")
        if job.variant == "early":
            await stream.send_all(b"202")
            await trio.sleep(EARLY_S)
        event = await kind.called(account, json.loads(headers), body)
        await sources.receive_one(account.row.id, event)
        with suppress(trio.BrokenResourceError):  # it was answered early
            await stream.send_all(b"202")

    listener = trio.socket.socket(trio.socket.AF_UNIX)
    await listener.bind(f"{job.path}.sock")
    listener.listen()
    await trio.serve_listeners(called, [trio.SocketListener(listener)])


async def live(job: Job) -> None:
    """Serve until killed."""
    Path(f"{job.path}.sock").unlink(missing_ok=True)
    options: dict[str, Any] = {"path": Path(job.path), "sources": job.reach, "clock": SystemClock()}
    is_new = not Path(job.path).exists()
    async with running(**options, otherwise=partial(repeats, job.kind)) as world:
        if is_new:
            await world.agent()
            await world.constellation.sources.create(name="phone", kind=job.kind, config=job.config, agent="ada")
            for person in job.people:
                await world.constellation.channels.decide("phone", person, PersonStatus.ALLOWED, by=USER)
        await listens(world, job)


async def serve(jobs: Sequence[Job]) -> None:
    """Serve all until killed, or until no one is there who would kill this: then the input ends."""
    async with trio.open_nursery() as nursery:
        for job in jobs:
            nursery.start_soon(live, job)
        await trio.lowlevel.wait_readable(sys.stdin.fileno())
        os._exit(1)


def main(jobs: Sequence[Job]) -> str:
    """Start a copy whenever one was killed; return what else happened to one."""
    for job in jobs:
        kind_of(job.kind)  # is loaded now
    while True:
        if not (pid := os.fork()):
            trio.run(serve, jobs)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
        status = os.waitpid(pid, 0)[1]
        if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
            return f"a copy ended by itself with {os.waitstatus_to_exitcode(status)}"


if __name__ == "__main__":
    sys.exit(main([Job(**one) for one in json.loads(sys.argv[1])]))
