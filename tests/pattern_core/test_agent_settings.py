"""An agent's config: what may be said in it, what is refused by name, and what stands where nothing is said."""

from __future__ import annotations

from typing import Any

import pytest

from pattern_core.agent_settings import KEYS, SHARES, AgentSettings, CompactionSettings, FileRule, settings_of
from pattern_core.budgets.budget import TurnBudget
from pattern_core.errors import InvalidInput
from pattern_core.limits import TurnLimits
from pattern_core.prompts.parts import Kind
from pattern_core.rules.detectors import DetectorSettings
from pattern_db.enums import FolderAccess

ALL: dict[str, Any] = {
    "max_output_tokens": 500,
    "temperature": 1,
    "top_p": 0.9,
    "stop": ["END"],
    "reasoning_effort": "low",
    "response_schema": {"type": "object"},
    "context_window": 8_000,
    "context": {"recall_max": 2},
    "compaction": {"type": "truncate"},
    "routing": {"fallback_models": ["openai/gpt-5.4-mini"]},
    "limits": {"steps": 3},
    "detectors": {"identical": 5},
    "message_policy": "steer",
    "on_doubt": "ask_human",
    "hibernate_after_s": 3600,
    "reflection_model": "openai/gpt-5.4-mini",
    "files": [{"pattern": "*.toml", "access": "read"}],
}


def test_every_key_is_read() -> None:
    assert set(ALL) == set(KEYS)
    found = settings_of(ALL, is_new=True)
    assert (found.message_policy, found.on_doubt, found.context_window) == ("steer", "ask_human", 8_000)
    assert (found.limits.steps, found.detectors.identical, found.hibernate_after_s) == (3, 5, 3600)
    assert (found.context.recall_max, found.compaction.type) == (2, "truncate")
    assert (found.max_output_tokens, found.temperature, found.top_p, found.stop) == (500, 1.0, 0.9, ("END",))
    assert (found.reasoning_effort, found.response_schema) == ("low", {"type": "object"})
    assert [(model.provider, model.model) for model in found.routing.fallback_models] == [("openai", "gpt-5.4-mini")]
    assert found.reflection_model is not None and found.reflection_model.model == "gpt-5.4-mini"
    assert found.files == (FileRule(pattern="*.toml", access=FolderAccess.READ),)


def test_nothing_and_null_mean_the_defaults() -> None:
    nulls: dict[str, Any] = {**dict.fromkeys(KEYS), "context": {"shares": None, "show": None}}
    assert settings_of({}, is_new=True) == AgentSettings() == settings_of(nulls, is_new=True)
    assert settings_of({"context": {}, "compaction": {}, "detectors": {}, "limits": {}}) == AgentSettings()
    found = AgentSettings()
    assert (found.message_policy, found.on_doubt, found.context.extra_tokens) == ("enqueue", "tell_model", 1_200)
    assert (found.compaction.type, found.compaction.summarises) == ("sliding_window", True)
    assert sum(SHARES.values()) == 100


def test_what_a_newer_version_stored_is_ignored_and_a_new_config_must_be_known() -> None:
    config: dict[str, Any] = {"colour": "red", "context": {"colour": "red"}, "message_policy": "reject"}
    assert settings_of(config) == AgentSettings(message_policy="reject")
    with pytest.raises(InvalidInput, match=r"`config.colour` is not known \(known are: .*`message_policy`") as refused:
        settings_of(config, is_new=True)
    assert "`config.context.colour` is not known (known are: `extra_tokens`, `shares`" in refused.value.message


def test_shares_that_are_not_named_keep_their_default_and_their_order() -> None:
    found = settings_of({"context": {"shares": {"logs": 1, "pinned": 10}, "show": {"activity": False, "tasks": True}}})
    assert (found.context.shares[Kind.PINNED], found.context.shares[Kind.RECALLED]) == (10, SHARES["recalled"])
    assert list(found.context.shares) == list(SHARES)  # the order is what flows down
    assert not found.context.show[Kind.ACTIVITY]


def test_summaries_are_written_by_the_agents_own_model_unless_another_is_named() -> None:
    assert CompactionSettings().model("scripted", "script-1") == ("scripted", "script-1")
    named = settings_of({"compaction": {"summarization_model": "a/b/c"}}).compaction
    assert named.model("scripted", "script-1") == ("a", "b/c")
    assert not CompactionSettings(type="truncate").summarises


def test_limits_are_the_servers_where_the_config_says_nothing() -> None:
    limits: dict[str, Any] = {"steps": 3, "wall_s": 1.5, "tokens": 100, "children": 0, "microdollars": None}
    own = settings_of({"limits": limits}).limits
    assert own == TurnBudget(steps=3, wall_s=1.5, tokens=100, children=0)
    server = TurnLimits()
    assert own.over(server) == TurnBudget(steps=3, wall_s=1.5, tokens=100, children=0, tool_calls=server.tool_calls_max)
    assert TurnBudget().over(server).wall_s == server.turn_timeout_s


