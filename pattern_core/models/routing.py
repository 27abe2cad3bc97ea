"""Which models a step is given to: the agent's own, another one by rule, and those to fall back to; pure.

They are a chain: each is asked if those before it could not answer, and only while nothing was shown.

Stored under "routing" in an agent's config:

    {"fallback_models": ["openai/gpt-5.4-mini", {"provider": "ollama", "model": "qwen3:8b"}],
     "rules": [{"condition": {"type": "context_length", "min_tokens": 100000}, "model": "google/gemini-2.5-pro",
                "temperature_override": 0.2, "max_tokens_override": 2000}],
     "fallback_on_rate_limit": true, "fallback_on_context_overflow": true, "max_retries": 2}

The first rule whose condition holds chooses the model; the agent's own comes next in the chain, then the fallbacks.
Conditions: `cost_threshold` {max_usd}: the agent has spent that much today; `context_length` {min_tokens}: the prompt
has at least so many; `tool_call` {tools}: one of them was called in this turn; `time_window` {start_hour, end_hour}:
hours of the day in UTC, from the first to before the second, over midnight if it is the smaller one; `source`
{sources}: where the turn comes from, such as "user" or "schedule"; `always`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation

from pattern_core.errors import InvalidInput
from pattern_core.messages import Message, Reasoning, ToolCall
from pattern_core.models.errors import (
    ModelError,
    ModelGarbage,
    ModelNotConfigured,
    ModelOverloaded,
    ModelRefused,
    ModelServerError,
    ModelTimeout,
    ModelUnreachable,
    WindowExceeded,
    was_shown,
)
from pattern_core.models.model import ModelFacts, ModelRequest

LINKS_MAX = 8
RULES_MAX = 32
FALLBACKS_MAX = LINKS_MAX - 2  # beside the model of a rule and the agent's own
NAMES_MAX = 64  # tools or sources of one condition
NAME_CHARS_MAX = 200
RETRIES_MAX = 10
MICRODOLLARS = 1_000_000

_KEYS = ("fallback_models", "rules", "fallback_on_rate_limit", "fallback_on_context_overflow", "max_retries")
_RULE_KEYS = ("condition", "model", "temperature_override", "max_tokens_override")


# A refused key and a provider that is not there are the operator's to mend, but no reason for an agent to be silent;
# each move is told, so that they do not go unnoticed.
_OUTAGES = (ModelUnreachable, ModelTimeout, ModelServerError, ModelGarbage, ModelRefused, ModelNotConfigured)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One model of a chain. What is None is as the request says. `reason` tells people why it is in the chain."""

    provider: str
    model: str
    reason: str
    temperature: float | None = None
    max_output_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A step along the chain. `index` is that of `following`; `attempts` were made at `failed`, none if it was busy.

    `why` is the error's code, such as "model_overloaded"; `message` its words.
    """

    index: int
    attempts: int
    failed: Link
    following: Link
    why: str
    message: str


OnMove = Callable[[Move], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChain:
    """Models in the order in which they are asked, 1 to `LINKS_MAX`.

    `max_retries` is how often each is asked again before the next one.
    """

    links: tuple[Link, ...]
    on_rate_limit: bool = True
    on_context_overflow: bool = True
    max_retries: int = 2


FactsOf = Callable[[str, str], ModelFacts]
"""What is known of a model, by the provider's name and the model's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """What is known before a step. `provider` and `model` are the agent's own.

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
class StepCondition:
    """When a rule applies; `kind` says which of the others count: see the module."""

    kind: str
    least: int = 0  # micro-dollars of a `cost_threshold`, tokens of a `context_length`
    names: tuple[str, ...] = ()  # of tools or sources
    hours: tuple[int, int] = (0, 0)  # of a `time_window`: equal ones mean the whole day

    def holds(self, facts: StepFacts) -> str | None:
        """Return why the condition holds, None if it does not."""
        match self.kind:
            case "cost_threshold" if facts.spent_today >= self.least:
                return f"${_dollars(facts.spent_today)} of ${_dollars(self.least)} are spent today"
            case "context_length" if facts.tokens >= self.least:
                return f"the prompt has about {facts.tokens:,} tokens, at least {self.least:,}"
            case "tool_call":
                called = next((tool for tool in self.names if tool in facts.tools_called), None)
                return None if called is None else f"the tool {called} was called in this turn"
            case "time_window":
                (start, end), hour = self.hours, facts.hour
                is_in = start <= hour < end if start < end else hour >= start or hour < end
                return f"it is between {start}:00 and {end}:00 UTC" if is_in else None
            case "source" if facts.source in self.names:
                return f"the turn comes from {facts.source}"
            case "always":
                return "it applies always"
        return None


_CONDITIONS: Mapping[str, tuple[str, ...]] = {
    "cost_threshold": ("max_usd",),
    "context_length": ("min_tokens",),
    "tool_call": ("tools",),
    "time_window": ("start_hour", "end_hour"),
    "source": ("sources",),
    "always": (),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingSettings:
    """An agent's routing; the defaults ask its own model alone. Of `rules` the first that holds chooses the model."""

    rules: tuple[tuple[StepCondition, Link], ...] = ()
    fallbacks: tuple[Link, ...] = ()
    on_rate_limit: bool = True
    on_context_overflow: bool = True
    max_retries: int = 2

    @property
    def has_cost_rule(self) -> bool:
        """Whether `StepFacts.spent_today` counts."""
        return any(condition.kind == "cost_threshold" for condition, _ in self.rules)

    @classmethod
    def of(cls, value: object) -> RoutingSettings:
        """Return the settings as they are stored (see the module); None means the defaults.

        Raises:
            InvalidInput: a key is unknown or a value does not fit; the message says which and what is allowed.
        """
        if value is None:
            return cls()
        data = _object("routing", value, _KEYS)
        rules = enumerate(_list("routing.rules", data, RULES_MAX))
        fallbacks = enumerate(_list("routing.fallback_models", data, FALLBACKS_MAX))
        return cls(
            rules=tuple(_rule(f"routing.rules[{index}]", rule) for index, rule in rules),
            fallbacks=tuple(
                _link(f"routing.fallback_models[{index}]", name, reason="to fall back to") for index, name in fallbacks
            ),
            on_rate_limit=_flag("routing.fallback_on_rate_limit", data),
            on_context_overflow=_flag("routing.fallback_on_context_overflow", data),
            max_retries=_whole("routing.max_retries", data, most=RETRIES_MAX, default=cls().max_retries),
        )


