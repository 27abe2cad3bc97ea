"""Search over everything that a constellation has stored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from pattern_core.ids import now_text
from pattern_core.search import KINDS, SPOKEN, GroupBy, Hit, Mode, SearchRequest, SearchResult
from pattern_db.enums import CONSTELLATION_OWNER, Role, SearchKind
from pattern_server.http.bodies import BY_VALUE, RequestModel, answer_of, fields_with
from pattern_server.http.routing import Router, ToRead, owner_of

router = Router(prefix="/constellations/{c}/search", tags=["search"])

# `label` is a block's label or a file's name.
_HIT = answer_of(
    Hit,
    "kind id agent_id agent label role content snippet score parts reason metadata trust session_id count created_at",
    "SearchHit",
    agent=str | None,
)
SEARCH = answer_of(SearchResult, "hits notice", hits=list.__class_getitem__(_HIT))


class SearchQueryRequest(RequestModel):
    """What to search for, and where.

    `roles` and `sessions` apply to messages. An entry needs one of the `tags`.
    Times are RFC 3339 with an offset, or dates (UTC).
    """

    query: str
    kinds: list[Annotated[SearchKind, BY_VALUE]] | None = None
    agents: list[str] | None = None
    roles: list[Annotated[Role, BY_VALUE]] | None = None
    since: str | None = None
    until: str | None = None
    tags: list[str] | None = None
    workspace: str | None = None
    sessions: list[str] | None = None
    include_superseded: bool = False
    group_by: Literal["session"] | None = None
    mode: Literal["hybrid", "words", "meaning"] = "hybrid"
    limit: Annotated[int, Field(ge=1, le=500)] = 20


@router.post("", response_model=SEARCH)
async def find(body: SearchQueryRequest, home: ToRead) -> object:
    """Search everything.

    Return the best matches in messages, blocks, archive, files and summaries, by words and meaning. A phrase in quotes
    must occur (in a question it only raises the score), `-word` excludes a word, `word*` matches a prefix.
    """
    workspace = await home.find_workspace(body.workspace)
    agents = None if body.agents is None else [await owner_of(home.constellation, name) for name in body.agents]
    names = {agent.id: agent.name for agent in await home.constellation.roster.all()}
    given = {
        **vars(body),
        "kinds": KINDS if body.kinds is None else body.kinds,
        "agents": agents,
        "workspace": workspace,
        "roles": SPOKEN if body.roles is None else body.roles,
        "group_by": None if body.group_by is None else GroupBy(body.group_by),
        "mode": Mode(body.mode),
    }
    result = await home.constellation.search(SearchRequest(**given, now=now_text(home.server.runtime.clock)))
    return {"hits": [_answer(hit, names) for hit in result.hits], "notice": result.notice}


def _answer(hit: Hit, names: dict[str, str]) -> dict[str, Any]:
    owner = hit.agent_id
    agent = None if owner is None or owner == CONSTELLATION_OWNER else names.get(owner, owner)
    return fields_with(hit, agent=agent)
