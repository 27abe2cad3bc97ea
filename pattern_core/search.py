"""One search over what a constellation knows: messages, blocks, archive and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pattern_core.errors import InvalidInput
from pattern_db import search as storage
from pattern_db.columns import Json
from pattern_db.database import Database
from pattern_db.enums import Role, SearchKind
from pattern_db.timestamps import canonical

LIMIT_MAX = 500
QUERY_CHARS_MAX = 4_000
SURPLUS = 40  # hits asked for beyond the limit, because some are moved down or left out afterwards
# What a tool answered repeats what stands elsewhere, often from an earlier search; the source itself comes first.
TOOL_RESULT_WEIGHT = 0.7
SPOKEN = (Role.USER, Role.ASSISTANT, Role.SYSTEM)
KINDS = (SearchKind.MESSAGE, SearchKind.BLOCK, SearchKind.ARCHIVAL)


class Mode(StrEnum):
    """How to compare: by words, by meaning, or by both."""

    WORDS = "words"
    MEANING = "meaning"
    HYBRID = "hybrid"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """What to look for and where.

    `agents`: whose messages, blocks (also those lent to them) and entries count; None for everybody's. `roles` holds
    for messages; None means what people and agents said, without what tools answered. `since` (included) and `until`
    (excluded) are RFC 3339 times with an offset. `before` leaves out messages from that position on.
    """

    query: str
    kinds: Sequence[SearchKind] = KINDS
    agents: Sequence[str] | None = None
    roles: Sequence[Role] | None = None
    since: str | None = None
    until: str | None = None
    before: str | None = None
    limit: int = 20
    mode: Mode = Mode.WORDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One find. `score` is 1.0 for the best possible and falls towards 0; `parts` tells what it is made of, and
    `reason` says it in words. `agent_id` is the owner, None for files.
    """

    kind: SearchKind
    id: str
    agent_id: str | None
    content: str
    snippet: str
    score: float
    parts: Mapping[str, float]
    reason: str
    created_at: str
    label: str | None = None
    role: Role | None = None
    session_id: str | None = None
    metadata: Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The hits, best first, and a notice if the search was not quite the one that was asked for."""

    hits: Sequence[Hit]
    notice: str | None = None


async def search(database: Database, request: SearchRequest) -> SearchResult:
    """Find what fits `request.query` best. A long search never delays a write.

    Raises:
        InvalidInput: there is nothing to look for, a bound is exceeded, or a time cannot be read.
    """
    _check(request)
    filters = storage.Filters(
        agents=request.agents,
        roles=SPOKEN if request.roles is None else request.roles,
        since=_time(request.since, "since"),
        until=_time(request.until, "until"),
    )
    found = await database.read_aside(
        storage.search, request.query, request.limit + SURPLUS, kinds=request.kinds, filters=filters
    )
    hits = [_weighed(hit) for hit in found if not _is_too_new(hit, request.before)]
    hits.sort(key=lambda hit: -hit.score)
    return SearchResult(hits=hits[: request.limit], notice=_notice(request.mode))


def _check(request: SearchRequest) -> None:
    if not request.query.strip():
        raise InvalidInput("say what to look for: the query is empty")
    if len(request.query) > QUERY_CHARS_MAX:
        raise InvalidInput(f"the query has {len(request.query)} characters; at most {QUERY_CHARS_MAX} are taken")
    if not 1 <= request.limit <= LIMIT_MAX:
        raise InvalidInput(f"the limit is between 1 and {LIMIT_MAX}, not {request.limit}")
    if not request.kinds:
        raise InvalidInput(f"name at least one kind: {', '.join(SearchKind)}")


def _time(text: str | None, name: str) -> str | None:
    if text is None:
        return None
    try:
        return canonical(text)
    except ValueError as error:
        raise InvalidInput(f"`{name}` cannot be read: {error}") from None


def _is_too_new(hit: storage.Hit, before: str | None) -> bool:
    return before is not None and hit.position is not None and hit.position >= before


def _weighed(hit: storage.Hit) -> Hit:
    weight = TOOL_RESULT_WEIGHT if hit.role is Role.TOOL else 1.0
    parts = {"words": hit.score}
    reason = f"words: {hit.score:.2f} of the best {hit.kind.value}"
    if weight != 1.0:
        parts["tool_result"] = weight
        reason += f", ×{weight} as a tool's result"
    return Hit(
        kind=hit.kind,
        id=hit.id,
        agent_id=hit.agent_id,
        content=hit.content,
        snippet=hit.snippet,
        score=hit.score * weight,
        parts=parts,
        reason=reason,
        created_at=hit.created_at,
        label=hit.label,
        role=hit.role,
        session_id=hit.session_id,
        metadata=hit.metadata,
    )


def _notice(mode: Mode) -> str | None:
    if mode is Mode.WORDS:
        return None
    return f"searched by words only, not by {mode.value}: no embedder is configured"
