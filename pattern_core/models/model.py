"""Facts about models, requests and replies; each provider translates them to its vendor's format."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b, blake2s
from typing import Annotated, Literal, TypeAlias

import trio
from pydantic import Field

from pattern_core.messages import Message, Part, Text

FinishReason = Literal["stop", "tool_calls", "length", "content_filter", "other"]
ToolCalls = Literal["auto", "native", "text", "none"]
ReasoningEffort = Literal["none", "low", "medium", "high"]
ToolProfile: TypeAlias = Literal["small", "full"]
TOKENS_PER_PRICE = 1_000_000
Count = Annotated[int, Field(ge=0)]
ANY_TOOL = "*"  # as `force_tool`: any tool must be called


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool as the model sees it. `parameters` is a JSON Schema object without `$ref`.

    `digest` (16 bytes over all three) represents the tool in a prompt's prefix hash, and where tools are compared.
    """

    name: str = field(compare=False)
    description: str = field(compare=False)
    parameters: Mapping[str, object] = field(compare=False)
    digest: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        text = json.dumps([self.name, self.description, self.parameters], sort_keys=True, ensure_ascii=False)
        object.__setattr__(self, "digest", blake2b(text.encode(), digest_size=16).digest())


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One request to a model.

    `system` is the list of instruction parts, `memory` that of memory blocks, which change more often: each provider
    puts them where its models understand them best. `messages` is the conversation, oldest first, every tool
    call followed by its result.
    `seed` repeats after a crash. Sampling parameters are None for the vendor's default. `response_schema` is a JSON
    Schema object for the answer, which must be JSON. `reasoning_effort` "none" asks for no reasoning, None leaves it to
    the vendor. `force_tool` names the tool that must be called, `ANY_TOOL` means one of `tools`, None leaves the choice
    to the model. `tool_calls` is as in `ModelFacts`. `estimate` is the number of tokens of the whole request, if it has
    already been counted.
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
    memory: Sequence[str] = ()
    response_schema: Mapping[str, object] | None = None
    reasoning_effort: ReasoningEffort | None = None
    force_tool: str | None = None
    tool_calls: ToolCalls = "auto"
    estimate: int | None = None


def made_up_call_id(request: ModelRequest, index: int) -> str:
    """Return an id for the call at `index` (from 0) of the answer to `request`, if the model gave none.

    The same request and index give the same id; another step of the conversation gives another one, so that a call
    and its result differ from those of earlier steps.
    """
    last = request.messages[-1] if request.messages else None
    seen = (len(request.messages), last.id if last else "", repr(last.parts) if last else "")
    return f"call_{index}_{blake2s(repr(seen).encode('utf-8', 'backslashreplace'), digest_size=5).hexdigest()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningDelta:
    """A piece of the model's reasoning."""

    text: str


Delta = TextDelta | ReasoningDelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one model call as the vendor counted them; `is_estimate` if it did not report them.

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
class LongPrices:
    """The prices of a whole call with an input longer than `tokens`; see `ModelFacts`."""

    tokens: Count
    input_price: Count
    output_price: Count
    cache_read_price: Count | None = None
    cache_write_price: Count | None = None


WindowSource: TypeAlias = Literal["catalogue", "pattern.toml", "server", "assumed", "unasked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """One model. `window` (the longest prompt and answer together) and `output_max` (the longest answer) are tokens.

    Prices are micro-dollars per million tokens, None if unknown; a cache price of None with a known
    input price means that cached input costs the same. `trained_window` is the context length that an open model was
    trained for; its server decides how much of it is available. `source` is the page with the figures, `as_of` the day
    (ISO 8601) on which they were read; both say so if the figures are the operator's or unknown. `window_source` is the
    source of the window: `unasked` can be requested from the server, which does not report one that is `assumed`.
    `tool_profile` is the profile for the model, None if its window decides. If it is not a language model, it answers
    by rules, and writes no summaries.

    `tool_calls` says in which form the model calls tools: `native` in the fields of its server's format; `auto` there,
    or in its text if it is not a vendor's own server; `text` only in its text, with the tools described in its
    instructions; `none` not at all.
    """

    provider: str
    model: str
    window: Annotated[int, Field(gt=0)]
    output_max: Count
    input_price: Count | None = None
    output_price: Count | None = None
    cache_read_price: Count | None = None
    cache_write_price: Count | None = None
    above: LongPrices | None = None
    trained_window: Count | None = None
    images: bool = False
    tools: bool = True
    tool_calls: ToolCalls = "auto"
    reasoning: bool = False
    tool_profile: ToolProfile | None = None
    is_language_model: bool = True
    source: str = "not in the catalogue"
    as_of: str = ""
    is_known: bool = True
    window_source: WindowSource = "catalogue"

    def cost(self, usage: Usage) -> int | None:
        """Return the cost of a call in whole micro-dollars, rounded up once; None if the price is unknown."""
        prices = self.above if self.above and usage.input_tokens > self.above.tokens else self
        plain, output = prices.input_price, prices.output_price
        if plain is None or output is None:
            return None
        total = usage.input_tokens * plain + usage.output_tokens * output
        if usage.cached_tokens or usage.cache_write_tokens:
            cached = min(usage.cached_tokens, usage.input_tokens)
            written = min(usage.cache_write_tokens, usage.input_tokens - cached)
            read_price, write_price = prices.cache_read_price, prices.cache_write_price
            total += cached * (0 if read_price is None else read_price - plain)
            total += written * (0 if write_price is None else write_price - plain)
        return -(-total // TOKENS_PER_PRICE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """A vendor's rate limit of requests or tokens, and what is left of it.

    `reset_s` is seconds until the limit is full again, None if unknown: for OpenAI and Anthropic, with buckets that
    refill steadily, the time until the missing part is refilled.
    """

    limit: int
    remaining: int
    reset_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RateStatus:
    """The rate limits of one key at the time of an answer, from its headers; None if missing.

    `at` is that time on trio's clock, in seconds, None if unknown.
    """

    requests: Allowance | None = None
    tokens: Allowance | None = None
    at: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """A complete answer: its parts in the order in which the model produced them.

    `rate` are the vendor's rate limits from its headers, None if missing.
    """

    parts: tuple[Part, ...]
    finish_reason: FinishReason
    usage: Usage
    request_id: str | None = None
    rate: RateStatus | None = None

    @property
    def text(self) -> str:
        """The words of the answer, without reasoning and calls."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))


OnDelta = Callable[[Delta], Awaitable[None]]


class Provider(ABC):
    """One vendor's models. Implementations make no retries of their own and hold no state between calls."""

    name: str
    is_local = False  # it is on this machine or in its network
    # Asks its server for the tokens of a model's window, 0 if it does not say; raises as `ask`.
    window: Callable[[str], Awaitable[int]] | None = None

    @abstractmethod
    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        """Call the model once; call `on_delta` for each piece as it arrives and return the complete answer.

        An empty piece means that a started answer is still arriving: a ping, or a piece of a call's arguments. There
        are none before it starts, so that the time-out is the same for servers with and without pings.

        Cancelling the call closes the connection to the vendor.

        Raises:
            ModelError: one of `pattern_core.models.errors`; nothing else except `Cancelled` is raised.
        """

    async def models(self) -> list[str]:
        """Return the models that the server lists, by name and in its order; none if it lists none; raises as `ask`."""
        return []

    async def aclose(self) -> None:
        """Close what it holds open; running calls fail."""
        await trio.lowlevel.checkpoint()
