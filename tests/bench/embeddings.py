"""What a server does with the local embedder and many messages at once: texts per second, searches, loop lag."""

from __future__ import annotations

import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import trio

from pattern_core.embeddings.settings import RuntimeName
from tests.bench.report import Figure
from tests.pattern_server.place import Place, config_for, serving

RUNTIMES: dict[RuntimeName, str] = {"onnx": "onnxruntime", "sentence-transformers": "sentence_transformers"}
TICK_S = 0.005
LAG_P99_MS_MAX = 10.0
EMBEDDED_S = 120.0
TEXTS = [
    f"On day {number} we met at {number % 24} o'clock and talked about {number * 7} books." for number in range(1_000)
]
QUESTION = "Where did we want to put the books?"


async def measure(runtime: RuntimeName) -> list[Figure]:
    """A whole server in this process, from the import of the messages until all have their vectors."""
    late, searches = list[float](), list[float]()

    async def watch() -> None:
        while True:
            due = trio.current_time() + TICK_S
            await trio.sleep_until(due)
            late.append((trio.current_time() - due) * 1_000)

    with tempfile.TemporaryDirectory(prefix="pattern-bench-") as folder:
        config = config_for(Path(folder), embeddings={"provider": "local", "runtime": runtime})
        async with serving(config) as place, trio.open_nursery() as nursery:
            await place.constellation()
            messages = [{"role": "user", "content": text} for text in TEXTS]
            began = time.perf_counter()
            imported = await place.admin.post("/constellations/home/agents/ada/history", json={"messages": messages})
            imported.raise_for_status()
            nursery.start_soon(watch)
            with trio.move_on_after(EMBEDDED_S) as patience:
                while not await _is_done(place):
                    searches.append(await _searched_ms(place))
                    await trio.sleep(1)
            seconds = time.perf_counter() - began
            nursery.cancel_scope.cancel()
    if patience.cancelled_caught:
        note = f"not done after {EMBEDDED_S:g} s: are the model's weights there?"
        return [Figure(name=f"{runtime}: embedding", unit="texts/s", values=[], note=note)]
    return [
        Figure(
            name=f"{runtime}: embedding",
            unit="texts/s",
            values=[len(TEXTS) / seconds],
            note=f"{len(TEXTS)} messages of {sum(map(len, TEXTS)) // len(TEXTS)} characters, import and load included",
        ),
        Figure(name=f"{runtime}: hybrid search beside it, over HTTP", unit="ms", values=searches),
        Figure(name=f"{runtime}: loop lag of the server", unit="ms", values=late, share=0.99, most=LAG_P99_MS_MAX),
    ]


async def _is_done(place: Place) -> bool:
    state = (await place.admin.get("/constellations/home/embeddings")).json()
    return bool(state["active"] and state["state"] == "idle" and state["done"] >= len(TEXTS))


async def _searched_ms(place: Place) -> float:
    began = time.perf_counter()
    (await place.admin.post("/constellations/home/search", json={"query": QUESTION})).raise_for_status()
    return (time.perf_counter() - began) * 1_000


def run() -> list[Figure]:
    """Both ways to run the model, those that are installed."""
    return [figure for name, module in RUNTIMES.items() if find_spec(module) for figure in trio.run(measure, name)]
