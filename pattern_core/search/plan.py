"""The plan of a search: the query's terms and their weights, limits of reading, the rows with the terms or near in
meaning.

A search that a person asks for looks at enough that more would find nothing better. One at the start of a turn keeps
the turn waiting: it looks at a bounded part, whatever there is. Of words that many texts hold it reads the newest rows
alone; rare words, which say more, are read whole. `python -m tests.bench search` measures what it costs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pattern_core.search.postings import Postings, gather
from pattern_core.search.request import GroupBy, Mode, SearchRequest
from pattern_db import search as storage
from pattern_db import vectors
from pattern_db.columns import to_json
from pattern_db.connection import Connection
from pattern_db.enums import SearchKind
from pattern_db.search import Row
from pattern_db.search_terms import TERMS_MAX, TERMS_READ, Term, Wanted, spellings

POSTED_MAX = 16  # terms with messages that are read together; of more, reading the common ones would be useless
LIKE_MAX = 6  # words that one which no text holds may stand for …
ABSENT_MAX = 4  # … and so many of a query: each costs a look through the words of the indexes
RARITY_READ = 1_000  # rows of a kind that are counted, to choose the rarest terms of a long query
FAR_OF = 24  # texts: the farthest of so many has nothing to do with the query
SELECTED_MAX = 200_000  # rows with a required or excluded term
FIRST_SHARE = 8  # rows per candidate that are asked for the filters at first: mostly enough of them fit
FITTED_MAX = 1_500  # rows that are asked for the filters in all


@dataclass(frozen=True, slots=True, kw_only=True)
class Breadth:
    """Rows in each case.

    `candidates`: messages with the best-matching words. `nearest`: messages nearest in meaning; the last of them sets
    the scale of nearness. `leaders`: of these, the best: their neighbours are read, too. `documents`: of
    another kind, by words. `compared`: of another kind, by meaning. `posted`: that hold one term. `together`: that hold
    any, those of rare terms first. `is_bounded` says that nothing else may be read, such as all rows that fit a filter.
    """

    candidates: int
    nearest: int
    leaders: int
    documents: int
    compared: int
    posted: int
    together: int
    is_bounded: bool = False


FULL = Breadth(candidates=50, nearest=40, leaders=20, documents=200, compared=100, posted=20_000, together=40_000)
SESSIONS = Breadth(candidates=150, nearest=150, leaders=20, documents=200, compared=100, posted=20_000, together=40_000)
QUICK = Breadth(
    candidates=16, nearest=28, leaders=6, documents=24, compared=24, posted=200, together=800, is_bounded=True
)


def breadth(request: SearchRequest) -> Breadth:
    """Return the limits for the request."""
    if request.is_quick:
        return QUICK
    return SESSIONS if request.group_by is GroupBy.SESSION else FULL


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows of a kind that the required and the excluded terms leave."""

    required: frozenset[int] | None
    excluded: frozenset[int]

    def holds(self, row: int) -> bool:
        """Return true if the row may be found."""
        return row not in self.excluded and (self.required is None or row in self.required)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`weights` says how telling each of `wanted.terms` is (its inverse document frequency), `spreads` how many rows
    of a kind hold it. `vector` is None where meaning is not compared, `codes` are those of the query's words. `posted`
    are a kind's newest rows that hold a term, newest first, as a JSON array by the term's number; whatever the filters;
    not of all kinds and terms. `far` is the cosine of a text that has nothing to do with the query. `notices` say what
    is looked for instead of the whole query.
    """

    request: SearchRequest
    breadth: Breadth
    wanted: Wanted
    weights: Sequence[float]
    spreads: Mapping[SearchKind, Sequence[int]]
    posted: Mapping[SearchKind, Mapping[int, str]]
    vector: bytes | None
    codes: bytes = b""
    far: float = 0.0
    notices: Sequence[str] = ()

    @property
    def compares_words(self) -> bool:
        """False where only the meaning counts."""
        return self.request.mode is not Mode.MEANING or self.vector is None

    @property
    def takes_neighbours(self) -> bool:
        """True if a message may be found for what was said around it: for a question, not for a word."""
        return self.request.mode is not Mode.MEANING and len(self.wanted.terms) > 1


def plan(connection: Connection, request: SearchRequest, vector: bytes | None, codes: bytes = b"") -> Plan:
    """Look up how common the query's terms are. A word that no text holds is replaced by similar ones, unless the
    search is bounded.
    """
    wide, asked = breadth(request), request.wanted
    kinds = list(dict.fromkeys(request.kinds))
    wanted = _rarest(connection, kinds, asked)
    found = _looked_up(connection, kinds, wanted.terms, request, wide)
    is_by_words = request.mode is not Mode.MEANING or vector is None
    like = _like(connection, kinds, wanted.terms, found) if is_by_words and not wide.is_bounded else {}
    if like:
        wanted = replace(wanted, terms=tuple(like.get(term, term) for term in wanted.terms))
        found |= _looked_up(connection, kinds, list(like.values()), request, wide)
    terms = list(enumerate(wanted.terms))
    spreads = {kind: [found[kind, term].spread for _number, term in terms] for kind in kinds}
    posted = {
        kind: {number: rows for number, term in terms if (rows := found[kind, term].posted) is not None}
        for kind in kinds
    }
    sizes = {kind: storage.size(connection, kind) for kind in kinds}
    total = sum(sizes.values())
    weights = [_weight(sum(spreads[kind][number] for kind in kinds), total) for number in range(len(wanted.terms))]
    return Plan(
        request=request,
        breadth=wide,
        wanted=wanted,
        weights=weights,
        spreads=spreads,
        posted=posted,
        vector=vector,
        codes=codes,
        far=0.0 if vector is None else vectors.farthest(connection, vector, FAR_OF),
        notices=list(_notices(asked, wanted, like)),
    )


class _Found(NamedTuple):
    """How many rows of a kind hold a term, and the newest of them, as far as they were read."""

    spread: int
    posted: str | None


def _looked_up(
    connection: Connection, kinds: Sequence[SearchKind], terms: Sequence[Term], request: SearchRequest, wide: Breadth
) -> dict[tuple[SearchKind, Term], _Found]:
    found: dict[tuple[SearchKind, Term], _Found] = {}
    for kind in kinds:
        posted = _posted(connection, kind, terms, request, wide)
        size = storage.size(connection, kind)
        for term in terms:
            rows = posted.get(term)
            spread = (
                storage.spread(connection, kind, term, wide.posted)
                if rows is None
                else _spread(rows, wide.posted, size)
            )
            found[kind, term] = _Found(spread, rows)
    return found


def _like(
    connection: Connection,
    kinds: Sequence[SearchKind],
    terms: Sequence[Term],
    found: Mapping[tuple[SearchKind, Term], _Found],
) -> dict[Term, Term]:
    """Return for the first words that no text holds what to look for instead: other spellings, and words like them.

    All words of the indexes are read only where the query finds nothing at all.
    """
    instead: dict[Term, Term] = {}
    is_lost = not any(one.spread for one in found.values())
    absent = [term for term in terms if term.is_plain and not any(found[kind, term].spread for kind in kinds)]
    for term in absent[:ABSENT_MAX]:
        (word,) = term.words
        near = [one for kind in kinds for one in storage.words_like(connection, kind, word, LIKE_MAX, anywhere=is_lost)]
        words = (*spellings(term.match.strip('"')), *dict.fromkeys(near))[:LIKE_MAX]
        other = Term(match=" OR ".join(f'"{one}"*' for one in words), words=(word, *words))
        if words and any(storage.spread(connection, kind, other, 1) for kind in kinds):
            instead[term] = other
    return instead


def _rarest(connection: Connection, kinds: Sequence[SearchKind], wanted: Wanted) -> Wanted:
    """Return the query with those `TERMS_MAX` terms that the fewest rows hold, in their order; those that none holds
    come last, since they find nothing.
    """
    if len(wanted.terms) <= TERMS_MAX:
        return wanted
    spreads = {
        term: sum(storage.spread(connection, kind, term, RARITY_READ) for kind in kinds) for term in wanted.terms
    }
    kept = set(sorted(spreads, key=lambda term: (spreads[term] == 0, spreads[term]))[:TERMS_MAX])
    return replace(wanted, terms=tuple(term for term in wanted.terms if term in kept))


def _notices(asked: Wanted, wanted: Wanted, like: Mapping[Term, Term]) -> Iterator[str]:
    for absent, instead in like.items():
        yield f'no text holds "{absent.words[0]}", so words like it were looked for: {", ".join(instead.words[1:])}'
    if not asked.terms:
        yield "the query has no words to look for"
    elif asked.count > len(wanted.terms):
        among = f" of the first {TERMS_READ}" if asked.count > TERMS_READ else ""
        yield f"the query has {asked.count} different words; the {len(wanted.terms)} rarest{among} were looked for"


def selection(connection: Connection, plan: Plan, kind: SearchKind) -> Selection:
    """Look up which rows of `kind` the required and the excluded terms leave."""
    required = [_holding(connection, kind, term) for term in plan.wanted.required]
    excluded = [_holding(connection, kind, term) for term in plan.wanted.excluded]
    return Selection(frozenset.intersection(*required) if required else None, frozenset().union(*excluded))


def _holding(connection: Connection, kind: SearchKind, term: Term) -> frozenset[int]:
    return frozenset(storage.rows_of(connection, kind, term, SELECTED_MAX))


def _posted(
    connection: Connection, kind: SearchKind, terms: Sequence[Term], request: SearchRequest, wide: Breadth
) -> dict[Term, str]:
    """Return the rows of each term, where counting them takes half as long as reading them, and both are needed."""
    is_needed = kind is SearchKind.MESSAGE or wide.is_bounded
    if not is_needed or request.mode is Mode.MEANING or len(terms) > POSTED_MAX:
        return {}
    plain = [term for term in terms if term.literal is None]
    return dict(zip(plain, storage.newest(connection, kind, plain, wide.posted), strict=True))


def _spread(posted: str, limit: int, size: int) -> int:
    """Return how many of `size` rows hold a term of which these were read, newest first: estimated by how close they
    are if there may be more than the limit.
    """
    count = storage.count_posted(posted)
    if count < limit:
        return count
    oldest = int(posted[posted.rfind(",") + 1 : -1].strip("[]"))
    return max(count, count * size // max(size - oldest + 1, 1))


def _weight(spread: int, total: int) -> float:
    """Return the term's inverse document frequency as in BM25, with 1 added so that it is never negative."""
    return math.log(1 + (max(total, spread) - spread + 0.5) / (spread + 0.5))


