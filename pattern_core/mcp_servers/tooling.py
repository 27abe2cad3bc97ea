"""What an MCP server offers, as tools that agents may have."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from pattern_core.mcp_servers.connection import OfferedTool
from pattern_core.mcp_servers.json_schema import arguments_of_schema
from pattern_core.mcp_servers.naming import tool_name
from pattern_core.mcp_servers.settings import McpSettings
from pattern_core.tools.tool import Tool, ToolContext
from pattern_db.enums import EffectClass

DESCRIPTION_CHARS_MAX = 1_500
SPECS_CHARS_MAX = 60_000  # of one server's tools together: every prompt shows them
MARGIN_S = 5.0  # a tool says itself what went wrong before its caller gives up

Call = Callable[[Tool, str, Mapping[str, object], str], Awaitable[str]]
"""Calls a tool: the tool, its name at the server, the arguments, the call's own key. Returns the result's text."""


def tools_of(server: str, settings: McpSettings, offered: Iterable[OfferedTool], call: Call) -> Sequence[Tool]:
    """The tools that agents may have of those offered, each once, as many as fit within `SPECS_CHARS_MAX`."""
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


def _tool(server: str, settings: McpSettings, offered: OfferedTool, call: Call) -> Tool:
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
    """What to say of a call that was sent and not answered."""
    if tool.effect is EffectClass.UNSAFE:
        return "It may have happened all the same: find out before you repeat it."
    return "It does no harm to try it again."


def _description(server: str, said: str) -> str:
    words = "".join(sign if sign.isprintable() or sign == "\n" else " " for sign in said).strip()
    if len(words) > DESCRIPTION_CHARS_MAX:
        words = words[:DESCRIPTION_CHARS_MAX] + "…"
    origin = f"A tool of the MCP server `{server}`, which describes it itself"
    return f"{origin}: {words}" if words else f"{origin} with no word."
