"""One search, from the query to the hits: each kind ranked by its own method, then put in one order.

The query becomes a vector twice: as it is, and without the names of those who speak. A model reads "What does Ada
cook?" as being mostly about Ada, and Ada occurs in nearly every message: the vector of "What does cook?" finds more
(recall@10 of vectors alone on LoCoMo 0.61 → 0.71), and the sum of both, which still knows who is meant, more than
either combined with words (`python -m tests.bench locomo`).
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Protocol

import trio

from pattern_core.search import messages
from pattern_core.search.hits import hits_of, holds, stems_of
from pattern_core.search.messages import answered, by_session, name_words, speaker
from pattern_core.search.plan import Meanings, Plan, Ranked, Selection, breadth, candidates, compare, plan, selection
from pattern_core.search.postings import bits
from pattern_core.search.request import GroupBy, Mode, QueryVector, SearchRequest, SearchResult, check
from pattern_db import search as storage
from pattern_db import vectors
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.enums import IndexState, SearchKind
from pattern_db.search import Row
from pattern_db.search_terms import parse
from pattern_db.tables import embedding_indexes
from pattern_db.tables.embedding_indexes import IndexRow

SWITCHES_MAX = 3  # of models, while one search looks for the vector of its query
SAMPLED = 100  # messages, evenly over all there are: a person who says one in thirty is almost surely among them
# Of relevance.
COMPARED_MAX = 12  # hits that are searched for the query's words
COVERAGE_SHARE = 0.3
# Of documents.
MEANING_SHARE = 0.5
SPECIAL_ROWS_MAX = 2_000
SATURATION, LENGTH_SHARE = 1.2, 0.75  # as bm25 has them
_WORD = re.compile(r"[^\W_]+(?:(['’])s?\b)?")


class QueryVectors(Protocol):
    """What makes vectors of queries: the embedding queue of the constellation."""

    async def query_vector(self, text: str, live: Sequence[IndexRow]) -> QueryVector:
        """Return the vector of `text` for the active one of the `live` indexes; never an error for a model that is
        absent or slow.
        """
        ...


async def search(database: Database, request: SearchRequest, queries: QueryVectors | None = None) -> SearchResult:
    """Return the best matches of `request.query`.

    A search runs on a second connection, so that it never delays a write. A quick one by words runs between the writes
    instead: it takes a millisecond, less than what a second connection with its own caches costs.

    Without `queries`, or while they have no vector, only words are compared, and the notice says so.

    Raises:
        InvalidInput: there is nothing to look for, a bound is exceeded, or a time cannot be read.
    """
    request = check(request)
    is_quick = breadth(request).is_bounded
    notice = None
    if request.mode is not Mode.WORDS and queries is None:
        notice = f"searched by words only, not by {request.mode.value}: no embedder is configured"
    elif request.mode is not Mode.WORDS and queries is not None:
        for _attempt in range(SWITCHES_MAX):
            live = await database.read(_look, request, is_quick)
            if isinstance(live, SearchResult):
                return live.noting("searched by words alone: no text is embedded yet")
            answer = await query_vector(database, request, queries, live)
            notice = answer.notice
            if answer.vector is None:
                break
            found = await database.read_aside(_find_by, request, answer)
            if found is not None:
                return found.noting(notice)
        else:
            notice = "searched by words alone: one embedding model takes over from another"
    by_words = database.read if is_quick else database.read_aside
    return (await by_words(find, request, None)).noting(notice)


async def query_vector(
    database: Database, request: SearchRequest, queries: QueryVectors, live: Sequence[IndexRow]
) -> QueryVector:
    """Return the vector that the query's meaning is compared by, or a notice if it is not there in time: the model then
    continues, so that the next search has it. Among messages the names of those who speak count half.
    """
    with trio.move_on_after(request.patience_s):
        answer = await queries.query_vector(request.query, live)
        if answer.vector is None or SearchKind.MESSAGE not in request.kinds:
            return answer
        bare = await database.read_aside(nameless, request.query)
        other = None if bare is None else await queries.query_vector(bare, live)
        if other is None or other.vector is None:
            return answer
        return replace(answer, vector=blended(answer.vector, other.vector), codes=other.codes)
    return QueryVector(notice="searched by words alone: the embedding model is still loading, or busy")


def nameless(connection: Connection, query: str) -> str | None:
    """Return the query without the names of those who speak; None if it names none of them, or says nothing besides."""
    names = {word for said in storage.sample(connection, SAMPLED) for word in name_words(speaker(*said))}
    says_more = any(not term.is_filler and not names.issuperset(term.words) for term in parse(query).terms)
    return without(query, names) if says_more else None


def without(query: str, names: AbstractSet[str]) -> str | None:
    """Return the query without these words (in lower case) and their possessives; None if it holds none of them."""

    def kept(word: re.Match[str]) -> str:
        bare = word[0] if word[1] is None else word[0].rpartition(word[1])[0]
        return "" if bare.lower() in names else word[0]

    text = _WORD.sub(kept, query)
    return None if text == query else " ".join(text.split())


def blended(one: bytes, other: bytes) -> bytes:
    """Return the unit vector between two (float32, little endian, of the same length)."""
    numbers = f"<{len(one) // 4}f"
    total = [a + b for a, b in zip(struct.unpack(numbers, one), struct.unpack(numbers, other), strict=True)]
    length = math.sqrt(math.fsum(value * value for value in total)) or 1.0
    return vectors.packed([value / length for value in total])


def _look(connection: Connection, request: SearchRequest, is_quick: bool) -> SearchResult | list[IndexRow]:
    """Return the indexes in use; the best hits by words of a quick search, if there is no active one."""
    live = embedding_indexes.live(connection)
    is_active = any(index.state is IndexState.ACTIVE for index in live)
    return live if is_active or not is_quick else find(connection, request, None)


def _find_by(connection: Connection, request: SearchRequest, answer: QueryVector) -> SearchResult | None:
    """Return the best hits; None unless `answer` is of the active index's model."""
    index = embedding_indexes.active(connection)
    if index is None or (index.fingerprint, 4 * index.dimension) != (answer.fingerprint, len(answer.vector or b"")):
        return None
    return find(connection, request, answer.vector, answer.codes)


