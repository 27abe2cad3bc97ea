"""A conversation as a record for whoever summarises it, and as a stub for whoever looks for it; pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from pattern_core.messages import Image, Message, Part, Reasoning, Text, ToolCall, ToolResult
from pattern_core.models.tokens import clip, clip_middle, estimate_text

WORDS_TOKENS_MAX = 1_500  # of one message
RESULT_TOKENS_MAX = 300  # of a tool's result: what it came to shows at its beginning and end
ARGUMENTS_TOKENS_MAX = 150
LEFT_OUT = " […] "
QUOTE_TOKENS_MAX = 30
OPEN, CLOSE = "<record>", "</record>"
_MARKS = re.compile(r"<(?=\s*/?\s*record\b)", re.IGNORECASE)  # as a text could write them


def inside(text: str) -> str:
    """The text with nothing in it that could pass for an end or a beginning of the record."""
    return _MARKS.sub("&lt;", text)


def lines_of(messages: Sequence[Message], tokens_max: int) -> list[str]:
    """One line for each message, oldest first, each of at most about `tokens_max` tokens; no line ends the record."""
    return [_line(message, tokens_max) for message in messages]


def chunks(lines: Sequence[str], tokens_max: int, count_max: int | None = None) -> list[list[str]]:
    """The lines in order, in portions of at most `tokens_max` tokens and `count_max` lines; at least one line each."""
    found: list[list[str]] = []
    tokens = 0
    for line in lines:
        cost = estimate_text(line) + 1
        is_full = tokens + cost > tokens_max or (count_max is not None and found and len(found[-1]) >= count_max)
        if not found or is_full:
            found.append([])
            tokens = 0
        found[-1].append(line)
        tokens += cost
    return found


def stub_text(messages: Sequence[Message]) -> str:
    """What can be said of messages without reading them: how many, when, and how they begin and end."""
    said = [message for message in messages if message.role in ("user", "assistant") and message.text.strip()]
    times = [message.created_at for message in messages]
    text = count_text(len(messages), min(times), max(times))
    if said:
        text += f" They begin with {_quote(said[0])}"
        text += f" and end with {_quote(said[-1])}." if len(said) > 1 else "."
    return text


def count_text(count: int, started_at: str, ended_at: str) -> str:
    """The sentence that says how many messages of which time were archived."""
    what = "1 message" if count == 1 else f"{count} messages"
    first, last = _minute(started_at), _minute(ended_at)
    when = f"of {first}" if first == last else f"from {first} to {last}"
    return f"{what} {when} {'was' if count == 1 else 'were'} archived without a summary; search finds them."


def _quote(message: Message) -> str:
    return f"“{clip(' '.join(message.text.split()), QUOTE_TOKENS_MAX)}”"


def _minute(time: str) -> str:
    return time[:16].replace("T", " ")


def _line(message: Message, tokens_max: int) -> str:
    body = " ".join(filter(None, (_part(part, tokens_max) for part in message.parts)))
    return inside(f"[{_minute(message.created_at)}] {message.role}: {body}")


def _part(part: Part, tokens_max: int) -> str:
    match part:
        case Text():
            return clip_middle(part.text, min(tokens_max, WORDS_TOKENS_MAX), LEFT_OUT)
        case ToolCall():
            arguments = part.invalid if part.invalid is not None else _json(dict(part.arguments))
            return f"(calls {part.tool} {clip(arguments, min(tokens_max, ARGUMENTS_TOKENS_MAX))})"
        case ToolResult():
            how = "fails with" if part.is_error else "answers"
            return f"({part.tool} {how}: {clip_middle(part.content, min(tokens_max, RESULT_TOKENS_MAX), LEFT_OUT)})"
        case Image():
            return "(a picture)"
        case Reasoning():
            return ""


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
