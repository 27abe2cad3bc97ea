"""Budgets over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pattern_core.models.model import Usage
from pattern_core.testing.model import ScriptedProvider, says
from tests.pattern_server.place import Place, config_for, serving

HERE = "/constellations/home/budgets"
DAILY = {"scope": "agent", "agent": "ada", "period": "day", "unit": "tokens", "amount": 1000}


@pytest.fixture
async def place(alone: Path) -> AsyncIterator[Place]:
    """A server whose operator allows each constellation two dollars a month."""
    provider = ScriptedProvider(otherwise=says("All right.", usage=Usage(input_tokens=100, output_tokens=10)))
    config = config_for(alone, budgets={"constellation": {"month": {"dollars": "2"}}})
    async with serving(config, {"scripted": provider}) as found:
        yield found


async def listed(place: Place) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await place.admin.get(HERE)).json()["items"]
    return found


async def test_set_list_and_remove(place: Place) -> None:
    await place.constellation()
    made = await place.admin.put(HERE, json=DAILY)
    assert (made.status_code, made.json()["amount"], made.json()["left"]) == (200, 1000, 1000)
    again = (await place.admin.put(HERE, json={**DAILY, "amount": 500})).json()
    assert again["id"] == made.json()["id"] == f"agent.day.tokens.{again['ref']}"
    assert [(one["amount"], one["is_configured"]) for one in await listed(place)] == [(500, False), (2_000_000, True)]
    where = f"{HERE}/{again['id']}"
    assert (await place.admin.delete(where)).status_code == 204
    assert (await place.admin.delete(where)).status_code == 404
    assert [one["is_configured"] for one in await listed(place)] == [True]
    refused = await place.admin.delete(f"{HERE}/constellation.month.microdollars")
    assert (refused.status_code, "pattern.toml" in refused.json()["detail"]) == (404, True)


async def test_a_list_has_pages(place: Place) -> None:
    await place.constellation()
    await place.admin.put(HERE, json=DAILY)
    first = (await place.admin.get(HERE, params={"limit": 1})).json()
    rest = (await place.admin.get(HERE, params={"cursor": first["next_cursor"]})).json()
    assert [one["scope"] for one in (*first["items"], *rest["items"])] == ["agent", "constellation"]


async def test_what_makes_no_sense_is_refused(place: Place) -> None:
    await place.constellation()
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
        answer = await place.admin.put(HERE, json={**DAILY, **changes})
        assert answer.status_code == status, answer.text
        told = answer.json()["detail"]
    assert "no groups yet" in told
    grouped = {**DAILY, "scope": "group", "agent": None, "group": f"group_{'0' * 26}"}
    assert (await place.admin.put(HERE, json=grouped)).json()["ref"] == grouped["group"]
