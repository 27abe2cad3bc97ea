"""Accounts of sources are asked by the server, also while their constellation is parked; services post to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import trio

from pattern_core.models.providers.settings import Secret
from pattern_core.testing.channels import TOKEN, FeedServer, TelegramServer
from pattern_core.testing.model import ScriptedProvider, says
from pattern_server.metrics import Metrics
from tests.pattern_server.place import Place, config_for, serving

FEED = b"<rss><channel><item><guid>1</guid><title>One</title></item></channel></rss>"


@asynccontextmanager
async def asking(folder: Path, *ports: int, starts: bool = True) -> AsyncIterator[Place]:
    """A server that may reach these ports of loopback, with a constellation; it asks its sources if it `starts`."""
    secrets = {"bot": {"value": Secret(TOKEN)}, "hook": {"value": Secret("a secret")}}
    services = [f"http://127.0.0.1:{port}" for port in ports]
    reach: Any = {"ports": ports or (80,), "allow_private": True, "timeout_s": 1.0, "services": services}
    reach["secrets"] = secrets
    config = config_for(folder, sources=reach, supervisor={"idle_park_s": 0.8})
    provider = ScriptedProvider(otherwise=says("Hello."))
    async with serving(config, {"scripted": provider}) as place:
        if not (folder / "data" / "constellations").exists() or not any((folder / "data" / "constellations").iterdir()):
            await place.constellation(model_provider="scripted", model_name="script-1")
        async with trio.open_nursery() as nursery:
            if starts:
                nursery.start_soon(place.parts.state.sources.run)
            yield place
            nursery.cancel_scope.cancel()


async def source(place: Place, kind: str, **config: Any) -> str:
    """A new source of the constellation `home`; its id."""
    body = {"name": kind, "kind": kind, "agent": "ada", "config": config}
    made = await place.admin.post("/constellations/home/sources", json=body)
    assert made.status_code == 201, made.text
    return str(made.json()["id"])


async def until_state(place: Place, state: str) -> None:
    """Wait until the only constellation is in this state."""
    with trio.fail_after(10):
        while (await place.admin.get("/constellations")).json()["items"][0]["state"] != state:
            await trio.sleep(0.02)


async def test_a_parked_constellation_is_woken_by_a_message_and_not_by_waiting(tmp_path: Path) -> None:
    async with TelegramServer() as server, asking(tmp_path, server.port) as place:
        await source(place, "telegram", token="bot", base_url=server.url)
        await until_state(place, "parked")
        with trio.fail_after(10):
            while not any(one.path.endswith("getUpdates") for one in server.requests):
                await trio.sleep(0.02)
        assert (await place.admin.get("/constellations")).json()["items"][0]["state"] == "parked"
        server.says("Hi")
        with trio.fail_after(10):
            while not server.sent:
                await trio.sleep(0.02)
        assert "code" in server.texts[0]
        metrics = place.parts.state.metrics.text().decode()
        assert 'pattern_sources{state="active"} 1.0' in metrics and "pattern_source_event_timestamp" in metrics


async def test_a_source_that_fails_is_shown_and_harms_no_other(tmp_path: Path) -> None:
    async with (
        FeedServer(FEED) as broken,
        FeedServer(FEED) as works,
        asking(tmp_path, broken.port, works.port) as place,
    ):
        broken.body = b"<html>"
        await source(place, "rss", url=f"{broken.url}/feed")
        body = {"name": "works", "kind": "rss", "agent": "ada", "config": {"url": f"{works.url}/feed"}}
        await place.admin.post("/constellations/home/sources", json=body)
        with trio.fail_after(10):
            while True:
                found = (await place.admin.get("/constellations/home/sources")).json()["items"]
                states = {one["name"]: one["state"] for one in found}
                if states == {"rss": "failing", "works": "active"} and found[1]["last_event_at"]:
                    break
                await trio.sleep(0.02)
        assert "not a feed" in found[0]["error"]
        assert place.parts.state.sources.states == {"failing": 1, "active": 1}
        await place.admin.patch("/constellations/home/sources/rss", json={"enabled": False})
        with trio.fail_after(5):
            while place.parts.state.sources.states != {"failing": 0, "active": 1}:
                await trio.sleep(0.02)


async def test_a_restart_asks_when_it_is_due_and_opens_no_file_before(tmp_path: Path) -> None:
    async with FeedServer(FEED) as server:
        async with asking(tmp_path, server.port) as place:
            await source(place, "rss", url=f"{server.url}/feed")
            with trio.fail_after(10):
                while place.parts.state.sources.last_event_ms is None:
                    await trio.sleep(0.02)
        asked = len(server.requests)
        async with asking(tmp_path, server.port) as place:
            with trio.fail_after(10):
                while place.parts.state.sources.states["active"] == 0:
                    await trio.sleep(0.02)
            assert place.parts.state.supervisor.handles() == []
            assert len(server.requests) == asked


async def test_a_service_posts_and_its_event_is_stored_before_the_answer(tmp_path: Path) -> None:
    async with asking(tmp_path) as place, httpx2.AsyncClient() as client:
        hook = await source(place, "webhook", secret="hook", signature="token")
        url, headers = f"{place.url}/hooks/{hook}", {"X-Token": "a secret", "Idempotency-Key": "1"}
        answers = [(await client.post(url, content=b'{"a": 1}', headers=headers)) for _ in range(2)]
        assert [(one.status_code, one.json()) for one in answers] == [(202, {"new": True}), (202, {"new": False})]
        found = (await place.admin.get(f"/constellations/home/sources/{hook}/deliveries")).json()["items"]
        assert [(one["direction"], one["text"]) for one in found] == [("in", '{\n "a": 1\n}')]
        assert (await client.post(url, content=b"{}", headers={"X-Token": "wrong"})).status_code == 403
        assert (await client.post(f"{place.url}/hooks/src_none", content=b"{}")).status_code == 404
        await place.admin.patch(f"/constellations/home/sources/{hook}", json={"enabled": False})
        assert (await client.post(url, content=b"{}", headers=headers)).status_code == 404
        await place.admin.delete("/constellations/home")
        assert (await client.post(url, content=b"{}", headers=headers)).status_code == 404


async def test_a_constellation_that_is_gone_is_asked_no_more(tmp_path: Path) -> None:
    async with TelegramServer() as server, asking(tmp_path, server.port) as place:
        await source(place, "telegram", token="bot", base_url=server.url)
        await until_state(place, "parked")
        await place.admin.delete("/constellations/home")
        server.says("Hi")
        with trio.fail_after(10):
            while place.parts.state.sources.states["active"]:
                await trio.sleep(0.02)


def test_metrics_without_sources() -> None:
    assert b"pattern_sources" not in Metrics().text()
