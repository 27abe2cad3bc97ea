"""Usage, budgets, embeddings and MCP servers over HTTP."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from pattern_core.embeddings.embedder import EmbedderInfo, EmbedderUnavailable, TextsRefused
from pattern_core.embeddings.settings import Purpose
from pattern_core.testing.model import ScriptedProvider, calls, says
from tests.pattern_core.embeddings.stage import ScriptedEmbedder
from tests.pattern_core.mcp_servers.rig import PROGRAM
from tests.pattern_server.place import DETERMINISTIC, Place, config_for, serving

BUDGETS = "/constellations/home/budgets"
DAILY = {"scope": "agent", "agent": "ada", "period": "day", "unit": "tokens", "amount": 1000}


@pytest.fixture
async def frugal(alone: Path, scripted: ScriptedProvider) -> AsyncIterator[Place]:
    """A server whose operator allows each constellation two dollars a month."""
    config = config_for(alone, budgets={"constellation": {"month": {"dollars": "2"}}})
    async with serving(config, {"scripted": scripted}) as found:
        yield found


async def listed(place: Place) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await place.admin.get(BUDGETS)).json()["items"]
    return found


async def test_set_list_and_remove(frugal: Place) -> None:
    await frugal.constellation()
    of_a_deleted_agent = await frugal.admin.get("/constellations/home/usage", params={"agent": "agt_gone"})
    assert of_a_deleted_agent.json()["total"]["calls"] == 0
    made = await frugal.admin.put(BUDGETS, json=DAILY)
    assert (made.status_code, made.json()["amount"], made.json()["left"]) == (200, 1000, 1000)
    again = (await frugal.admin.put(BUDGETS, json={**DAILY, "amount": 500})).json()
    assert again["id"] == made.json()["id"] == f"agent.day.tokens.{again['ref']}"
    assert [(one["amount"], one["is_configured"]) for one in await listed(frugal)] == [(500, False), (2_000_000, True)]
    where = f"{BUDGETS}/{again['id']}"
    assert (await frugal.admin.delete(where)).status_code == 204
    assert (await frugal.admin.delete(where)).status_code == 404
    assert [one["is_configured"] for one in await listed(frugal)] == [True]
    refused = await frugal.admin.delete(f"{BUDGETS}/constellation.month.microdollars")
    assert (refused.status_code, "pattern.toml" in refused.json()["detail"]) == (404, True)


EMBEDDINGS = "/constellations/home/embeddings"


async def until(place: Place, **wanted: Any) -> dict[str, Any]:
    with trio.fail_after(10):
        while True:
            told: dict[str, Any] = (await place.admin.get(EMBEDDINGS)).json()
            if {name: told[name] for name in wanted} == wanted:
                return told
            await trio.sleep(0.05)


def with_another(place: Place, *, dimension: int = 64) -> ScriptedEmbedder:
    """Put another embedder in the place of the deterministic one, before a constellation is open."""
    embedder = place.parts.state.runtime.embedders.configured = ScriptedEmbedder(dimension=dimension)
    return embedder


def other_model(place: Place, *, dimension: int) -> ScriptedEmbedder:
    """As if the server had been started again with another model in its configuration."""
    embedder = place.parts.state.runtime.embedders.configured
    assert isinstance(embedder, ScriptedEmbedder)
    embedder._info = EmbedderInfo(
        provider="deterministic", model="longer", dimension=dimension, fingerprint=f"{dimension}"
    )
    return embedder


async def test_texts_get_vectors_and_go_over_to_another_model(place: Place) -> None:
    with_another(place)
    await place.constellation()
    await place.say("Ruth lives in Lisbon.")
    told = await until(place, state="idle", model="hashed-words")
    assert told["done"] == told["total"] > 0
    assert told["active"]["completed_at"]
    assert not told["switch_needed"]
    other_model(place, dimension=128)
    await place.say("And Bea in Porto.")
    told = await until(place, state="unavailable", switch_needed=True)
    assert "pattern embeddings switch" in told["reason"]
    answer = await place.admin.post(EMBEDDINGS + "/switch")
    assert answer.status_code == 202, answer.text
    told = await until(place, state="idle", model="longer")
    assert (told["active"]["dimension"], told["building"], told["switch_needed"]) == (128, None, False)
    assert (await place.admin.post(EMBEDDINGS + "/rebuild")).status_code == 202
    await until(place, state="idle", model="longer")


async def test_a_switch_can_be_given_up(place: Place) -> None:
    with_another(place)
    await place.constellation()
    await place.say("Ruth lives in Lisbon.")
    await until(place, state="idle", model="hashed-words")
    embedder = other_model(place, dimension=128)
    assert (await place.admin.post(EMBEDDINGS + "/switch")).status_code == 202
    embedder.failure = EmbedderUnavailable("the service is down", retry_after_s=5)
    answer = await place.admin.delete(EMBEDDINGS + "/switch")
    assert answer.status_code in (200, 409)  # it may have been complete already
    answer = await place.admin.post(EMBEDDINGS + "/switch")
    assert answer.status_code == 503
    assert answer.json()["code"] == "embedder_unavailable"
    assert answer.headers["retry-after"] == "5"


async def meant(place: Place) -> dict[str, Any]:
    """A search by meaning, which must find the one message, and by its meaning."""
    body = {"query": "walnuts", "mode": "meaning", "kinds": ["message"], "limit": 1}
    answer = await place.admin.post("/constellations/home/search", json=body)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    assert [hit["content"] for hit in told["hits"]] == ["walnuts walnuts walnuts"], told
    assert "meaning" in told["hits"][0]["parts"], told
    assert "words alone" not in str(told["notice"]), told
    return told


async def test_search_by_meaning_answers_at_every_moment_of_a_switch(alone: Path) -> None:
    async with serving(config_for(alone)) as place:
        await place.constellation()
        said = [{"role": "user", "content": f"number {number} of many"} for number in range(200)]
        said[100]["content"] = "walnuts walnuts walnuts"
        where = "/constellations/home/agents/ada/history"
        answer = await place.admin.post(where, json={"messages": said})
        assert answer.status_code < 300, answer.text
        told = await until(place, state="idle", model="hashed-words")
        assert told["done"] == told["total"] >= 200
        await meant(place)

    async with serving(config_for(alone, embeddings={**DETERMINISTIC, "dimensions": 384})) as place:
        embedder = with_another(place, dimension=384)
        embedder.delay_s = 0.05
        told = (await place.admin.get(EMBEDDINGS)).json()
        assert (told["switch_needed"], told["configured"]["dimension"], told["active"]["dimension"]) == (True, 384, 64)
        assert (await meant(place))["notice"] is None
        assert embedder.asked == []
        assert (await place.admin.post(EMBEDDINGS + "/switch")).status_code == 202
        seen = 0
        with trio.fail_after(30):
            while told["active"]["dimension"] == 64:
                await meant(place)
                told = (await place.admin.get(EMBEDDINGS)).json()
                seen += told["building"] is not None and told["done"] < told["total"]
        assert seen > 3  # it took its time, and search went on
        assert (await meant(place))["notice"] is None
        assert ("query", ["walnuts"]) in embedder.asked
        told = await until(place, state="idle", building=None)
        assert (told["active"]["dimension"], told["switch_needed"]) == (384, False)

    # And half the way back, and forth again.
    async with serving(config_for(alone)) as place:
        with_another(place).delay_s = 10.0
        assert (await place.admin.post(EMBEDDINGS + "/switch")).status_code == 202
        await meant(place)
    async with serving(config_for(alone, embeddings={**DETERMINISTIC, "dimensions": 384})) as place:
        await meant(place)
        told = (await place.admin.get(EMBEDDINGS)).json()
        assert (told["building"]["dimension"], told["switch_needed"]) == (64, False)
        assert (await place.admin.post(EMBEDDINGS + "/switch")).status_code == 202
        told = await until(place, state="idle", building=None)
        assert told["active"]["dimension"] == 384
        await meant(place)


async def test_texts_that_are_left_out_are_told(place: Place) -> None:
    class Picky(ScriptedEmbedder):
        async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> list[bytes]:
            if any("poison" in text for text in texts):
                raise TextsRefused("it cannot stand poison", retry_after_s=0.1)
            return await super().embed(texts, purpose=purpose)

    place.parts.state.runtime.embedders.configured = Picky()
    await place.constellation(agent=None)
    answer = await place.admin.post("/constellations/home/agents", json={"name": "ada"})
    assert answer.status_code == 201
    where = "/constellations/home/agents/ada/archival"
    made = [(await place.admin.post(where, json={"content": text})).json() for text in ("poison", "bread")]
    told = await until(place, state="idle", skipped=1)
    assert told["refusals"] == [{"kind": "archival", "ref": made[0]["id"], "reason": "it cannot stand poison"}]
    assert told["done"] == told["total"]


HOME = "/constellations/home"


@pytest.fixture
async def connected(alone: Path, scripted: ScriptedProvider) -> AsyncIterator[Place]:
    args = ["-I", "-S", str(PROGRAM), str(alone / "log")]
    program = {"command": sys.executable, "args": args, "protocol": "legacy"}
    servers = {"notes": program, "bad": {**program, "args": [*args, "broken"]}}
    async with serving(config_for(alone, mcp=servers), {"scripted": scripted}) as found:
        yield found


async def test_listed_tested_and_used(connected: Place, scripted: ScriptedProvider) -> None:
    scripted._script = iter([calls("notes__echo", {"text": "over there"}), says("Done.")])
    await connected.constellation(enabled_tools=["notes__*", "notes__ehco", "bad__x"])
    first = (await connected.admin.get(f"{HOME}/mcp")).json()["items"]
    assert [(one["name"], one["state"], one["tools"], one["missing"]) for one in first] == [
        ("bad", "resting", None, []),
        ("notes", "resting", None, []),
    ]
    assert (await connected.say("Hello")).json()["status"] == "completed"
    bad, notes = (await connected.admin.get(f"{HOME}/mcp")).json()["items"]
    assert (bad["state"], bad["last_error"]) == (
        "failed",
        "its program ended; its last words: Traceback: no key was given",
    )
    assert (notes["state"], notes["missing"]) == ("ready", ["notes__ehco"])
    assert [tool["effect"] for tool in notes["tools"] if tool["name"] == "notes__echo"] == ["unsafe"]
    asked = scripted.requests
    assert "notes__echo" in [tool.name for tool in asked[0].tools]
    assert "over there" in str(asked[1].messages[-1])


async def test_tools_of_an_unknown_server_are_refused(connected: Place) -> None:
    await connected.constellation()
    refused = await connected.admin.patch(f"{HOME}/agents/ada", json={"enabled_tools": ["other__echo"]})
    assert refused.status_code == 422
