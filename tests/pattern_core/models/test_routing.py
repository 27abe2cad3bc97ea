from __future__ import annotations

import json
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.agent_settings import settings_of
from pattern_core.errors import InvalidInput
from pattern_core.models.routing import (
    FALLBACKS_MAX,
    ModelChain,
    RoutingSettings,
    StepFacts,
    choose,
)
from pattern_db.columns import Json

OWN = StepFacts(provider="anthropic", model="claude")


def names(chain: ModelChain) -> list[str]:
    return [f"{link.provider}/{link.model}" for link in chain.links]


def routing(value: object) -> RoutingSettings:
    return settings_of({"routing": cast("Json", value)}, is_new=True).routing


def routed(condition: object, facts: StepFacts) -> bool:
    settings_ = routing({"rules": [{"condition": condition, "model": "x/other"}]})
    return names(choose(settings_, facts))[0] == "x/other"


def test_without_settings_the_agents_own_model_is_asked() -> None:
    chain = choose(routing(None), OWN)
    assert names(chain) == ["anthropic/claude"]
    assert (chain.on_rate_limit, chain.on_context_overflow, chain.max_retries) == (True, True, 2)
    assert routing(None) == routing({}) == RoutingSettings()


def test_the_rules_model_comes_first_then_the_own_then_the_fallbacks() -> None:
    settings_ = routing(
        {
            "fallback_models": [
                "openrouter/openai/gpt-5",
                {"provider": "ollama", "model": "qwen3:8b"},
                "anthropic/claude",
            ],
            "rules": [
                {"condition": {"type": "source", "sources": ["never"]}, "model": "a/b"},
                {"condition": {"type": "always"}, "model": "c/d", "temperature_override": 0, "max_tokens_override": 9},
                {"condition": {"type": "always"}, "model": "e/f"},
            ],
            "fallback_on_rate_limit": False,
            "max_retries": 0,
        }
    )
    chain = choose(settings_, OWN)
    assert names(chain) == ["c/d", "anthropic/claude", "openrouter/openai/gpt-5", "ollama/qwen3:8b"]
    first = chain.links[0]
    assert (first.temperature, first.max_output_tokens, first.reason) == (0.0, 9, "by rule: it applies always")
    assert [link.reason for link in chain.links[1:3]] == ["the agent's own model", "to fall back to"]
    assert (chain.on_rate_limit, chain.on_context_overflow, chain.max_retries) == (False, True, 0)


def test_a_rule_may_choose_the_own_model_with_other_settings() -> None:
    settings_ = routing(
        {"rules": [{"condition": {"type": "always"}, "model": "anthropic/claude", "temperature_override": 0.5}]}
    )
    (link,) = choose(settings_, OWN).links
    assert link.temperature == 0.5


@pytest.mark.parametrize(
    ("condition", "holds", "fails"),
    [
        (
            {"type": "cost_threshold", "max_usd": 0.1},
            StepFacts(provider="p", model="m", spent_today=100_000),
            StepFacts(provider="p", model="m", spent_today=99_999),
        ),
        (
            {"type": "context_length", "min_tokens": 1_000},
            StepFacts(provider="p", model="m", tokens=1_000),
            StepFacts(provider="p", model="m", tokens=999),
        ),
        (
            {"type": "tool_call", "tools": ["shell", "web"]},
            StepFacts(provider="p", model="m", tools_called=frozenset({"web", "recall"})),
            StepFacts(provider="p", model="m", tools_called=frozenset({"recall"})),
        ),
        (
            {"type": "source", "sources": ["schedule"]},
            StepFacts(provider="p", model="m", source="schedule"),
            StepFacts(provider="p", model="m", source="user"),
        ),
        (
            {"type": "time_window", "start_hour": 9, "end_hour": 17},
            StepFacts(provider="p", model="m", hour=9),
            StepFacts(provider="p", model="m", hour=17),
        ),
    ],
)
def test_conditions_hold_from_their_bound_on(condition: object, holds: StepFacts, fails: StepFacts) -> None:
    assert routed(condition, holds)
    assert not routed(condition, fails)


