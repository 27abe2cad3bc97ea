from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from trio.testing import MockClock

from pattern_core.agent_settings import settings_of
from pattern_core.errors import InvalidInput
from pattern_core.ids import seeded_randomness
from pattern_core.limits import TurnLimits
from pattern_core.messages import Message, Reasoning, Text, ToolCall, user
from pattern_core.models.catalogue import Catalogue
from pattern_core.models.client import ModelClient
from pattern_core.models.errors import (
    ModelError,
    ModelGarbage,
    ModelNotConfigured,
    ModelOverloaded,
    ModelRefused,
    ModelRejected,
    ModelServerError,
    ModelTimeout,
    ModelUnreachable,
    WindowExceeded,
)
from pattern_core.models.model import Delta, ModelFacts, ModelReply, ModelRequest
from pattern_core.models.routing import (
    FALLBACKS_MAX,
    Link,
    ModelChain,
    RoutingSettings,
    StepFacts,
    choose,
    fitted,
)
from pattern_core.models.throttle import RetryPolicy
from pattern_core.testing import Paced, ScriptedProvider, says
from pattern_core.testing.model import Answer
from pattern_db.columns import Json

OWN = StepFacts(provider="anthropic", model="claude")


def names(chain: ModelChain) -> list[str]:
    return [f"{link.provider}/{link.model}" for link in chain.links]


def routing(value: object) -> RoutingSettings:
    return settings_of({"routing": cast("Json", value)}, is_new=True).routing


def routed(condition: object, **facts: Any) -> bool:
    chosen = routing({"rules": [{"condition": condition, "model": "x/other"}]})
    return names(choose(chosen, replace(OWN, **facts)))[0] == "x/other"


def test_without_settings_the_agents_own_model_is_asked() -> None:
    chain = choose(routing(None), OWN)
    assert names(chain) == ["anthropic/claude"]
    assert chain.settings == RoutingSettings()
    assert routing(None) == routing({}) == RoutingSettings()
    assert RoutingSettings(fallback_on_rate_limit=True, fallback_on_context_overflow=True, max_retries=2) == routing({})


