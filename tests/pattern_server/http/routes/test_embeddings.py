"""Embeddings over HTTP; the test's server has the deterministic embedder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio

from pattern_core.embeddings.embedder import EmbedderInfo, EmbedderUnavailable, TextsRefused
from pattern_core.embeddings.settings import Purpose
from tests.pattern_core.embeddings.stage import ScriptedEmbedder
from tests.pattern_server.place import DETERMINISTIC, Place, config_for, serving

HERE = "/constellations/home/embeddings"


async def until(place: Place, **wanted: Any) -> dict[str, Any]:
    with trio.fail_after(10):
        while True:
            told: dict[str, Any] = (await place.admin.get(HERE)).json()
            if {name: told[name] for name in wanted} == wanted:
                return told
            await trio.sleep(0.05)


def scripted(place: Place, *, dimension: int = 64) -> ScriptedEmbedder:
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


async def test_an_empty_constellation_has_nothing_to_do(place: Place) -> None:
    await place.constellation(agent=None)
    told = (await place.admin.get(HERE)).json()
    assert (told["state"], told["done"], told["total"], told["active"]) == ("idle", 0, 0, None)
    for method, where in (("POST", "/switch"), ("DELETE", "/switch"), ("POST", "/rebuild")):
        answer = await place.admin.request(method, HERE + where)
        assert answer.status_code == 409, answer.text
        assert answer.json()["code"] == "conflict"


async def test_texts_get_vectors_and_go_over_to_another_model(place: Place) -> None:
    scripted(place)
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
    answer = await place.admin.post(HERE + "/switch")
    assert answer.status_code == 202, answer.text
    told = await until(place, state="idle", model="longer")
    assert (told["active"]["dimension"], told["building"], told["switch_needed"]) == (128, None, False)
    assert (await place.admin.post(HERE + "/rebuild")).status_code == 202
    await until(place, state="idle", model="longer")


async def test_a_switch_can_be_given_up(place: Place) -> None:
    scripted(place)
    await place.constellation()
    await place.say("Ruth lives in Lisbon.")
    await until(place, state="idle", model="hashed-words")
    embedder = other_model(place, dimension=128)
    assert (await place.admin.post(HERE + "/switch")).status_code == 202
    embedder.failure = EmbedderUnavailable("the service is down", retry_after_s=5)
    answer = await place.admin.delete(HERE + "/switch")
    assert answer.status_code in (200, 409)  # it may have been complete already
    answer = await place.admin.post(HERE + "/switch")
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
        embedder = scripted(place, dimension=384)
        embedder.delay_s = 0.05
        told = (await place.admin.get(HERE)).json()
        assert (told["switch_needed"], told["configured"]["dimension"], told["active"]["dimension"]) == (True, 384, 64)
        assert (await meant(place))["notice"] is None
        assert embedder.asked == []
        assert (await place.admin.post(HERE + "/switch")).status_code == 202
        seen = 0
        with trio.fail_after(30):
            while told["active"]["dimension"] == 64:
                await meant(place)
                told = (await place.admin.get(HERE)).json()
                seen += told["building"] is not None and told["done"] < told["total"]
        assert seen > 3  # it took its time, and search went on
        assert (await meant(place))["notice"] is None
        assert ("query", ["walnuts"]) in embedder.asked
        told = await until(place, state="idle", building=None)
        assert (told["active"]["dimension"], told["switch_needed"]) == (384, False)

    # And half the way back, and forth again.
    async with serving(config_for(alone)) as place:
        scripted(place).delay_s = 10.0
        assert (await place.admin.post(HERE + "/switch")).status_code == 202
        await meant(place)
    async with serving(config_for(alone, embeddings={**DETERMINISTIC, "dimensions": 384})) as place:
        await meant(place)
        told = (await place.admin.get(HERE)).json()
        assert (told["building"]["dimension"], told["switch_needed"]) == (64, False)
        assert (await place.admin.post(HERE + "/switch")).status_code == 202
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
