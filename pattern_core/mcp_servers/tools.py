"""What an MCP server offers, as tools that agents may have: their names, their descriptions, and answers as text.

Sources: the vendors' common rule for names of functions, `[a-zA-Z0-9_-]{1,64}`; `CallToolResult` of the Model Context
Protocol, 2025-11-25.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pattern_core.mcp_servers.json_schema import arguments_of_schema
from pattern_core.mcp_servers.settings import McpSettings
from pattern_core.tools.registry import FOREIGN
from pattern_core.tools.tool import Tool, ToolContext
from pattern_db.enums import EffectClass

NAME_CHARS_MAX = 64
DESCRIPTION_CHARS_MAX = 1_500
SPECS_CHARS_MAX = 60_000  # of one server's tools together: every prompt shows them
ERROR_CHARS_MAX = 4_000
MARGIN_S = 5.0  # a tool says itself what went wrong before its caller gives up
_DIGEST_CHARS = 8
_STRANGE = re.compile(r"[^a-zA-Z0-9_-]")

CallTool = Callable[[Tool, str, Mapping[str, object], str], Awaitable[str]]
"""Calls a tool: the tool, its name at the server, the arguments, the call's own key. Returns the result's text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedTool:
    """A tool as the server lists it; `is_repeatable`: it says that a second call would do no harm."""

    name: str
    description: str
    schema: Mapping[str, object]
    is_repeatable: bool


def tools_of(server: str, settings: McpSettings, offered: Iterable[OfferedTool], call: CallTool) -> Sequence[Tool]:
    """Return the tools that agents may have of those offered, each once, as many as fit within `SPECS_CHARS_MAX`."""
    made: dict[str, Tool] = {}
    left = SPECS_CHARS_MAX
    for one in offered:
        if not one.name or (settings.tools is not None and one.name not in settings.tools):
            continue
        tool = _tool(server, settings, one, call)
        left -= len(tool.description) + len(str(tool.arguments.schema))
        if left >= 0:
            made.setdefault(tool.name, tool)
    return list(made.values())


def _tool(server: str, settings: McpSettings, offered: OfferedTool, call: CallTool) -> Tool:
    # The first parameter by its place alone: a server may call an argument anything.
    async def run(context: ToolContext, /, **arguments: object) -> str:
        return await call(tool, offered.name, arguments, context.idempotency_key)

    tool = Tool(
        name=tool_name(server, offered.name),
        description=_description(server, offered.description),
        effect=settings.effect_of(offered.name, says_repeatable=offered.is_repeatable),
        arguments=arguments_of_schema(offered.schema),
        run=run,
        timeout_s=settings.start_timeout_s + settings.call_timeout_s + MARGIN_S,
    )
    return tool


def may_have_happened(tool: Tool) -> str:
    """Return what to say of a call that was sent and not answered."""
    if tool.effect is EffectClass.UNSAFE:
        return "It may have happened all the same: find out before you repeat it."
    return "It does no harm to try it again."


def _description(server: str, said: str) -> str:
    words = "".join(sign if sign.isprintable() or sign == "\n" else " " for sign in said).strip()
    if len(words) > DESCRIPTION_CHARS_MAX:
        words = words[:DESCRIPTION_CHARS_MAX] + "…"
    origin = f"A tool of the MCP server `{server}`, which describes it itself"
    return f"{origin}: {words}" if words else f"{origin} with no word."


def tool_name(server: str, tool: str) -> str:
    """Return the name by which agents know a server's tool.

    One that vendors would not take, or that is too long, is changed and ends with a digest of the original: the same
    tool keeps its name, and two tools never share one.
    """
    plain = f"{server}{FOREIGN}{_STRANGE.sub('_', tool)}"
    if plain == f"{server}{FOREIGN}{tool}" and tool and len(plain) <= NAME_CHARS_MAX:
        return plain
    digest = hashlib.sha256(tool.encode(errors="surrogatepass")).hexdigest()[:_DIGEST_CHARS]
    return f"{plain[: NAME_CHARS_MAX - _DIGEST_CHARS - 1]}_{digest}"


def server_of(name: str) -> str | None:
    """Return the server that a tool's name (or `server__*`) speaks of; None if it is no name of that form."""
    server, separator, tool = name.partition(FOREIGN)
    return server if separator and tool else None


def enables(enabled: Sequence[str], server: str) -> bool:
    """Return whether any of the enabled names belongs to the server."""
    return any(server_of(name) == server for name in enabled)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A result; `is_error`: the tool ran and failed, and the text says how."""

    text: str
    is_error: bool = False


def answer_of(content: Sequence[Mapping[str, object]], structured: object, *, is_error: bool) -> Answer:
    """Return the parts of an answer, in their order, as JSON objects of the protocol, and what it holds as data.

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
            return f"[{kind}, {part.get('mimeType', 'of unknown type')}, {_size(part.get('data', ''))}: not shown]"
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
    kind = resource.get("mimeType") or "binary"
    return f"[{resource.get('uri', 'resource')}, {kind}, {_size(resource.get('blob', ''))}: not shown]"


def _size(base64: object) -> str:
    return f"{len(str(base64)) * 3 // 4:,} bytes"


def _says(text: str, structured: object) -> bool:
    """Return whether the text is the data, which servers wrap where it is no object: `{"result": …}`."""
    inner = structured["result"] if isinstance(structured, dict) and set(structured) == {"result"} else structured
    if text == inner:
        return True
    try:
        return json.loads(text) in (structured, inner)
    except (ValueError, RecursionError):
        return False
