"""What an agent's config says about its prompts and answers.

Members of the config itself, which go to the model as they are (`Sampling`), and the window of its prompts:

    {"max_output_tokens": 2000, "temperature": 0.7, "top_p": 0.9, "stop": ["END"], "reasoning_effort": "low",
     "response_schema": {"type": "object", …}, "context_window": 32000}

Its part `context` (`ContextSettings`), what a prompt shows beside core memory and the conversation:

    {"extra_tokens": 1200, "shares": {"pinned": 40, "recalled": 25, "logs": 15, "tasks": 10, "activity": 10},
     "show": {"activity": false}, "recall_max": 5, "recall_timeout_ms": 150,
     "activity_max": 20, "activity_own_max": 3, "activity_hours": 24}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import get_args

from pattern_core.errors import InvalidInput
from pattern_core.models.model import ReasoningEffort
from pattern_core.prompts.parts import Kind

OUTPUT_TOKENS_MAX = 1_000_000
WINDOW_MIN = 1_000  # tokens: less holds no instructions, let alone a conversation
WINDOW_MAX = 100_000_000
STOP_MAX = 16
SAMPLING_KEYS = (
    "max_output_tokens",
    "temperature",
    "top_p",
    "stop",
    "reasoning_effort",
    "response_schema",
    "context_window",
)

# In this order, in which what one kind does not need is left to those after it.
SHARES: Mapping[Kind, int] = MappingProxyType(
    {Kind.PINNED: 40, Kind.RECALLED: 25, Kind.LOGS: 15, Kind.TASKS: 10, Kind.ACTIVITY: 10}
)
SWITCHED = (
    Kind.GUIDE,
    Kind.RULES,
    Kind.PINNED,
    Kind.REFERRED,
    Kind.LOGS,
    Kind.RECALLED,
    Kind.TASKS,
    Kind.ACTIVITY,
    Kind.TIME,
)
# Names of whole numbers with the least and the greatest that are taken.
_NUMBERS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "extra_tokens": (0, 100_000),
        "recall_max": (0, 50),
        "recall_timeout_ms": (0, 10_000),
        "activity_max": (0, 100),
        "activity_own_max": (0, 100),
        "activity_hours": (1, 24 * 30),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a model shall answer. None stands for the vendor's default, as `max_output_tokens` for all that a turn may.

    `response_schema` is a JSON Schema that the answer must follow.
    """

    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: Sequence[str] = ()
    reasoning_effort: ReasoningEffort | None = None
    response_schema: Mapping[str, object] | None = None

    @classmethod
    def of(cls, config: Mapping[str, object]) -> Sampling:
        """Return what an agent's `config` says; other members are passed over.

        Raises:
            InvalidInput: a value will not do; the message says what is allowed.
        """
        output_max = config.get("max_output_tokens")
        return cls(
            max_output_tokens=None
            if output_max is None
            else _whole("config.max_output_tokens", output_max, 1, OUTPUT_TOKENS_MAX),
            temperature=_number(config, "temperature", 2.0),
            top_p=_number(config, "top_p", 1.0),
            stop=_stop(config.get("stop")),
            reasoning_effort=_effort(config.get("reasoning_effort")),
            response_schema=_schema(config.get("response_schema")),
        )


def window_of(config: Mapping[str, object], model_window: int = WINDOW_MAX) -> int:
    """Return the window in tokens that the agent's prompts keep to: the model's, or the smaller one of `config`.

    Raises:
        InvalidInput: `context_window` will not do.
    """
    own = config.get("context_window")
    return (
        model_window if own is None else min(_whole("config.context_window", own, WINDOW_MIN, WINDOW_MAX), model_window)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSettings:
    """Bounds on what comes beside core memory and conversation.

    `extra_tokens` is shared out by `shares` (in hundredths); `hidden` kinds are never shown. A turn waits at most
    `recall_timeout_ms` for what is recalled.
    """

    extra_tokens: int = 1_200
    shares: Mapping[Kind, int] = field(default_factory=lambda: SHARES)
    hidden: frozenset[Kind] = frozenset()
    recall_max: int = 5
    recall_timeout_ms: int = 150
    activity_max: int = 20
    activity_own_max: int = 3
    activity_hours: int = 24

    @classmethod
    def of(cls, value: object) -> ContextSettings:
        """The settings of `config["context"]`; None is all defaults.

        Raises:
            InvalidInput: a key is unknown or its value will not do; the message says what is allowed.
        """
        if value is None:
            return cls()
        allowed = [*_NUMBERS, "shares", "show"]
        given = _object(value, "context", allowed)
        numbers = {
            name: _whole(f"context.{name}", given[name], *bounds) for name, bounds in _NUMBERS.items() if name in given
        }
        shares, hidden = SHARES, frozenset[Kind]()
        if given.get("shares") is not None:
            shares = _shares(given["shares"])
        if given.get("show") is not None:
            shown = _object(given["show"], "context.show", SWITCHED)
            for name, one in shown.items():
                if not isinstance(one, bool):
                    raise InvalidInput(f"context.show.{name} is true or false, not {one!r}")
            hidden = frozenset(Kind(name) for name, one in shown.items() if not one)
        return cls(shares=shares, hidden=hidden, **numbers)


def _whole(name: str, value: object, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidInput(f"{name} is a whole number from {least} to {most}, not {value!r}")
    return value


def _number(config: Mapping[str, object], key: str, most: float) -> float | None:
    value = config.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise InvalidInput(f"config.{key} is a number from 0 to {most:g}, not {value!r}")
    return float(value)


def _stop(value: object) -> Sequence[str]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > STOP_MAX or not all(isinstance(one, str) and one for one in value):
        raise InvalidInput(f"config.stop is a list of at most {STOP_MAX} texts, none of them empty")
    return tuple(value)


def _effort(value: object) -> ReasoningEffort | None:
    if value is None:
        return None
    choices: tuple[ReasoningEffort, ...] = get_args(ReasoningEffort)
    for choice in choices:
        if value == choice:
            return choice
    raise InvalidInput(f"config.reasoning_effort is one of {', '.join(choices)}, not {value!r}")


def _schema(value: object) -> Mapping[str, object] | None:
    if value is None or isinstance(value, dict):
        return value
    raise InvalidInput("config.response_schema is a JSON Schema, as an object")


def _object(value: object, name: str, allowed: Iterable[str]) -> Mapping[str, object]:
    names = [str(one) for one in allowed]
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{name} is an object with any of {', '.join(names)}, not {value!r}")
    for key in value:
        if key not in names:
            raise InvalidInput(f"{name} has no key {key!r}; there are {', '.join(names)}")
    return value


def _shares(value: object) -> Mapping[Kind, int]:
    """The shares that are named, the defaults of the others; in hundredths, 100 at most altogether."""
    given = _object(value, "context.shares", SHARES)
    for name, one in given.items():
        if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one <= 100:
            raise InvalidInput(f"context.shares.{name} is a whole number from 0 to 100, not {one!r}")
    shares = {kind: int(str(given.get(kind.value, share))) for kind, share in SHARES.items()}
    total = sum(shares.values())
    if total > 100:
        raise InvalidInput(f"context.shares add up to {total}, with the defaults of those not named; 100 is the most")
    return MappingProxyType(shares)
