"""The memory of coding agents: what a full workspace adds to a prompt, what a tool costs over MCP, how fast files are
imported, and an answer that many readers replay.

A tool is compared with a ping over the same connection, and a replay with as many reads of the session's messages.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import httpx2
import trio
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

from pattern_core.chat_files import import_chats
from pattern_core.decision_files import import_decisions
from pattern_core.decision_ranking import RankedDecisions
from pattern_core.delta import Delta
from pattern_core.delta_files import import_delta
from pattern_core.guidance import advice
from pattern_core.guidance_quality import PROJECT, detect
from pattern_core.prompts.activity import decision_part, guidance_parts, workspace_part
from pattern_db.connection import Connection
from pattern_db.enums import GuidanceSource, GuidanceState
from pattern_db.tables import decisions, guidance, workspaces
from pattern_db.tables.decisions import DecisionRow
from pattern_db.tables.guidance import GuidanceRow
from tests.bench.report import Figure, quantile, timed_ms
from tests.bench.world import NOW, words, world
from tests.scenarios.server import TOKEN, serving
from tests.scenarios.test_chat_sessions import FrontEnd, Run, friend

ITEMS = 5_000  # decisions, and as much guidance
PROMPTS = 50
ROWS = 2_000
CALLS = 100
READERS = 100
PERSON = "user:bench"
NOW_MS = 1_767_225_600_000


def measure() -> list[Figure]:
    """All figures."""
    return [*trio.run(_prompts), *trio.run(_imports), *trio.run(_mcp), *trio.run(_replay)]


async def _prompts() -> list[Figure]:
    """The parts about a workspace, as a turn looks for them in a database thread."""
    async with world() as bench:
        shop = (await bench.constellation.workspaces.ensure("shop", author=PERSON)).id
        await bench.constellation.database.write(_fill, shop)
        found = RankedDecisions()
        look = partial(_look, shop=shop, found=found)
        first = await bench.constellation.database.read(lambda one: timed_ms(lambda: look(one, 0)))
        values = [
            await bench.constellation.database.read(lambda one, at=at: timed_ms(lambda: look(one, at)))  # type: ignore[misc]  # mypy cannot infer such lambdas
            for at in range(1, PROMPTS + 1)
        ]
        after = list[float]()
        for at in range(PROMPTS):
            await bench.constellation.decisions.change(shop, f"d{at}", {"title": words(60, at + 1)}, author=PERSON)
            after.append(await bench.constellation.database.read(lambda one, at=at: timed_ms(lambda: look(one, at))))  # type: ignore[misc]  # as above
    note, items = f"map, decisions and guidance; the first reads all decisions: {first:.0f} ms", f"{2 * ITEMS:,} items"
    return [
        Figure(name=f"prompt of a workspace with {items}", unit="ms", values=values, most=5, note=note),
        Figure(name="the first one after a decision was changed", unit="ms", values=after, most=20),
    ]


def _fill(connection: Connection, shop: str) -> None:
    kinds, at = ("coding", "git", "testing", "api", PROJECT), (NOW, NOW, PERSON)
    for first in range(0, ITEMS, 1_000):
        numbers = range(first, first + 1_000)
        decisions.add(connection, [DecisionRow(f"d{n}", shop, words(60, n), words(300, n), *at) for n in numbers])
        guidance.add(
            connection,
            [
                GuidanceRow(
                    f"g{n}", shop, kinds[n % 5], "s", words(100, n), GuidanceSource.LEARNED, GuidanceState.ACTIVE, *at
                )
                for n in numbers
            ],
        )


def _look(connection: Connection, at: int, *, shop: str, found: RankedDecisions) -> None:
    said = f"Fix the test: {words(200, 7 * at)}"
    workspace_part(workspaces.map_of(connection, shop, "agent_1"))
    for one in found.fitting(connection, shop, said, cwd=None, now_ms=NOW_MS):
        decision_part(*one)
    guidance_parts(advice(connection, shop, [detect(said).primary, PROJECT], author=None, turn="", now=NOW))


async def _imports() -> list[Figure]:
    """Rows a second of new files, in one transaction each."""
    async with world() as bench:
        core, agent = bench.constellation, bench.agents[0].id
        shop = (await core.workspaces.ensure("shop", author=PERSON)).id
        episodes = [
            {"id": n, "content": words(200, n), "context": None, "tags": None, "timestamp": NOW_MS, "session_id": None}
            for n in range(1, ROWS + 1)
        ]
        delta = Delta(constellation=core, workspace=shop, author=PERSON)
        lines = [{"id": f"d{n}", "createdAt": NOW, "title": words(60, n), "text": words(200, n)} for n in range(ROWS)]
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        session = {"id": "s1", "status": "completed", "working_dir": "/", "created_at": NOW, "updated_at": NOW}
        said = [
            {"id": n, "session_id": "s1", "role": ("user", "assistant")[n % 2], "content": words(200, n)}
            for n in range(1, ROWS + 1)
        ]
        chats: dict[str, list[dict[str, Any]]] = {"sessions": [session], "messages": said}
        work: dict[str, Callable[[], Awaitable[object]]] = {
            "episodes of Delta": lambda: import_delta(delta, {"episodes": episodes}, source="shop-main", version="v1"),
            "decisions": lambda: import_decisions(core.storage, shop, data, author=PERSON),
            "messages of Codepilot": lambda: import_chats(core.storage, agent, chats, source="c.db", author=PERSON),
        }
        figures = []
        for name, run in work.items():
            first, again = [await _seconds(run) for _ in range(2)]
            note = f"{ROWS:,} rows; the same file again: {again * 1_000:.0f} ms"
            figures.append(Figure(name=f"importing {name}", unit="rows/s", values=[ROWS / first], note=note))
    return figures


async def _seconds(run: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await run()
    return time.perf_counter() - began


async def _mcp() -> list[Figure]:
    """One call of a tool over HTTP, and a ping."""
    spent: dict[str, list[float]] = {"ping": [], "get": [], "task_list": []}
    with tempfile.TemporaryDirectory(prefix="pattern-bench-") as folder:
        async with serving(Path(folder)) as server, server.client() as client:
            (await client.post("/constellations", json={"name": "home"})).raise_for_status()
            url = f"{server.url}/mcp/home?toolset=delta&workspace=shop"
            headers = {"Authorization": f"Bearer {TOKEN}"}
            async with (
                httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False) as http,
                Client(streamable_http_client(url, http_client=http), mode="legacy", cache=None) as program,
            ):
                await program.call_tool("delta_set", {"key": "build", "value": "make"})
                for number in range(20):
                    await program.call_tool("delta_task_create", {"title": words(40, number)})
                calls: dict[str, Callable[[], Awaitable[object]]] = {
                    "ping": program.send_ping,
                    "get": lambda: program.call_tool("delta_get", {"key": "build"}),
                    "task_list": lambda: program.call_tool("delta_task_list", {}),
                }
                for _ in range(CALLS):
                    for name, call in calls.items():
                        spent[name].append(await _seconds(call) * 1_000)
    ping = quantile(spent["ping"], 0.25)
    names = {
        "ping": "a ping over MCP",
        "get": "delta_get over MCP",
        "task_list": "delta_task_list of 20 tasks over MCP",
    }
    return [
        Figure(name=names[name], unit="ms", values=values[5:], share=0.25, baseline=ping)
        for name, values in spent.items()
    ]


async def _replay() -> list[Figure]:
    """Readers that come at once for an answer that has ended, each until its last event."""
    spent: dict[str, list[float]] = {"messages": [], "replay": []}
    events = list[int]()
    with tempfile.TemporaryDirectory(prefix="pattern-bench-") as folder:
        async with friend(Run(Random(1))) as environment, serving(Path(folder), environment=environment) as server:
            async with server.client() as client:
                (await client.post("/constellations", json={"name": "home"})).raise_for_status()
                agent = {"name": "ada", "model_provider": "friend", "model_name": "m"}
                (await client.post("/constellations/home/agents", json=agent)).raise_for_status()
            front = FrontEnd(server, Run(Random(1)))
            session = await front.send("message 2.", None)  # with a tool
            await front.follow(session, [])

            async def replayed() -> None:
                began = time.perf_counter()
                text = (await front.http.get(f"/api/stream/{session}")).text
                events.append(text.count("\ndata: "))
                spent["replay"].append((time.perf_counter() - began) * 1_000)

            async def read() -> None:
                spent["messages"].append(await _seconds(lambda: front.messages(session)) * 1_000)

            for one in (read, replayed, read, replayed):
                async with trio.open_nursery() as nursery:
                    for _ in range(READERS):
                        nursery.start_soon(one)
            await front.http.aclose()
    note = f"{median(events):.0f} events each, at once"
    baseline = median(spent["messages"])
    name = f"{READERS} readers replay an answer: each until its end"
    return [Figure(name=name, unit="ms", values=spent["replay"], baseline=baseline, note=note)]