@pytest.mark.parametrize(
    ("start", "end", "hours"),
    [(9, 17, range(9, 17)), (22, 6, [22, 23, 0, 1, 2, 3, 4, 5]), (0, 24, range(24)), (5, 5, range(24))],
)
def test_hours_go_over_midnight(start: int, end: int, hours: list[int]) -> None:
    window = {"type": "time_window", "start_hour": start, "end_hour": end}
    held = [hour for hour in range(24) if routed(window, StepFacts(provider="p", model="m", hour=hour))]
    assert held == sorted(hours)


@pytest.mark.parametrize(("usd", "micro"), [(0.1, 100_000), ("0.1", 100_000), (1, 1_000_000), (0.000001, 1)])
def test_dollars_are_exact(usd: object, micro: int) -> None:
    condition = {"type": "cost_threshold", "max_usd": usd}
    assert routed(condition, StepFacts(provider="p", model="m", spent_today=micro))
    assert not routed(condition, StepFacts(provider="p", model="m", spent_today=micro - 1))


def rule(**changes: object) -> dict[str, object]:
    return {"rules": [{"condition": {"type": "always"}, "model": "a/b", **changes}]}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "`config.routing` must be an object"),
        ({"fallbacks": []}, "routing.fallbacks` is not known .known are: `rules`, `fallback_models`"),
        ({"fallback_models": "a/b"}, "must be a list"),
        ({"fallback_models": ["a/b"] * (FALLBACKS_MAX + 1)}, "at most 6 items"),
        ({"fallback_models": ["gpt-5"]}, "fallback_models.0`: it is written provider/model"),
        ({"fallback_models": ["gpt-5/ "]}, "fallback_models.0`: it is written provider/model"),
        ({"fallback_models": [{"provider": "a"}]}, "fallback_models.0.model` is missing"),
        ({"max_retries": -1}, "max_retries` must be at least 0"),
        ({"max_retries": 11}, "max_retries` must be at most 10"),
        ({"max_retries": True}, "a whole number"),
        ({"fallback_on_rate_limit": 1}, "must be true or false"),
        ({"rules": [{"condition": {"type": "always"}}]}, "rules.0.model` is missing"),
        ({"rules": [{"model": "a/b"}]}, "rules.0.condition` is missing"),
        (rule(condition={"type": "mood"}), "'cost_threshold', 'context_length', 'tool_call'"),
        (rule(condition={"type": "always", "x": 1}), "always.x` is not known"),
        (rule(condition={"type": "cost_threshold"}), "max_usd` is missing"),
        (rule(condition={"type": "cost_threshold", "max_usd": "nan"}), "a finite number"),
        (rule(condition={"type": "cost_threshold", "max_usd": "much"}), "a valid decimal"),
        (rule(condition={"type": "cost_threshold", "max_usd": -1}), "at least 0"),
        (rule(condition={"type": "cost_threshold", "max_usd": True}), "max_usd"),
        (rule(condition={"type": "tool_call", "tools": []}), "at least 1 item"),
        (rule(condition={"type": "source", "sources": [1]}), "sources.0` must be text"),
        (rule(condition={"type": "time_window", "start_hour": 24, "end_hour": 3}), "start_hour` must be at most 23"),
        (rule(temperature_override=3), "temperature_override` must be at most 2"),
        (rule(max_tokens_override=0), "max_tokens_override` must be at least 1"),
    ],
)
def test_what_does_not_fit_is_named_with_what_does(value: object, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        routing(value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["rules", "condition", "type", "model", "fallback_models", "max_usd", "tools", "max_retries"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@settings(max_examples=80)
@given(value=json_values)
def test_any_json_is_read_or_refused(value: object) -> None:
    try:
        settings_ = routing(json.loads(json.dumps(value)))
    except InvalidInput:
        return
    assert choose(settings_, OWN).links
