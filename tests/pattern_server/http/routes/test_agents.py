"""Agents over HTTP, and what is known of their models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pattern_core.testing.model import ScriptedProvider
from tests.pattern_server.place import SCRIPTED, Place, config_for, serving

HERE = "/constellations/home/agents"


async def test_an_agent_from_birth_to_death(place: Place) -> None:
    c = await place.constellation(agent=None)
    body = {
        "name": "ada",
        "description": "A test",
        "model_provider": "embedded",
        "system_prompt": "Be brief.",
        "config": {"temperature": 0.5, "stop": ["END"], "limits": {"steps": 3}, "message_policy": "steer"},
        "enabled_tools": ["search"],
        "tool_rules": [{"tool": "recall", "type": "max_calls", "count": 3}],
        "memory": [
            {"label": "human", "content": "Likes tea.", "description": "About you", "block_type": "core"},
            {"label": "notes", "permission": "append", "pinned": True, "char_limit": 100},
        ],
    }
    made = await place.admin.post(HERE, json=body)
    assert made.status_code == 201, made.text
    agent = made.json()
    assert made.headers["location"] == f"/api/v1/constellations/{c}/agents/{agent['id']}"
    assert agent["model_name"] == "rules-1"  # the provider's default
    for name in ("description", "system_prompt", "config", "enabled_tools", "tool_rules"):
        assert agent[name] == body[name]
    assert agent["rule_warnings"] == ["the rule max_calls is about `recall`, which is not enabled"]
    for name in ("ada", agent["id"]):
        assert (await place.admin.get(f"{HERE}/{name}")).json() == agent
    blocks = (await place.admin.get(f"{HERE}/ada/memory")).json()["items"]
    assert {block["label"]: block["permission"] for block in blocks} == {"human": "read_write", "notes": "append"}
    changed = await place.admin.patch(f"{HERE}/ada", json={"name": "bea", "description": None, "status": "archived"})
    assert changed.status_code == 200, changed.text
    assert (changed.json()["name"], changed.json()["description"]) == ("bea", None)
    assert changed.json()["status"] == "archived"
    answer = await place.say("Hello", where="home/agents/bea")
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert (await place.admin.delete(f"{HERE}/bea")).status_code == 204
    assert (await place.admin.get(f"{HERE}/bea")).status_code == 404


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


async def test_what_changed_meanwhile_is_not_overwritten(place: Place) -> None:
    await place.constellation()
    tag = (await place.admin.get(f"{HERE}/ada")).headers["etag"]
    first = await place.admin.patch(f"{HERE}/ada", json={"system_prompt": "One."}, headers={"If-Match": tag})
    assert (first.status_code, first.headers["etag"] != tag) == (200, True)
    second = await place.admin.patch(f"{HERE}/ada", json={"system_prompt": "Two."}, headers={"If-Match": tag})
    assert (second.status_code, second.json()["code"]) == (412, "version_mismatch")
    again = await place.admin.get(f"{HERE}/ada")
    assert (again.json()["system_prompt"], again.headers["etag"]) == ("One.", first.headers["etag"])
    for condition in ({"If-Match": "*"}, {"If-Match": f"W/{again.headers['etag']}"}, {}):
        body = {"system_prompt": "One."}
        assert (await place.admin.patch(f"{HERE}/ada", json=body, headers=condition)).status_code == 200


async def test_other_models_of_known_providers_will_do(place: Place) -> None:
    await place.constellation()
    routing = {"fallback_models": ["scripted/m", "anthropic/some/model"]}
    config = {"routing": routing, "compaction": {"summarization_model": "google/g"}}
    changed = await place.admin.patch(f"{HERE}/ada", json={"config": config})
    assert (changed.status_code, changed.json()["config"]) == (200, config)


async def test_conflicts_and_bad_changes_change_nothing(place: Place) -> None:
    await place.constellation()
    before = (await place.admin.get(f"{HERE}/ada")).json()
    await place.admin.post(HERE, json={"name": "bea"})
    for body, status in (
        ({"name": "bea"}, 409),
        ({"name": None}, 422),
        ({"id": "agent_x"}, 422),
        ({"model_provider": "opnai"}, 422),
        ({"config": {"routing": {"fallback_models": ["scripted/m", "opnai/m"]}}}, 422),
        ({"enabled_tools": ["rm"]}, 422),
    ):
        assert (await place.admin.patch(f"{HERE}/ada", json=body)).status_code == status, body
    assert (await place.admin.get(f"{HERE}/ada")).json() == before
    assert (await place.admin.post(HERE, json={"name": "ada"})).status_code == 409
    twice = {"name": "cleo", "memory": [{"label": "a"}, {"label": "a"}]}
    assert (await place.admin.post(HERE, json=twice)).status_code == 409
    assert [agent["name"] for agent in (await place.admin.get(HERE)).json()["items"]] == ["ada", "bea"]


MODEL = "/constellations/home/agents/ada/model"
OLLAMA = {"kind": "openai", "base_url": "http://127.0.0.1:9/v1"}


async def test_a_known_model_has_figures_and_their_source(place: Place) -> None:
    await place.constellation(
        model_provider="anthropic", model_name="claude-sonnet-4-5-20250929", config={"context_window": 32_000}
    )
    told = (await place.admin.get(MODEL)).json()
    assert (told["window"], told["prompt_window"], told["is_known"]) == (200_000, 32_000, True)
    assert told["input_price"] == 3_000_000
    assert told["source"].startswith("https://")
    assert told["is_configured"] is False


async def test_an_unknown_one_says_so(place: Place) -> None:
    await place.constellation()
    told = (await place.admin.get(MODEL)).json()
    assert (told["window"], told["prompt_window"], told["is_known"]) == (8_192, 8_192, False)
    assert (told["input_price"], told["is_configured"]) == (None, True)
    assert (await place.admin.get("/constellations/home/agents/nobody/model")).status_code == 404


async def test_what_the_operator_says_counts(alone: Path) -> None:
    own = {**OLLAMA, "models": {"m": {"window": 16_000, "input_price": 5}}}
    async with serving(config_for(alone, providers={**SCRIPTED, "own": own})) as place:
        await place.constellation(model_provider="own", model_name="m")
        told = (await place.admin.get(MODEL)).json()
        assert (told["window"], told["input_price"], told["is_known"]) == (16_000, 5, True)