def test_false_and_null_switch_a_detector_off() -> None:
    found = settings_of({"detectors": {"identical": False, "ping_pong": None, "exempt": ["x*"]}}).detectors
    assert found == DetectorSettings(identical=None, ping_pong=None, exempt=("x*",))
    off = DetectorSettings(identical=None, ping_pong=None, no_progress=None, compactions=None)
    assert settings_of({"detectors": False}).detectors == off


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"temprature": 1}, "`config.temprature` is not known"),
        ({"message_policy": "shout"}, "`config.message_policy` must be 'enqueue', 'reject'"),
        ({"message_policy": ["steer"]}, "`config.message_policy` must be"),
        ({"on_doubt": 1}, "`config.on_doubt` must be 'tell_model'"),
        ({"context_window": 10}, "`config.context_window` must be at least 1000, not 10"),
        ({"max_output_tokens": 0}, "`config.max_output_tokens` must be at least 1, not 0"),
        ({"max_output_tokens": "5"}, '`config.max_output_tokens` must be a whole number, not "5"'),
        ({"max_output_tokens": True}, "must be a whole number, not true"),
        ({"temperature": "hot"}, "`config.temperature` must be a number"),
        ({"temperature": True}, "must be a number"),
        ({"top_p": 1.1}, "`config.top_p` must be at most 1"),
        ({"stop": "END"}, "`config.stop` must be a list"),
        ({"stop": [""]}, "`config.stop.0`: String should have at least 1 character"),
        ({"stop": ["x"] * 17}, "at most 16"),
        ({"reasoning_effort": "much"}, "`config.reasoning_effort` must be 'none', 'low', 'medium' or 'high'"),
        ({"response_schema": "object"}, "`config.response_schema` must be an object"),
        ({"routing": {"x": 1}}, "routing"),
        ({"context": []}, "`config.context` must be an object, not []"),
        ({"context": {"extra": 1}}, "`config.context.extra` is not known"),
        ({"context": {"extra_tokens": -1}}, "`config.context.extra_tokens` must be at least 0"),
        ({"context": {"recall_timeout_ms": 1.5}}, "must be a whole number"),
        ({"context": {"activity_hours": 0}}, "at least 1"),
        ({"context": {"shares": 3}}, "`config.context.shares` must be an object"),
        ({"context": {"shares": {"core": 3}}}, "`config.context.shares`: core is not known (known are: pinned"),
        ({"context": {"shares": {"pinned": 101}}}, "at most 100"),
        ({"context": {"shares": {"pinned": 60}}}, "the shares add up to 120"),
        ({"context": {"show": {"core": False}}}, "`config.context.show`: core is not known"),
        ({"context": {"show": {"time": 1}}}, "`config.context.show.time` must be true or false"),
        ({"compaction": {"kind": "truncate"}}, "`config.compaction.kind` is not known"),
        ({"compaction": {"type": "forget"}}, "`config.compaction.type` must be 'truncate', 'importance_based'"),
        ({"compaction": {"keep_recent": 0}}, "at least 1"),
        ({"compaction": {"percentage": 2}}, "at most 0.9"),
        ({"compaction": {"threshold": "0.9"}}, "must be a number"),
        ({"compaction": {"summarization_model": "claude"}}, "provider/model"),
        ({"compaction": {"summarization_prompt": " "}}, "the text is empty"),
        ({"limits": []}, "`config.limits` must be an object"),
        ({"limits": {"steps": 0}}, "`config.limits.steps` must be at least 1"),
        ({"limits": {"tokens": 0}}, "`config.limits.tokens` must be at least 1"),
        ({"limits": {"steps": 2.0}}, "a whole number"),
        ({"limits": {"steps": 10**9}}, "at most 10000"),
        ({"limits": {"wall_s": float("nan")}}, "config.limits.wall_s"),
        ({"limits": {"children": -1}}, "at least 0"),
        ({"detectors": True}, "`config.detectors` must be an object"),
        ({"detectors": {"identical": 1}}, "`config.detectors.identical` must be at least 2"),
        ({"detectors": {"ping_pong": True}}, "config.detectors.ping_pong"),
        ({"detectors": {"no_progress": "6"}}, "config.detectors.no_progress"),
        ({"detectors": {"exempt": "a"}}, "detectors.exempt"),
        ({"detectors": {"exempt": ["a b"]}}, "not a tool's name"),
    ],
)
def test_what_would_fail_a_turn_later_is_refused_by_its_name(config: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        settings_of(config, is_new=True)
    assert words in refused.value.message
