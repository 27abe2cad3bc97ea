from __future__ import annotations

from pattern_core.search.request import SearchRequest, check
from pattern_db.enums import Role, SearchKind
from pattern_db.search import Filters


def test_what_is_asked_becomes_filters() -> None:
    request = SearchRequest(
        query="x", kinds=[SearchKind.FILE], agents=["a"], since="2026-01-01T01:00:00+01:00", tags=["t"], workspace="w"
    )
    assert check(request) == Filters(
        agents=["a"],
        roles=(Role.USER, Role.ASSISTANT, Role.SYSTEM),
        since="2026-01-01T00:00:00.000Z",
        tags=["t"],
        workspace="w",
    )


def test_a_query_of_ten_thousand_characters_is_taken() -> None:
    assert check(SearchRequest(query="x" * 10_000, roles=[Role.TOOL])).roles == [Role.TOOL]
