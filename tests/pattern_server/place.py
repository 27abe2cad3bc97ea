"""A whole server in the test's own process, on a free port, with its parts within reach."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import trio

from pattern_core.models.model import Provider
from pattern_server.config import Config, load
from pattern_server.http.app import build_app
from pattern_server.listener import listen
from pattern_server.serve import Assembled, assembled, configure_logs

API = "/api/v1"
DETERMINISTIC = {"provider": "deterministic"}  # no model is loaded for a test
CHEAP = {"memory_kib": 64, "passes": 1, "lanes": 1}  # passwords in half a millisecond
# A test asks as much as it likes.
BUSY = dict.fromkeys(("rate_per_address", "rate_per_token", "rate_per_user", "rate_per_constellation"), 100_000.0)
# A name for a test's own provider.
SCRIPTED = {"scripted": {"kind": "openai", "base_url": "http://127.0.0.1:9/v1"}}


@dataclass
class Place:
    """A running server. `admin` speaks with all rights; addresses are relative to `/api/v1`."""

    parts: Assembled
    url: str
    admin: httpx2.AsyncClient
    stack: AsyncExitStack
    _users: dict[str, Any] = field(default_factory=dict)

    async def client(self, user: str, *scopes: str, constellation_id: str | None = None) -> httpx2.AsyncClient:
        """A client with a new token of a user, who is made if need be."""
        accounts = self.parts.state.accounts
        if user not in self._users:
            self._users[user] = await accounts.create_user(user)
        _, secret = await accounts.create_token(
            self._users[user], name="test", scopes=scopes or ["write", "chat"], constellation_id=constellation_id
        )
        return await self.stack.enter_async_context(client_of(self.url, secret))

    async def constellation(self, name: str = "home", agent: str | None = "ada", **fields: Any) -> str:
        """A new constellation of the administrator's with one agent; its id."""
        made = await self.admin.post("/constellations", json={"name": name})
        assert made.status_code == 201, made.text
        if agent is not None:
            body = {"name": agent, **fields}
            answer = await self.admin.post(f"/constellations/{name}/agents", json=body)
            assert answer.status_code == 201, answer.text
        return str(made.json()["id"])

    async def say(self, content: str, *, where: str = "home/agents/ada", **headers: str) -> httpx2.Response:
        """Send a message to an agent."""
        return await self.admin.post(f"/constellations/{where}/messages", json={"content": content}, headers=headers)

    async def events(self, where: str, *, after: int | None = None, most: int = 10_000) -> list[dict[str, Any]]:
        """The first events of a stream, as `id`, `event` and `data`; all of them if it ends by itself."""
        headers = {} if after is None else {"Last-Event-ID": str(after)}
        async with self.admin.stream("GET", where, headers=headers) as answer:
            assert answer.status_code == 200, await answer.aread()
            return await read_events(answer, most)


async def read_events(
    answer: httpx2.Response, most: int = 10_000, begun: trio.Event | None = None
) -> list[dict[str, Any]]:
    """Decode server-sent events; `begun` is set once there is one."""
    found: list[dict[str, Any]] = []
    fields: dict[str, Any] = {}
    async for line in answer.aiter_lines():
        name, _, value = line.partition(": ")
        if line and name in ("id", "event", "data"):
            fields[name] = json.loads(value) if name in ("id", "data") else value
        elif not line and fields:
            found.append(fields)
            fields = {}
            if begun is not None:
                begun.set()
            if len(found) >= most:
                break
    return found


def client_of(url: str, secret: str) -> httpx2.AsyncClient:
    """A client of the API with a token."""
    return httpx2.AsyncClient(
        base_url=url + API, headers={"Authorization": f"Bearer {secret}"}, timeout=60, trust_env=False
    )


def config_for(folder: Path, **flags: Any) -> Config:
    """A configuration that nothing outside the test decides; agents that name no model get the scripted one."""
    model = {"default_provider": "scripted", "default_model": "m"}
    http = {**BUSY, **flags.pop("http", {})}
    given = {
        "http": http,
        "embeddings": DETERMINISTIC,
        "passwords": CHEAP,
        "providers": SCRIPTED,
        **model,
        "port": 0,
        **flags,
    }
    return load(data_dir=folder / "data", **given)


@asynccontextmanager
async def serving(config: Config, providers: Mapping[str, Provider] | None = None) -> AsyncIterator[Place]:
    """A server within the block."""
    configure_logs("warning", "json")
    async with assembled(config, providers or {}) as parts, AsyncExitStack() as stack, trio.open_nursery() as nursery:
        await parts.state.accounts.bootstrap()
        stop = trio.Event()
        app = build_app(parts.state)
        await trio.to_thread.run_sync(app.load)
        http = {name: value for name, value in config.http.model_dump().items() if name.startswith("connections")}
        listening = partial(listen, app, host="127.0.0.1", port=0, stop=stop, grace_s=0.2, **http)
        url: str = await nursery.start(listening)
        admin = await stack.enter_async_context(client_of(url, parts.local_token))
        yield Place(parts, url, admin, stack)
        stop.set()
