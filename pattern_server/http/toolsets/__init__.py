"""What programs may do by the Model Context Protocol. Nothing here knows the protocol's library."""

from __future__ import annotations

from collections.abc import Sequence

from pattern_server.http.toolsets import agents, archive, memory, search
from pattern_server.http.toolsets.toolset import Toolset

TOOLSETS: Sequence[Toolset] = (
    memory.TOOLS,
    archive.TOOLS,
    search.TOOLS,
    agents.TOOLS,
)
# By name, with its scope; lists have this order.
SERVED = {tool.name: (scope, tool) for toolset in TOOLSETS for scope, tools in toolset.items() for tool in tools}
