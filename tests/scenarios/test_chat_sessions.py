"""A front end written from seed 004 alone, with connections that drop and a server that is killed:
`python -m tests.scenarios.test_chat_sessions --drops 500 --kills 50`.

It starts sessions and continues them, and two readers follow each answer. A reader that loses its connection, or leaves
it, comes back with the last `id`. The model is a process that outlives the server, and answers the same question with
the same words. So what both readers put together, and what the session then lists, is known to the letter.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import pytest
import trio

from pattern_core.testing.model import calls, says
from pattern_core.testing.wire_openai import replies
from pattern_server.listener import listen
from tests.scenarios.server import TOKEN, Server, serving

# A reader that leaves closes the response; the iterators inside httpx2 cannot be closed.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:Async generator '{name}:ResourceWarning") for name in ("httpx2", "httpcore2")
]
TURNS = 3  # of a session
DROP_SHARE = 0.3  # of events after which a reader leaves
PIECE_S = 0.01
AGAIN_S = 0.05
PATIENCE_S = 60.0
HEAD = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}


@dataclass
class Run:
    """What was done, and what went wrong."""

    random: Random
    turns: int = 0
    drops: int = 0
    kills: int = 0
    asked: int = 0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.turns} turns, {self.drops} dropped connections, {self.kills} kills, {self.asked} model calls"


def answer_to(number: int) -> list[str]:
    """What the model says to a message: with an even number it calls a tool first."""
    last = f"Answer {number}: " + " ".join(f"word{place}" for place in range(25))
    return [last] if number % 2 else [f"Looking for {number}.", last]


@asynccontextmanager
async def friend(run: Run) -> AsyncIterator[dict[str, str]]:
    """The model, and the server's environment with it."""

    async def answer(scope: dict[str, Any], receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        if not scope["path"].endswith("/chat/completions"):  # it says nothing of its models
            await send({**HEAD, "status": 404})
            await send({"type": "http.response.body", "body": b""})
            return
        run.asked += 1
        messages = json.loads(body)["messages"]
        said = [re.findall(r"message (\d+)\.", str(one["content"])) for one in messages if one["role"] == "user"]
        shown = [int(number) for numbers in said for number in numbers]
        if len(shown) != len(set(shown)):
            run.wrong.append(f"the model was shown {shown}")
        words = answer_to(shown[-1])
        reply = says(words[-1])
        if messages[-1]["role"] != "tool" and words[1:]:
            reply = calls("recall", {"op": "search", "query": "tea"}, text=words[0], call_id=f"call_{shown[-1]}")
        await send(HEAD)
        for chunk in replies(reply).chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await trio.sleep(PIECE_S)
        await send({"type": "http.response.body", "body": b""})

    async with trio.open_nursery() as nursery:
        stop = trio.Event()
        url = await nursery.start(partial(_listening, answer, stop))
        model = {"kind": "openai", "base_url": f"{url}/v1", "api_key": "sk-friend"}
        limits = {"PATTERN_HTTP__RATE_PER_TOKEN": "100000", "PATTERN_HTTP__RATE_PER_USER": "100000"}
        yield {**limits, "PATTERN_PROVIDERS": json.dumps({"friend": model})}
        stop.set()


async def _listening(app: Any, stop: trio.Event, *, task_status: trio.TaskStatus[str]) -> None:
    await listen(app, host="127.0.0.1", port=0, stop=stop, task_status=task_status)


class FrontEnd:
    """What seed 004 describes, and no more."""

    def __init__(self, server: Server, run: Run) -> None:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        self.http = httpx2.AsyncClient(base_url=server.url, headers=headers, trust_env=False, timeout=PATIENCE_S)
        self._run = run

    async def get(self, path: str) -> dict[str, Any]:
        """The answer to a read, however often the server is killed meanwhile."""
        while True:
            with suppress(httpx2.TransportError):
                answer = await self.http.get(path)
                if answer.status_code == 200:
                    return dict(answer.json())
                assert answer.status_code == 503, answer.text
            await trio.sleep(AGAIN_S)

    async def send(self, message: str, session: str | None) -> str:
        """Start or continue a session; its id. After a lost answer it looks whether the message has arrived."""
        while True:
            with suppress(httpx2.TransportError):
                path = "/api/chat" if session is None else f"/api/chat/{session}"
                answer = await self.http.post(path, json={"message": message})
                if answer.status_code == 200:
                    return str(answer.json()["sessionId"])
                assert answer.status_code == 503, answer.text
            await trio.sleep(AGAIN_S)
            if session is None:
                listed = (await self.get("/api/sessions"))["sessions"]
                known = [one["id"] for one in listed if one["preview"] == message]
            else:
                known = [
                    session for role, text, _calls in await self.messages(session) if (role, text) == ("user", message)
                ]
            if known:
                return str(known[0])

    async def messages(self, session: str) -> list[tuple[str, str | None, int]]:
        """The messages of a session: roles, texts, and how many calls."""
        found = (await self.get(f"/api/session/{session}/messages"))["messages"]
        return [
            (one["role"], None if one["role"] == "tool" else one["content"], len(one.get("tool_calls", ())))
            for one in found
        ]

    async def follow(self, session: str, found: list[dict[str, Any]]) -> None:
        """Collect the events of the running answer, up to the last one."""
        while not found or found[-1]["type"] != "done":
            last = {"Last-Event-ID": found[-1]["id"]} if found else {}
            with suppress(httpx2.TransportError):
                async with self.http.stream("GET", f"/api/stream/{session}", headers=last) as answer:
                    assert answer.status_code in (200, 503), answer.status_code
                    if answer.status_code == 200:
                        await self._read(answer, found)
            await trio.sleep(AGAIN_S if self._run.random.random() < 0.5 else 0)

    async def _read(self, answer: httpx2.Response, found: list[dict[str, Any]]) -> None:
        """Read events until the end, or until the reader leaves."""
        number, data = "", ""
        async for line in answer.aiter_lines():
            name, _, value = line.partition(": ")
            if name == "id":
                number = value
            elif name == "data":
                data = value
            elif not line and data:
                found.append({"id": number, **json.loads(data)})
                data = ""
                if found[-1]["type"] == "done":
                    break
                if self._run.random.random() < DROP_SHARE:
                    self._run.drops += 1
                    break


def outline(events: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """The kinds of events in order, with the text of pieces that follow each other."""
    return [
        (kind, "".join(one.get("text", "") for one in some))
        for kind, some in groupby(events, key=lambda one: str(one["type"]))
    ]


def expected(number: int) -> list[tuple[str, str]]:
    *first, last = answer_to(number)
    called = (
        [("text_delta", first[0]), *((kind, "") for kind in ("usage", "tool_call", "tool_result"))] if first else []
    )
    return [*called, ("text_delta", last), ("usage", ""), ("done", "")]


def told(number: int) -> list[tuple[str, str | None, int]]:
    *first, last = answer_to(number)
    called = [("assistant", first[0], 1), ("tool", None, 0)] if first else []
    return [("user", f"This is message {number}.", 0), *called, ("assistant", last, 0)]


async def kill(server: Server, run: Run) -> None:
    """Kill the server in the middle of an answer, and start it again."""
    await trio.sleep(run.random.uniform(0, 0.6))
    server.kill()
    run.kills += 1
    await server.start()


async def converse(folder: Path, drops: int, kills: int, seed: int) -> Run:
    """Talk until so many connections were dropped and so many servers killed.

    Raises:
        AssertionError: an answer came twice, in part, or not at all.
    """
    run = Run(Random(seed))
    async with friend(run) as environment, serving(folder, environment=environment) as server:
        async with server.client() as admin:
            ada = {"name": "ada", "model_provider": "friend", "model_name": "m"}
            for path, body in (("/constellations", {"name": "home"}), ("/constellations/home/agents", ada)):
                (await admin.post(path, json=body)).raise_for_status()
        session, history = None, list[tuple[str, str | None, int]]()
        front_end = FrontEnd(server, run)
        async with front_end.http:
            while run.drops < drops or run.kills < kills:
                number, run.turns = run.turns, run.turns + 1
                if number % TURNS == 0:
                    session, history = None, []
                streams: list[list[dict[str, Any]]] = [[], []]
                with trio.fail_after(PATIENCE_S):
                    async with trio.open_nursery() as nursery:
                        if run.kills < kills:
                            nursery.start_soon(kill, server, run)
                        session = await front_end.send(f"This is message {number}.", session)
                        for found in streams:
                            nursery.start_soon(front_end.follow, session, found)
                for found in streams:
                    assert outline(found) == expected(number), f"turn {number} of {session}: {outline(found)}"
                history += told(number)
                assert await front_end.messages(session) == history, f"turn {number} of {session}"
                assert not run.wrong, run.wrong
            assert (await front_end.get(f"/api/session/{session}"))["status"] == "completed"
            listed = await front_end.get("/api/sessions?limit=100")
            assert listed["total"] == -(-run.turns // TURNS)
            for one in listed["sessions"]:
                assert (await front_end.http.delete(f"/api/session/{one['id']}")).json() == {"success": True}
            assert (await front_end.get("/api/sessions"))["total"] == 0
    return run


async def test_c42_each_message_once_and_in_order_with_drops_and_kills(tmp_path: Path) -> None:
    run = await converse(tmp_path, 20, 3, 1)
    assert run.drops >= 20 and run.kills == 3 and run.turns >= 3


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("drops", 500), ("kills", 50), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        sys.stdout.write(f"{trio.run(converse, Path(place), given.drops, given.kills, given.seed)}\n0 violations\n")
