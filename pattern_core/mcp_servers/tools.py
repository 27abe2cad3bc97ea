"""What an MCP server offers, as tools that agents may have: names, descriptions, schemas, and answers as text. Pure.

A schema from a server is input like any other. It is made plain and short enough for every vendor; references are
resolved within it and nowhere else. Arguments are checked by the server, as the protocol demands of it: a pattern of
its schema could compute for hours here.

Sources: the vendors' common rule for names of functions, `[a-zA-Z0-9_-]{1,64}`; `CallToolResult` of the Model Context
Protocol, 2025-11-25; JSON Schema draft 2020-12.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pattern_core.mcp_settings import McpSettings
from pattern_core.tools.registry import FOREIGN
from pattern_core.tools.tool import Tool, ToolContext
from pattern_core.untrusted import plain
from pattern_db.enums import EffectClass

NAME_CHARS_MAX = 64
DESCRIPTION_CHARS_MAX = 1_500
SPECS_CHARS_MAX = 60_000  # of one server's tools together: every prompt shows them
ERROR_CHARS_MAX = 4_000
MARGIN_S = 5.0  # a tool reports what went wrong before its caller gives up
SCHEMA_CHARS_MAX = 12_000  # of one tool's arguments as JSON, about: what is longer is cut where it is nested deepest
LEVELS = (24, 6, 3, 1, 0)  # of schemas within schemas that are written out, as many as fit
BRIEF_CHARS_MAX = 600  # of a description or a list of values in a schema that is cut
_DIGEST_CHARS = 8
_STRANGE = re.compile(r"[^a-zA-Z0-9_-]")
_WITHOUT = ("$schema", "$id", "$defs", "definitions", "$comment", "$anchor", "$ref", "$dynamicRef")
_VALUES = ("const", "default", "enum", "examples")  # they hold no schemas, whatever they look like
_LONG = ("description", *_VALUES)

OfferedTool = Mapping[str, Any]  # as `sound_tools` leaves it
CallTool = Callable[[Tool, str, Mapping[str, object], str], Awaitable[str]]
"""Calls a tool: the tool, its name at the server, the arguments, the call's own key. Returns the result's text."""


def sound_tools(listed: Sequence[Any]) -> list[dict[str, Any]]:
    """Return of a server's list what is used of each tool, in the protocol's form; one without a name or a schema costs
    itself alone. The `idempotentHint` is that it claims that a second call does no harm.
    """
    found = []
    for tool in listed:
        match tool:
            case {"name": str(name), "inputSchema": dict(schema)}:
                words = (tool.get(key) for key in ("description", "title"))
                given = tool.get("annotations")
                hints = given if isinstance(given, dict) else {}
                is_repeatable = True in (hints.get("readOnlyHint"), hints.get("idempotentHint"))
                found.append(
                    {
                        "name": name,
                        "description": next((one for one in words if isinstance(one, str)), ""),
                        "inputSchema": {**schema, "type": "object"},
                        "annotations": {"idempotentHint": is_repeatable},
                    }
                )
    return found


def tools_of(server: str, settings: McpSettings, offered: Iterable[OfferedTool], call: CallTool) -> Sequence[Tool]:
    """Return the tools that agents may have of the sound ones offered, each once, as many as fit within
    `SPECS_CHARS_MAX`.
    """
    made: dict[str, Tool] = {}
    left = SPECS_CHARS_MAX
    for one in offered:
        if one["name"] and (settings.tools is None or one["name"] in settings.tools):
            tool = _tool(server, settings, one, call)
            left -= len(tool.description) + len(str(tool.parameters))
            if left >= 0:
                made.setdefault(tool.name, tool)
    return list(made.values())


def _tool(server: str, settings: McpSettings, offered: OfferedTool, call: CallTool) -> Tool:
    name, is_trusted = offered["name"], settings.trust_hints and offered["annotations"]["idempotentHint"]

    # The first parameter by its place alone: a server may call an argument anything.
    async def run(context: ToolContext, /, **arguments: object) -> str:
        return await call(tool, name, arguments, context.idempotency_key)

    tool = Tool(
        name=tool_name(server, name),
        description=_description(server, offered["description"]),
        effect=settings.effects.get(name, EffectClass.IDEMPOTENT if is_trusted else settings.effect),
        parameters=plain_schema(offered["inputSchema"]),
        run=run,
        check=dict,  # only the server checks them
        for_strangers=settings.for_strangers,
        timeout_s=settings.start_timeout_s + settings.call_timeout_s + MARGIN_S,
    )
    return tool


def plain_schema(schema: Mapping[str, object]) -> dict[str, Any]:
    """Return the schema without references, as one of an object with properties."""
    found: dict[str, Any] = {}
    for levels in LEVELS:
        with suppress(RecursionError):
            found = _Writer(schema, levels).written(schema)
            break
    properties, required, closed = (found.get(key) for key in ("properties", "required", "additionalProperties"))
    return {
        "type": "object",
        "properties": properties if isinstance(properties, dict) else {},
        "required": [name for name in required if isinstance(name, str)] if isinstance(required, list) else [],
        "additionalProperties": closed if isinstance(closed, bool | dict) else True,
    }


class _Writer:
    """Writes a schema with what its references refer to, `levels` deep; what is deeper or contains itself is anything.

    With fewer than all `LEVELS`, long descriptions and lists of values are left out, too.
    """

    def __init__(self, root: Mapping[str, object], levels: int) -> None:
        self._root = root
        self._levels = levels
        self._left = SCHEMA_CHARS_MAX

    def written(
        self, node: Any, inside: Sequence[str] = (), level: int = 0, *, are_names: bool = False
    ) -> Any:  # Any: JSON
        """Return `node`, which is `inside` these references; with `are_names` its keys are names of properties.

        Raises:
            RecursionError: it is too large.
        """
        if isinstance(node, list):
            self._spend(2 * len(node))
            return [self.written(item, inside, level) for item in node]
        if not isinstance(node, Mapping):
            self._spend(len(str(node)))
            return plain(node) if isinstance(node, str) else node
        if level > self._levels:
            return {}
        found: dict[str, Any] = {}
        is_brief = self._levels < LEVELS[0]
        for key, value in node.items():
            self._spend(len(key) + 6)
            if are_names:
                found[key] = self.written(value, inside, level + 1)
            elif is_brief and key in _LONG and len(str(value)) > BRIEF_CHARS_MAX:
                continue
            elif key in _VALUES:
                self._spend(len(str(value)))
                found[key] = value
            elif key not in _WITHOUT:
                is_map = key == "properties"
                found[key] = self.written(value, inside, level + (not is_map), are_names=is_map)
        reference = None if are_names else node.get("$ref")
        if isinstance(reference, str) and reference not in inside:
            found = {**self.written(self._target(reference), (*inside, reference), level), **found}
        return found

    def _spend(self, chars: int) -> None:
        self._left -= chars
        if self._left < 0:
            raise RecursionError

    def _target(self, reference: str) -> Mapping[str, object]:
        """Return the schema that a JSON pointer within the document points at; anything for any other reference."""
        node: object = self._root if reference.startswith("#") else None
        for step in filter(None, reference[1:].split("/")):
            node = node.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(node, Mapping) else None
        return node if isinstance(node, Mapping) else {}


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

    One that vendors would not take is changed and ends with a digest of the original, so that no two tools share one.
    """
    known = f"{server}{FOREIGN}{_STRANGE.sub('_', tool)}"
    if known == f"{server}{FOREIGN}{tool}" and tool and len(known) <= NAME_CHARS_MAX:
        return known
    digest = hashlib.sha256(tool.encode(errors="surrogatepass")).hexdigest()[:_DIGEST_CHARS]
    return f"{known[: NAME_CHARS_MAX - _DIGEST_CHARS - 1]}_{digest}"


