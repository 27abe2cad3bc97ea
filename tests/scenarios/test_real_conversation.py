"""The main job on real input: a long conversation is replayed through the API while the server is killed again and
again. Every accepted message stands exactly once, in order; every turn ends once; no stream misses or repeats."""

from __future__ import annotations

import json
import random
from collections import Counter
from functools import partial
from pathlib import Path

import httpx2
import pytest
import trio

from pattern_core.events import TERMINAL
from tests.scenarios.long_run import lines_of
from tests.scenarios.server import Server, serving

KILLS = 24
SEED = 20_260_101
TIMEOUT_S = 400.0
LOST = (httpx2.TransportError, httpx2.RemoteProtocolError, httpx2.ReadError)


class Story:
    """The state of the test: what was sent and accepted, what the streams saw, and how often the server died."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.accepted: dict[str, list[str]] = {}  # constellation → turn ids in order of acceptance
        self.seen: dict[str, list[tuple[int, str, str | None]]] = {}  # constellation → (seq, name, turn)
        self.kills = 0
        self.sent = trio.Event()
        self.up = trio.Event()
        self.up.set()

    async def request(self, method: str, path: str, **options: object) -> httpx2.Response:
        """Ask until there is an answer: what a patient client does with a server that comes and goes."""
        while True:
            await self.up.wait()
            try:
                async with self.server.client() as client:
                    response = await client.request(method, path, **options)  # type: ignore[arg-type]  # httpx's own options
                if response.status_code != 503:
                    return response
            except LOST:
                pass
            await trio.sleep(0.02)

    async def replay(self, constellation: str, texts: list[str], *, pause_s: float = 0.0) -> None:
        """Send the messages in order, each under its own key, again until it is accepted."""
        accepted = self.accepted.setdefault(constellation, [])
        for number, text in enumerate(texts):
            response = await self.request(
                "POST",
                f"/constellations/{constellation}/agents/friend/messages",
                json={"content": text},
                headers={"Idempotency-Key": f"message-{number}", "Prefer": "respond-async"},
            )
            assert response.status_code == 202, response.text
            accepted.append(response.json()["turn_id"])
            await trio.sleep(pause_s)

    async def listen(self, constellation: str) -> None:
        """Follow all events, reconnecting with the last id seen, until the turns are over."""
        seen = self.seen.setdefault(constellation, [])
        while True:
            await self.up.wait()
            headers = {"Accept": "text/event-stream"}
            if seen:
                headers["Last-Event-ID"] = str(seen[-1][0])
            try:
                async with (
                    self.server.client() as client,
                    client.stream("GET", f"/constellations/{constellation}/events?after=0", headers=headers) as stream,
                ):
                    if stream.status_code == 200:
                        await self._read(stream, seen)
            except LOST:
                pass
            await trio.sleep(0.02)

    async def _read(self, stream: httpx2.Response, seen: list[tuple[int, str, str | None]]) -> None:
        fields: dict[str, str] = {}
        async for line in stream.aiter_lines():
            if line:
                name, _, value = line.partition(":")
                fields[name] = value.removeprefix(" ")
            elif "id" in fields:
                data = json.loads(fields.get("data", "{}"))
                seen.append((int(fields["id"]), fields["event"], data.get("turn_id")))
                fields = {}

    async def kill_often(self, chance: random.Random) -> None:
        """Kill the server at random moments, and start it again on the same files."""
        while self.kills < KILLS:
            await trio.sleep(chance.uniform(0.02, 0.7))
            self.up = trio.Event()
            self.server.kill()
            self.kills += 1
            await self.server.start()
            self.up.set()


@pytest.mark.slow
async def test_a_real_conversation_survives_many_kills(tmp_path: Path, shared_data: Path) -> None:
    samples = json.loads((shared_data / "locomo" / "dev.json").read_text())
    texts = lines_of(next(one for one in samples if one["sample_id"] == "conv-26"))
    assert len(texts) == 419
    others = {"garden": [f"remember that plant {n} is a fern" for n in range(20)], "lab": ["hello"] * 10}
    async with serving(tmp_path) as server:
        story = Story(server)
        for name in ("home", *others):
            made = await story.request("POST", "/constellations", json={"name": name})
            assert made.status_code == 201, made.text
            agent = await story.request("POST", f"/constellations/{name}/agents", json={"name": "friend"})
            assert agent.status_code == 201, agent.text
        with trio.fail_after(TIMEOUT_S):
            async with trio.open_nursery() as listeners:
                for name in ("home", *others):
                    listeners.start_soon(story.listen, name)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(story.kill_often, random.Random(SEED))
                    nursery.start_soon(story.replay, "home", texts)
                    for name, words in others.items():
                        nursery.start_soon(partial(story.replay, name, words, pause_s=0.2))
                for name in ("home", *others):
                    await _settle(story, name)
                listeners.cancel_scope.cancel()
        assert story.kills >= 20
        for name in ("home", *others):
            await _check(story, name, texts if name == "home" else others[name])
        await _check_isolation(story, texts, list(others))
        assert server.terminate() == 0


async def _settle(story: Story, name: str) -> None:
    """Wait until every accepted turn has ended and the stream has shown it."""
    waiting = set(story.accepted[name])
    while waiting:
        waiting -= {turn for _seq, event, turn in story.seen[name] if event in TERMINAL and turn is not None}
        await trio.sleep(0.05)


async def _history(story: Story, name: str) -> list[dict[str, object]]:
    items: list[dict[str, object]] = []
    cursor: str | None = None
    while True:
        query = {"limit": "200"} | ({"cursor": cursor} if cursor else {})
        page = (await story.request("GET", f"/constellations/{name}/agents/friend/messages", params=query)).json()
        items += page["items"]
        cursor = page.get("next_cursor")
        if not cursor:
            return items[::-1]


async def _check(story: Story, name: str, texts: list[str]) -> None:
    turns = story.accepted[name]
    assert len(turns) == len(set(turns)) == len(texts)
    said = [message["content"] for message in await _history(story, name) if message["role"] == "user"]
    assert said == texts, "each accepted message stands exactly once, in order"
    seen = story.seen[name]
    numbers = [seq for seq, _event, _turn in seen]
    assert numbers == sorted(set(numbers)), "the stream repeated or reordered events"
    ends = Counter(turn for _seq, event, turn in seen if event in TERMINAL)
    assert ends == Counter(turns), "every turn ends exactly once"
    stored = await _stored(story, name, numbers[-1])
    assert stored <= {(seq, event) for seq, event, _turn in seen}, "the stream missed events"


async def _stored(story: Story, name: str, last: int) -> set[tuple[int, str]]:
    """All events that the server holds now, read afresh."""
    fresh = Story(story.server)
    with trio.move_on_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fresh.listen, name)
            while not fresh.seen.get(name) or fresh.seen[name][-1][0] < last:
                await trio.sleep(0.02)
            nursery.cancel_scope.cancel()
    return {(seq, event) for seq, event, _turn in fresh.seen[name]}


async def _check_isolation(story: Story, texts: list[str], others: list[str]) -> None:
    """The other constellations hold nothing of the conversation, neither on disk nor through search."""
    listed = (await story.request("GET", "/constellations")).json()["items"]
    folders = {item["name"]: story.server.folder / "constellations" / item["id"] for item in listed}
    marks = [text.encode() for text in texts if len(text) > 60][:50]
    for name in others:
        held = b"".join(path.read_bytes() for path in folders[name].glob("pattern.db*"))
        assert not any(mark in held for mark in marks)
        words = {"query": "Caroline Melanie", "mode": "words"}
        assert (await story.request("POST", f"/constellations/{name}/search", json=words)).json()["hits"] == []
        # By meaning something is always nearest: it must be the constellation's own.
        near = await story.request("POST", f"/constellations/{name}/search", json={**words, "mode": "hybrid"})
        assert not set(texts) & {hit["content"] for hit in near.json()["hits"]}
