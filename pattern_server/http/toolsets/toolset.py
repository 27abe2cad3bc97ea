"""How programs call tools of a constellation.

A toolset is one module of this folder with its `TOOLS` by scope, and one entry in the table `TOOLSETS`. Its tools are
annotated functions, as agents have them, but their first parameter is a `ServedCall`. A tool returns a JSON object; one
with an `error` says that the work failed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any

import trio

from pattern_core.errors import InvalidInput, PatternError
from pattern_core.tools.arguments import coerced
from pattern_core.tools.tool import Tool
from pattern_db.errors import DatabaseError
from pattern_server.accounts import Scope
from pattern_server.http.routing import Access, AwakeAccess, owner_of

CANCEL_TIMEOUT_S = 5.0  # for the commit that ends a turn
NAMES_MAX = 20  # of agents in an error

AgentName = Annotated[str | None, "Name of the agent; may be left out if there is only one."]
Report = Callable[[str], Awaitable[None]]
Toolset = Mapping[Scope, Sequence[Tool]]  # the tools by the scope that a token needs
Served = Mapping[str, tuple[Scope, Tool]]  # by name, in the order of lists


@dataclass(frozen=True, slots=True)
class ServedCall(AwakeAccess):
    """One call of a tool. `report` sends the client a line about its progress; `turns` end if the call is cancelled.
    The address names the `workspace`, if any; `session` is that of the protocol, empty where it has none.
    """

    report: Report
    turns: list[str] = field(default_factory=list)
    workspace: str = ""
    session: str = ""

    async def owner(self, name: str | None) -> str:
        """Return the id of the agent or group with this id or name, `_constellation_`, or the only agent for None.

        Raises:
            NotFound: there is no such agent or group.
            InvalidInput: none is named, and there are several agents, or none.
        """
        if name is not None:
            return await owner_of(self.constellation, name)
        agents = await self.constellation.roster.all()
        if len(agents) != 1:
            names = ", ".join(agent.name for agent in agents[:NAMES_MAX]) or "none: create one first"
            raise InvalidInput(f"name an `agent`; there are {names}")
        return agents[0].id

    async def project(self, *, is_written: bool = False) -> str:
        """Return the id of the workspace that the address names; empty: there is none yet. It is made for what
        `is_written` to it.

        Raises:
            InvalidInput: it names none.
        """
        if not self.workspace:
            raise InvalidInput("the address names no workspace; add &workspace= with a folder, an id or a name to it")
        if is_written:
            return await self.find_workspace(self.workspace, is_written=True) or ""
        return await self.known_workspace(self.workspace)


async def run_tool(
    home: Access, tool: Tool, given: Mapping[str, object], report: Report, *, workspace: str = "", session: str = ""
) -> Any:
    """Return the answer of a tool, a JSON object or a text. If this is cancelled, the turns that the call started end.

    Raises:
        InvalidInput: an argument is invalid.
        PatternError: the tool or the constellation refuses.
    """
    arguments, turns = tool.check(coerced(given, tool.parameters)), list[str]()
    try:
        async with home.use() as constellation:
            call = ServedCall(home.server, home.caller, home.c, constellation, report, turns, workspace, session)
            return await tool.run(call, **arguments)
    except trio.Cancelled:
        if turns and not home.server.draining.is_set():  # turns of a server that stops continue after its next start
            with trio.move_on_after(CANCEL_TIMEOUT_S, shield=True), suppress(PatternError, DatabaseError):
                async with home.use() as constellation:
                    await constellation.cancel(turns[0])
        raise
