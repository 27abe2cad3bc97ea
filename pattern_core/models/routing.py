"""The models of a step: the agent's own, one chosen by a rule, and fallbacks; pure.

They are a chain: each is called if the ones before failed, and only while nothing was shown.

Stored under "routing" in an agent's config:

    {"fallback_models": ["openai/gpt-5.4-mini", {"provider": "ollama", "model": "qwen3:8b"}],
     "rules": [{"condition": {"type": "context_length", "min_tokens": 100000}, "model": "google/gemini-2.5-pro",
                "temperature_override": 0.2, "max_tokens_override": 2000}],
     "fallback_on_rate_limit": true, "fallback_on_context_overflow": true, "max_retries": 2}

The first rule with a true condition chooses the model; the agent's own comes next in the chain, then the fallbacks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from pattern_core.models.errors import ModelError, ModelOverloaded, ModelRejected, WindowExceeded, was_shown
from pattern_core.models.model import ModelFacts, ModelRequest

LINKS_MAX = 8
RULES_MAX = 32
FALLBACKS_MAX = LINKS_MAX - 2  # in addition to the model of a rule and the agent's own
NAMES_MAX = 64  # tools or sources of one condition
NAME_CHARS_MAX = 200
RETRIES_MAX = 10
MICRODOLLARS = 1_000_000

Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=NAME_CHARS_MAX)]
Names = Annotated[tuple[Name, ...], Field(min_length=1, max_length=NAMES_MAX)]


@dataclass(frozen=True, slots=True)
class Link:
    """One model of a chain. None: as in the request."""

    provider: str
    model: str
    temperature: float | None = None
    max_output_tokens: int | None = None


FactsOf = Callable[[str, str], ModelFacts]
"""Returns the facts about a model, by provider and name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """The facts that rules may use before a step. `provider` and `model` are the agent's own.

    `tokens` is the prompt's estimate, `spent_today` the agent's micro-dollars of the day (UTC), `tools_called` those of
    this turn, `hour` 0 to 23 in UTC, `source` where the turn comes from.
    """

    provider: str
    model: str
    tokens: int = 0
    spent_today: int = 0
    tools_called: frozenset[str] = frozenset()
    hour: int = 0
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostThreshold:
    """The agent has spent at least `max_usd` today."""

    type: Literal["cost_threshold"]
    max_usd: Annotated[Decimal, Field(ge=0, le=10**9)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLength:
    """The prompt has at least `min_tokens`."""

    type: Literal["context_length"]
    min_tokens: Annotated[int, Field(ge=0, le=10**9)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCalled:
    """One of `tools` was called in this turn."""

    type: Literal["tool_call"]
    tools: Names


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeWindow:
    """It is from `start_hour` to before `end_hour` (UTC), over midnight if that is smaller; equal ones mean always."""

    type: Literal["time_window"]
    start_hour: Annotated[int, Field(ge=0, le=23)]
    end_hour: Annotated[int, Field(ge=0, le=24)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSource:
    """The turn comes from one of `sources`, such as "user" or "schedule"."""

    type: Literal["source"]
    sources: Names


@dataclass(frozen=True, slots=True, kw_only=True)
class Always:
    """No condition."""

    type: Literal["always"]


StepCondition = CostThreshold | PromptLength | ToolCalled | TimeWindow | TurnSource | Always


def holds(condition: StepCondition, facts: StepFacts) -> bool:
    """Return whether the condition holds."""
    match condition:
        case CostThreshold(max_usd=max_usd):
            return Decimal(facts.spent_today) / MICRODOLLARS >= max_usd
        case PromptLength(min_tokens=least):
            return facts.tokens >= least
        case ToolCalled(tools=tools):
            return not facts.tools_called.isdisjoint(tools)
        case TimeWindow(start_hour=start, end_hour=end):
            after, before = start <= facts.hour, facts.hour < end
            return (after and before) if start < end else (after or before)
        case TurnSource(sources=sources):
            return facts.source in sources
        case Always():
            return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelName:
    """A model of a provider, written as an object or as "provider/model"."""

    provider: Name
    model: Name


def _split(value: object) -> object:
    if not isinstance(value, str):
        return value
    provider, _slash, model = value.partition("/")
    if not provider.strip() or not model.strip():
        raise ValueError("it is written provider/model, as in anthropic/claude")
    return {"provider": provider, "model": model}


SplitName = Annotated[ModelName, BeforeValidator(_split)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingRule:
    """A model to use while `condition` is true; None: as in the request."""

    condition: Annotated[StepCondition, Field(discriminator="type")]
    model: SplitName
    temperature_override: Annotated[float, Field(ge=0, le=2)] | None = None
    max_tokens_override: Annotated[int, Field(ge=1, le=10**9)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingSettings:
    """An agent's routing; the defaults ask its own model alone. Of `rules` the first that holds chooses the model.

    `max_retries` is the number of retries of each model before the next one.
    """

    # `{condition, model, temperature_override, max_tokens_override}`; the first that holds chooses the model
    rules: Annotated[tuple[RoutingRule, ...], Field(max_length=RULES_MAX)] = ()
    # `provider/model` names to try in order when a model fails
    fallback_models: Annotated[tuple[SplitName, ...], Field(max_length=FALLBACKS_MAX)] = ()
    fallback_on_rate_limit: bool = True  # whether a rate limit leads to the next model
    fallback_on_context_overflow: bool = True  # whether a prompt that is too long leads to the next model
    max_retries: Annotated[int, Field(ge=0, le=RETRIES_MAX)] = 2  # retries of each model before the next one


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChain:
    """Models in the order of calls, 1 to `LINKS_MAX`; `settings` say when the next one is used."""

    links: tuple[Link, ...]
    settings: RoutingSettings = RoutingSettings()

    @classmethod
    def of(cls, provider: str, model: str) -> ModelChain:
        """Return a chain of one model, with the client's number of retries."""
        return cls(links=(Link(provider, model),), settings=RoutingSettings(max_retries=RETRIES_MAX))


def choose(settings: RoutingSettings, facts: StepFacts) -> ModelChain:
    """Return the models for this step; at least one, without duplicates."""
    links = [Link(facts.provider, facts.model)]
    if (rule := next((one for one in settings.rules if holds(one.condition, facts)), None)) is not None:
        temperature, output_max, name = rule.temperature_override, rule.max_tokens_override, rule.model
        links.insert(0, Link(name.provider, name.model, temperature, output_max))
    links += [Link(name.provider, name.model) for name in settings.fallback_models]
    named: dict[tuple[str, str], Link] = {}
    for link in links:
        named.setdefault((link.provider, link.model), link)
    return ModelChain(links=tuple(named.values()), settings=settings)


def fitted(request: ModelRequest, link: Link, facts: ModelFacts) -> ModelRequest:
    """Return the request for a link: with its model and settings, and an answer no longer than the model's limit."""
    output_max = request.max_output_tokens if link.max_output_tokens is None else link.max_output_tokens
    if facts.is_known and output_max > facts.output_max:
        output_max = facts.output_max
    if facts.tool_calls != "auto":
        request = replace(request, tool_calls=facts.tool_calls)
    if facts.tool_calls == "none":
        request = replace(request, tools=(), force_tool=None)
    if link.model == request.model and output_max == request.max_output_tokens and link.temperature is None:
        return request
    temperature = request.temperature if link.temperature is None else link.temperature
    return replace(request, model=link.model, temperature=temperature, max_output_tokens=output_max)


def next_link(chain: ModelChain, index: int, error: ModelError, facts_of: FactsOf) -> int | None:
    """Return the next link after `error`: after a rate limit, an overload or a prompt too long for the model (then only
    one with a larger window), if the settings allow it, and after an outage.

    None if another model does not help, if there is none, or once text was shown.
    """
    if was_shown(error) or error.details.get("deadline") is True:  # or the turn's time is up
        return None
    rest = range(index + 1, len(chain.links))
    if isinstance(error, WindowExceeded):
        if not chain.settings.fallback_on_context_overflow:
            return None
        windows = [facts_of(link.provider, link.model).window for link in chain.links]
        return next((one for one in rest if windows[one] > windows[index]), None)
    # A refused key and a missing provider are the operator's to correct, but no reason for an agent to be silent; each
    # move is reported, so that they do not go unnoticed. Only a request that was rejected would be rejected again.
    is_busy = isinstance(error, ModelOverloaded)
    may_move = chain.settings.fallback_on_rate_limit if is_busy else not isinstance(error, ModelRejected)
    return next(iter(rest), None) if may_move else None
