"""Starters: each is whole, works with rules, small models and servers, and is created entirely or not at all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio

from pattern_core.testing.model import says
from pattern_core.testing.wire_openai import serve_openai
from pattern_db.tables import constellations
from pattern_server.http.routes.starters import starter_of, starters
from tests.pattern_server.place import Place, config_for, serving
from tests.scenarios.server import Server
from tests.scenarios.server import serving as serving_apart

NAMES = ("minimal", "pair", "research", "support")
SIX = {"compass", "pebble", "tempo", "ember", "harbor", "lantern"}
SMALL_WINDOW = 4_096  # tokens
KILLED_AFTER_S = (0.0, 0.02, 0.05, 0.1)  # after its file was created


@asynccontextmanager
async def answering(folder: Path, kind: str) -> AsyncIterator[Place]:
    """A server with agents that rules answer for, or a small model on a server on loopback."""
    async with serve_openai(otherwise=says("Let us look at it together.")) as wire:
        small = {"m": {"window": SMALL_WINDOW}}
        local = {"kind": "openai", "base_url": f"{wire.url}/v1", "api_key": "k", "models": small}
        model = {"default_provider": "embedded"} if kind == "embedded" else {"default_provider": "local"}
        name = "rules-1" if kind == "embedded" else "m"
        async with serving(config_for(folder, providers={"local": local}, default_model=name, **model)) as place:
            yield place


async def items(client: httpx2.AsyncClient, where: str) -> list[dict[str, Any]]:
    """A list of the API."""
    answer = await client.get(where, params={"limit": 100})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


async def names_in(client: httpx2.AsyncClient, c: str) -> dict[str, set[str]]:
    """The names of all that a starter may create; schedules of groups are theirs."""
    kinds = ("agents", "groups", "schedules")
    found = {kind: {one["name"] for one in await items(client, f"/constellations/{c}/{kind}")} for kind in kinds}
    found["schedules"] = {name for name in found["schedules"] if ":" not in name}
    blocks = await items(client, f"/constellations/{c}/agents/_constellation_/memory")
    return {**found, "memory": {one["label"] for one in blocks}}


def names_of(name: str) -> dict[str, set[str]]:
    """The names in a starter's file."""
    starter = starter_of(name)
    kinds = {"agents": starter.agents, "groups": starter.groups, "schedules": starter.schedules}
    named = {kind: {one.name for one in given} for kind, given in kinds.items()}  # type: ignore[attr-defined]  # each has a name
    return {**named, "memory": {block.label for block in starter.memory}}


@pytest.mark.parametrize("kind", ["embedded", "openai"])
@pytest.mark.parametrize("name", NAMES)
async def test_every_starter_works(alone: Path, name: str, kind: str) -> None:
    async with answering(alone, kind) as place:
        made = await place.admin.post("/constellations", json={"name": "home", "from": name})
        assert made.status_code == 201, made.text
        assert made.headers["location"] == f"/api/v1/constellations/{made.json()['id']}"
        assert await names_in(place.admin, "home") == names_of(name)
        for agent in await items(place.admin, "/constellations/home/agents"):
            assert agent["rule_warnings"] == []
            model = (await place.admin.get(f"/constellations/home/agents/{agent['id']}/model")).json()
            profile = "full" if kind == "embedded" else "small"
            assert (model["window_trouble"], model["tool_profile"]) == (None, profile), agent["name"]
            turn = (await place.say("Hello!", where=f"home/agents/{agent['id']}")).json()
            assert turn["status"] == "completed", turn
        for group in await items(place.admin, "/constellations/home/groups"):
            turn = (await place.say("Hello!", where=f"home/groups/{group['id']}")).json()
            assert turn["status"] == "completed", turn


def test_the_starters_that_come_with_it() -> None:
    assert tuple(starters()) == NAMES
    for starter in starters().values():
        assert starter.description and not starter.description.endswith("."), "an error lists them"
        assert all(agent.description and agent.system_prompt for agent in starter.agents)
    assert {agent.name for agent in starter_of("support").agents} == SIX


@pytest.mark.parametrize("kind", ["embedded", "openai"])
async def test_a_group_of_six_answers(alone: Path, kind: str) -> None:
    async with answering(alone, kind) as place:
        await place.admin.post("/constellations", json={"name": "home", "from": "support"})
        turn = (await place.say("@all Hello!", where="home/groups/table")).json()
        assert turn["status"] == "completed", turn
        said = await items(place.admin, "/constellations/home/groups/table/messages")
        assert [one["role"] for one in said].count("assistant") == len(SIX)
        assert {one["agent"] for one in said if one["role"] == "assistant"} == SIX
        await place.say("Remind me to call Ruth tomorrow at 9", where="home/groups/table")
        newest, *_ = await items(place.admin, "/constellations/home/groups/table/messages")
        assert newest["agent"] == "tempo"
        if kind == "embedded":
            assert newest["content"].startswith("I will remind you on ")
            (task,) = await items(place.admin, "/constellations/home/tasks")
            assert (task["title"], bool(task["scheduled_at"])) == ("Call Ruth", True)


