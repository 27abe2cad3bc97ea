"""Searching everything that a constellation knows."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from pattern_core.search import KINDS, Hit, Mode, SearchRequest, search
from pattern_server.http.auth import demand
from pattern_server.http.bodies import SearchAsked, SearchTold
from pattern_server.http.request_body import StrictRoute
from pattern_server.http.state import Caller, Server

router = APIRouter(prefix="/constellations/{c}/search", tags=["search"], route_class=StrictRoute)


@router.post("", dependencies=[demand("read")], response_model=SearchTold)
async def find(c: str, body: SearchAsked, server: Server, caller: Caller) -> object:
    """Find words in messages, blocks and archive, best first. A phrase in quotes, `-word` to leave out, `word*`."""
    async with server.constellations.use(caller, c) as constellation:
        agents = None if body.agents is None else [await constellation.roster.get(name) for name in body.agents]
        names = {agent.id: agent.name for agent in await constellation.roster.all()}
        request = SearchRequest(
            query=body.query,
            kinds=KINDS if body.kinds is None else body.kinds,
            agents=None if agents is None else [agent.id for agent in agents],
            roles=body.roles,
            since=body.since,
            until=body.until,
            limit=body.limit,
            mode=Mode(body.mode),
        )
        result = await search(constellation.database, request)
    return {"hits": [_told(hit, names) for hit in result.hits], "notice": result.notice}


def _told(hit: Hit, names: dict[str, str]) -> dict[str, Any]:
    return {
        "kind": hit.kind,
        "id": hit.id,
        "agent_id": hit.agent_id,
        "agent": None if hit.agent_id is None else names.get(hit.agent_id, hit.agent_id),
        "label": hit.label,
        "role": hit.role,
        "content": hit.content,
        "snippet": hit.snippet,
        "score": hit.score,
        "parts": dict(hit.parts),
        "reason": hit.reason,
        "metadata": hit.metadata,
        "session_id": hit.session_id,
        "created_at": hit.created_at,
    }