def posted(
    connection: Connection, plan: Plan, kind: SearchKind, chosen: Selection, filters: storage.Filters | None = None
) -> tuple[list[tuple[int, str]], bool]:
    """Return the rows that hold each term (its number, a JSON array), and whether these are all. Of very common terms
    only the newest count.
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


def candidates(
    connection: Connection,
    plan: Plan,
    kind: SearchKind,
    count: int,
    chosen: Selection,
    filters: storage.Filters | None = None,
) -> tuple[Postings, dict[int, Row]]:
    """Return which rows hold which terms, and of those that match the filters the `count` with the greatest weight of
    terms.

    Most filters leave a good part: they are asked in the order of the weights, until there are enough or `FITTED_MAX`
    were checked. If that leaves too few, a search that is not bounded reads again: only rows that fit (`filters`).
    """
    found, is_complete = posted(connection, plan, kind, chosen, filters)
    postings = gather(found)
    rows: dict[int, Row] = {}
    asked = 0
    for most in (FIRST_SHARE * count, FITTED_MAX):
        ordered = postings.best(plan.weights, most)
        if len(ordered) > asked:
            rows |= storage.rows(connection, kind, ordered[asked:], plan.request, count - len(rows))
        asked = len(ordered)
        if len(rows) >= count or asked < most:
            break
    is_enough = plan.breadth.is_bounded or len(rows) >= count or (is_complete and asked < FITTED_MAX)
    if is_enough or filters is not None or not storage.is_narrow(plan.request):
        return postings, rows
    return candidates(connection, plan, kind, count, chosen, plan.request)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """A found row with its features."""

    row: Row
    parts: Mapping[str, float]
    factor: float = 1.0

    @property
    def value(self) -> float:
        """What the parts are worth together, never less than nothing; comparable within one kind."""
        return max(sum(self.parts.values()), 0.0) * self.factor


@dataclass(frozen=True, slots=True)
class Meanings:
    """`nearness` by ref: 1.0 for the nearest, 0.0 for the last of those compared and all beyond. `best` is the
    greatest cosine, 0 without any.
    """

    nearness: Mapping[str, float]
    best: float


NOTHING = Meanings({}, 0.0)


def compare(connection: Connection, plan: Plan, kind: SearchKind, count: int) -> Meanings:
    """Return the `count` texts of `kind` (or as many as are asked for) that fit the filters and are nearest to the
    query.

    Nothing where there is no vector.
    """
    if plan.vector is None:
        return NOTHING
    # Vectors of blocks and files are under their owner and folder; who may see them is a matter of the rows.
    owned = kind not in (SearchKind.BLOCK, SearchKind.FILE)
    narrow = (
        storage.is_narrow(plan.request)
        or (plan.request.before or plan.request.shown_from) is not None
        or kind is not SearchKind.MESSAGE
    )
    found = vectors.nearest(
        connection,
        kind,
        plan.vector,
        plan.request.agents if owned else None,
        max(count, plan.request.limit),
        condition=storage.condition(kind, plan.request) if narrow else None,
    )
    cosines: dict[str, float] = {}
    for neighbour in found:
        cosines[neighbour.ref] = max(cosines.get(neighbour.ref, -1.0), 1.0 - neighbour.distance)
    if not cosines:
        return NOTHING
    least, greatest = min(cosines.values()), max(cosines.values())
    span = greatest - least
    nearness = {ref: (cosine - least) / span if span > 0 else 1.0 for ref, cosine in cosines.items()}
    return Meanings(nearness, max(greatest, 0.0))
