"""Searching everything that a constellation knows."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from pattern_core.ids import now_text
from pattern_core.search import KINDS, SPOKEN, GroupBy, Hit, Mode, SearchRequest
from pattern_db.enums import CONSTELLATION_OWNER, Role, SearchKind
from pattern_server.http.bodies import Asked, Told
from pattern_server.http.owners import owner_of
from pattern_server.http.routing import MayRead, Router, Server

router = Router(prefix="/constellations/{c}/search", tags=["search"])


class SearchAsked(Asked):
    """What to find, and where. `agents` are ids or names; times are RFC 3339 with an offset; `roles` and `sessions`
    hold for messages; `tags`: at least one of them. `group_by` session ranks conversations, each by its best message.
    """

    query: str
    kinds: list[Annotated[SearchKind, Field(strict=False)]] | None = None
    agents: list[str] | None = None
    roles: list[Annotated[Role, Field(strict=False)]] | None = None
    since: str | None = None
    until: str | None = None
    tags: list[str] | None = None
    workspace: str | None = None
    sessions: list[str] | None = None
    include_superseded: bool = False
    group_by: Literal["session"] | None = None
    mode: Literal["hybrid", "words", "meaning"] = "hybrid"
    limit: Annotated[int, Field(ge=1, le=500)] = 20


class HitTold(Told):
    """One find. `score` is 1 for the best; `parts` says what it is made of and `reason` says it in words. `label` is
    a block's label or a file's name, `count` how many finds a session's hit stands for.
    """

    kind: str
    id: str
    agent_id: str | None
    agent: str | None
    label: str | None
    role: str | None
    content: str
    snippet: str
    score: float
    parts: dict[str, float]
    reason: str
    metadata: Any
    session_id: str | None
    count: int
    created_at: str


class SearchTold(Told):
    """What was found, best first; `notice` says if the search was not quite the one that was asked for."""

    hits: list[HitTold]
    notice: str | None


@router.post("", response_model=SearchTold)
async def find(c: str, body: SearchAsked, server: Server, caller: MayRead) -> object:
    """Find what fits best in messages, blocks, archive, files and summaries, by words and meaning.

    A phrase in quotes must occur (in a question it only counts more), `-word` leaves out, `word*` is a beginning.
    """
    async with server.constellations.use(caller, c) as constellation:
        agents = None if body.agents is None else [await owner_of(constellation, name) for name in body.agents]
        names = {agent.id: agent.name for agent in await constellation.roster.all()}
        request = SearchRequest(
            query=body.query,
            kinds=KINDS if body.kinds is None else body.kinds,
            agents=agents,
            roles=SPOKEN if body.roles is None else body.roles,
            since=body.since,
            until=body.until,
            tags=body.tags,
            workspace=body.workspace,
            sessions=body.sessions,
            include_superseded=body.include_superseded,
            group_by=None if body.group_by is None else GroupBy(body.group_by),
            now=now_text(server.runtime.clock),
            limit=body.limit,
            mode=Mode(body.mode),
        )
        result = await constellation.search(request)
    return {"hits": [_told(hit, names) for hit in result.hits], "notice": result.notice}


def _told(hit: Hit, names: dict[str, str]) -> dict[str, Any]:
    owner = hit.agent_id
    return {
        "kind": hit.kind,
        "id": hit.id,
        "agent_id": owner,
        "agent": None if owner is None or owner == CONSTELLATION_OWNER else names.get(owner, owner),
        "label": hit.label,
        "role": hit.role,
        "content": hit.content,
        "snippet": hit.snippet,
        "score": hit.score,
        "parts": dict(hit.parts),
        "reason": hit.reason,
        "metadata": hit.metadata,
        "session_id": hit.session_id,
        "count": hit.count,
        "created_at": hit.created_at,
    }
