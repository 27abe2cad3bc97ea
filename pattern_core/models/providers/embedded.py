"""The embedded provider: rules behind the same protocol as a vendor's model, acting through the agent's own tools."""

from __future__ import annotations

import re

import trio

from pattern_core.messages import Part, Text, ToolCall
from pattern_core.models.embedded.moves import next_move, scene_of
from pattern_core.models.model import FinishReason, ModelReply, ModelRequest, OnDelta, TextDelta, made_up_call_id
from pattern_core.models.providers.settings import ProviderSettings
from pattern_core.models.text import mended
from pattern_core.models.tokens import CHARS_PER_TOKEN, estimate_usage

MODEL_NAME = "rules-1"

_PIECE = re.compile(r"(?:\S+\s*|\s+){1,3}")


class EmbeddedProvider:
    """A provider of kind "embedded". It is no language model, and says so; the same request gets the same reply."""

    def __init__(self, name: str = "embedded") -> None:
        self.name = name

    @classmethod
    def from_settings(cls, name: str, _: ProviderSettings) -> EmbeddedProvider:
        """The provider of that name; it needs neither a key nor an address."""
        return cls(name)

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        """Reply by the rules; words come in pieces of up to three. Raises nothing."""
        await trio.lowlevel.checkpoint()
        reply = reply_to(request)
        for part in reply.parts:
            for piece in _PIECE.findall(part.text) if isinstance(part, Text) else ():
                await on_delta(TextDelta(text=piece))
        return reply

    async def aclose(self) -> None:
        """Nothing is held open."""


def reply_to(request: ModelRequest) -> ModelReply:
    """The reply that the rules give: tool calls or words. Its usage is an estimate; pure."""
    move = next_move(scene_of(request))
    finish: FinishReason = "tool_calls"
    if isinstance(move, str):
        whole = mended(move)
        text = whole[: request.max_output_tokens * CHARS_PER_TOKEN]
        finish = "stop" if text == whole else "length"
        parts: tuple[Part, ...] = (Text(text=text),)
    else:
        parts = tuple(
            ToolCall(call_id=made_up_call_id(request, index), tool=call.tool, arguments=dict(call.arguments))
            for index, call in enumerate(move)
        )
    return ModelReply(parts=parts, finish_reason=finish, usage=estimate_usage(request, parts))