def find(connection: Connection, request: SearchRequest, vector: bytes | None, codes: bytes = b"") -> SearchResult:
    """Return the best hits of a checked request. `vector` is the query's, None to compare words only; `codes` are those
    of its words.
    """
    searched = plan(connection, request, vector, codes)
    if request.group_by is GroupBy.SESSION:
        lists = [messages.rank(connection, searched)]
        best = by_session(lists[0][0])
    else:
        lists = [
            messages.rank(connection, searched, request.limit)
            if kind is SearchKind.MESSAGE
            else rank_documents(connection, searched, kind)
            for kind in dict.fromkeys(request.kinds)
        ]
        best = [(value, one, 1) for value, one in _together(searched, [one for one in lists if one[0]])]
    best = best[: request.limit]
    near = max(meanings.best for _found, meanings in lists)
    relevance = _relevance(searched, [one for _value, one, _count in best], near)
    asked = answered(connection, [one.row for _value, one, _count in best], request)
    found = SearchResult(hits=hits_of(searched, best, relevance, asked))
    if found.hits and not found.is_relevant:
        found = found.noting(f"nothing that was found has much to do with the query: the best score is {relevance:.2f}")
    return found.noting(*searched.notices)


def _relevance(searched: Plan, best: Sequence[Ranked], near: float) -> float:
    """Return the relevance of the hits; `near` is the cosine of the nearest text.

    By the nearest text and by the share of the query's words that one text holds. What is near differs between models,
    so it is measured from the cosine of a text that has nothing to do with the query.
    """
    covered = max((_coverage(searched, one) for one in best[:COMPARED_MAX]), default=0.0)
    if searched.vector is None or not best:
        return covered
    return min(max(near - searched.far, 0.0) / (1 - searched.far) + COVERAGE_SHARE * covered, 1.0)


def _coverage(searched: Plan, one: Ranked) -> float:
    """Return the share of the query's terms that the text holds, by their weights."""
    text = f"{one.row.label or ''} {one.row.content}"
    terms = zip(searched.wanted.terms, searched.weights, strict=True)
    held = sum(weight for term, weight in terms if holds(text, stems_of(term.words)))
    return held / (sum(searched.weights) or 1.0)


def _together(searched: Plan, lists: Sequence[tuple[list[Ranked], Meanings]]) -> list[tuple[float, Ranked]]:
    """Return one order of all kinds. Values compare within a kind only: each kind's best counts for what it holds of
    the query's words and how near it is in meaning, the others in proportion.
    """
    together: list[tuple[float, Ranked]] = []
    for found, meanings in lists:
        strength = 1.0 if len(lists) == 1 else _strength(searched, found[0], meanings)
        best = found[0].value or 1.0
        together += [(strength * one.value / best, one) for one in found]
    together.sort(key=lambda pair: -pair[0])
    return together


