"""What a model is asked and what it tells, in words of our own; each provider translates to its vendor's format."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal, Protocol

from pattern_core.messages import Message, Part
from pattern_core.models.rate import RateStatus

FinishReason = Literal["stop", "tool_calls", "length", "content_filter", "other"]
ReasoningEffort = Literal["none", "low", "medium", "high"]
ANY_TOOL = "*"  # as `force_tool`: some tool must be called, whichever


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool as the model sees it. `parameters` is a JSON Schema object without `$ref`.

    `digest` (16 bytes over all three) stands for the tool in a prompt's prefix hash.
    """

    name: str
    description: str
    parameters: Mapping[str, object]
    digest: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        text = json.dumps([self.name, self.description, self.parameters], sort_keys=True, ensure_ascii=False)
        object.__setattr__(self, "digest", blake2b(text.encode(), digest_size=16).digest())


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One question to a model.

    `system` is the list of instruction parts, stable ones first; `messages` is the conversation, oldest first, every
    tool call followed by its result. `tail` holds volatile instructions that are shown last and never stored.
    `seed` repeats after a crash. Temperatures and the like are None where the vendor's default holds.
    `response_schema` is a JSON Schema object that the words of the answer must follow as JSON. `reasoning_effort`
    "none" asks for no reasoning, None leaves it to the vendor. `force_tool` names the tool that must be called,
    `ANY_TOOL` means one of `tools`, None leaves the choice to the model. `estimate` is the number of tokens of all
    that the request shows, where it has been counted already.
    """

    model: str
    system: Sequence[str]
    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    max_output_tokens: int = 4_096
    temperature: float | None = None
    top_p: float | None = None
    stop: Sequence[str] = ()
    seed: int | None = None
    tail: Sequence[str] = ()
    extra: Mapping[str, object] = field(default_factory=dict)
    response_schema: Mapping[str, object] | None = None
    reasoning_effort: ReasoningEffort | None = None
    force_tool: str | None = None
    estimate: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """More words of the answer."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningDelta:
    """More words of the model's reasoning."""

    text: str


Delta = TextDelta | ReasoningDelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one model call as the vendor counted them; `is_estimate` where it said nothing.

    `input_tokens` is all input: `cached_tokens` (read from the vendor's cache) and `cache_write_tokens` (written to it)
    are parts of it. `output_tokens` is all output, and `reasoning_tokens` a part of that.
    """

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    is_estimate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """A whole answer: its parts in the order in which the model produced them.

    `rate` is what the vendor's headers said of its limits, None where they said nothing.
    """

    parts: tuple[Part, ...]
    finish_reason: FinishReason
    usage: Usage
    request_id: str | None = None
    rate: RateStatus | None = None


OnDelta = Callable[[Delta], Awaitable[None]]


class Provider(Protocol):
    """One vendor's models. Implementations make no retries of their own and hold no state between calls."""

    name: str

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        """Ask once; call `on_delta` for each piece as it arrives and return the whole answer.

        Cancelling the call closes the connection to the vendor.

        Raises:
            ModelError: one of `pattern_core.models.errors`; nothing else but `Cancelled` comes out.
        """
        ...

    async def aclose(self) -> None:
        """Close what the provider holds open; calls under way fail."""
        ...
