"""Agents over HTTP, and what is known of their models."""

from __future__ import annotations

from pathlib import Path

from pattern_core.testing.model import ScriptedProvider
from tests.pattern_server.place import SCRIPTED, Place, config_for, serving

HERE = "/constellations/home/agents"


async def test_defaults_come_from_the_server(place: Place) -> None:
    await place.constellation(agent=None)
    agent = (await place.admin.post(HERE, json={"name": "ada"})).json()
    assert (agent["model_provider"], agent["model_name"]) == ("scripted", "m")
    blocks = (await place.admin.get(f"{HERE}/ada/memory")).json()["items"]
    assert [block["label"] for block in blocks] == ["human", "persona"]
    hibernated = (await place.admin.post(HERE, json={"name": "bea", "status": "hibernated"})).json()
    assert hibernated["status"] == "hibernated"


async def test_a_provider_without_a_usual_model_needs_its_name(alone: Path, scripted: ScriptedProvider) -> None:
    config = config_for(alone, providers={**SCRIPTED, "shelf": {"kind": "embedded"}})
    async with serving(config, {"scripted": scripted}) as place:
        await place.constellation(agent=None)
        answer = await place.admin.post(HERE, json={"name": "x", "model_provider": "shelf"})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input")
        assert "model_name" in answer.json()["detail"]
        named = {"name": "x", "model_provider": "shelf", "model_name": "m"}
        assert (await place.admin.post(HERE, json=named)).status_code == 201


async def test_conditions_that_hold(home: Place) -> None:
    for condition in ("*", "W/{}", "{}"):
        tag = (await home.admin.get(f"{HERE}/ada")).headers["etag"]
        body, headers = {"system_prompt": condition}, {"If-Match": condition.format(tag)}
        assert (await home.admin.patch(f"{HERE}/ada", json=body, headers=headers)).status_code == 200, condition


MODEL = "/constellations/home/agents/ada/model"
OLLAMA = {"kind": "openai", "base_url": "http://127.0.0.1:9/v1"}


async def test_what_the_operator_says_counts(alone: Path) -> None:
    own = {**OLLAMA, "models": {"m": {"window": 16_000, "input_price": 5}}}
    async with serving(config_for(alone, providers={**SCRIPTED, "own": own})) as place:
        await place.constellation(model_provider="own", model_name="m")
        told = (await place.admin.get(MODEL)).json()
        assert (told["window"], told["input_price"], told["is_known"]) == (16_000, 5, True)
