"""One search over what a constellation knows: messages, blocks, archive, files and summaries."""

from pattern_core.search.find import QueryVectors, search
from pattern_core.search.request import KINDS, GroupBy, Hit, Mode, SearchRequest, SearchResult

__all__ = ["KINDS", "GroupBy", "Hit", "Mode", "QueryVectors", "SearchRequest", "SearchResult", "search"]
