"""Usage and budgets over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pattern_core.models.model import Usage
from pattern_core.testing.model import ScriptedProvider, says
from tests.pattern_server.place import Place, config_for, serving

HERE = "/constellations/home/usage"


@pytest.fixture
def scripted() -> ScriptedProvider:
    return ScriptedProvider(otherwise=says("All right.", usage=Usage(input_tokens=100, output_tokens=10)))


async def report(place: Place, **params: Any) -> dict[str, Any]:
    answer = await place.admin.get(HERE, params=params)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def spent(place: Place) -> list[str]:
    """Two turns of ada's and one of bea's; their ids."""
    await place.constellation()
    await place.admin.post("/constellations/home/agents", json={"name": "bea"})
    names = ("ada", "ada", "bea")
    return [(await place.say("Hello", where=f"home/agents/{name}")).json()["turn_id"] for name in names]


async def test_sums_by_day_agent_model_and_turn(place: Place) -> None:
    turns = await spent(place)
    whole = await report(place)
    [day] = whole["items"]
    assert (day["calls"], day["input_tokens"], day["output_tokens"]) == (3, 300, 30)
    assert whole["total"] == {**day, "key": ""}
    agents = (await report(place, by="agent"))["items"]
    assert sorted((line["name"], line["calls"]) for line in agents) == [("ada", 2), ("bea", 1)]
    [model] = (await report(place, by="model"))["items"]
    assert model["key"] == "scripted/m"
    assert [line["key"] for line in (await report(place, by="turn"))["items"]] == turns[::-1]


async def test_filters(place: Place) -> None:
    turns = await spent(place)
    today = (await report(place))["items"][0]["key"]
    assert (await report(place, agent="ada"))["total"]["calls"] == 2
    assert (await report(place, turn=turns[0]))["total"]["calls"] == 1
    assert (await report(place, since=today))["total"]["calls"] == 3
    assert (await report(place, until=today))["total"]["calls"] == 0
    assert (await report(place, agent="agt_gone"))["total"]["calls"] == 0


async def test_pages(place: Place) -> None:
    turns = await spent(place)
    first = await report(place, by="turn", limit=2)
    rest = await report(place, by="turn", limit=2, cursor=first["next_cursor"])
    assert [line["key"] for line in (*first["items"], *rest["items"])] == turns[::-1]
    assert rest["next_cursor"] is None
    assert rest["total"]["calls"] == 3


async def test_what_cannot_be_answered(place: Place) -> None:
    await place.constellation()
    refused: tuple[tuple[dict[str, str], int], ...] = (
        ({"by": "week"}, 422),
        ({"since": "yesterday"}, 422),
        ({"agent": "nobody"}, 404),
        ({"turn": "nothing"}, 404),
        ({"cursor": "x"}, 422),
        ({"limit": "0"}, 422),
        ({"agnet": "ada"}, 422),
    )
    for params, status in refused:
        assert (await place.admin.get(HERE, params=params)).status_code == status, params


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


async def test_a_list_has_pages(frugal: Place) -> None:
    await frugal.constellation()
    await frugal.admin.put(BUDGETS, json=DAILY)
    first = (await frugal.admin.get(BUDGETS, params={"limit": 1})).json()
    rest = (await frugal.admin.get(BUDGETS, params={"cursor": first["next_cursor"]})).json()
    assert [one["scope"] for one in (*first["items"], *rest["items"])] == ["agent", "constellation"]


async def test_what_makes_no_sense_is_refused(frugal: Place) -> None:
    await frugal.constellation()
    refused: tuple[tuple[dict[str, Any], int], ...] = (
        ({"scope": "planet"}, 422),
        ({"amount": -1}, 422),
        ({"amount": 1.5}, 422),
        ({"agent": "nobody"}, 404),
        ({"scope": "constellation"}, 422),
        ({"group": "g"}, 422),
        ({"scope": "turn", "agent": None}, 422),
        ({"scope": "group", "agent": None}, 422),
        ({"scope": "group", "agent": None, "group": "anything at all"}, 422),
    )
    told = ""
    for changes, status in refused:
        answer = await frugal.admin.put(BUDGETS, json={**DAILY, **changes})
        assert answer.status_code == status, answer.text
        told = answer.json()["detail"]
    assert "no groups yet" in told
    grouped = {**DAILY, "scope": "group", "agent": None, "group": f"group_{'0' * 26}"}
    assert (await frugal.admin.put(BUDGETS, json=grouped)).json()["ref"] == grouped["group"]
