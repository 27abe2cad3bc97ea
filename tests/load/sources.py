"""Sources under load: what idle accounts weigh, and what others notice of one that many events come from.

The services of idle accounts are stand-ins of this process. Who writes without end, or posts to the webhook, is a
process of its own, which gives way to others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import trio

from pattern_core.testing import bluesky_server, channels, discord_server, mail_server, matrix_server
from pattern_core.testing.bluesky_server import BlueskyServer
from pattern_core.testing.channels import FeedServer, TelegramServer
from pattern_core.testing.discord_server import DiscordServer
from pattern_core.testing.mail_server import MailServer
from pattern_core.testing.matrix_server import MatrixServer
from tests.bench.report import Figure, quantile
from tests.bench.server import cpu_s, rss_kib
from tests.load.world import NO_BOUND, SLOWER, Client, Found, Scale, others, prepared
from tests.scenarios.server import Server
from tests.sources import ROOT

MIB_PER_ACCOUNT, CPU_SHARE, STORM_MIB = 2.0, 0.01, 64.0
EVENTS_PER_S = 1_000  # of the storm
CONNECTIONS_MAX = 200  # of who posts
KNOWN = {"202", "429", "not sent", "written", "answered"}
EVERY_S = 0.47  # between two turns of each of the others; events that are posted take turns each 0.1 s
SECRETS = {
    "hook": "a secret",
    "telegram": channels.TOKEN,
    "discord": discord_server.TOKEN,
    "matrix": matrix_server.TOKEN,
    "bluesky": bluesky_server.PASSWORD,
    "mail": mail_server.PASSWORD,
}
FEED = b"<rss><channel><item><guid>1</guid><title>One</title></item></channel></rss>"


def _kinds() -> dict[str, tuple[Any, Callable[[Any], dict[str, object]]]]:
    """By kind: a stand-in, and the configuration of an account there."""
    return {
        "telegram": (TelegramServer(), lambda one: {"token": "telegram", "base_url": one.url}),
        "discord": (DiscordServer(), lambda one: {"token": "discord", "base_url": f"{one.url}{discord_server.REST}"}),
        "matrix": (MatrixServer(), lambda one: {"token": "matrix", "homeserver": one.url}),
        "bluesky": (
            BlueskyServer(),
            lambda one: {"handle": bluesky_server.HANDLE, "password": "bluesky", "base_url": one.url},
        ),
        "rss": (FeedServer(FEED), lambda one: {"url": f"{one.url}/feed"}),
        "email": (MailServer(), _mail),
    }


def _mail(server: MailServer) -> dict[str, object]:
    imap, smtp = (f"127.0.0.1:{port}" for port in server.ports)
    about = {"address": mail_server.USER, "user": mail_server.USER, "password": "mail"}
    return {**about, "imap": imap, "smtp": smtp}


def reach(ports: Sequence[int], configs: Sequence[Mapping[str, object]]) -> dict[str, str]:
    """The server's environment with what its sources may reach."""
    services = [one[key] for one in configs for key in ("base_url", "homeserver") if key in one]
    services += [f"https://{one[key]}" for one in configs for key in ("imap", "smtp") if key in one]
    sources = {
        "allow_private": True,
        "ports": [80, *ports],
        "services": services,
        "secrets": {name: {"value": value} for name, value in SECRETS.items()},
    }
    return {"PATTERN_SOURCES": json.dumps(sources), "PATTERN_HTTP__RATE_PER_ADDRESS": NO_BOUND}


async def _add(client: Client, home: str, kind: str, config: Mapping[str, object], found: Found) -> str:
    body = {"name": kind, "kind": kind, "agent": "ada", "config": config}
    return str(found.expect(await client.post(f"/constellations/{home}/sources", json=body), 201)["id"])


