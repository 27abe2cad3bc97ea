"""Usage over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from pattern_core.models.model import Usage
from pattern_core.testing.model import ScriptedProvider, says
from tests.pattern_server.place import Place

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