def server_of(name: str) -> str | None:
    """Return the server that a tool's name (or `server__*`) speaks of; None if it is not a name of that form."""
    server, separator, tool = name.partition(FOREIGN)
    return server if separator and tool else None


def text_of(content: Sequence[Mapping[str, object]], structured: object, *, is_error: bool) -> str:
    """Return a result's parts (JSON objects of the protocol) in their order, and its data, unless a text repeats it."""
    texts = [_part(part) for part in content]
    if structured is not None and not any(_says(text, structured) for text in texts):
        texts.append(json.dumps(structured, ensure_ascii=False))
    text = "\n\n".join(filter(None, texts))
    if not text:
        return "no reason was given" if is_error else "done, without a word"
    return text[:ERROR_CHARS_MAX] + " …" if is_error and len(text) > ERROR_CHARS_MAX else text


def _part(part: Mapping[str, object]) -> str:
    match part:
        case {"type": "text", "text": text}:
            return str(text)
        case {"type": "resource_link", "uri": uri}:
            return f"[resource: {uri}]"
        case {"type": "resource", "resource": {"uri": uri, "text": text}}:
            return f"[{uri}]\n{text}"
    return f"[{part['type']}: not shown]"


def _says(text: str, structured: object) -> bool:
    """Return whether the text is the data, which servers wrap where it is not an object: `{"result": …}`."""
    found: list[object] = [text]
    with suppress(ValueError, RecursionError):
        found.append(json.loads(text))
    return any(structured in (one, {"result": one}) for one in found)
