"""One search over all data of a constellation: messages, blocks, archive, files and summaries."""

from pattern_core.search.find import QueryVectors, search
from pattern_core.search.request import KINDS, RELEVANT_MIN, GroupBy, Hit, Mode, SearchRequest, SearchResult
from pattern_db.enums import SPOKEN

__all__ = [
    "KINDS",
    "RELEVANT_MIN",
    "SPOKEN",
    "GroupBy",
    "Hit",
    "Mode",
    "QueryVectors",
    "SearchRequest",
    "SearchResult",
    "search",
]