def choose(settings: RoutingSettings, facts: StepFacts) -> ModelChain:
    """Return the models for this step, each with the reason why it is there; at least one, none twice."""
    own = Link(provider=facts.provider, model=facts.model, reason="the agent's own model")
    links = [own, *settings.fallbacks]
    for condition, link in settings.rules:
        why = condition.holds(facts)
        if why is not None:
            links.insert(0, replace(link, reason=f"by rule: {why}"))
            break
    named: dict[tuple[str, str], Link] = {}
    for link in links:
        named.setdefault((link.provider, link.model), link)
    return ModelChain(
        links=tuple(named.values()),
        on_rate_limit=settings.on_rate_limit,
        on_context_overflow=settings.on_context_overflow,
        max_retries=settings.max_retries,
    )


def fitted(request: ModelRequest, chain: ModelChain, index: int, facts: ModelFacts) -> ModelRequest:
    """Return the request as a link is asked it: its model and settings, no longer an answer than the model can give.

    What only the first provider understands, its proofs and its extra fields, is not sent to another one.
    """
    link = chain.links[index]
    output_max = request.max_output_tokens if link.max_output_tokens is None else link.max_output_tokens
    if facts.is_known and output_max > facts.output_max:
        output_max = facts.output_max
    is_foreign = link.provider != chain.links[0].provider
    is_same = link.model == request.model and output_max == request.max_output_tokens and link.temperature is None
    if is_same and not is_foreign:
        return request
    return replace(
        request,
        model=link.model,
        temperature=request.temperature if link.temperature is None else link.temperature,
        max_output_tokens=output_max,
        messages=portable(request.messages) if is_foreign else request.messages,
        extra={} if is_foreign else request.extra,
    )


def portable(messages: Sequence[Message]) -> list[Message]:
    """Return the conversation without the proofs that only their vendor accepts; other messages stay as they are."""
    found: list[Message] = []
    for message in messages:
        parts = list(message.parts)
        for place, part in enumerate(parts):
            if isinstance(part, Reasoning | ToolCall) and part.signature is not None:
                parts[place] = replace(part, signature=None)
        found.append(message if parts == list(message.parts) else replace(message, parts=tuple(parts)))
    return found


def next_link(chain: ModelChain, index: int, error: ModelError, facts_of: FactsOf) -> int | None:
    """Return the link to go to after `error`: after a rate limit or an overload (if `on_rate_limit`), after a prompt
    too long for the model (if `on_context_overflow`, and only one with a larger window), and after an outage.

    None if another model does not mend it, or there is none, and always once words were shown.
    """
    if was_shown(error) or error.details.get("deadline") is True:  # or the turn's time is up
        return None
    rest = range(index + 1, len(chain.links))
    if isinstance(error, WindowExceeded):
        if not chain.on_context_overflow:
            return None
        windows = [facts_of(link.provider, link.model).window for link in chain.links]
        return next((one for one in rest if windows[one] > windows[index]), None)
    may_move = chain.on_rate_limit if isinstance(error, ModelOverloaded) else isinstance(error, _OUTAGES)
    return next(iter(rest), None) if may_move else None


