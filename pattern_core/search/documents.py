"""Ranking blocks, archival entries, passages of files and summaries: bm25 and meaning, half and half.

Half and half is what did best on collections of documents (Cranfield: recall@10 0.460 against 0.400 for words and
0.416 for meaning alone). It differs from messages, whose short texts full of names give words more weight.
"""

from __future__ import annotations

from pattern_core.search.plan import Plan, Selection, fitting, selection
from pattern_core.search.postings import bits
from pattern_core.search.ranked import Meanings, Ranked, compare, ranked
from pattern_db import search as storage
from pattern_db.connection import Connection
from pattern_db.enums import SearchKind
from pattern_db.search import Row

MEANING_SHARE = 0.5
SPECIAL_ROWS_MAX = 2_000
SATURATION, LENGTH_SHARE = 1.2, 0.75  # as bm25 has them


def rank(connection: Connection, plan: Plan, kind: SearchKind) -> tuple[list[Ranked], Meanings]:
    """The rows of `kind` that speak to the query, best first, and how near the nearest are in meaning."""
    chosen = selection(connection, plan, kind)
    rows: dict[int, Row] = {}
    words: dict[int, float] = {}
    if plan.compares_words and plan.breadth.is_bounded:
        rows, words = _bounded(connection, plan, kind)
    elif plan.compares_words:
        words = _words(connection, plan, kind, chosen)
        rows = storage.rows(connection, kind, list(words), plan.filters)
    meanings = compare(connection, plan, kind, plan.breadth.compared)
    rows |= storage.rows_of_refs(connection, kind, list(meanings.nearness), plan.filters)
    share = MEANING_SHARE if plan.compares_words else 1.0
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
        found = ranked(row, parts)
        # Chunks of one entry are one hit.
        if found.value > 0 and (row.id not in best or found.value > best[row.id].value):
            best[row.id] = found
    return sorted(best.values(), key=lambda found: -found.value), meanings


def _bounded(connection: Connection, plan: Plan, kind: SearchKind) -> tuple[dict[int, Row], dict[int, float]]:
    """Some rows that hold the most telling terms, and how well the words of each fit, 1.0 the best.

    By bm25 as if each row held a term once and were to be compared with these rows alone: FTS5's own reads all rows of
    all terms.
    """
    postings, rows = fitting(connection, plan, kind, max(plan.breadth.documents, plan.request.limit))
    masks = postings.masks(rows)
    usual = sum(len(row.content) for row in rows.values()) / max(len(rows), 1) or 1.0
    values: dict[int, float] = {}
    for number, row in rows.items():
        longer = 1 - LENGTH_SHARE + LENGTH_SHARE * len(row.content) / usual
        values[number] = sum(plan.weights[term] for term in bits(masks[number])) / (1 + SATURATION * longer)
    greatest = max(values.values(), default=0.0) or 1.0
    return rows, {number: value / greatest for number, value in values.items()}


def _words(connection: Connection, plan: Plan, kind: SearchKind, chosen: Selection) -> dict[int, float]:
    """How well each row's words fit, 1.0 the best."""
    terms = plan.wanted.terms
    plain = [term for term in terms if term.match and term.literal is None]
    goodness = dict(
        storage.best(connection, kind, plain, max(plan.breadth.documents, 2 * plan.request.limit), plan.filters)
    )
    greatest = max(goodness.values(), default=0.0)
    # A word that most texts hold weighs nothing; then all that hold it are equally good.
    values = {row: value / greatest if greatest > 1e-6 else 1.0 for row, value in goodness.items()}
    special = [(term, plan.weights[number]) for number, term in enumerate(terms) if term not in plain]
    if special:
        total = sum(plan.weights) or 1.0
        plain_share = 1 - sum(weight for _, weight in special) / total
        values = {row: value * plain_share for row, value in values.items()}
        for term, weight in special:
            for row in storage.rows_of(connection, kind, term, SPECIAL_ROWS_MAX, filters=plan.filters):
                values[row] = values.get(row, 0.0) + weight / total
        highest = max(values.values(), default=0.0) or 1.0
        values = {row: value / highest for row, value in values.items()}
    return {row: value for row, value in values.items() if chosen.holds(row)}
