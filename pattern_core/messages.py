"""Messages and their parts as the core handles them; vendors' and storage's forms stay at their borders."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pattern_core.errors import InvalidInput

_HEX = re.compile(r"(?:[0-9a-f]{2})+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Plain text; `signature` is a vendor's proof of the reasoning that led to it."""

    text: str
    signature: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A text of the system to the model within a person's message: never stored as a part, and not said by anyone."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image, by its bytes or by a URL that the vendor fetches.

    `digest` (64 hex digits) names stored bytes; `data` are those bytes if they are loaded, and are never part of a
    stored message. `media_type` is "" for a URL of unknown kind.
    """

    media_type: str
    data: bytes | None = field(default=None, repr=False)
    url: str | None = None
    digest: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    """A model's reasoning before its answer; `signature` is the vendor's proof, replayed unchanged.

    It names its vendor (`pattern_core.models.providers.encoding`), so that it is never sent to another one.
    """

    text: str
    signature: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A model's request to run a tool.

    `arguments` is the parsed JSON object. If the model's JSON could not be parsed, `arguments` is empty and `invalid`
    holds the raw text: the tool is not run and the model gets an error. `signature` is as in `Text`.
    """

    call_id: str
    tool: str
    arguments: Mapping[str, object] = field(default_factory=dict)
    invalid: str | None = None
    signature: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The result of a tool call; `is_error` marks errors that the model may correct. `is_ours`: the text is not from
    the tool, but ours, a person's or the model's own.
    """

    call_id: str
    tool: str
    content: str
    is_error: bool = False
    is_ours: bool = False


Part = Text | Note | Image | Reasoning | ToolCall | ToolResult
Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message. A `tool` message holds exactly one `ToolResult`; an `assistant` one may mix all other parts.

    `is_imported`: it comes from a conversation elsewhere. `cut_off` says why an answer is incomplete: a key of
    `answers.CUT`, or the status of a turn that ended during it; empty: it is complete. `note` is what prompts show
    before it, found when its turn began.
    """

    role: Role
    parts: tuple[Part, ...]
    id: str = ""
    position: str = ""
    created_at: str = ""
    is_imported: bool = False
    cut_off: str = ""
    note: str = ""

    @property
    def text(self) -> str:
        """The text of the message, without notes, reasoning and tool calls."""
        parts = self.parts
        if len(parts) == 1:  # most messages
            return parts[0].text if isinstance(parts[0], Text) else ""
        return "".join(part.text for part in parts if isinstance(part, Text))

    @property
    def images(self) -> tuple[Image, ...]:
        """The images in order."""
        return tuple(part for part in self.parts if isinstance(part, Image))

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls in the model's order."""
        return tuple(part for part in self.parts if isinstance(part, ToolCall))


def check_text(text: str) -> str:
    """Return `text` if it can be stored and sent.

    Raises:
        InvalidInput: it holds a lone surrogate, which no encoding can store.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"character {error.start + 1} of the text is half of a surrogate pair and cannot be stored; leave it out"
        ) from None
    return text


def user(text: str) -> Message:
    """Return a user's message of plain text."""
    return Message(role="user", parts=(Text(text=text),))


# By `type` in JSON: the class of the part, its required and its optional fields.
_FORMS: Mapping[str, tuple[type[Part], Mapping[str, type], Mapping[str, type]]] = {
    "text": (Text, {"text": str}, {"signature": str}),
    "image": (Image, {"media_type": str}, {"digest": str, "url": str}),
    "reasoning": (Reasoning, {"text": str}, {"signature": str}),
    "tool_call": (ToolCall, {"call_id": str, "tool": str, "arguments": dict}, {"signature": str, "invalid": str}),
    "tool_result": (ToolResult, {"call_id": str, "tool": str, "content": str}, {"is_error": bool}),
}
_NAMES = {part: name for name, (part, _required, _optional) in _FORMS.items()}


def parts_to_json(parts: tuple[Part, ...]) -> list[dict[str, object]]:
    """Return the parts as JSON objects with a `type`: text, image, reasoning, tool_call or tool_result.

    Of an image only its digest or URL is stored.

    Raises:
        ValueError: an image has only bytes; store them first, which creates the digest.
    """
    stored: list[dict[str, object]] = []
    for part in parts:
        if isinstance(part, Image) and part.digest is None and part.url is None:
            raise ValueError("an image's bytes are stored before its message")
        name = _NAMES[type(part)]
        _type, required, optional = _FORMS[name]
        stored.append({"type": name, **{key: getattr(part, key) for key in required}})
        for key in optional:
            value = getattr(part, key)
            if value is not None or isinstance(part, Reasoning):  # their rows always had it
                stored[-1][key] = value
    return stored


def parts_from_json(data: list[dict[str, object]]) -> tuple[Part, ...]:
    """Return the inverse of `parts_to_json`.

    Raises:
        ValueError: a part has an unknown type; the row was written by a newer version or damaged.
    """
    return tuple(map(_part_from_json, data))


def _part_from_json(item: dict[str, object]) -> Part:
    part, required, optional = _FORMS.get(str(item.get("type")), (None, {}, {}))
    types = {**required, **optional}
    given: dict[str, Any] = {
        key: value for key, value in item.items() if key in types and isinstance(value, types[key])
    }
    if part is Image and not _HEX.fullmatch(given.get("digest", "")):
        given.pop("digest", None)
        required = {**required, "url": str}
    if part is None or not required.keys() <= given.keys():
        raise ValueError(f"unknown message part: {item!r}")
    return part(**given)