def _rule(place: str, value: object) -> tuple[StepCondition, Link]:
    data = _object(place, value, _RULE_KEYS)
    if "model" not in data:
        raise InvalidInput(f'{place} needs a model, such as "openai/gpt-5.4-mini"')
    temperature = data.get("temperature_override")
    if temperature is not None and not (_is_number(temperature) and 0 <= float(str(temperature)) <= 2):
        raise InvalidInput(f"{place}.temperature_override must be a number from 0 to 2")
    limit = data.get("max_tokens_override")
    link = replace(
        _link(f"{place}.model", data["model"]),
        temperature=None if temperature is None else float(str(temperature)),
        max_output_tokens=None if limit is None else _whole(f"{place}.max_tokens_override", data, least=1),
    )
    return _condition(f"{place}.condition", data.get("condition")), link


def _condition(place: str, value: object) -> StepCondition:
    kind = str(value.get("type")) if isinstance(value, Mapping) else ""
    if kind not in _CONDITIONS:
        raise InvalidInput(f"{place} needs a type: {', '.join(_CONDITIONS)}")
    data = _object(place, value, ("type", *_CONDITIONS[kind]))
    match kind:
        case "cost_threshold":
            return StepCondition(kind=kind, least=_usd(f"{place}.max_usd", data.get("max_usd")))
        case "context_length":
            return StepCondition(kind=kind, least=_whole(f"{place}.min_tokens", data))
        case "time_window":
            start, end = _whole(f"{place}.start_hour", data, most=23), _whole(f"{place}.end_hour", data, most=24)
            return StepCondition(kind=kind, hours=(start, end))
        case "tool_call" | "source":
            return StepCondition(kind=kind, names=_names(f"{place}.{_CONDITIONS[kind][0]}", data))
    return StepCondition(kind=kind)


def _link(place: str, value: object, reason: str = "") -> Link:
    if isinstance(value, str):
        provider, _, model = value.partition("/")
    else:
        data = _object(place, value, ("provider", "model"))
        provider, model = str(data.get("provider") or ""), str(data.get("model") or "")
    if not provider.strip() or not model.strip() or len(provider) + len(model) > NAME_CHARS_MAX:
        raise InvalidInput(f'{place} must be "provider/model", or an object with provider and model')
    return Link(provider=provider.strip(), model=model.strip(), reason=reason)


def _object(place: str, value: object, keys: Sequence[str]) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{place} must be an object with {', '.join(keys)}")
    unknown = sorted(str(key) for key in value if key not in keys)
    if unknown:
        raise InvalidInput(f"{place} does not know {', '.join(unknown)}; it knows {', '.join(keys)}")
    return value


def _list(place: str, data: Mapping[str, object], most: int) -> Sequence[object]:
    value = data.get(_key(place), [])
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) > most:
        raise InvalidInput(f"{place} must be a list of at most {most}")
    return value


def _names(place: str, data: Mapping[str, object]) -> tuple[str, ...]:
    names = _list(place, data, NAMES_MAX)
    if not names or not all(isinstance(name, str) and 0 < len(name) <= NAME_CHARS_MAX for name in names):
        raise InvalidInput(f"{place} must be a list of 1 to {NAMES_MAX} names")
    return tuple(map(str, names))


def _flag(place: str, data: Mapping[str, object]) -> bool:
    value = data.get(_key(place), True)
    if not isinstance(value, bool):
        raise InvalidInput(f"{place} must be true or false")
    return value


def _whole(
    place: str, data: Mapping[str, object], *, least: int = 0, most: int = 10**9, default: int | None = None
) -> int:
    value = data.get(_key(place), default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidInput(f"{place} must be a whole number from {least} to {most}")
    return value


def _usd(place: str, value: object) -> int:
    """Dollars as JSON's number or as text, in whole micro-dollars without a detour through binary fractions."""
    try:
        amount = Decimal(str(value)) * MICRODOLLARS if _is_number(value) or isinstance(value, str) else Decimal(-1)
    except InvalidOperation:
        amount = Decimal(-1)
    if not amount.is_finite() or not 0 <= amount <= 10**15:
        raise InvalidInput(f"{place} must be an amount of dollars, such as 0.50")
    return int(amount)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _key(place: str) -> str:
    return place.rpartition(".")[2]


def _dollars(microdollars: int) -> str:
    return f"{Decimal(microdollars) / MICRODOLLARS:.2f}"
