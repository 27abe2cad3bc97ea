"""How a model shall answer: the members of an agent's config that go to the model as they are.

{"max_output_tokens": 2000, "temperature": 0.7, "top_p": 0.9, "stop": ["END"], "reasoning_effort": "low",
 "response_schema": {"type": "object", …}, "context_window": 32000}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from pattern_core.errors import InvalidInput
from pattern_core.models.model import ReasoningEffort

OUTPUT_TOKENS_MAX = 1_000_000
WINDOW_MIN = 1_000  # tokens: less holds no instructions, let alone a conversation
WINDOW_MAX = 100_000_000
STOP_MAX = 16
KEYS = ("max_output_tokens", "temperature", "top_p", "stop", "reasoning_effort", "response_schema", "context_window")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """None stands for the vendor's default. `response_schema` is a JSON Schema that the answer must follow,
    `force_tool` the tool that must be called, "*" any of them.
    """

    max_output_tokens: int
    temperature: float | None = None
    top_p: float | None = None
    stop: Sequence[str] = ()
    reasoning_effort: ReasoningEffort | None = None
    response_schema: Mapping[str, object] | None = None
    force_tool: str | None = None

    @classmethod
    def of(cls, config: Mapping[str, object], *, output_tokens_max: int) -> Sampling:
        """What `config` says, other members passed over; `output_tokens_max` holds where it says nothing.

        Raises:
            InvalidInput: a value will not do; the message says what is allowed.
        """
        return cls(
            max_output_tokens=_whole(config, "max_output_tokens", 1, OUTPUT_TOKENS_MAX) or output_tokens_max,
            temperature=_number(config, "temperature", 2.0),
            top_p=_number(config, "top_p", 1.0),
            stop=_stop(config.get("stop")),
            reasoning_effort=_effort(config.get("reasoning_effort")),
            response_schema=_schema(config.get("response_schema")),
        )


def window_of(config: Mapping[str, object], model_window: int) -> int:
    """The window in tokens that the agent's prompts keep to: the model's, or the smaller one that `config` names.

    Raises:
        InvalidInput: `context_window` will not do.
    """
    own = _whole(config, "context_window", WINDOW_MIN, WINDOW_MAX)
    return model_window if own is None else min(own, model_window)


def _whole(config: Mapping[str, object], key: str, least: int, most: int) -> int | None:
    value = config.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidInput(f"config.{key} is a whole number from {least} to {most}, not {value!r}")
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
