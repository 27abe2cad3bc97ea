"""Prompts: what making one takes with a short and a long history, and how much of it vendors' caches find again."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from itertools import pairwise

from pattern_core.agents.active import ActiveTurn
from pattern_core.agents.history import load_history, make_message, to_row
from pattern_core.agents.prompting import make_prompt
from pattern_core.agents.roster import AgentSpec
from pattern_core.agents.services import TurnServices
from pattern_core.limits import Limits, PromptLimits
from pattern_core.messages import Message, Part, Text, ToolCall, ToolResult
from pattern_core.models.model import ModelReply, ModelRequest, OnDelta
from pattern_core.models.providers.openai_chat import Server, encode
from pattern_core.testing.model import calls
from pattern_core.tools.builtin.block_edit import block_edit
from pattern_db.connection import Connection
from pattern_db.tables import messages
from tests.bench.report import Figure
from tests.bench.turns import FACTS, USAGE, Script, World, words, world

LENGTHS = (200, 10_000)  # messages
AT_ONCE = 1_000  # messages stored in one transaction
BUILDS = 100
BUILD_MS = 5
PREFIX_SHARE = 0.9
TURNS = 50
WIDE = replace(FACTS, window=10_000_000)
ALL = Limits(prompt=PromptLimits(history_messages_max=20_000))
"""All is read and nothing leaves, so that a prompt really holds so many messages."""


async def building() -> list[Figure]:
    """What a prompt takes to make, of a turn's first step (with what is looked up for it) and of a further one."""
    figures: list[Figure] = []
    for length in LENGTHS:
        async with world(limits=ALL, facts=WIDE) as bench:
            for first in range(0, length, AT_ONCE):
                await bench.constellation.database.write(_fill, bench.agents[0].id, first, min(length - first, AT_ONCE))
            figures += await _building(bench, length)
    return figures


async def _building(bench: World, length: int) -> list[Figure]:
    services = bench.constellation._services
    began = time.perf_counter()
    turn = await _turn(bench, services)
    loaded = (time.perf_counter() - began) * 1_000
    made = await make_prompt(services, turn, step=1)
    first, further, cpu = [], [], []
    for number in range(BUILDS):
        turn.id = f"turn_{number}"
        turn.history.append(_message("user", Text(text=words(120, number)), at=length + 2 * number))
        began = time.perf_counter()
        await make_prompt(services, turn, step=1)
        first.append((time.perf_counter() - began) * 1_000)
        turn.history.append(_message("assistant", Text(text=words(120, number)), at=length + 2 * number + 1))
        began, began_cpu = time.perf_counter(), time.process_time()
        made = await make_prompt(services, turn, step=2)
        further.append((time.perf_counter() - began) * 1_000)
        cpu.append((time.process_time() - began_cpu) * 1_000)
        services.prompts.forget(turn.id)
    assert len(made.request.messages) >= length
    name = f"a prompt with {length:,} messages"
    return [
        Figure(name=f"{name}: made", unit="ms", values=further, most=BUILD_MS),
        Figure(name=f"{name}: made, p99", unit="ms", values=[sorted(further)[-2]]),
        Figure(name=f"{name}: made, CPU", unit="ms", values=cpu),
        Figure(name=f"{name}: a turn's first, with what is looked up", unit="ms", values=first),
        Figure(name=f"{length:,} messages read from the file", unit="ms", values=[loaded], note="after a restart"),
    ]


async def _turn(bench: World, services: TurnServices) -> ActiveTurn:
    agent = bench.agents[0]
    history = await services.database.read(load_history, agent.id, ALL.prompt, active=None)
    return ActiveTurn(
        key=1,
        id="turn_0",
        agent=agent,
        seed=1,
        sender="user:bench",
        depth=0,
        batch_id="",
        deadline=math.inf,
        deadline_at="",
        history=history,
    )


def _fill(connection: Connection, agent_id: str, first: int, count: int) -> None:
    """A conversation of turns of four messages: a question, a call, its result, an answer."""
    rows = []
    for number in range(first, first + count):
        kind, call = number % 4, f"call_{number // 4}"
        said: list[Part] = [
            Text(text=words(120, number)),
            ToolCall(call_id=call, tool="note", arguments={"text": words(60, number)}),
            ToolResult(call_id=call, tool="note", content=words(60, number), is_error=False),
            Text(text=words(200, number)),
        ]
        message = _message(("user", "assistant", "tool", "assistant")[kind], said[kind], at=number)
        batch = f"{number // 4 * 4:019d}"
        rows.append(to_row(message, agent_id=agent_id, batch_id=batch, sequence=kind))
    messages.append(connection, rows)


def _message(role: str, *parts: Part, at: int) -> Message:
    return make_message(role, parts, position=f"{at:019d}", created_at="2026-01-01T00:00:00.000Z")


class Remembering(Script):
    """A model that edits its memory in each seventh turn and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(steps=2, chars=300)
        self.requests: list[ModelRequest] = []
        self._turns = 0

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        """The next answer."""
        self.requests.append(request)
        number = len(self.requests)
        is_new_turn = request.messages[-1].role == "user"
        self._turns += is_new_turn
        if is_new_turn and self._turns % 7 == 0:
            line = {"op": "append", "label": "human", "content": f"\n{words(80, number)}"}
            reply = calls("block_edit", line, call_id=f"edit_{number}")
            return ModelReply(parts=reply.parts, finish_reason="tool_calls", usage=USAGE)
        return await super().ask(request, on_delta)


async def prefixes() -> list[Figure]:
    """How much of a prompt is the beginning of the next one, in characters as they go over the wire."""
    provider = Remembering()
    async with world(provider=provider, tools=[block_edit]) as bench:
        spec = AgentSpec(
            name="rememberer",
            model_provider="script",
            model_name="m",
            system_prompt=words(3_000, 5),
            enabled_tools=["note", "block_edit"],
        )
        agent = await bench.constellation.roster.create(spec, author="user:bench")
        for number in range(TURNS):
            await bench.turn(agent, words(200, number))
    sent = [_sent(request) for request in provider.requests]
    shares = [_common(before, after) / len(before) for before, after in pairwise(sent)]
    total = sum(_common(before, after) for before, after in pairwise(sent))
    return [
        Figure(
            name=f"of a prompt, the beginning of the next one, {TURNS} turns with edits of memory",
            unit="",
            values=shares,
            least=PREFIX_SHARE,
            note=f"{sum(share < PREFIX_SHARE for share in shares)} of {len(shares)} are less: after an edit",
        ),
        Figure(
            name="the same over all that was sent",
            unit="",
            values=[total / sum(map(len, sent[:-1]))],
            least=PREFIX_SHARE,
        ),
    ]


def _sent(request: ModelRequest) -> str:
    """What a vendor compares: tools, then messages, in order."""
    body = encode(request, Server(name="openai", is_own=True))
    return json.dumps(body.get("tools", []), ensure_ascii=False) + json.dumps(body["messages"], ensure_ascii=False)


def _common(before: str, after: str) -> int:
    low, high = 0, min(len(before), len(after))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if before[:middle] == after[:middle] else (low, middle - 1)
    return low
