"""An agent's config, read and checked in one place."""

from __future__ import annotations

from typing import Any

import pytest

from pattern_core.agents.settings import KEYS, AgentSettings, check_config, on_doubt_of, policy_of, settings_of
from pattern_core.errors import InvalidInput

ALL: dict[str, Any] = {
    "max_output_tokens": 500,
    "temperature": 0.5,
    "top_p": 0.9,
    "stop": ["END"],
    "reasoning_effort": "low",
    "response_schema": {"type": "object"},
    "context_window": 8_000,
    "context": {},
    "compaction": {},
    "routing": {"fallback_models": ["openai/gpt-5.4-mini"]},
    "limits": {"steps": 3},
    "detectors": {"identical": 5},
    "message_policy": "steer",
    "on_doubt": "ask_human",
}


def test_every_key_is_read_once() -> None:
    assert set(ALL) == set(KEYS)
    check_config(ALL)
    found = settings_of(ALL)
    assert (found.message_policy, found.on_doubt) == ("steer", "ask_human")
    assert (found.limits.steps, found.detectors.identical) == (3, 5)
    assert [(model.provider, model.model) for model in found.routing.fallback_models] == [("openai", "gpt-5.4-mini")]


def test_an_empty_config_is_the_defaults() -> None:
    check_config({})
    assert settings_of({}) == AgentSettings() == settings_of({"temperature": 1.0})
    assert (policy_of({}), on_doubt_of({})) == ("enqueue", "tell_model")


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"temprature": 1}, "config.temprature is not known; known are max_output_tokens"),
        ({"message_policy": "shout"}, "config.message_policy must be one of enqueue, reject"),
        ({"on_doubt": None}, "config.on_doubt must be one of tell_model, ask_human, fail_turn"),
        ({"message_policy": ["steer"]}, "config.message_policy"),
        ({"temperature": "hot"}, "temperature"),
        ({"context_window": -1}, "context_window"),
        ({"context": {"x": 1}}, "context"),
        ({"compaction": {"x": 1}}, "compaction"),
        ({"routing": {"x": 1}}, "routing"),
        ({"limits": {"steps": 0}}, "limits.steps"),
        ({"detectors": {"x": 1}}, "detectors"),
    ],
)
def test_what_would_fail_a_turn_later_is_refused_with_its_name(config: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_config(config)
    assert named in refused.value.message


def test_what_an_older_version_stored_is_passed_over() -> None:
    assert settings_of({"colour": "red", "message_policy": "reject"}).message_policy == "reject"
