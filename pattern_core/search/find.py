"""One search, from the query to the hits: each kind ranked by its own method, then put in one order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pattern_core.search import documents, messages
from pattern_core.search.meaning import Meanings
from pattern_core.search.names import blended, nameless
from pattern_core.search.plan import Plan, plan
from pattern_core.search.ranked import Ranked, reason
from pattern_core.search.request import GroupBy, Hit, Mode, SearchRequest, SearchResult, check
from pattern_core.search.sessions import by_session
from pattern_core.search.snippets import holds, snippet, stems_of
from pattern_db import search as storage
from pattern_db.columns import from_json
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.enums import SearchKind
from pattern_db.tables import embedding_indexes

SWITCHES_MAX = 3  # of models, while one search looks for the vector of its query


class Vector(Protocol):
    """A query as a vector, or why there is none."""

    @property
    def vector(self) -> bytes | None:
        """float32, little endian."""
        ...

    @property
    def notice(self) -> str | None:
        """What the person should know about how complete the comparison is."""
        ...

    @property
    def fingerprint(self) -> str | None:
        """The model that made it, as the index of its vectors is known; None for whichever is in use."""
        ...


@dataclass(frozen=True, slots=True)
class _Blended:
    vector: bytes
    notice: str | None
    fingerprint: str | None


class QueryVectors(Protocol):
    """What makes vectors of queries: the embedding queue of the constellation."""

    async def query_vector(self, text: str) -> Vector:
        """The vector of `text`; never an error for a model that is absent or slow."""
        ...


async def search(database: Database, request: SearchRequest, queries: QueryVectors | None = None) -> SearchResult:
    """Find what fits `request.query` best. A long search never delays a write.

    Without `queries`, or as long as they give no vector, words alone are compared, and the notice says so.

    Raises:
        InvalidInput: there is nothing to look for, a bound is exceeded, or a time cannot be read.
    """
    filters = check(request)
    if request.mode is Mode.WORDS:
        return SearchResult(hits=await database.read_aside(find, request, filters, None))
    if queries is None:
        notice = f"searched by words only, not by {request.mode.value}: no embedder is configured"
        return SearchResult(hits=await database.read_aside(find, request, filters, None), notice=notice)
    for _attempt in range(SWITCHES_MAX):
        answer = await query_vector(database, request, queries)
        hits = await database.read_aside(_find_current, request, filters, answer.vector, answer.fingerprint)
        if hits is not None:
            return SearchResult(hits=hits, notice=answer.notice)
    notice = "searched by words alone: one embedding model takes over from another"
    return SearchResult(hits=await database.read_aside(find, request, filters, None), notice=notice)


async def query_vector(database: Database, request: SearchRequest, queries: QueryVectors) -> Vector:
    """The vector that the query's meaning is compared by. Among messages the names of those who speak count half."""
    answer = await queries.query_vector(request.query)
    if answer.vector is None or SearchKind.MESSAGE not in request.kinds:
        return answer
    bare = await database.read_aside(nameless, request.query)
    other = None if bare is None else await queries.query_vector(bare)
    if other is None or other.vector is None or other.fingerprint != answer.fingerprint:
        return answer
    return _Blended(blended(answer.vector, other.vector), answer.notice, answer.fingerprint)


def _find_current(
    connection: Connection,
    request: SearchRequest,
    filters: storage.Filters,
    vector: bytes | None,
    fingerprint: str | None,
) -> list[Hit] | None:
    """The best hits; None if another model's index took over since the query became a vector."""
    if vector is not None and fingerprint is not None:
        index = embedding_indexes.active(connection)
        if index is None or (index.fingerprint, 4 * index.dimension) != (fingerprint, len(vector)):
            return None
    return find(connection, request, filters, vector)


def find(connection: Connection, request: SearchRequest, filters: storage.Filters, vector: bytes | None) -> list[Hit]:
    """The best hits. `vector` is the query's, None to compare words only."""
    searched = plan(connection, request, filters, vector)
    if request.group_by is GroupBy.SESSION:
        found, _ = messages.rank(connection, searched)
        return _hits(searched, by_session(found, searched.weights)[: request.limit])
    kinds = list(dict.fromkeys(request.kinds))
    lists = [_by_kind(connection, searched, kind) for kind in kinds]
    together = _together(searched, [one for one in lists if one[0]])
    return _hits(searched, [(value, one, 1) for value, one in together[: request.limit]])


def _by_kind(connection: Connection, searched: Plan, kind: SearchKind) -> tuple[list[Ranked], Meanings]:
    if kind is SearchKind.MESSAGE:
        return messages.rank(connection, searched, searched.request.limit)
    return documents.rank(connection, searched, kind)


def _together(searched: Plan, lists: Sequence[tuple[list[Ranked], Meanings]]) -> list[tuple[float, Ranked]]:
    """One order of all kinds. Values compare within a kind only: each kind's best counts for what it holds of the
    query's words and how near it is in meaning, the others in proportion.
    """
    together: list[tuple[float, Ranked]] = []
    for found, meanings in lists:
        strength = 1.0 if len(lists) == 1 else _strength(searched, found[0], meanings)
        best = found[0].value or 1.0
        together += [(strength * one.value / best, one) for one in found]
    together.sort(key=lambda pair: -pair[0])
    return together


def _strength(searched: Plan, best: Ranked, meanings: Meanings) -> float:
    total = sum(searched.weights)
    text = f"{best.row.label or ''} {best.row.content}"
    held = 0.0
    for term, weight in zip(searched.wanted.terms, searched.weights, strict=True):
        held += weight if holds(text, stems_of(term.words)) else 0.0
    coverage = held / total if total > 0 else 0.0
    # What was found by its surroundings alone holds none of the words, and still is a find.
    coverage = max(coverage, 0.1)
    return coverage if searched.vector is None else (coverage + meanings.best) / 2


def _hits(searched: Plan, found: Sequence[tuple[float, Ranked, int]]) -> list[Hit]:
    best = found[0][0] if found and found[0][0] > 0 else 1.0
    stems = stems_of([word for term in searched.wanted.terms for word in term.words])
    return [
        Hit(
            kind=one.row.kind,
            id=one.row.id,
            agent_id=one.row.agent_id,
            content=one.row.content,
            snippet=snippet(one.row.content, stems),
            score=value / best,
            parts=_rounded(one),
            reason=reason(one),
            created_at=one.row.created_at,
            label=one.row.label,
            role=one.row.role,
            session_id=one.row.session_id,
            metadata=from_json(one.row.metadata),
            count=count,
        )
        for value, one, count in found
    ]


def _rounded(one: Ranked) -> dict[str, float]:
    parts = {name: round(value, 4) for name, value in one.parts.items()}
    return parts if one.factor == 1.0 else parts | {"tool_result": one.factor}
