"""Rows that come into question for their words: which hold each term, and which of them fit the filters."""

from __future__ import annotations

import json

from pattern_core.search.plan import Plan, Selection
from pattern_core.search.postings import Postings, gather
from pattern_db import search as storage
from pattern_db.columns import to_json
from pattern_db.connection import Connection
from pattern_db.enums import SearchKind
from pattern_db.search import Row

FIRST_SHARE = 8  # rows per candidate that are asked for the filters at first: mostly enough of them fit
FITTED_MAX = 1_500  # rows that are asked for the filters in all


def posted(
    connection: Connection, plan: Plan, kind: SearchKind, chosen: Selection, filters: storage.Filters | None = None
) -> tuple[list[tuple[int, str]], bool]:
    """The rows that hold each term (its number, a JSON array), and whether these are all. Of very common terms only the
    newest count.
    """
    spreads, read = plan.spreads[kind], plan.posted[kind]
    found: list[tuple[int, str]] = []
    left = plan.breadth.together
    is_complete = True
    for number in sorted(range(len(spreads)), key=lambda number: spreads[number]):
        most = min(left, plan.breadth.posted)
        is_complete = is_complete and spreads[number] < most
        if spreads[number] <= 0 or most <= 0:
            continue
        if number in read and filters is None:
            rows = storage.newest_posted(read[number], most)
        else:
            rows = storage.posted(connection, kind, plan.wanted.terms[number], most, filters=filters)
        left -= storage.count_posted(rows)
        if chosen.required is not None or chosen.excluded:
            rows = to_json([row for row in json.loads(rows) if chosen.holds(row)])
        found.append((number, rows))
    return found, is_complete


def fitting(connection: Connection, plan: Plan, kind: SearchKind, count: int) -> tuple[Postings, dict[int, Row]]:
    """What a bounded search looks at: the `count` rows whose terms weigh most among those that fit the filters.

    The filters are asked in the order of the weights, until there are enough or `FITTED_MAX` were looked at. Which rows
    a term leaves or takes away altogether does not count here: a bounded search has no such terms.
    """
    found, _is_complete = posted(connection, plan, kind, Selection(None, frozenset()))
    postings = gather(found)
    ordered = postings.best(plan.weights, FITTED_MAX)
    rows: dict[int, Row] = {}
    for some in (ordered[: FIRST_SHARE * count], ordered[FIRST_SHARE * count :]):
        if some and len(rows) < count:
            rows |= storage.first_rows(connection, kind, some, plan.filters, count - len(rows))
    return postings, rows
