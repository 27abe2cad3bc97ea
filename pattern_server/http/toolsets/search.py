"""The toolset for search over everything that the constellation remembers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pattern_core import search as core
from pattern_core.ids import now_text
from pattern_core.tools.hits import found
from pattern_core.tools.tool import tool
from pattern_db.enums import SearchKind
from pattern_server.http.routing import owner_of
from pattern_server.http.toolsets.toolset import ServedCall, Toolset

LIMIT_DEFAULT = 10


@tool()
async def search(
    call: ServedCall,
    query: Annotated[str, 'A question or words; "a phrase", -without.'],
    kind: Literal["message", "block", "archival", "file", "summary"] | None = None,
    agent: Annotated[str | None, "Only what this agent has."] = None,
    since: Annotated[str | None, "As 2026-01-31."] = None,
    until: str | None = None,
    limit: int = LIMIT_DEFAULT,
) -> object:
    """Search conversations, memory, archive, files and summaries by words and meaning."""
    request = core.SearchRequest(
        query=query,
        kinds=core.KINDS if kind is None else (SearchKind(kind),),
        agents=None if agent is None else [await owner_of(call.constellation, agent)],
        roles=core.SPOKEN,
        since=since,
        until=until,
        limit=limit,
        now=now_text(call.server.runtime.clock),
    )
    result = await call.constellation.search(request)
    answer: dict[str, Any] = found(result, "hit", "hits")
    names = {one.id: one.name for one in await call.constellation.roster.all()}
    for shown, hit in zip(answer["hits"], result.hits, strict=False):  # the last ones may not be shown
        shown["agent"] = names.get(hit.agent_id or "", hit.agent_id)
    return answer


TOOLS: Toolset = {"read": (search,)}
