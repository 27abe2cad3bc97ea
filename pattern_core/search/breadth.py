"""How much one search looks at. Pure.

A search that somebody asks for looks at enough that more would find no better. One at the start of a turn keeps the
turn waiting: it looks at a bounded part, whatever there is. Of words that many texts hold it reads the newest rows
alone; rare words, which tell more, are read whole. `python -m tests.bench search` measures what it costs.
"""

from __future__ import annotations

from dataclasses import dataclass

from pattern_core.search.request import GroupBy, SearchRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Breadth:
    """Rows in each case.

    `candidates`: messages whose own words fit best. `nearest`: messages nearest in meaning; the last of them sets the
    scale of nearness. `leaders`: of these, the best: what stands beside them is looked at too. `documents`: of another
    kind, by words. `compared`: of another kind, by meaning. `posted`: that hold one term. `together`: that hold any,
    those of rare terms first. `is_bounded` says that nothing else may be read, such as all rows that fit a filter.
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
    candidates=20, nearest=20, leaders=8, documents=24, compared=24, posted=500, together=2_500, is_bounded=True
)


def breadth(request: SearchRequest) -> Breadth:
    """What the request calls for; more where more hits are asked for than would be compared."""
    if request.is_quick:
        return QUICK
    return SESSIONS if request.group_by is GroupBy.SESSION else FULL