def _strength(searched: Plan, best: Ranked, meanings: Meanings) -> float:
    # What was found by its surroundings alone holds none of the words, and still is a find.
    coverage = max(_coverage(searched, best), 0.1)
    return coverage if searched.vector is None else (coverage + meanings.best) / 2


def rank_documents(connection: Connection, searched: Plan, kind: SearchKind) -> tuple[list[Ranked], Meanings]:
    """Return the blocks, entries, passages or summaries that speak to the query, best first, and how near the nearest
    are in meaning. Words and meaning count half each.

    That did best on collections of documents (Cranfield: recall@10 0.460 against 0.400 for words and 0.416 for meaning
    alone). It differs from messages: in their short texts full of names words have more weight.
    """
    chosen = selection(connection, searched, kind)
    rows: dict[int, Row] = {}
    words: dict[int, float] = {}
    if searched.compares_words and searched.breadth.is_bounded:
        rows, words = _bounded(connection, searched, kind, chosen)
    elif searched.compares_words:
        words = _words(connection, searched, kind, chosen)
        rows = storage.rows(connection, kind, sorted(words), searched.request)
    meanings = compare(connection, searched, kind, searched.breadth.compared)
    rows |= storage.rows(connection, kind, list(meanings.nearness), searched.request)
    share = MEANING_SHARE if searched.compares_words else 1.0
    share = share if meanings.nearness else 0.0
    best: dict[str, Ranked] = {}
    for number, row in rows.items():
        if not chosen.holds(number):
            continue
        parts: dict[str, float] = {}
        if number in words:
            parts["words"] = (1 - share) * words[number]
        if meanings.nearness.get(row.ref, 0.0) > 0:
            parts["meaning"] = share * meanings.nearness[row.ref]
        found = Ranked(row=row, parts=parts)
        # Chunks of one entry are one hit.
        if found.value > 0 and (row.id not in best or found.value > best[row.id].value):
            best[row.id] = found
    return sorted(best.values(), key=lambda found: -found.value), meanings


def _bounded(
    connection: Connection, searched: Plan, kind: SearchKind, chosen: Selection
) -> tuple[dict[int, Row], dict[int, float]]:
    """Return some rows with the rarest terms, and how well the words of each match, 1.0 the best.

    By bm25 as if each row held a term once and were to be compared with these rows alone: FTS5's own reads all rows of
    all terms.
    """
    count = max(searched.breadth.documents, searched.request.limit)
    postings, rows = candidates(connection, searched, kind, count, chosen)
    masks = postings.masks(rows)
    usual = sum(len(row.content) for row in rows.values()) / max(len(rows), 1) or 1.0
    values: dict[int, float] = {}
    for number, row in rows.items():
        longer = 1 - LENGTH_SHARE + LENGTH_SHARE * len(row.content) / usual
        values[number] = sum(searched.weights[term] for term in bits(masks[number])) / (1 + SATURATION * longer)
    greatest = max(values.values(), default=0.0) or 1.0
    return rows, {number: value / greatest for number, value in values.items()}


def _words(connection: Connection, searched: Plan, kind: SearchKind, chosen: Selection) -> dict[int, float]:
    """Return how well each row's words match, 1.0 the best."""
    terms = searched.wanted.terms
    plain = [term for term in terms if term.match and term.literal is None]
    count = max(searched.breadth.documents, 2 * searched.request.limit)
    goodness = dict(storage.best(connection, kind, plain, count, searched.request))
    greatest = max(goodness.values(), default=0.0)
    # A word in most texts has no weight; then all texts with it are equal.
    values = {row: value / greatest if greatest > 1e-6 else 1.0 for row, value in goodness.items()}
    special = [(term, searched.weights[number]) for number, term in enumerate(terms) if term not in plain]
    if special:
        total = sum(searched.weights) or 1.0
        plain_share = 1 - sum(weight for _, weight in special) / total
        values = {row: value * plain_share for row, value in values.items()}
        for term, weight in special:
            for row in storage.rows_of(connection, kind, term, SPECIAL_ROWS_MAX, filters=searched.request):
                values[row] = values.get(row, 0.0) + weight / total
        highest = max(values.values(), default=0.0) or 1.0
        values = {row: value / highest for row, value in values.items()}
    return {row: value for row, value in values.items() if chosen.holds(row)}
