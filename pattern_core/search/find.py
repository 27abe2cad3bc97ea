"""One search, from the query to the hits: each kind ranked by its own method, then put in one order.

The query becomes a vector twice: as it is, and without the names of those who speak. A model reads "What does Ada
cook?" as being mostly about Ada, and Ada stands in nearly every message: the vector of "What does cook?" finds more
(recall@10 of vectors alone on LoCoMo 0.61 → 0.71), and the sum of both, which still knows who is meant, more than
either beside words (`python -m tests.bench locomo`).
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Protocol

from pattern_core.search import documents, messages
from pattern_core.search.hits import hits_of, holds, stems_of
from pattern_core.search.messages import by_session, name_words, speaker
from pattern_core.search.plan import Plan, plan
from pattern_core.search.ranked import Meanings, Ranked
from pattern_core.search.request import GroupBy, Hit, Mode, QueryVector, SearchRequest, SearchResult, check
from pattern_db import search as storage
from pattern_db import vectors
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.enums import SearchKind
from pattern_db.search_terms import parse
from pattern_db.tables import embedding_indexes

SWITCHES_MAX = 3  # of models, while one search looks for the vector of its query
SAMPLED = 100  # messages, evenly over all there are: whoever says one in thirty is almost surely among them
_WORD = re.compile(r"[^\W_]+(?:(['’])s?\b)?")


class QueryVectors(Protocol):
    """What makes vectors of queries: the embedding queue of the constellation."""

    async def query_vector(self, text: str) -> QueryVector:
        """Return the vector of `text`; never an error for a model that is absent or slow."""
        ...


async def search(database: Database, request: SearchRequest, queries: QueryVectors | None = None) -> SearchResult:
    """Find what fits `request.query` best.

    A search runs on a second connection, so that it never delays a write. A quick one by words runs between the writes
    instead: it takes a millisecond, less than what a second connection with its own caches costs.

    Without `queries`, or as long as they give no vector, words alone are compared, and the notice says so.

    Raises:
        InvalidInput: there is nothing to look for, a bound is exceeded, or a time cannot be read.
    """
    filters = check(request)
    by_words = database.read if request.is_quick else database.read_aside
    if request.mode is Mode.WORDS:
        return SearchResult(hits=await by_words(find, request, filters, None))
    if queries is None:
        notice = f"searched by words only, not by {request.mode.value}: no embedder is configured"
        return SearchResult(hits=await by_words(find, request, filters, None), notice=notice)
    if request.is_quick:
        hits = await database.read(_find_unindexed, request, filters)
        if hits is not None:
            return SearchResult(hits=hits, notice="searched by words alone: no text is embedded yet")
    for _attempt in range(SWITCHES_MAX):
        answer = await query_vector(database, request, queries)
        if answer.vector is None:
            return SearchResult(hits=await by_words(find, request, filters, None), notice=answer.notice)
        hits = await database.read_aside(_find_current, request, filters, answer.vector, answer.fingerprint)
        if hits is not None:
            return SearchResult(hits=hits, notice=answer.notice)
    notice = "searched by words alone: one embedding model takes over from another"
    return SearchResult(hits=await by_words(find, request, filters, None), notice=notice)


async def query_vector(database: Database, request: SearchRequest, queries: QueryVectors) -> QueryVector:
    """The vector that the query's meaning is compared by. Among messages the names of those who speak count half."""
    answer = await queries.query_vector(request.query)
    if answer.vector is None or SearchKind.MESSAGE not in request.kinds:
        return answer
    bare = await database.read_aside(nameless, request.query)
    other = None if bare is None else await queries.query_vector(bare)
    if other is None or other.vector is None or other.fingerprint != answer.fingerprint:
        return answer
    return replace(answer, vector=blended(answer.vector, other.vector))


def nameless(connection: Connection, query: str) -> str | None:
    """The query without the names of those who speak; None if it names none of them, or says nothing besides."""
    names = {word for row in storage.sample(connection, SAMPLED) for word in name_words(speaker(row))}
    text = without(query, names)
    return text if text is not None and any(not term.is_filler for term in parse(text).terms) else None


def without(query: str, names: AbstractSet[str]) -> str | None:
    """The query without these words (in lower case) and their possessives; None if it holds none of them."""

    def kept(word: re.Match[str]) -> str:
        bare = word[0] if word[1] is None else word[0].rpartition(word[1])[0]
        return "" if bare.lower() in names else word[0]

    text = _WORD.sub(kept, query)
    return None if text == query else " ".join(text.split())


def blended(one: bytes, other: bytes) -> bytes:
    """The unit vector between two (float32, little endian, of the same length)."""
    total = [a + b for a, b in zip(_floats(one), _floats(other), strict=True)]
    length = math.sqrt(math.fsum(value * value for value in total)) or 1.0
    return vectors.packed([value / length for value in total])


def _floats(vector: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(vector) // 4}f", vector)


def _find_unindexed(connection: Connection, request: SearchRequest, filters: storage.Filters) -> list[Hit] | None:
    """Return the best hits by words in a constellation without vectors, in one visit; None in any other."""
    return None if embedding_indexes.active(connection) is not None else find(connection, request, filters, None)


def _find_current(
    connection: Connection,
    request: SearchRequest,
    filters: storage.Filters,
    vector: bytes,
    fingerprint: str | None,
) -> list[Hit] | None:
    """Return the best hits; None if another model's index took over since the query became a vector."""
    if fingerprint is not None:
        index = embedding_indexes.active(connection)
        if index is None or (index.fingerprint, 4 * index.dimension) != (fingerprint, len(vector)):
            return None
    return find(connection, request, filters, vector)


def find(connection: Connection, request: SearchRequest, filters: storage.Filters, vector: bytes | None) -> list[Hit]:
    """The best hits. `vector` is the query's, None to compare words only."""
    searched = plan(connection, request, filters, vector)
    if request.group_by is GroupBy.SESSION:
        found, _ = messages.rank(connection, searched)
        return hits_of(searched, by_session(found, searched.weights)[: request.limit])
    kinds = list(dict.fromkeys(request.kinds))
    lists = [_by_kind(connection, searched, kind) for kind in kinds]
    together = _together(searched, [one for one in lists if one[0]])
    return hits_of(searched, [(value, one, 1) for value, one in together[: request.limit]])


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
