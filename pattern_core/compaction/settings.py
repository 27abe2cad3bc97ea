"""How an agent's conversation is kept within its window: the key `compaction` of its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from pattern_core.errors import InvalidInput

Strategy = Literal["truncate", "importance_based", "recursive_summarization", "sliding_window", "time_decay"]
SUMMARISING: tuple[Strategy, ...] = ("recursive_summarization", "sliding_window")
PROMPT_CHARS_MAX = 20_000
_COUNTS = {  # key: least, most
    "keep_recent": (1, 10_000),
    "keep_important": (0, 10_000),
    "chunk_size": (2, 1_000),
    "min_keep_recent": (1, 10_000),
    "summary_tokens": (50, 8_192),
}
_NUMBERS = {
    "compress_after_hours": (0.0, 100_000.0),
    "percentage": (0.1, 0.9),
    "threshold": (0.5, 1.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSettings:
    """What leaves, and what is kept of it.

    `type` is the strategy: truncate keeps the newest `keep_recent` messages; importance_based keeps the best
    `keep_important` of the others too; time_decay lets go what is older than `compress_after_hours`, but never comes
    below `min_keep_recent` messages; sliding_window summarises the oldest `percentage` of the tokens;
    recursive_summarization summarises all but `keep_recent`, in chunks of `chunk_size` messages, together with the
    summary before. Where that is not enough, the oldest others leave too. Counts are of messages; whole turns are
    kept or leave.

    Compaction begins when the conversation takes `threshold` of its room. `summarization_model` is "provider/model"
    (None: the agent's own), `summarization_prompt` takes the place of the usual instructions, and a summary has at
    most `summary_tokens` tokens by estimate.
    """

    type: Strategy = "sliding_window"
    keep_recent: int = 20
    keep_important: int = 20
    chunk_size: int = 40
    compress_after_hours: float = 24.0
    min_keep_recent: int = 10
    summarization_model: str | None = None
    summarization_prompt: str | None = None
    percentage: float = 0.3
    threshold: float = 0.9
    summary_tokens: int = 600

    @property
    def summarises(self) -> bool:
        """Whether a model retells what leaves."""
        return self.type in SUMMARISING

    @classmethod
    def of(cls, value: object) -> CompactionSettings:
        """The settings in a configuration's `compaction`; None is the defaults.

        Raises:
            InvalidInput: a key is unknown or its value does not fit; the message says what is allowed.
        """
        if value is None:
            return cls()
        if not isinstance(value, Mapping):
            raise InvalidInput('`compaction` is an object such as {"type": "sliding_window"}')
        known = {field.name for field in fields(cls)}
        unknown = sorted(str(key) for key in value if key not in known)
        if unknown:
            raise InvalidInput(f"`compaction` has no key {unknown[0]!r}; there are {', '.join(sorted(known))}")
        checked: dict[str, Any] = {key: _checked(key, one) for key, one in value.items()}
        return cls(**checked)

    def model(self, provider: str, model: str) -> tuple[str, str]:
        """Provider and model that write summaries, for an agent that has these itself."""
        if self.summarization_model is None:
            return provider, model
        name, _slash, rest = self.summarization_model.partition("/")
        return name, rest


def _checked(key: str, value: object) -> object:
    if key == "type":
        if value not in get_args(Strategy):
            raise InvalidInput(f"`compaction.type` is one of {', '.join(get_args(Strategy))}, not {value!r}")
        return value
    if key in _COUNTS:
        return _number(key, value, *_COUNTS[key], whole=True)
    if key in _NUMBERS:
        return float(_number(key, value, *_NUMBERS[key], whole=False))
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip() or len(value) > PROMPT_CHARS_MAX:
        raise InvalidInput(f"`compaction.{key}` is a text of 1 to {PROMPT_CHARS_MAX} characters, or null")
    if key == "summarization_model" and not all(value.partition("/")):
        raise InvalidInput(f"`compaction.{key}` is written provider/model, as in anthropic/claude; got {value!r}")
    return value


def _number(key: str, value: object, least: float, most: float, *, whole: bool) -> int | float:
    fits = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not fits or not least <= value <= most:  # type: ignore[operator]  # `fits` says that it is a number
        kind = "a whole number" if whole else "a number"
        raise InvalidInput(f"`compaction.{key}` is {kind} from {least:g} to {most:g}, not {value!r}")
    return value  # type: ignore[return-value]  # as above
