"""llama.cpp's own server with a model's file, and a Pattern server that asks it: both processes on loopback.

The server of the model is a child: `python -m tests.real_llm.llama` with the file. It ends when its input does, so
that none outlives the tests, however they end.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import trio

from tests.scenarios.server import serving
from tests.sources import ROOT

WINDOW = 8_192
SLOTS = 4  # of the larger model: words of several answers are computed together, in little more time than those of one
PING_S = 2  # its default is 30
PATIENCE_S = 900  # a processor may need minutes for a prompt
STEADY = {"temperature": 0, "max_output_tokens": 200}
PLACE = "/constellations/home"

PATTERN_TOML = """
default_provider = "llama"
default_model = "local"
embeddings.provider = "none"

[providers.llama]
kind = "openai"
base_url = "{url}/v1"

[limits.turn]
{limits}
"""


@dataclass(frozen=True, kw_only=True)
class Llama:
    """A server of one model."""

    url: str
    model: str  # the file's name

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Take a slot with an answer without end; where it is the only one, others wait and hear nothing but pings."""
        endless = {"prompt": "Once upon a time", "n_predict": WINDOW // 2, "ignore_eos": True, "stream": True}
        with httpx2.stream("POST", f"{self.url}/completion", json=endless, timeout=60.0) as response:
            next(response.iter_lines())
            yield

    async def is_idle(self) -> bool:
        """Return whether nothing is being answered."""
        async with httpx2.AsyncClient(timeout=60.0) as client:
            slots = (await client.get(f"{self.url}/slots")).raise_for_status().json()
        return not any(slot["is_processing"] for slot in slots)


@contextmanager
def llama(model: Path, *, slots: int = 1) -> Iterator[Llama]:
    """Serve a GGUF file until the end of the block, with so many answers at a time."""
    command = [sys.executable, "-m", "tests.real_llm.llama", str(model), str(slots)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url, f"llama.cpp's server could not load {model}; run `{' '.join(command)}` to see why"
        yield Llama(url=url, model=model.name)
        process.kill()


@dataclass(frozen=True, kw_only=True)
class Home:
    """A constellation of a Pattern server with agents that ask the model."""

    client: httpx2.AsyncClient

    async def post(self, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        """Send a request below the constellation and return its answer, which must be a success."""
        response = await self.client.post(PLACE + path, json=body)
        assert response.is_success, f"{path}: {response.status_code} {response.text}"
        return dict(response.json())

    async def agent(self, name: str, config: Mapping[str, object] | None = None, **fields: object) -> None:
        """Make an agent that always answers alike."""
        await self.post("/agents", {"name": name, "config": {**STEADY, **(config or {})}, **fields})

    async def say(self, agent: str, content: str) -> Turn:
        """Send a message and return the turn when it has ended."""
        path = f"{PLACE}/agents/{agent}/messages"
        response = await self.client.post(path, json={"content": content}, timeout=PATIENCE_S)
        assert response.status_code == 200, f"{response.status_code} {response.text}"
        return Turn(response.json())

    async def submit(self, agent: str, content: str) -> str:
        """Send a message and return the id of its turn, which runs."""
        path = f"{PLACE}/agents/{agent}/messages"
        response = await self.client.post(path, json={"content": content}, headers={"prefer": "respond-async"})
        return str(response.raise_for_status().json()["turn_id"])

    async def events(self, turn_id: str) -> AsyncIterator[str]:
        """Yield the names of a turn's events as they come, up to the terminal one; read them all."""
        async with self.client.stream("GET", f"{PLACE}/turns/{turn_id}/events", timeout=PATIENCE_S) as response:
            async for line in response.aiter_lines():
                if line.startswith("event: "):
                    yield line.removeprefix("event: ")


class Turn:
    """A turn that has ended, as the API shows it."""

    def __init__(self, shown: Mapping[str, Any]) -> None:
        self.shown = shown
        self.status: str = shown["status"]
        self.error: object = shown["error"]
        self.usage: Mapping[str, int] = shown["usage"]
        self.steps: int = shown["steps"]
        messages = sorted(shown["messages"], key=lambda message: str(message["position"]))
        self.answers = [str(one["content"] or "").strip() for one in messages if one["role"] == "assistant"]
        self.answer = self.answers[-1] if self.answers else ""
        self.first_tool = next((str(one["tool_name"]) for one in messages if one["tool_name"]), "")


@asynccontextmanager
async def home(model: Llama, folder: Path, limits: str = "") -> AsyncIterator[Home]:
    """A Pattern server that asks the model, with an empty constellation; `limits` are lines for those of a turn."""
    settings = PATTERN_TOML.format(url=model.url, limits=limits)
    await trio.Path(folder / "pattern.toml").write_text(settings)
    async with (
        serving(folder, environment={"PATTERN_EMBEDDINGS__PROVIDER": "none"}) as server,
        server.client() as client,
    ):
        (await client.post("/constellations", json={"name": "home"})).raise_for_status()
        yield Home(client=client)


def main(model: str, slots: int) -> None:
    """Serve the file until its input ends."""
    import xllamacpp

    settings = xllamacpp.CommonParams()
    settings.model.path = model
    settings.n_ctx, settings.n_parallel, settings.n_gpu_layers = WINDOW * slots, slots, 0
    # Its threads wait for each other without rest: with one per processor a busy machine writes no word in a minute.
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = max(1, (os.cpu_count() or 1) // 2)
    settings.sse_ping_interval = PING_S
    settings.endpoint_slots = True
    settings.warmup = False
    server = xllamacpp.Server(settings)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