async def idle(folder: Path, scale: Scale, found: Found) -> None:
    """Measure what accounts weigh that wait: by long polls, heartbeats and questions at intervals."""
    async with AsyncExitStack() as stack:
        made: list[tuple[str, dict[str, object]]] = []
        ports: list[int] = []
        for _ in range(1 - -scale.accounts // len(_kinds())):
            for kind, (service, config_of) in _kinds().items():
                await stack.enter_async_context(service)
                ports += getattr(service, "ports", None) or (service.port,)
                made.append((kind, config_of(service)))
        homes = [f"c{number}" for number in range(len(made) // len(_kinds()))]
        more = {**reach(ports, [config for _, config in made]), "PATTERN_SUPERVISOR__IDLE_PARK_S": "5"}
        async with prepared(folder, homes, {}, more=more) as (server, client):
            first = len(_kinds())  # what each kind needs is loaded with its first account
            added = len(made) - first
            for kind, config in made[:first]:
                await _add(client, homes[0], kind, config, found)
            await _settled(server, client, first, scale, found)
            memory, spent = rss_kib(server), cpu_s(server)
            await trio.sleep(scale.rest_s)
            before = (cpu_s(server) - spent) / scale.rest_s
            for number, (kind, config) in enumerate(made[first:], first):
                await _add(client, homes[number // first], kind, config, found)
            await _settled(server, client, len(made), scale, found)
            weight = (rss_kib(server) - memory) / 1_024 / added
            spent = cpu_s(server)
            await trio.sleep(scale.rest_s)
            share = (cpu_s(server) - spent) / scale.rest_s
    note = f"{added} accounts of {first} kinds, and {first} that were there before"
    found.figures += [
        Figure(name="an idle account", unit="MiB", values=[weight], most=MIB_PER_ACCOUNT, note=note),
        Figure(name="idle accounts in all", unit="% CPU", values=[(share - before) * 100], most=CPU_SHARE * 100),
        Figure(name="the server with them", unit="% CPU", values=[share * 100], note=f"with {first}: {before:.2%}"),
    ]


async def _settled(server: Server, client: Client, count: int, scale: Scale, found: Found) -> None:
    """Wait until all accounts are asked, and constellations are parked."""
    with trio.move_on_after(60) as scope:
        while (state := await states(client)).get("active") != count:
            await trio.sleep(0.1)
    if scope.cancelled_caught:
        found.failures.append(f"of {count} accounts, the states are {state}")
    await trio.sleep(scale.rest_s)


async def states(client: Client) -> dict[str, float]:
    """How many sources are in each state."""
    text = (await client.get(client.base_url.copy_with(path="/metrics"))).text
    lines = [line for line in text.splitlines() if line.startswith("pattern_sources{")]
    return {line.split('"')[1]: float(line.split()[-1]) for line in lines}


async def storm(folder: Path, scale: Scale, found: Found) -> None:
    """Compare turns of others before and while one account has more events than anyone can read."""
    names = [f"c{number}" for number in range(5)]
    async with AsyncExitStack() as stack:
        phone = await stack.enter_async_context(_Blower.started("write"))
        config: dict[str, object] = {"token": "telegram", "base_url": f"http://127.0.0.1:{phone.about['port']}"}
        more = reach([phone.about["port"]], [config])
        server, client = await stack.enter_async_context(prepared(folder, ["busy", *names], {}, more=more))
        each = max(4, scale.messages * 3 // 10)
        hook = await _add(client, "busy", "webhook", {"secret": "hook", "signature": "token"}, found)
        await _add(client, "busy", "telegram", config, found)
        where = "/constellations/busy/sources/telegram/people"
        found.expect(await client.post(where, json={"person": "1", "status": "allowed"}), 200)
        await others(client, names, 3, found)  # what is loaded at first use
        poster = await stack.enter_async_context(_Blower.started("post", f"{server.url}/hooks/{hook}"))
        for name, blower in (("webhook", poster), ("polled", phone)):
            calm, storming, memory = list[float](), list[float](), rss_kib(server)
            counts = Counter[str]()
            for stormy, share in ((calm, 1), (storming, 2), (calm, 1)):  # what grows meanwhile counts for both
                await _rests(client, found)
                counts.update(await blower.say(b"1" if stormy is storming else b"0"))
                stormy += await others(client, names, each * share, found, every_s=EVERY_S)
                counts.update(await blower.say(b"0"))
            _compare(name, calm, storming, (rss_kib(server) - memory) / 1_024, found)
            del counts["port"]
            note = ", ".join(f"{times} × {what}" for what, times in sorted(counts.items()))
            found.figures.append(Figure(name="its events", unit="", values=[counts.total()], note=note))
            if not (counts["202"] or counts["answered"]) or {*counts} - KNOWN:
                found.failures.append(f"the storm, {name}: {note}")


@dataclass(frozen=True, slots=True)
class _Blower:
    """A process from which events come from one `say` to the next; it answers each with what it counted since then."""

    process: trio.Process
    about: Mapping[str, int]  # what it answered first

    @classmethod
    @asynccontextmanager
    async def started(cls, *arguments: str) -> AsyncIterator[_Blower]:
        """Start one, which ends with its input; yield it."""
        command = [sys.executable, "-m", "tests.load.sources", *arguments]
        async with trio.open_nursery() as nursery:
            run = partial(trio.run_process, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
            process: trio.Process = await nursery.start(run)
            assert process.stdin is not None
            async with process.stdin:
                yield replace(one := cls(process, {}), about=await one.say(b""))

    async def say(self, word: bytes) -> dict[str, int]:
        """Have it begin (1) or stop (0); return its answer, which is one line."""
        assert self.process.stdin is not None and self.process.stdout is not None
        await self.process.stdin.send_all(word)
        said = b""
        while not said.endswith(b"\n"):
            said += await self.process.stdout.receive_some()
        return dict(json.loads(said))


async def _rests(client: Client, found: Found) -> None:
    """Wait until what came before is done."""
    with trio.move_on_after(120):
        for status in ("queued", "running"):
            which = {"status": status, "limit": "1"}
            while (await client.get("/constellations/busy/turns", params=which)).json()["items"]:
                await trio.sleep(0.2)
        return
    found.failures.append("the busy constellation has turns after two minutes")


def _compare(name: str, calm: Sequence[float], stormy: Sequence[float], grown: float, found: Found) -> None:
    usual = quantile(calm, 0.99)
    about: dict[str, Any] = {"unit": "ms", "share": 0.99}
    found.figures += [
        Figure(name="turns of others", values=calm, **about),
        Figure(name=f"the same in a storm, {name}", values=stormy, most=SLOWER * usual, baseline=usual, **about),
        Figure(name="memory that it costs", unit="MiB", values=[max(0.0, grown)], most=STORM_MIB),
    ]


async def blow(event: Callable[[], None], about: Callable[[], Mapping[str, int]]) -> None:
    """Have events while standard input says so, until it ends, and answer with what there is to say `about` them."""
    os.nice(10)
    print(json.dumps(about()), flush=True)
    scope = trio.CancelScope()
    async with trio.lowlevel.FdStream(os.dup(0)) as words, trio.open_nursery() as nursery:
        async for word in words:
            if word == b"1":
                nursery.start_soon(_events, event, scope := trio.CancelScope())
            else:
                scope.cancel()
            print(json.dumps(about()), flush=True)


async def _events(event: Callable[[], None], scope: trio.CancelScope) -> None:
    began = trio.current_time()
    with scope:
        for number in count():
            await trio.sleep_until(began + number / EVENTS_PER_S)
            event()


async def write() -> None:
    """Be Telegram, where a person writes without end."""
    async with TelegramServer() as phone:
        numbers, known = count(), [0, 0]

        def about() -> dict[str, int]:
            now = [len(phone.updates), len(phone.sent)]
            written, answered = (new - old for new, old in zip(now, known, strict=True))
            known[:] = now
            return {"port": phone.port, "written": written, "answered": answered}

        def event() -> None:
            phone.says(f"Message {next(numbers)}")

        await blow(event, about)


async def post(url: str) -> None:
    """Post to a webhook, whether or not it answers in time: over connections that are free, or new ones."""
    host, _, rest = url.removeprefix("http://").partition(":")
    port, _, path = rest.partition("/")
    numbers, counts, free = count(), Counter[str](), list[trio.SocketStream]()
    opened = 0

    async def send(stream: trio.SocketStream | None) -> None:
        nonlocal opened
        body = json.dumps({"number": next(numbers), "words": "x" * 200})
        head = f"POST /{path} HTTP/1.1\r\nHost: {host}\r\nX-Token: a secret\r\nContent-Length: {len(body)}\r\n\r\n"
        stream = stream or await trio.open_tcp_stream(host, int(port))
        await stream.send_all(f"{head}{body}".encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            if not (piece := await stream.receive_some()):
                raise EOFError(answer)
            answer += piece
        top, _, left = answer.partition(b"\r\n\r\n")
        length = int(top.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        while len(left) < length:
            left += await stream.receive_some()
        counts[top.split()[1].decode()] += 1
        if b"connection: close" in top.lower():
            opened -= 1
            await stream.aclose()
        else:
            free.append(stream)

    def event() -> None:
        nonlocal opened
        if not free and opened == CONNECTIONS_MAX:
            counts["not sent"] += 1
            return
        opened += not free
        nursery.start_soon(send, free.pop() if free else None)

    def about() -> dict[str, int]:
        said = dict(counts)
        counts.clear()
        return said

    async with trio.open_nursery() as nursery:
        await blow(event, about)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(partial(post, sys.argv[2]) if sys.argv[1] == "post" else write)