def test_the_rules_model_comes_first_then_the_own_then_the_fallbacks() -> None:
    chosen = routing(
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
    chain = choose(chosen, OWN)
    assert names(chain) == ["c/d", "anthropic/claude", "openrouter/openai/gpt-5", "ollama/qwen3:8b"]
    first = chain.links[0]
    assert (first.temperature, first.max_output_tokens) == (0.0, 9)
    assert {(link.temperature, link.max_output_tokens) for link in chain.links[1:]} == {(None, None)}
    assert chain.settings is chosen


def test_a_rule_may_choose_the_own_model_with_other_settings() -> None:
    chosen = routing(
        {"rules": [{"condition": {"type": "always"}, "model": "anthropic/claude", "temperature_override": 0.5}]}
    )
    (link,) = choose(chosen, OWN).links
    assert link.temperature == 0.5


@pytest.mark.parametrize(
    ("condition", "fact", "holds", "fails"),
    [
        ({"type": "context_length", "min_tokens": 1_000}, "tokens", 1_000, 999),
        ({"type": "tool_call", "tools": ["shell", "web"]}, "tools_called", {"web", "recall"}, {"recall"}),
        ({"type": "source", "sources": ["schedule"]}, "source", "schedule", "user"),
        ({"type": "time_window", "start_hour": 9, "end_hour": 17}, "hour", 9, 17),
    ],
)
def test_conditions_hold_from_their_bound_on(condition: object, fact: str, holds: object, fails: object) -> None:
    assert routed(condition, **{fact: holds})
    assert not routed(condition, **{fact: fails})


@pytest.mark.parametrize(
    ("start", "end", "hours"),
    [(9, 17, range(9, 17)), (22, 6, [22, 23, 0, 1, 2, 3, 4, 5]), (0, 24, range(24)), (5, 5, range(24))],
)
def test_hours_go_over_midnight(start: int, end: int, hours: list[int]) -> None:
    window = {"type": "time_window", "start_hour": start, "end_hour": end}
    held = [hour for hour in range(24) if routed(window, hour=hour)]
    assert held == sorted(hours)


@pytest.mark.parametrize(("usd", "micro"), [(0.1, 100_000), ("0.1", 100_000), (1, 1_000_000), (0.000001, 1)])
def test_dollars_are_exact(usd: object, micro: int) -> None:
    condition = {"type": "cost_threshold", "max_usd": usd}
    assert routed(condition, spent_today=micro)
    assert not routed(condition, spent_today=micro - 1)


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


# Asking along a chain

WINDOWS = {"a": 100, "b": 100, "c": 1_000}
THOUGHT = Message(
    role="assistant",
    parts=(
        Reasoning(text="hm", signature="proof"),
        Text(text="yes", signature="proof"),
        ToolCall(call_id="1", tool="t", signature="proof"),
    ),
)
REQUEST = ModelRequest(
    model="own",
    system=("s",),
    messages=[user("hello"), THOUGHT],
    max_output_tokens=500,
    temperature=1.0,
)


def facts_of(provider: str, model: str) -> ModelFacts:
    return ModelFacts(provider=provider, model=model, window=WINDOWS[provider], output_max=50)


@dataclass
class Links:
    """A client of one provider for each outcome, asked as a chain in this order; it records the moves."""

    outcomes: dict[str, Answer]
    moves: list[tuple[int, ModelError]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.providers = {name: ScriptedProvider(name=name, otherwise=each) for name, each in self.outcomes.items()}
        tables = {name: {f"{name}-model": facts_of(name, f"{name}-model")} for name in self.outcomes}
        self.client = ModelClient(
            self.providers, RetryPolicy(jitter=0), TurnLimits(), seeded_randomness(1), catalogue=Catalogue(tables)
        )

    @property
    def asked(self) -> list[str]:
        return [request.model for provider in self.providers.values() for request in provider.requests]

    async def on_move(self, index: int, error: ModelError) -> None:
        self.moves.append((index, error))

    async def run(self, *, max_retries: int = 0, **flags: Any) -> ModelReply:
        links = tuple(Link(provider=name, model=f"{name}-model") for name in self.outcomes)
        chain = ModelChain(links=links, settings=RoutingSettings(max_retries=max_retries, **flags))
        return await self.client.ask(REQUEST, chain, ignore, on_move=self.on_move)


async def ignore(delta: Delta) -> None:
    """Show nothing."""


def error(kind: type[ModelError]) -> ModelError:
    return kind("no", provider="any")


@pytest.mark.parametrize(
    ("kind", "moves"),
    [
        (ModelOverloaded, True),
        (ModelUnreachable, True),
        (ModelTimeout, True),
        (ModelServerError, True),
        (ModelGarbage, True),
        (ModelRefused, True),
        (ModelNotConfigured, True),
        (ModelRejected, False),
    ],
)
async def test_errors_after_which_another_model_is_asked(kind: type[ModelError], moves: bool) -> None:
    links = Links({"a": error(kind), "b": says("yes")})
    if moves:
        assert await links.run() == says("yes")
        assert links.asked == ["a-model", "b-model"]
    else:
        with pytest.raises(kind):
            await links.run()


async def test_each_move_is_reported_before_the_next_model_is_asked(autojump_clock: MockClock) -> None:
    links = Links({"a": error(ModelOverloaded), "b": error(ModelUnreachable), "c": says("yes")})
    await links.run(max_retries=2)
    (first, overload), (second, outage) = links.moves
    assert (first, overload.code) == (1, "model_overloaded")
    assert (second, str(outage), outage.details["attempts"]) == (2, "no", 3)


async def test_the_last_error_comes_out_with_its_link() -> None:
    links = Links({"a": error(ModelServerError), "b": error(ModelUnreachable)})
    with pytest.raises(ModelUnreachable) as caught:
        await links.run()
    assert caught.value.details["link"] == 1


async def test_nothing_moves_once_words_were_shown() -> None:
    broken = Paced(answer=says("half"), breaks=error(ModelUnreachable), shown=1)
    links = Links({"a": broken, "b": says("never")})
    with pytest.raises(ModelUnreachable):
        await links.run()
    assert links.asked == ["a-model"]


async def test_too_long_a_prompt_goes_to_a_larger_window_only() -> None:
    links = Links({"a": error(WindowExceeded), "b": says("never"), "c": says("yes")})
    assert await links.run() == says("yes")
    assert [index for index, _error in links.moves] == [2]
    small = Links({"a": error(WindowExceeded), "b": says("never")})
    with pytest.raises(WindowExceeded):
        await small.run()


@pytest.mark.parametrize(
    ("kind", "flag"), [(ModelOverloaded, "fallback_on_rate_limit"), (WindowExceeded, "fallback_on_context_overflow")]
)
async def test_the_agent_may_forbid_it(kind: type[ModelError], flag: str) -> None:
    links = Links({"a": error(kind), "c": says("never")})
    with pytest.raises(kind):
        await links.run(**{flag: False})


def test_the_request_is_fitted_to_the_link() -> None:
    first = Link(provider="a", model="m1")
    second = Link(provider="a", model="m2", temperature=0.0, max_output_tokens=20)
    own = fitted(REQUEST, first, facts_of("a", "m1"))
    assert (own.model, own.temperature, own.max_output_tokens) == ("m1", 1.0, 50)
    same = fitted(REQUEST, second, facts_of("a", "m2"))
    assert (same.model, same.temperature, same.max_output_tokens) == ("m2", 0.0, 20)
    assert fitted(own, first, facts_of("a", "m1")) is own, "it fits already"
    unknown = replace(facts_of("a", "m1"), is_known=False)
    assert fitted(REQUEST, first, unknown).max_output_tokens == 500, "an unknown model's answers are not cut"
