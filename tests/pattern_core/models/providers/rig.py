"""The formats of all vendors: a provider of each, the server that stands in for its vendor, and the richest answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import trio

from pattern_core.ids import Clock
from pattern_core.messages import Message, Part, Reasoning, Text, ToolCall, ToolResult, user
from pattern_core.models.model import Delta, ModelReply, ModelRequest, TextDelta, Usage
from pattern_core.models.providers.anthropic import AnthropicProvider
from pattern_core.models.providers.draft import Decoder
from pattern_core.models.providers.exchange import HttpProvider
from pattern_core.models.providers.google import GoogleProvider
from pattern_core.models.providers.openai import OpenAIProvider
from pattern_core.models.providers.settings import OpenAIFormat, ProviderSettings, Secret
from pattern_core.testing import StoppedClock, wire_anthropic, wire_google, wire_openai
from pattern_core.testing.wire import Entry, Play, WireServer


@dataclass(frozen=True, kw_only=True, eq=False)
class Vendor:
    """A format; `reply` is what a client hears of the richest answer."""

    name: str
    make: type[HttpProvider]
    serve: Callable[..., Any]
    replies: Callable[[ModelReply], Play]
    reply: ModelReply
    path: str
    headers: dict[str, str]
    model: str = "m"
    url: str = ""  # behind the server's address
    api: OpenAIFormat = "chat"
    first_words: int = 4  # after so many chunks of a stream some words have come, and not all

    def __str__(self) -> str:
        return self.make.__name__ + self.api

    @property
    def request(self) -> ModelRequest:
        return ModelRequest(model=self.model, system=("Be kind.",), messages=[user("hello")])

    def provider(
        self, url: str | None = None, key: str | None = "sk-secret", clock: Clock | None = None
    ) -> HttpProvider:
        settings = ProviderSettings(
            kind=self.name, base_url=url, api_key=None if key is None else Secret(key), api=self.api
        )
        return self.make(self.name, settings, clock=clock or StoppedClock())

    def body(self, *messages: Message, **more: Any) -> dict[str, Any]:
        """What is sent for a conversation; `more` are other fields of the request."""
        return self.provider().encode(replace(self.request, **{"system": (), "messages": messages, **more}))[1]

    def decoder(self) -> Decoder:
        return self.provider().encode(self.request)[2]


def rich(
    thought: str | None, usage: Usage, request_id: str, *, call: str | None = None, text: str | None = None
) -> ModelReply:
    """An answer with all that there is; `thought`, `call` and `text` are signatures."""
    parts: tuple[Part, ...] = (
        Reasoning(text="Let me think.", signature=thought),
        Text(text="Zażółć 😀 gęślą.", signature=text),
        ToolCall(call_id="c1", tool="search", arguments={"query": 'tea "with" żółw'}, signature=call),
        ToolCall(call_id="c2", tool="recall", arguments={"op": "insert"}),
    )
    return ModelReply(parts=parts, finish_reason="tool_calls", usage=usage, request_id=request_id)


ANTHROPIC = Vendor(
    name="anthropic",
    make=AnthropicProvider,
    serve=wire_anthropic.serve_anthropic,
    replies=wire_anthropic.replies,
    reply=rich(
        "anthropic:m sig+/=",
        Usage(input_tokens=7, output_tokens=3, cached_tokens=2, cache_write_tokens=3, reasoning_tokens=1),
        "msg_scripted",
    ),
    path="/v1/messages",
    headers={"x-api-key": "sk-secret", "authorization": "Bearer sk-secret"},
)
GOOGLE = Vendor(
    name="google",
    make=GoogleProvider,
    serve=wire_google.serve_google,
    replies=wire_google.replies,
    reply=rich(
        None,
        Usage(input_tokens=7, output_tokens=5, cached_tokens=2, reasoning_tokens=2),
        "resp-scripted",
        call="google:sig+/=",
    ),
    path="/v1beta/models/gemini-3-pro:streamGenerateContent?alt=sse",
    headers={"x-goog-api-key": "sk-secret"},
    model="gemini-3-pro",
    first_words=1,
)
OPENAI = Vendor(
    name="openai",
    make=OpenAIProvider,
    serve=wire_openai.serve_openai,
    replies=wire_openai.replies,
    # What is sent back with the calls: the thoughts, in the field in which they came.
    reply=rich(
        'chat:{"server": "openai", "field": "reasoning_content"}',
        Usage(input_tokens=7, output_tokens=3, cached_tokens=2, cache_write_tokens=4, reasoning_tokens=1),
        "chatcmpl-scripted",
    ),
    path="/v1/chat/completions",
    headers={"authorization": "Bearer sk-secret"},
    url="/v1",
)
RESPONSES = Vendor(
    name="openai",
    make=OpenAIProvider,
    serve=wire_openai.serve_responses,
    replies=wire_openai.response_replies,
    reply=rich(
        'openai:{"server": "openai", "id": "rs_0", "encrypted_content": "gAAA"}',
        Usage(input_tokens=9, output_tokens=5, cached_tokens=2, cache_write_tokens=3, reasoning_tokens=4),
        "resp_scripted",
        text='openai:{"server": "openai", "phase": "commentary"}',
    ),
    path="/v1/responses",
    headers={"authorization": "Bearer sk-secret"},
    url="/v1",
    model="gpt-5",
    api="responses",
)


@dataclass(kw_only=True, eq=False)
class Client:
    """A provider that talks to its vendor's stand-in, and the deltas that it gave."""

    vendor: Vendor
    server: WireServer
    provider: HttpProvider
    seen: list[Delta] = field(default_factory=list)
    heard: trio.Event = field(default_factory=trio.Event)

    async def on_delta(self, delta: Delta) -> None:
        self.seen.append(delta)
        self.heard.set()

    async def ask(self, request: ModelRequest | None = None) -> ModelReply:
        return await self.provider.ask(request or self.vendor.request, self.on_delta)

    def text(self, kind: type[Delta] = TextDelta) -> str:
        return "".join(delta.text for delta in self.seen if isinstance(delta, kind))


@asynccontextmanager
async def connected(vendor: Vendor, *script: Entry | ModelReply) -> AsyncIterator[Client]:
    """A provider whose vendor answers by the script."""
    async with vendor.serve(script) as server:
        provider = vendor.provider(server.url + vendor.url)
        try:
            yield Client(vendor=vendor, server=server, provider=provider)
        finally:
            with trio.CancelScope(shield=True):
                await provider.aclose()


every = pytest.mark.parametrize("vendor", [ANTHROPIC, GOOGLE, OPENAI, RESPONSES], ids=str)

# With results that come late, one of them after other words, as the formats of Anthropic and Google do not know it.
CONVERSATION = [
    Message(role="assistant", parts=(Text(text="Good morning."),)),
    user("find tea"),
    Message(role="assistant", parts=(Reasoning(text="hm"), *ANTHROPIC.reply.parts)),
    Message(role="tool", parts=(ToolResult(call_id="c1", tool="search", content="none", is_error=True),)),
    Message(role="tool", parts=(ToolResult(call_id="c2", tool="recall", content="ok"),)),
    Message(role="system", parts=(Text(text="a notice"),)),
    Message(role="assistant", parts=(ToolCall(call_id="c:3", tool="search", invalid="{"),)),
    user("hurry"),
    Message(role="tool", parts=(ToolResult(call_id="c:3", tool="search", content="x"),)),
]
