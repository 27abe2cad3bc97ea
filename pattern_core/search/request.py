"""Search requests and results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from pattern_core.errors import InvalidInput
from pattern_core.validation import column_time
from pattern_db.columns import Json
from pattern_db.enums import Role, SearchKind, TrustLevel
from pattern_db.search import Filters
from pattern_db.search_terms import Wanted, parse

LIMIT_MAX = 500
QUERY_CHARS_MAX = 16_000
QUICK_TERMS_MAX = 6  # that a quick search looks for, the longest: each costs a look into the index
FILTER_VALUES_MAX = 200  # agents, tags or sessions in one request
RELEVANT_MIN = 0.44  # score of the best hit; a query that has nothing to do with what there is finds something, too
KINDS = tuple(SearchKind)


class Mode(StrEnum):
    """How to compare: by words, by meaning, or by both."""

    WORDS = "words"
    MEANING = "meaning"
    HYBRID = "hybrid"


class GroupBy(StrEnum):
    """What one hit stands for, where it is not a find itself."""

    SESSION = "session"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest(Filters):
    """What to look for and where: the filters say what a hit must satisfy.

    `since` and `until` may be any RFC 3339 times with an offset, or dates (UTC). `group_by` session ranks
    conversations: each hit is the best message of one. `is_quick`: the work is bounded, whatever there is
    (`plan.QUICK`), and the query is plain text: nothing in it must occur or must not. The query's vector is waited for
    `patience_s` seconds at most.
    """

    query: str
    kinds: Sequence[SearchKind] = KINDS
    group_by: GroupBy | None = None
    limit: int = 20
    mode: Mode = Mode.HYBRID
    is_quick: bool = False
    patience_s: float = math.inf

    @property
    def wanted(self) -> Wanted:
        """The query as it is read."""
        wanted = parse(self.query)
        return wanted.longest(QUICK_TERMS_MAX) if self.is_quick else wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One find. `score` is its relevance from 0.0 to 1.0, comparable between queries of one mode. `parts` are the
    components of its rank, and `reason` says them as text. `agent_id` is the owner, None for files. `count` says how
    many finds the hit stands for, `answers` is the question before a short message, `trust` is a
    message's.
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
    count: int = 1
    answers: str | None = None
    trust: TrustLevel | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The hits, best first, and a notice if the search differed from the request, or if no hit is very relevant."""

    hits: Sequence[Hit]
    notice: str | None = None

    @property
    def is_relevant(self) -> bool:
        """False if there is probably nothing about the query: a search always finds something."""
        return bool(self.hits) and self.hits[0].score >= RELEVANT_MIN

    def noting(self, *notices: str | None) -> SearchResult:
        """Return the result with these notices before its own."""
        said = [notice for notice in (*notices, self.notice) if notice]
        return replace(self, notice="; ".join(said) or None)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryVector:
    """A question's vector (float32, little endian), the codes of its words, the fingerprint of its model, which is that
    of the index that was active then, and perhaps a notice; or only a notice that says why there is no vector.
    """

    vector: bytes | None = None
    codes: bytes = b""
    fingerprint: str | None = None
    notice: str | None = None


def check(request: SearchRequest) -> SearchRequest:
    """Check the request and return it with stored times.

    Raises:
        InvalidInput: there is nothing to search for, a bound is exceeded, or a time is invalid.
    """
    if not request.query.strip():
        raise InvalidInput("say what to look for: the query is empty")
    if len(request.query) > QUERY_CHARS_MAX:
        raise InvalidInput(f"the query has {len(request.query)} characters; at most {QUERY_CHARS_MAX} are taken")
    if not 1 <= request.limit <= LIMIT_MAX:
        raise InvalidInput(f"the limit is between 1 and {LIMIT_MAX}, not {request.limit}")
    if not request.kinds:
        raise InvalidInput(f"name at least one kind: {', '.join(SearchKind)}")
    if request.group_by is GroupBy.SESSION and SearchKind.MESSAGE not in request.kinds:
        raise InvalidInput("only messages have sessions: add the kind message, or leave out `group_by`")
    for name, values in (("agents", request.agents), ("tags", request.tags), ("sessions", request.sessions)):
        if values is not None and len(values) > FILTER_VALUES_MAX:
            raise InvalidInput(f"at most {FILTER_VALUES_MAX} {name} can be named, these are {len(values)}")
    return replace(request, since=column_time(request.since, "since"), until=column_time(request.until, "until"))
