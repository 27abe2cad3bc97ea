"""What one search works with: the query's terms and what each is worth, the filters, the query's vector."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pattern_core.search.breadth import Breadth, breadth
from pattern_core.search.dates import NamedDate, named_dates
from pattern_core.search.request import Mode, SearchRequest
from pattern_db import search as storage
from pattern_db.connection import Connection
from pattern_db.enums import SearchKind
from pattern_db.search_terms import Term, Wanted, parse

POSTED_MAX = 16  # terms whose messages are read at once; of more, those of common ones would be read for nothing
SELECTED_MAX = 200_000  # rows with a required or excluded term


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows of a kind that the required and the excluded terms leave."""

    required: frozenset[int] | None
    excluded: frozenset[int]

    def holds(self, row: int) -> bool:
        """True if the row may be found."""
        return row not in self.excluded and (self.required is None or row in self.required)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`weights` says how telling each of `wanted.terms` is (its inverse document frequency), `spreads` how many rows
    of a kind hold it. `vector` is None where meaning is not compared. `posted` are a kind's newest rows that hold a
    term, newest first, as a JSON array by the term's number; whatever the filters; not of all kinds and terms.
    """

    request: SearchRequest
    filters: storage.Filters
    breadth: Breadth
    wanted: Wanted
    weights: Sequence[float]
    spreads: Mapping[SearchKind, Sequence[int]]
    posted: Mapping[SearchKind, Mapping[int, str]]
    dates: Sequence[NamedDate]
    vector: bytes | None

    @property
    def compares_words(self) -> bool:
        """False where only the meaning counts."""
        return self.request.mode is not Mode.MEANING or self.vector is None

    @property
    def takes_neighbours(self) -> bool:
        """True if a message may be found for what was said around it: for a question, not for a word."""
        return self.request.mode is Mode.HYBRID and len(self.wanted.terms) > 1


def plan(connection: Connection, request: SearchRequest, filters: storage.Filters, vector: bytes | None) -> Plan:
    """Read the query and look up how common its terms are."""
    wide = breadth(request)
    wanted = _plain(parse(request.query)) if wide.is_bounded else parse(request.query)
    kinds = list(dict.fromkeys(request.kinds))
    posted = {kind: _posted(connection, kind, wanted, request, wide) for kind in kinds}
    sizes = {kind: storage.size(connection, kind) for kind in kinds}
    spreads = {
        kind: [
            _spread(posted[kind][number], wide.posted, sizes[kind])
            if number in posted[kind]
            else storage.spread(connection, kind, term, wide.posted)
            for number, term in enumerate(wanted.terms)
        ]
        for kind in kinds
    }
    total = sum(sizes.values())
    weights = [_weight(sum(spreads[kind][number] for kind in kinds), total) for number in range(len(wanted.terms))]
    return Plan(
        request=request,
        filters=filters,
        breadth=wide,
        wanted=wanted,
        weights=weights,
        spreads=spreads,
        posted=posted,
        dates=named_dates(request.query),
        vector=vector,
    )


def selection(connection: Connection, plan: Plan, kind: SearchKind) -> Selection:
    """Look up which rows of `kind` the required and the excluded terms leave."""
    required: frozenset[int] | None = None
    for term in plan.wanted.required:
        rows = _rows(connection, kind, term)
        required = rows if required is None else required & rows
    excluded = [_rows(connection, kind, term) for term in plan.wanted.excluded]
    return Selection(required, frozenset().union(*excluded))


def _plain(wanted: Wanted) -> Wanted:
    """The terms that an index answers alone, and no others: for those all rows that may fit would have to be read."""
    return Wanted(terms=tuple(term for term in wanted.terms if term.literal is None)[:POSTED_MAX])


def _posted(
    connection: Connection, kind: SearchKind, wanted: Wanted, request: SearchRequest, wide: Breadth
) -> dict[int, str]:
    """The rows of each term, where counting them takes half as long as reading them, and both are needed."""
    is_needed = kind is SearchKind.MESSAGE or wide.is_bounded
    if not is_needed or request.mode is Mode.MEANING or len(wanted.terms) > POSTED_MAX:
        return {}
    return {
        number: storage.posted(connection, kind, term, wide.posted)
        for number, term in enumerate(wanted.terms)
        if term.literal is None
    }


def _spread(posted: str, limit: int, size: int) -> int:
    """How many of `size` rows hold a term of which these were read, newest first: told by how close they are if there
    may be more than the limit.
    """
    count = storage.count_posted(posted)
    if count < limit:
        return count
    oldest = int(posted[posted.rfind(",") + 1 : -1].strip("[]"))
    return max(count, count * size // max(size - oldest + 1, 1))


def _rows(connection: Connection, kind: SearchKind, term: Term) -> frozenset[int]:
    return frozenset(storage.rows_of(connection, kind, term, SELECTED_MAX))


def _weight(spread: int, total: int) -> float:
    """The term's inverse document frequency as in BM25, with 1 added so that it is never negative."""
    return math.log(1 + (max(total, spread) - spread + 0.5) / (spread + 0.5))