async def test_a_starter_of_ones_own(place: Place) -> None:
    mine = {
        "memory": [{"label": "plan", "content": "We meet on Mondays."}],
        "agents": [{"name": "ada"}, {"name": "bob", "status": "hibernated"}],
        "groups": [{"name": "desk", "pattern_type": "round_robin", "members": [{"agent_id": "bob"}]}],
        "schedules": [{"name": "daily", "group": "desk", "message": "Good morning.", "every": 86_400.0}],
    }
    made = await place.admin.post("/constellations", json={"name": "home", "from": mine})
    assert made.status_code == 201, made.text
    named = await names_in(place.admin, "home")
    assert named == {"agents": {"ada", "bob"}, "groups": {"desk"}, "schedules": {"daily"}, "memory": {"plan"}}
    seen = (await place.admin.get("/constellations/home/agents/ada/memory/plan")).json()
    assert (seen["content"], seen["via"]) == ("We meet on Mondays.", "constellation")
    empty = await place.admin.post("/constellations", json={"name": "empty", "from": None})
    assert empty.status_code == 201
    assert await items(place.admin, "/constellations/empty/agents") == []


@pytest.mark.parametrize(
    ("starter", "status", "words"),
    [
        ("nothing", 422, "support: Six agents"),
        ("../starters/support", 422, "there is no starter"),
        ({"agents": [{"name": "ada"}, {"name": "ada"}]}, 409, "already exists"),
        ({"agents": [{"name": "ada", "model_provider": "nowhere"}]}, 422, "nowhere"),
        ({"groups": [{"name": "desk", "pattern_type": "voting", "members": [{"agent_id": "ada"}]}]}, 404, "ada"),
        ({"schedules": [{"name": "daily", "agent": "ada", "message": "x", "cron": "0 8 * * *"}]}, 404, "ada"),
        ({"agents": [{"name": "ada"}], "memory": [{"label": ""}]}, 422, "label"),
    ],
)
async def test_a_starter_that_cannot_be_created_leaves_nothing(
    place: Place, starter: object, status: int, words: str
) -> None:
    refused = await place.admin.post("/constellations", json={"name": "home", "from": starter})
    assert (refused.status_code, words in refused.text) == (status, True), refused.text
    assert await items(place.admin, "/constellations") == []
    folder = place.parts.state.config.data_dir / "constellations"
    assert not folder.exists() or list(folder.iterdir()) == []
    assert len(place.parts.state.supervisor.handles()) == 0


async def test_its_schedules_wake_it_after_it_was_parked(place: Place) -> None:
    c = (await place.admin.post("/constellations", json={"name": "home", "from": "support"})).json()["id"]
    async with place.parts.state.supervisor.aside(c):
        pass
    assert c in await place.parts.state.accounts.database.read(constellations.dues)


async def test_no_one_sees_it_before_it_is_whole(place: Place) -> None:
    seen: list[int] = []

    async def look(scope: trio.CancelScope) -> None:
        with scope:
            while True:
                found = await items(place.admin, "/constellations")
                seen.append(len(await items(place.admin, "/constellations/home/agents")) if found else 0)

    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()
        nursery.start_soon(look, scope)
        made = await place.admin.post("/constellations", json={"name": "home", "from": "support"})
        assert made.status_code == 201
        scope.cancel()
    assert {*seen} <= {0, len(SIX)}
    assert 0 in seen


@pytest.mark.slow
async def test_a_killed_creation_leaves_nothing_half(alone: Path) -> None:
    """The server is killed at several moments; the client then asks again until it is answered."""
    (alone / "data").mkdir()
    body = {"from": "support"}

    async def create(server: Server, name: str) -> None:
        try:
            async with server.client() as client:
                await client.post("/constellations", json={"name": name, **body})
        except httpx2.TransportError:
            pass

    async with serving_apart(alone / "data") as server:
        async with server.client() as client:  # loads what a first request needs
            await client.post("/constellations", json={"name": "first", **body})
        folder = alone / "data" / "constellations"
        for number, delay_s in enumerate(KILLED_AFTER_S):
            before = len([*folder.iterdir()])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(create, server, f"home{number}")
                while len([*folder.iterdir()]) == before:
                    await trio.sleep(0.001)
                await trio.sleep(delay_s)
                server.kill()
            await server.start()
        async with server.client() as client:
            there = [one["name"] for one in await items(client, "/constellations")]
            for name in there:
                assert await names_in(client, name) == names_of("support"), name
            for number in range(len(KILLED_AFTER_S)):
                again = await client.post("/constellations", json={"name": f"home{number}", **body})
                assert again.status_code == (409 if f"home{number}" in there else 201), again.text
