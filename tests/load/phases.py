"""The phases of the load test, each with a server of its own."""

from __future__ import annotations

import re
import resource
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import httpx2
import trio

from tests.bench.report import Figure, quantile
from tests.bench.server import cpu_s, rss_kib
from tests.bench.world import words
from tests.load import sources
from tests.load.world import SLOWER, Client, Found, Scale, others, prepared, say, slow_model
from tests.scenarios.server import API, TOKEN, Server

AGENTS = 20  # of the constellation that has a queue
STOP_AFTER_S = 1.0
DRAIN_S = 10.0
SETTLE_S = 2.0
KIB_PER_READER, LAG_MS, FIRST_EVENT_MS, CPU_MS = 32, 10, 5, 8
_LAG = re.compile(r'pattern_loop_lag_seconds_bucket\{le="([^"]+)"\} (\S+)')


async def run(name: str, scale: Scale) -> Found:
    """Run one phase."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65_536)), hard))
    found = Found()
    with tempfile.TemporaryDirectory(prefix="pattern-load-") as folder:
        await PHASES[name](Path(folder), scale, found)
    return found


# Readers of events, and requests of all kinds during a backup


async def readers(folder: Path, scale: Scale, found: Found) -> None:
    """Measure what idle readers weigh; then the loop's lag while they read, others ask, and a backup runs."""
    names = [f"c{number}" for number in range(scale.constellations)]
    async with prepared(folder, names, {}) as (server, client), trio.open_nursery() as nursery:
        for name in names:  # what the process and its constellations need is there from now on
            await say(client, found, name)
        before, read = rss_kib(server), [0]
        for number in range(scale.readers):
            await nursery.start(_read, server.url, names[number % len(names)], read)
        await trio.sleep(SETTLE_S)
        weight = (rss_kib(server) - before) / scale.readers
        found.figures.append(
            Figure(name=f"an idle reader, of {scale.readers}", unit="KiB", values=[weight], most=KIB_PER_READER)
        )
        spent, lag = cpu_s(server), await _lag(client)
        took: dict[str, list[float]] = {kind: [] for kind in ("chat", "search", "read")}
        backups, end = [0], trio.Event()
        nursery.start_soon(_back_up, client, names, end, backups, found)
        await _ask(client, scale, names, took, found)
        end.set()
        share = (cpu_s(server) - spent) / scale.seconds
        late = _lag_ms(lag, await _lag(client))
        note = f"{backups[0]} backups, {read[0]} events read, {share:.0%} of one processor"
        found.figures.append(Figure(name="loop lag p99, upper bound", unit="ms", values=[late], most=LAG_MS, note=note))
        found.figures += [
            Figure(name=f"{kind}, sent to answered", unit="ms", values=values, share=0.99)
            for kind, values in took.items()
        ]
        if scale.readers and not read[0]:
            found.failures.append("no reader got an event")
        nursery.cancel_scope.cancel()


