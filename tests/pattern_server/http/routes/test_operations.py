"""Configured budgets, MCP servers, embeddings, the list of turns, and answers that are sent back, over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio

from pattern_core.embeddings.embedder import TextsRefused
from pattern_core.embeddings.settings import Purpose
from pattern_server.http.bodies import encode_cursor
from pattern_server.http.routes.agents import AgentUpdateRequest
from tests.pattern_core.embeddings.stage import ScriptedEmbedder
from tests.pattern_server.place import DETERMINISTIC, Place, config_for, serving


async def test_a_budget_of_the_configuration_is_listed_and_not_removed(alone: Path) -> None:
    async with serving(config_for(alone, budgets={"constellation": {"month": {"dollars": "2"}}})) as place:
        await place.constellation()
        budgets = "/constellations/home/budgets"
        [budget] = (await place.admin.get(budgets)).json()["items"]
        assert (budget["amount"], budget["is_configured"]) == (2_000_000, True)
        refused = await place.admin.delete(f"{budgets}/{budget['id']}")
        assert (refused.status_code, "pattern.toml" in refused.json()["detail"]) == (404, True)


async def test_an_mcp_server_that_cannot_start_says_so_before_it_is_tried(alone: Path) -> None:
    async with serving(config_for(alone, mcp={"bad": {"command": "/no/such/program"}})) as place:
        await place.constellation()
        [server] = (await place.admin.get("/constellations/home/mcp")).json()["items"]
        assert (server["state"], server["last_error"]) == ("resting", "there is no program /no/such/program")


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
        assert (await place.admin.delete(EMBEDDINGS + "/switch")).status_code == 200
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


async def test_texts_that_are_left_out_are_listed(place: Place) -> None:
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


async def test_turns_are_listed_page_by_page_as_they_are_shown_one_by_one(home: Place) -> None:
    said = [(await home.say(f"Number {number}")).json() for number in range(3)]
    where = "/constellations/home/turns"
    first = (await home.admin.get(where, params={"limit": 2})).json()
    last = (await home.admin.get(where, params={"limit": 2, "cursor": first["next_cursor"]})).json()
    assert last["next_cursor"] is None
    without = [{name: value for name, value in turn.items() if name not in ("messages", "text")} for turn in said]
    assert [*first["items"], *last["items"]] == without[::-1]
    assert (await home.admin.get(where, params={"status": "completed", "agent": "ada"})).json()["items"] == without[
        ::-1
    ]
    assert (await home.admin.get(where, params={"status": "running"})).json() == {"items": [], "next_cursor": None}
    for cursor in (encode_cursor("ada"), encode_cursor("9" * 30), encode_cursor("1", "2"), "x"):
        assert (await home.admin.get(where, params={"cursor": cursor})).status_code == 422
    assert (await home.admin.get(where, params={"status": "done"})).status_code == 422
    assert (await home.admin.get(where, params={"agent": "nobody"})).status_code == 404


async def test_what_is_answered_can_be_sent_back(home: Place, tmp_path: Path) -> None:
    admin, where = home.admin, "/constellations/home"

    async def done(method: str, path: str, **fields: Any) -> Any:
        answer = await admin.request(method, f"{where}{path}", **fields)
        assert answer.status_code < 300, (method, path, answer.text)
        return answer.json() if answer.content else None

    turn = (await home.say("Hello there")).json()
    shown = await admin.get(f"{where}/agents/ada")
    agent = shown.json()
    given = {name: value for name, value in agent.items() if name in AgentUpdateRequest.model_fields}
    changed = await done("PATCH", "/agents/ada", json=given, headers={"If-Match": shown.headers["etag"]})
    assert {**changed, "updated_at": ""} == {**agent, "updated_at": ""}

    memory = f"/agents/{agent['id']}/memory"
    await done("PUT", f"{memory}/notes", json={"value": ["a"], "schema": {"List": {}}})
    got = await admin.get(f"{where}{memory}/notes")
    block = got.json()
    back = {name: block[name] for name in ("value", "schema", "description", "block_type", "permission", "char_limit")}
    await done("PUT", f"{memory}/notes", json=back, headers={"If-Match": got.headers["etag"]})
    await done("PUT", f"{memory}/copy", json=back, headers={"If-None-Match": "*"})
    await done("PATCH", f"{memory}/notes", json={"label": "other", "pinned": True})
    await done("PUT", f"{memory}/human", json={"content": "Ada likes tea."})
    (version, *_) = (await done("GET", f"{memory}/human/history"))["items"]
    await done("GET", f"{memory}/human", params={"version": version["version"]})
    await done("POST", f"{memory}/human/undo", json={"author": version["author"]})

    entry = await done("POST", f"/agents/{agent['id']}/archival", json={"content": "Walnuts."})
    time = entry["created_at"]
    await done("PATCH", f"/agents/{entry['agent_id']}/archival/{entry['id']}", json={"valid_from": time, "tags": ["x"]})
    body = {"query": "walnuts", "since": time, "until": entry["created_at"], "agents": [entry["agent_id"]]}
    await done("POST", "/search", json=body)
    (hit, *_) = (await done("POST", "/search", json={"query": "walnuts", "kinds": ["archival"]}))["hits"]
    await done("GET", f"/agents/{hit['agent_id']}/archival/{hit['id']}")

    (tmp_path / "files").mkdir()
    folder = {"name": "a", "path_type": "local", "path": str(tmp_path / "files")}
    made = await done("POST", "/folders", json=folder)
    again = {"name": "b", "path_type": made["path_type"], "path": made["path_value"]}
    assert (await done("POST", "/folders", json=again))["path_value"] == made["path_value"]

    budget = await done("PUT", "/budgets", json={"scope": "agent", "agent": "ada", "unit": "tokens", "amount": 9_000})
    same = {name: budget[name] for name in ("scope", "period", "unit", "amount")}
    assert (await done("PUT", "/budgets", json={**same, "agent": budget["ref"]}))["id"] == budget["id"]
    await done("DELETE", f"/budgets/{budget['id']}")
    for by, name in (("agent", "agent"), ("turn", "turn"), ("day", "since")):
        (line, *_) = (await done("GET", "/usage", params={"by": by}))["items"]
        assert (await done("GET", "/usage", params={name: line["key"]}))["items"]
    (event, *_) = await home.events(f"{where}/turns/{turn['turn_id']}/events")
    assert await home.events(f"{where}/turns/{turn['turn_id']}/events", after=event["id"])
    assert await home.events(f"{where}/turns/{turn['turn_id']}/events?after={event['data']['seq']}")
