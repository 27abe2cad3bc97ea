"""What the local embedder costs: time to the first vector, texts per second, a query beside a backfill, loop lag; and
what a server makes of it that gets 2,000 messages at once.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import trio

from pattern_core.embeddings.embedder import EmbedderUnavailable
from pattern_core.embeddings.local.weights import RuntimeName
from pattern_core.embeddings.providers.local import LocalEmbedder
from pattern_core.embeddings.settings import EmbedderSettings
from tests.bench.report import Figure
from tests.pattern_server.place import Place, config_for, serving

RUNTIMES: tuple[RuntimeName, ...] = ("onnx", "sentence-transformers")
TICK_S = 0.005
IDLE_S = 2.0
LAG_P99_MS_MAX = 10.0
SENTENCE = "We talked about the weather in Paris, and about where to put the books. "
TEXTS = [f"message {number}: {SENTENCE * (number % 8)}" for number in range(240)]
SHORT = [
    f"On day {number} we met at {number % 24} o'clock and talked about {number * 7} books." for number in range(2_000)
]
QUESTION = "Where did we want to put the books?"


@dataclass
class Lags:
    """How late a task that sleeps for `TICK_S` wakes, in milliseconds, per phase."""

    phase: str = "idle"
    seen: dict[str, list[float]] = field(default_factory=dict)

    async def watch(self) -> None:
        """Measure until cancelled."""
        while True:
            began = time.perf_counter()
            await trio.sleep(TICK_S)
            self.seen.setdefault(self.phase, []).append((time.perf_counter() - began - TICK_S) * 1_000)

    def p99(self, phase: str) -> float:
        """The 99th percentile of a phase."""
        values = sorted(self.seen[phase])
        return values[int(len(values) * 0.99)]


async def measure(runtime: RuntimeName) -> list[Figure]:
    """The figures of one way to run the model; none where it is not installed."""
    embedder = LocalEmbedder(EmbedderSettings(runtime=runtime))
    lags = Lags()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lags.watch)
            await trio.sleep(IDLE_S)
            figures = await _work(embedder, lags, runtime)
            nursery.cancel_scope.cancel()
    finally:
        await embedder.aclose()
    return figures


async def _work(embedder: LocalEmbedder, lags: Lags, runtime: str) -> list[Figure]:
    lags.phase = "load"
    began = time.perf_counter()
    try:
        await embedder.embed([QUESTION], purpose="query")
    except EmbedderUnavailable:
        return []
    first_s = time.perf_counter() - began
    lags.phase = "work"
    alone = [await _asked_ms(embedder) for _ in range(20)]
    beside: list[float] = []
    rate = 0.0

    async with trio.open_nursery() as nursery:

        async def ask() -> None:
            while True:
                beside.append(await _asked_ms(embedder))
                await trio.sleep(0.2)

        nursery.start_soon(ask)
        began = time.perf_counter()
        await embedder.embed(TEXTS, purpose="passage")
        rate = len(TEXTS) / (time.perf_counter() - began)
        nursery.cancel_scope.cancel()
    return [
        Figure(name=f"{runtime}: first vector", unit="s", values=[first_s]),
        Figure(name=f"{runtime}: a query", unit="ms", values=alone),
        Figure(name=f"{runtime}: a query beside a backfill", unit="ms", values=beside),
        Figure(name=f"{runtime}: backfill", unit="texts/s", values=[rate], note="5 to 130 tokens each"),
        *(
            Figure(
                name=f"{runtime}: loop lag p99, {phase}",
                unit="ms",
                values=[lags.p99(phase)],
                most=LAG_P99_MS_MAX,
                baseline=lags.p99("idle"),
            )
            for phase in ("load", "work")
        ),
    ]


async def _asked_ms(embedder: LocalEmbedder) -> float:
    began = time.perf_counter()
    await embedder.embed([QUESTION], purpose="query")
    return (time.perf_counter() - began) * 1_000


async def serve(runtime: RuntimeName) -> list[Figure]:
    """A whole server in this process, from the import of the messages until all have their vectors."""
    lags, searches = Lags(phase="serve"), list[float]()
    with tempfile.TemporaryDirectory(prefix="pattern-bench-") as folder:
        config = config_for(Path(folder), embeddings={"provider": "local", "runtime": runtime})
        async with serving(config) as place, trio.open_nursery() as nursery:
            await place.constellation()
            nursery.start_soon(lags.watch)
            messages = [{"role": "user", "content": text} for text in SHORT]
            began = time.perf_counter()
            imported = await place.admin.post("/constellations/home/agents/ada/history", json={"messages": messages})
            imported.raise_for_status()
            lags.phase = "embed"
            while True:
                told = (await place.admin.get("/constellations/home/embeddings")).json()
                if told["state"] == "unavailable":
                    return []
                if told["active"] and told["state"] == "idle" and told["done"] >= len(SHORT):
                    break
                searches.append(await _searched_ms(place))
                await trio.sleep(1)
            seconds = time.perf_counter() - began
            nursery.cancel_scope.cancel()
    return [
        Figure(name=f"{runtime}: a server embeds {len(SHORT)} messages", unit="texts/s", values=[len(SHORT) / seconds],
               note=f"{sum(map(len, SHORT)) // len(SHORT)} characters each, {seconds:.0f} s with the import"),
        Figure(name=f"{runtime}: hybrid search over HTTP meanwhile", unit="ms", values=searches,
               note=f"{len(searches)} searches, the question's vector included"),
        Figure(name=f"{runtime}: loop lag p99 of the server meanwhile", unit="ms", values=[lags.p99("embed")],
               most=LAG_P99_MS_MAX, note=f"{len(lags.seen['embed'])} samples, worst {max(lags.seen['embed']):.0f} ms"),
    ]  # fmt: skip


async def _searched_ms(place: Place) -> float:
    began = time.perf_counter()
    answer = await place.admin.post("/constellations/home/search", json={"query": QUESTION})
    answer.raise_for_status()
    return (time.perf_counter() - began) * 1_000


def run() -> list[Figure]:
    """Both ways to run the model, those that are installed."""
    return [figure for runtime in RUNTIMES for act in (measure, serve) for figure in trio.run(act, runtime)]
