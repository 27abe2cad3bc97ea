"""How much code a request passes: `python -m tests.bench.flow [FLOW …]`; with names of flows, their functions as well.

A real server in this process, with a model that streams; each flow was walked before, so that nothing is made or read
for the first time. Files and functions of our own packages count, whichever task or thread runs them, without lambdas
and comprehensions, until the client has its answer; the note says how many there are with what runs in the second after
it (embeddings, and what is done in the background all the time).
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterable
from itertools import groupby
from pathlib import Path
from types import CodeType, FrameType

import trio

from pattern_core.messages import Text
from pattern_core.models.model import ModelReply, ModelRequest, OnDelta, Provider, TextDelta
from pattern_core.testing.model import calls, says
from tests.bench.report import Figure, table
from tests.pattern_server.place import Place, config_for, serving
from tests.sources import PACKAGES, ROOT

EDIT = {"op": "append", "label": "human", "content": "\nlikes tea"}
OURS = tuple(f"{ROOT / package}/" for package in PACKAGES)
ADA = "/constellations/home/agents/ada"
AFTER_S = 1.0
MOST = {"message-and-edit": (69, 288)}  # half of what they were when this was first counted: 138 files, 576 functions

Functions = dict[CodeType, None]  # in the order in which they were entered first


class Tracer:
    """Which of our functions were entered, in any thread, while it listens."""

    def __init__(self) -> None:
        self.seen: Functions | None = None

    def __call__(self, frame: FrameType, event: str, _function: object) -> None:
        """What `sys.setprofile` calls."""
        code = frame.f_code
        if event == "call" and self.seen is not None and code.co_filename.startswith(OURS) and code.co_name[0] != "<":
            self.seen[code] = None


class Streaming(Provider):
    """A model that gives these answers, each text as one piece."""

    name = "scripted"

    def __init__(self, answers: Iterable[ModelReply]) -> None:
        self._answers = iter(answers)

    async def ask(self, _request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        """Stream the next answer."""
        answer = next(self._answers)
        for part in answer.parts:
            if isinstance(part, Text):
                await on_delta(TextDelta(text=part.text))
        return answer


async def message(place: Place) -> None:
    """Send a message and read its turn's events until the last."""
    headers = {"Accept": "text/event-stream"}
    answer = await place.admin.post(f"{ADA}/messages", json={"content": "Where is the tea?"}, headers=headers)
    assert "turn.completed" in answer.text, answer.text


async def edit(place: Place) -> None:
    """Write a memory block."""
    content = f"likes tea {trio.current_time()}"
    answer = await place.admin.put(f"{ADA}/memory/human", json={"content": content})
    assert answer.status_code == 200, answer.text


async def find(place: Place) -> None:
    """Search everything by words and meaning."""
    answer = await place.admin.post("/constellations/home/search", json={"query": "tea"})
    assert answer.json()["hits"], answer.text


async def read(place: Place) -> None:
    """Read one agent."""
    assert (await place.admin.get(ADA)).status_code == 200


FLOWS: dict[str, Callable[[Place], Awaitable[None]]] = {
    "read": read,
    "search": find,
    "edit": edit,
    "message": message,
    "message-and-edit": message,
}


async def walk() -> dict[str, tuple[Functions, Functions]]:
    """Of each flow: what was entered until the answer, and with what came after it."""
    tracer = Tracer()
    threading.setprofile(tracer)  # for threads that start from now on
    sys.setprofile(tracer)
    first, second = (calls("block_edit", EDIT, call_id=name) for name in ("first", "second"))
    noted, plain = says("Noted."), says("On the shelf, where the tea always was.")
    provider = Streaming([plain, plain, first, noted, second, noted])
    walked = {}
    try:
        with tempfile.TemporaryDirectory(prefix="pattern-bench-") as folder:
            async with serving(config_for(Path(folder)), {"scripted": provider}) as place:
                await place.constellation(enabled_tools=["block_edit"])
                for name in sorted(FLOWS, key=lambda name: "message" not in name):  # then there is something to find
                    await FLOWS[name](place)
                    await trio.sleep(AFTER_S)
                    tracer.seen = {}
                    await FLOWS[name](place)
                    until = dict(tracer.seen)
                    await trio.sleep(AFTER_S)
                    walked[name] = until, tracer.seen
                    tracer.seen = None
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return walked


def files(functions: Functions) -> int:
    """How many files they are in."""
    return len({code.co_filename for code in functions})


def figures(walked: dict[str, tuple[Functions, Functions]]) -> list[Figure]:
    """Files and functions of each flow, with what runs in the second after its answer."""
    found = []
    for name in FLOWS:
        until, total = walked[name]
        most = MOST.get(name, (None, None))
        note = f"with the second after it: {files(total)} files, {len(total)} functions"
        found.append(Figure(name=f"{name}: files", unit="", values=[files(until)], most=most[0], note=note))
        found.append(Figure(name=f"{name}: functions", unit="", values=[len(until)], most=most[1]))
    return found


def measure() -> list[Figure]:
    """All flows."""
    return figures(trio.run(walk))


def main(names: list[str]) -> int:
    """Print the table, and the functions of the named flows; return the exit code."""
    unknown = [name for name in names if name not in FLOWS]
    if unknown:
        print(f"There is no flow {', '.join(unknown)}; there are {', '.join(FLOWS)}.", file=sys.stderr)
        return 2
    walked = trio.run(walk)
    print(table(figures(walked)))
    for name in names:
        print(f"\n{name}, in the order in which functions are entered first:")
        for path, codes in groupby(walked[name][0], key=lambda code: code.co_filename):
            print(f"{Path(path).relative_to(ROOT)}: {', '.join(code.co_qualname for code in codes)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
