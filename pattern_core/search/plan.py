"""What one search works with: the query's terms and what each is worth, the filters, the query's vector."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pattern_core.search.dates import NamedDate, named_dates
from pattern_core.search.request import Mode, SearchRequest
from pattern_db import search as storage
from pattern_db.connection import Connection
from pattern_db.enums import SearchKind
from pattern_db.search_terms import Term, Wanted, parse

SPREAD_MAX = 20_000  # rows that hold a term are not counted beyond this: it tells next to nothing then
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
    of a kind hold it. `vector` is None where meaning is not compared. `posted` are the newest messages that
    hold a term, newest first, as a JSON array of rows by the term's number; whatever the filters; not of all terms.
    """

    request: SearchRequest
    filters: storage.Filters
    wanted: Wanted
    weights: Sequence[float]
    spreads: Mapping[SearchKind, Sequence[int]]
    posted: Mapping[int, str]
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
    wanted = parse(request.query)
    kinds = list(dict.fromkeys(request.kinds))
    posted = _posted(connection, wanted, request) if SearchKind.MESSAGE in kinds else {}
    spreads = {
        kind: [
            storage.count_posted(posted[number])
            if kind is SearchKind.MESSAGE and number in posted
            else storage.spread(connection, kind, term, SPREAD_MAX)
            for number, term in enumerate(wanted.terms)
        ]
        for kind in kinds
    }
    total = sum(storage.size(connection, kind) for kind in kinds)
    weights = [_weight(sum(spreads[kind][number] for kind in kinds), total) for number in range(len(wanted.terms))]
    return Plan(
        request=request,
        filters=filters,
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


def _posted(connection: Connection, wanted: Wanted, request: SearchRequest) -> dict[int, str]:
    """The messages of each term, where counting them takes half as long as reading them, and both are needed."""
    if request.mode is Mode.MEANING or len(wanted.terms) > POSTED_MAX:
        return {}
    return {
        number: storage.posted(connection, SearchKind.MESSAGE, term, SPREAD_MAX)
        for number, term in enumerate(wanted.terms)
        if term.literal is None
    }


def _rows(connection: Connection, kind: SearchKind, term: Term) -> frozenset[int]:
    return frozenset(storage.rows_of(connection, kind, term, SELECTED_MAX))


def _weight(spread: int, total: int) -> float:
    """The term's inverse document frequency as in BM25, with 1 added so that it is never negative."""
    return math.log(1 + (max(total, spread) - spread + 0.5) / (spread + 0.5))
