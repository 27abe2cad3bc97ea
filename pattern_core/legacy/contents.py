"""The contents of messages in archives of version 1 to 3, as parts of ours, and the other way.

A content is tagged by its kind: `Text`, `Parts`, `ToolCalls`, `ToolResponses` or `Blocks`, with a text or a list. The
items of a list are tagged by a `type`, or by their only key.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from pattern_core.images import media_type_of, read, store
from pattern_core.legacy.archive import Record
from pattern_core.messages import Image, Part, Reasoning, Text, ToolCall, ToolResult, parts_from_json
from pattern_db.columns import check_depth, to_json
from pattern_db.connection import Connection
from pattern_db.tables.messages import DIGEST_BYTES


def parts_of(content: Any) -> tuple[list[Part], int]:
    """Return the parts of a content, and how many of them could not be read: they are texts of JSON."""
    if isinstance(content, str):
        return [Text(text=content)], 0
    items: list[Any] = [content]
    if isinstance(content, dict) and len(content) == 1:
        kind, inner = next(iter(content.items()))
        tags = {"ToolCalls": "ToolCall", "ToolResponses": "ToolResponse"}
        if isinstance(inner, list):
            items = [{tags[kind]: one} for one in inner] if kind in tags else inner
    parts: list[Part] = []
    unread = 0
    for item in items:
        try:
            part = _part(item)
        except (KeyError, TypeError, ValueError, AttributeError):
            part, unread = Text(text=_json(item)), unread + 1
        if part is not None:
            parts.append(part)
    return parts, unread


def _part(item: Any) -> Part | None:
    """Return one part; None for what only its own vendor could read."""
    if isinstance(item, str):
        return Text(text=item)
    [(tag, body)] = [(item["type"], item)] if "type" in item else item.items()
    match str(tag).replace("_", "").lower():
        case "text":
            return Text(text=_text(body if isinstance(body, str) else body["text"]))
        case "thinking" | "reasoning":
            return Reasoning(text=_text(body["text"]))
        case "redactedthinking":
            return None
        case "tooluse" | "toolcall":
            named = body.get("name") or body["fn_name"]
            arguments = body["input"] if "input" in body else body["fn_arguments"]
            call_id = str(body.get("id") or body["call_id"])
            if isinstance(arguments, Mapping):
                check_depth(arguments)
                return ToolCall(call_id=call_id, tool=str(named), arguments=dict(arguments))
            invalid = arguments if isinstance(arguments, str) else _json(arguments)
            return ToolCall(call_id=call_id, tool=str(named), invalid=invalid)
        case "toolresult" | "toolresponse":
            call_id, said = str(body.get("tool_use_id") or body["call_id"]), body["content"]
            text = said if isinstance(said, str) else _json(said)
            return ToolResult(call_id=call_id, tool="", content=text, is_error=bool(body.get("is_error")))
        case "image":
            return _image(body)
        case unknown:
            raise ValueError(f"a part of the unknown kind {unknown}")


def _image(body: Mapping[str, Any]) -> Image:
    media_type, source = str(body.get("content_type") or ""), body["source"]
    if isinstance(source.get("Url"), str):
        return Image(media_type=media_type, url=source["Url"])
    try:
        data = base64.b64decode(source["Base64"], validate=True)
    except binascii.Error as error:
        raise ValueError("an image without bytes") from error
    if (kind := media_type_of(data)) is None:
        raise ValueError("bytes of no kind of image that is known")
    return Image(media_type=kind, data=data)


def image_of(connection: Connection, image: Image, now: str) -> Image:
    """Store an image's bytes within the caller's transaction; return it by its digest."""
    digest = blake2b(image.data or b"", digest_size=DIGEST_BYTES).hexdigest()
    store(connection, [Image(media_type=image.media_type, data=image.data, digest=digest)], now)
    return Image(media_type=image.media_type, digest=digest)


def content_of(row: Record, connection: Connection) -> Record:
    """Return a message's row as a content of theirs; the bytes of images are read."""
    if row["role"] == "tool":
        is_error = bool((row["tool_result"] or {}).get("is_error"))
        said = {"call_id": row["tool_call_id"] or "", "content": row["content"] or "", "is_error": is_error}
        return {"ToolResponses": [said]}
    if not row["parts"]:
        return {"Text": row["content"] or ""}
    parts = parts_from_json(row["parts"])
    if any(isinstance(part, Image) for part in parts):
        return {"Parts": [_shown(part, connection) for part in parts]}
    return {"Blocks": [_block(part) for part in parts]}


def _shown(part: Part, connection: Connection) -> Record:
    if not isinstance(part, Image):
        return {"Text": getattr(part, "text", "")}
    source: Record = {"Url": part.url}
    if part.digest is not None:
        source = {"Base64": base64.b64encode(read(connection, part.digest).data or b"").decode()}
    return {"Image": {"content_type": part.media_type, "source": source}}


def _block(part: Part) -> Record:
    match part:
        case ToolCall():
            body = {"id": part.call_id, "name": part.tool, "input": part.invalid or dict(part.arguments)}
            return {"ToolUse": {**body, "thought_signature": None}}
        case Reasoning():
            return {"Thinking": {"text": part.text, "signature": None}}
        case _:
            return {"Text": {"text": getattr(part, "text", ""), "thought_signature": None}}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a text that is none")
    return value


def _json(value: Any) -> str:
    try:
        return to_json(value)
    except (TypeError, ValueError):
        return repr(value)
