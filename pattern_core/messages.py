"""Messages and their parts as the core handles them; vendors' and storage's forms stay at their borders."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pattern_core.errors import InvalidInput

_HEX = re.compile(r"(?:[0-9a-f]{2})+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Plain words; `signature` is a vendor's proof of the reasoning behind them, where it puts that here."""

    text: str
    signature: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A picture, by its bytes or by an address that the vendor fetches.

    `digest` (64 hex digits) names stored bytes; `data` are those bytes where they are at hand, and are never part of a
    stored message. `media_type` is "" for an address of unknown kind.
    """

    media_type: str
    data: bytes | None = field(default=None, repr=False)
    url: str | None = None
    digest: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    """What a model thought before it answered; `signature` is the vendor's proof, replayed as it came.

    It names its vendor (`pattern_core.models.providers.encoding`), so that no vendor is sent another's.
    """

    text: str
    signature: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A model's request to run a tool.

    `arguments` is the parsed JSON object. Where the model's JSON could not be parsed, `arguments` is empty and
    `invalid` holds the raw text, so that the tool is not run and the model gets an error. `signature` is as in `Text`.
    """

    call_id: str
    tool: str
    arguments: Mapping[str, object] = field(default_factory=dict)
    invalid: str | None = None
    signature: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The result of a tool call; `is_error` marks what the model may correct itself."""

    call_id: str
    tool: str
    content: str
    is_error: bool = False


Part = Text | Image | Reasoning | ToolCall | ToolResult
Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One utterance. A `tool` message holds exactly one `ToolResult`; an `assistant` one may mix all other parts.

    `is_imported`: it was said elsewhere and brought here, so that it was not asked or answered here.
    """

    role: Role
    parts: tuple[Part, ...]
    id: str = ""
    position: str = ""
    created_at: str = ""
    is_imported: bool = False

    @property
    def text(self) -> str:
        """The words of the message, without reasoning and tool calls."""
        parts = self.parts
        if len(parts) == 1:  # most messages
            return parts[0].text if isinstance(parts[0], Text) else ""
        return "".join(part.text for part in parts if isinstance(part, Text))

    @property
    def images(self) -> tuple[Image, ...]:
        """The pictures in order."""
        return tuple(part for part in self.parts if isinstance(part, Image))

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls in the order in which the model made them."""
        return tuple(part for part in self.parts if isinstance(part, ToolCall))


def check_text(text: str) -> str:
    """Return `text` if it can be stored and sent.

    Raises:
        InvalidInput: it holds a lone surrogate, half of a character that no encoding can store.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"character {error.start + 1} of the text is half of a surrogate pair and cannot be stored; leave it out"
        ) from None
    return text


def user(text: str) -> Message:
    """Return a user's message of plain words."""
    return Message(role="user", parts=(Text(text=text),))


def parts_to_json(parts: tuple[Part, ...]) -> list[dict[str, object]]:
    """Return the parts as JSON objects with a `type`: text, image, reasoning, tool_call or tool_result.

    Of an image only its digest or address is kept.

    Raises:
        ValueError: an image has bytes alone; store them first, which gives it its digest.
    """
    stored: list[dict[str, object]] = []
    for part in parts:
        match part:
            case Text(signature=None):
                stored.append({"type": "text", "text": part.text})
            case Text():
                stored.append({"type": "text", "text": part.text, "signature": part.signature})
            case Image(digest=None, url=None):
                raise ValueError("an image's bytes are stored before its message")
            case Image():
                place = {"url": part.url} if part.digest is None else {"digest": part.digest}
                stored.append({"type": "image", "media_type": part.media_type, **place})
            case Reasoning():
                stored.append({"type": "reasoning", "text": part.text, "signature": part.signature})
            case ToolCall():
                call: dict[str, object] = {
                    "type": "tool_call",
                    "call_id": part.call_id,
                    "tool": part.tool,
                    "arguments": dict(part.arguments),
                }
                if part.signature is not None:
                    call["signature"] = part.signature
                if part.invalid is not None:
                    call["invalid"] = part.invalid
                stored.append(call)
            case ToolResult():
                stored.append(
                    {
                        "type": "tool_result",
                        "call_id": part.call_id,
                        "tool": part.tool,
                        "content": part.content,
                        "is_error": part.is_error,
                    }
                )
    return stored


def parts_from_json(data: list[dict[str, object]]) -> tuple[Part, ...]:
    """Return the inverse of `parts_to_json`.

    Raises:
        ValueError: a part has an unknown type; the row was written by a newer version or damaged.
    """
    return tuple(_part_from_json(item) for item in data)


def _part_from_json(item: dict[str, object]) -> Part:
    match item:
        case {"type": "text", "text": str(text)}:
            return Text(text=text, signature=_str_or_none(item.get("signature")))
        case {"type": "image", "media_type": str(media_type), "digest": str(digest)} if _HEX.fullmatch(digest):
            return Image(media_type=media_type, digest=digest)
        case {"type": "image", "media_type": str(media_type), "url": str(url)}:
            return Image(media_type=media_type, url=url)
        case {"type": "reasoning", "text": str(text)}:
            return Reasoning(text=text, signature=_str_or_none(item.get("signature")))
        case {"type": "tool_call", "call_id": str(call_id), "tool": str(tool), "arguments": dict(arguments)}:
            return ToolCall(
                call_id=call_id,
                tool=tool,
                arguments=arguments,
                invalid=_str_or_none(item.get("invalid")),
                signature=_str_or_none(item.get("signature")),
            )
        case {"type": "tool_result", "call_id": str(call_id), "tool": str(tool), "content": str(content)}:
            return ToolResult(call_id=call_id, tool=tool, content=content, is_error=bool(item.get("is_error")))
    raise ValueError(f"unknown message part: {item!r}")


def _str_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None
