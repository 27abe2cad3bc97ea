"""What an MCP server answered, as text for the model. Pure.

Source: `CallToolResult` of the Model Context Protocol, 2025-11-25.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ERROR_CHARS_MAX = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A result; `is_error`: the tool ran and failed, and the text says how."""

    text: str
    is_error: bool = False


def answer_of(content: Sequence[Mapping[str, object]], structured: object, *, is_error: bool) -> Answer:
    """The parts of an answer, in their order, as JSON objects of the protocol, and what it holds as data.

    Data that a text repeats word for word is not shown twice. What is not text is mentioned.
    """
    texts = [_part(part) for part in content]
    if structured is not None and not any(_says(text, structured) for text in texts):
        texts.append(json.dumps(structured, ensure_ascii=False))
    text = "\n\n".join(text for text in texts if text)
    if is_error and len(text) > ERROR_CHARS_MAX:
        text = text[:ERROR_CHARS_MAX] + " …"
    return Answer(text=text or ("no reason was given" if is_error else "done, without a word"), is_error=is_error)


def _part(part: Mapping[str, object]) -> str:
    match part.get("type"):
        case "text":
            return str(part.get("text", ""))
        case "image" | "audio" as kind:
            size = len(str(part.get("data", ""))) * 3 // 4
            return f"[{kind}, {part.get('mimeType', 'of unknown type')}, {size:,} bytes: not shown]"
        case "resource_link":
            name = part.get("title") or part.get("name") or "resource"
            return " ".join(f"[{name}: {part.get('uri', '')}] {part.get('description') or ''}".split())
        case "resource":
            return _resource(part.get("resource"))
        case kind:
            return f"[{kind}: not shown]"


def _resource(resource: object) -> str:
    if not isinstance(resource, dict):
        return "[resource: not shown]"
    if "text" in resource:
        return f"[{resource.get('uri', 'resource')}]\n{resource['text']}"
    size = len(str(resource.get("blob", ""))) * 3 // 4
    return f"[{resource.get('uri', 'resource')}, {resource.get('mimeType') or 'binary'}, {size:,} bytes: not shown]"


def _says(text: str, structured: object) -> bool:
    """Whether the text is the data, which servers wrap where it is no object: `{"result": …}`."""
    inner = structured["result"] if isinstance(structured, dict) and set(structured) == {"result"} else structured
    if text == inner:
        return True
    try:
        return json.loads(text) in (structured, inner)
    except (ValueError, RecursionError):
        return False
