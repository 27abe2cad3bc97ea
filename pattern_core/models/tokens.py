"""Estimates of tokens, for servers that do not count them and for filling a window; pure.

The rule: a token is four characters of ASCII; every further UTF-8 byte of a character adds 0.4 token, so that a letter
with an accent or a Cyrillic one counts 0.65, a CJK character 1.05 and an emoji 1.45. Each message costs 4 tokens more,
each tool call or result 8, each tool offered 12, each image 1,600 (what Anthropic counts for the largest). It should be
right within a third for prose, and is not used for billing.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterable
from functools import lru_cache

from pattern_core.messages import Image, Message, Note, Part, Reasoning, Text, ToolCall, ToolResult
from pattern_core.models.model import ModelRequest, ToolSpec, Usage

CHARS_PER_TOKEN = 4
TOKENS_PER_EXTRA_BYTE = 0.4
TOKENS_PER_MESSAGE = 4
TOKENS_PER_CALL = 8
TOKENS_PER_TOOL = 12
TOKENS_PER_IMAGE = 1_600
TOOLS_KNOWN_MAX = 1_000  # tools with their tokens in memory
ELLIPSIS = "…"
_to_json = json.JSONEncoder(ensure_ascii=False, default=dict).encode
_sent = json.JSONEncoder(ensure_ascii=False, default=dict, separators=(",", ":")).encode  # as requests have it
_ENDS = (". ", "! ", "? ", "\n", "。")


def estimate_text(text: str) -> int:
    """Return the tokens of plain text; 0 only for none."""
    chars = len(text)
    if text.isascii():
        return -(-chars // CHARS_PER_TOKEN)
    extra_bytes = len(text.encode("utf-8", "surrogatepass")) - chars
    return math.ceil(chars / CHARS_PER_TOKEN + extra_bytes * TOKENS_PER_EXTRA_BYTE)


def estimate_parts(parts: Iterable[Part]) -> int:
    """Return the tokens of a message's parts, arguments and results of tools included."""
    tokens = 0
    for part in parts:
        match part:
            case Text() | Note() | Reasoning():
                tokens += estimate_text(part.text)
            case Image():
                tokens += TOKENS_PER_IMAGE
            case ToolCall():
                arguments = _to_json(part.arguments) if part.invalid is None else part.invalid
                tokens += TOKENS_PER_CALL + estimate_text(part.tool) + estimate_text(arguments)
            case ToolResult():
                tokens += TOKENS_PER_CALL + estimate_text(part.content)
    return tokens


def message_tokens(message: Message) -> int:
    """Return the tokens of one message with what surrounds it; a conversation adds these up as it grows."""
    return TOKENS_PER_MESSAGE + estimate_parts(message.parts)


def estimate_tools(tools: Iterable[ToolSpec]) -> int:
    """Return tokens of the tools offered, with their schemas."""
    return sum(map(_tool_tokens, tools))


@lru_cache(TOOLS_KNOWN_MAX)  # the same ones in every prompt, and long to count
def _tool_tokens(tool: ToolSpec) -> int:
    described = estimate_text(tool.name) + estimate_text(tool.description)
    return TOKENS_PER_TOOL + described + estimate_text(_sent(tool.parameters))


def estimate_request(request: ModelRequest) -> int:
    """Return tokens of all that a request shows to the model."""
    instructions = sum(map(estimate_text, (*request.system, *request.memory)))
    return instructions + sum(map(message_tokens, request.messages)) + estimate_tools(request.tools)


def request_tokens(request: ModelRequest) -> int:
    """Return the estimate that came with the request, so that a conversation is counted once; else a new one."""
    return estimate_request(request) if request.estimate is None else request.estimate


def estimate_usage(request: ModelRequest, parts: Iterable[Part]) -> Usage:
    """Return the usage of a call without usage from its vendor, marked as an estimate."""
    return Usage(input_tokens=request_tokens(request), output_tokens=estimate_parts(parts), is_estimate=True)


def clip(text: str, tokens_max: int) -> str:
    """Return the text, or its beginning with an ellipsis, in at most `tokens_max` tokens; cut after a sentence if one
    ends in the last third. Empty for no tokens.
    """
    if estimate_text(text) <= tokens_max:
        return text
    # Estimates rise with the length.
    chars = bisect_right(range(len(text)), tokens_max, key=lambda chars: estimate_text(text[:chars] + ELLIPSIS)) - 1
    if chars < 0:
        return ""
    kept = text[:chars]
    end = max(kept.rfind(mark) for mark in _ENDS)
    return (kept[: end + 1] if end >= 2 * chars // 3 else kept).rstrip() + ELLIPSIS


def clip_middle(text: str, tokens_max: int, note: str) -> str:
    """Return the text, or its beginning and end around `note`, in about `tokens_max` tokens."""
    if estimate_text(text) <= tokens_max:
        return text
    share = max(tokens_max - estimate_text(note), 0) // 2
    head = clip(text, share).removesuffix(ELLIPSIS)
    tail = clip(text[::-1], share).removesuffix(ELLIPSIS)[::-1]
    return f"{head}{note}{tail}"
