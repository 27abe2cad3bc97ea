"""Agents over HTTP, and what is known of their models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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


MISFITS: tuple[tuple[Any, str], ...] = (
    ({}, "name"),
    ({"name": 3}, "name"),
    ({"name": ""}, "name"),
    ({"name": "x", "colour": "red"}, "colour"),
    ({"name": "x", "config": [1]}, "config"),
    ({"name": "x", "enabled_tools": "search"}, "enabled_tools"),
    ({"name": "x", "enabled_tools": ["rm"]}, "rm"),
    ({"name": "x", "model_provider": "opnai"}, "opnai"),
    ({"name": "x", "config": {"temprature": 1}}, "config.temprature"),
    ({"name": "x", "config": {"temperature": "hot"}}, "temperature"),
    ({"name": "x", "config": {"message_policy": "shout"}}, "config.message_policy"),
    ({"name": "x", "config": {"limits": {"steps": 0}}}, "steps"),
    ({"name": "x", "config": {"routing": {"fallback_models": ["opnai/m"]}}}, "opnai"),
    ({"name": "x", "config": {"routing": {"rules": [{"condition": {"type": "always"}, "model": "opnai/m"}]}}}, "opnai"),
    ({"name": "x", "config": {"compaction": {"summarization_model": "opnai/m"}}}, "opnai"),
    ({"name": "x", "tool_rules": [{"tool": "recall", "type": "max_calls"}]}, "count"),
    ({"name": "x", "tool_rules": [{"tool": "recall", "type": "sometimes"}]}, "sometimes"),
    ({"name": "x", "status": "asleep"}, "status"),
    ({"name": "x", "memory": [{"content": "no label"}]}, "label"),
    ({"name": "x", "memory": [{"label": "a/b"}]}, "label"),
    ({"name": "x", "memory": [{"label": "a", "permission": "all"}]}, "permission"),
    ({"name": "x", "memory": [{"label": "a", "content": "x" * 50, "char_limit": 10}]}, "10"),
    ([], "body"),
    (None, "body"),
)


async def test_what_does_not_fit_is_named_and_makes_nothing(place: Place) -> None:
    await place.constellation(agent=None)
    for body, named in MISFITS:
        answer = await place.admin.post(HERE, json=body)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input"), answer.text
        assert named in answer.json()["detail"]
    assert (await place.admin.get(HERE)).json()["items"] == []


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


async def test_other_models_of_known_providers_will_do(home: Place) -> None:
    routing = {"fallback_models": ["scripted/m", "anthropic/some/model"]}
    config = {"routing": routing, "compaction": {"summarization_model": "google/g"}}
    changed = await home.admin.patch(f"{HERE}/ada", json={"config": config})
    assert (changed.status_code, changed.json()["config"]) == (200, config)


async def test_conflicts_and_bad_changes_change_nothing(home: Place) -> None:
    before = (await home.admin.get(f"{HERE}/ada")).json()
    await home.admin.post(HERE, json={"name": "bea"})
    for body, status in (
        ({"name": "bea"}, 409),
        ({"name": None}, 422),
        ({"id": "agent_x"}, 422),
        ({"model_provider": "opnai"}, 422),
        ({"config": {"routing": {"fallback_models": ["scripted/m", "opnai/m"]}}}, 422),
        ({"enabled_tools": ["rm"]}, 422),
    ):
        assert (await home.admin.patch(f"{HERE}/ada", json=body)).status_code == status, body
    assert (await home.admin.get(f"{HERE}/ada")).json() == before
    assert (await home.admin.post(HERE, json={"name": "ada"})).status_code == 409
    twice = {"name": "cleo", "memory": [{"label": "a"}, {"label": "a"}]}
    assert (await home.admin.post(HERE, json=twice)).status_code == 409
    assert [agent["name"] for agent in (await home.admin.get(HERE)).json()["items"]] == ["ada", "bea"]


MODEL = "/constellations/home/agents/ada/model"
OLLAMA = {"kind": "openai", "base_url": "http://127.0.0.1:9/v1"}


async def test_what_the_operator_says_counts(alone: Path) -> None:
    own = {**OLLAMA, "models": {"m": {"window": 16_000, "input_price": 5}}}
    async with serving(config_for(alone, providers={**SCRIPTED, "own": own})) as place:
        await place.constellation(model_provider="own", model_name="m")
        told = (await place.admin.get(MODEL)).json()
        assert (told["window"], told["input_price"], told["is_known"]) == (16_000, 5, True)