async def _read(url: str, name: str, read: list[int], *, task_status: trio.TaskStatus[None]) -> None:
    """Read a constellation's events, and count them; a bare socket, so that a thousand weigh little here."""
    host, _, port = url.removeprefix("http://").partition(":")
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        head = (
            f"GET {API}/constellations/{name}/events HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        )
        await stream.send_all(head.encode())
        is_open = False
        async for piece in stream:
            if not is_open:
                is_open = True
                assert piece.startswith(b"HTTP/1.1 200"), piece
                task_status.started()
            read[0] += piece.count(b"\nevent: ")


async def _back_up(client: Client, names: Sequence[str], end: trio.Event, done: list[int], found: Found) -> None:
    while not end.is_set():
        found.expect(await client.post(f"/constellations/{names[done[0] % len(names)]}/backup"), 201)
        done[0] += 1


async def _ask(
    client: Client, scale: Scale, names: Sequence[str], took: Mapping[str, list[float]], found: Found
) -> None:
    """Send requests at a fixed rate, whether or not the ones before were answered."""
    began = trio.current_time()

    async def one(number: int) -> None:
        name = names[number % len(names)]
        kind = ["chat", "search", "search", "search"][number % 20] if number % 20 < 4 else "read"
        sent = trio.current_time()
        try:
            if kind == "chat":
                answer = await _chat(client, name, number)
            elif kind == "search":
                answer = await client.post(f"/constellations/{name}/search", json={"query": words(30, number)})
            else:
                answer = await client.get(f"/constellations/{name}/agents/ada")
        except httpx2.TransportError as error:
            found.failures.append(f"{kind}: {error!r}")
            return
        found.expect(answer, 200)
        took[kind].append((trio.current_time() - sent) * 1_000)

    async with trio.open_nursery() as nursery:
        for number in range(int(scale.rate * scale.seconds)):
            await trio.sleep_until(began + number / scale.rate)
            nursery.start_soon(one, number)


async def _chat(client: Client, name: str, number: int) -> httpx2.Response:
    said = {"role": "user", "content": words(400, number)}
    address = client.base_url.copy_with(path="/v1/chat/completions")
    return await client.post(address, json={"model": f"agent:{name}/ada", "messages": [said]})


async def _lag(client: Client) -> dict[float, float]:
    text = (await client.get(client.base_url.copy_with(path="/metrics"))).text
    return {float(bound): float(value) for bound, value in _LAG.findall(text)}


def _lag_ms(before: Mapping[float, float], after: Mapping[float, float]) -> float:
    """The bound of the histogram below which 99 of 100 samples are."""
    counts = {bound: value - before.get(bound, 0.0) for bound, value in after.items()}
    return next(bound for bound, value in sorted(counts.items()) if value >= 0.99 * max(counts.values())) * 1_000


# What a turn costs, and how soon it is heard of


async def turns(folder: Path, scale: Scale, found: Found) -> None:
    """Measure the CPU of a chat completion, and the time from acceptance to the first event of a turn."""
    async with prepared(folder, ["home"], {}) as (server, client):
        spent: list[float] = []
        for number in range(scale.messages):
            before = cpu_s(server)
            found.expect(await _chat(client, "home", number), 200)
            spent.append((cpu_s(server) - before) * 1_000)
        await trio.sleep(SETTLE_S)  # vectors
        waited: list[float] = []
        for number in range(scale.messages):
            streamed = client.stream(
                "POST",
                "/constellations/home/agents/ada/messages",
                json={"content": words(400, number)},
                headers={"Accept": "text/event-stream"},
            )
            async with streamed as answer:
                accepted, first = trio.current_time(), 0.0
                async for line in answer.aiter_lines():
                    if line.startswith("event: "):
                        first = first or trio.current_time()
                if first:
                    waited.append((first - accepted) * 1_000)
    if len(waited) < scale.messages:
        found.failures.append("a turn had no event")
    found.figures += [
        Figure(name="a chat completion: CPU", unit="ms", values=spent, share=0.25, most=CPU_MS),
        Figure(name="acceptance to first event", unit="ms", values=waited, most=FIRST_EVENT_MS),
    ]


# One constellation with a long queue, and the others


async def queue(folder: Path, scale: Scale, found: Found) -> None:
    """Compare turns of others before and while one constellation has many turns waiting."""
    names = [f"c{number}" for number in range(5)]
    async with slow_model() as (more, gates):
        agent = {"model_provider": "slow", "model_name": "m"}
        async with prepared(folder, ["busy", *names], agent, more=more) as (_server, client):
            agents = [f"a{number}" for number in range(AGENTS)]
            for name in agents:
                found.expect(await client.post("/constellations/busy/agents", json={"name": name, **agent}), 201)
            each = max(5, scale.messages // 10)
            await others(client, names, 3, found)  # what is loaded at first use
            calm = await others(client, names, each, found)
            gates.append(trio.Event())  # else most of the queue is done before it is complete
            for number in range(scale.queued):
                where = f"/constellations/busy/agents/{agents[number % AGENTS]}/messages"
                body = {"content": words(100, number)}
                found.expect(await client.post(where, json=body, headers={"Prefer": "respond-async"}), 202)
            gates[0].set()
            queued = await others(client, names, each, found)
            turns = await client.get("/constellations/busy/turns", params={"status": "queued", "limit": 1})
            note = "some left at the end" if found.expect(turns, 200)["items"] else "none left at the end"
    found.figures += [
        Figure(name="turns of others", unit="ms", values=calm, share=0.99),
        Figure(
            name="the same beside a queue",
            unit="ms",
            values=queued,
            share=0.99,
            most=SLOWER * quantile(calm, 0.99),
            baseline=quantile(calm, 0.99),
            note=f"{scale.queued} turns; {note}",
        ),
    ]


# SIGTERM under load


async def stop(folder: Path, scale: Scale, found: Found) -> None:
    """Stop the server while turns run; start it again, and see that every accepted one completes."""
    names = [f"c{number}" for number in range(min(20, scale.constellations))]
    accepted: dict[str, str] = {}
    async with slow_model() as (more, _gates):
        agent = {"model_provider": "slow", "model_name": "m"}
        async with prepared(folder, names, agent, more=more) as (server, client):

            async def send(name: str) -> None:
                where, body = f"/constellations/{name}/agents/ada/messages", {"content": "Hello."}
                while True:
                    try:
                        answer = await client.post(where, json=body, headers={"Prefer": "wait=1"})
                    except httpx2.TransportError:
                        return
                    if answer.status_code in (200, 202):
                        turn_id = answer.json().get("turn_id") or answer.json()["id"]
                        accepted[turn_id] = name
                        if answer.json()["status"] not in ("accepted", "completed"):
                            found.failures.append(f"{turn_id}: {answer.text[:200]}")
                    elif answer.status_code == 503:
                        if turn_id := answer.json().get("turn_id"):
                            accepted[turn_id] = name
                        await trio.sleep(0.05)
                    else:
                        found.expect(answer, 200)

            async with trio.open_nursery() as nursery:
                for name in names:
                    nursery.start_soon(send, name)
                await trio.sleep(STOP_AFTER_S)
                began = trio.current_time()
                code = await trio.to_thread.run_sync(server.terminate)
                took = trio.current_time() - began
                nursery.cancel_scope.cancel()
            if code:
                found.failures.append(f"the server ended with {code}")
            await server.start()
            async with server.client() as again:
                for turn_id, name in accepted.items():
                    await _completed(again, name, turn_id, found)
    note = f"{len(accepted)} turns of {len(names)} constellations were accepted"
    found.figures.append(Figure(name="SIGTERM to exit", unit="s", values=[took], most=DRAIN_S + 1, note=note))


async def _completed(client: Client, name: str, turn_id: str, found: Found) -> None:
    with trio.move_on_after(30):
        while True:
            turn = found.expect(await client.get(f"/constellations/{name}/turns/{turn_id}"), 200)
            if turn.get("ended_at"):
                break
            await trio.sleep(0.05)
    if turn.get("status") != "completed":
        found.failures.append(f"{turn_id} of {name}: {turn.get('status')}, {turn.get('error')}")


# Many constellations


async def many(folder: Path, scale: Scale, found: Found) -> None:
    """Measure memory and descriptors with many constellations, and with some of them awake."""
    names = [f"c{number}" for number in range(scale.registered)]
    more = {"PATTERN_SUPERVISOR__MAX_OPEN": str(scale.awake + 10)}
    async with prepared(folder, [], {}, more=more) as (server, client):
        began = trio.current_time()
        for name in names:
            found.expect(await client.post("/constellations", json={"name": name}), 201)
        note = f"created in {(trio.current_time() - began) * 1_000 / len(names):.1f} ms each"
        server.terminate()
        await server.start()
        async with server.client() as again:
            await again.get("/constellations", params={"limit": 1})
            figures = [(f"{len(names)} registered", *_needs(server))]
            for number in (1, 2):
                for name in names[: scale.awake]:
                    found.expect(await again.get(f"/constellations/{name}/agents"), 200)
                await trio.sleep(scale.rest_s)
                figures.append((f"{scale.awake} awake, round {number}", *_needs(server)))
    for what, mib, descriptors in figures:
        found.figures.append(Figure(name=f"memory, {what}", unit="MiB", values=[mib], note=note))
        found.figures.append(Figure(name=f"descriptors, {what}", unit="", values=[descriptors]))


def _needs(server: Server) -> tuple[float, float]:
    return rss_kib(server) / 1_024, float(len(list(Path(f"/proc/{server.pid}/fd").iterdir())))


PHASES: dict[str, Callable[[Path, Scale, Found], Awaitable[None]]] = {
    "readers": readers,
    "turns": turns,
    "queue": queue,
    "stop": stop,
    "many": many,
    "idle_sources": sources.idle,
    "storm": sources.storm,
}
