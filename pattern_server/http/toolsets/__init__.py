"""What programs may do by the Model Context Protocol. Nothing here knows the protocol's library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pattern_server.http.toolsets import agents, archive, delia, delta, lodestone, memory, search
from pattern_server.http.toolsets.toolset import Served, Toolset

TOOLSETS: Sequence[Toolset] = (
    memory.TOOLS,
    archive.TOOLS,
    search.TOOLS,
    agents.TOOLS,
)


def _by_name(toolsets: Sequence[Toolset]) -> Served:
    return {tool.name: (scope, tool) for toolset in toolsets for scope, tools in toolset.items() for tool in tools}


SERVED = _by_name(TOOLSETS)
# What an address may name instead: other programs' tools, each toolset alone and with results that are plain texts.
OTHERS: Mapping[str, Served] = {
    name: _by_name([tools])
    for name, tools in {"delta": delta.TOOLS, "lodestone": lodestone.TOOLS, "delia": delia.TOOLS}.items()
}
