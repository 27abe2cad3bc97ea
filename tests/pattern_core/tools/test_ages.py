from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.tools.ages import AgedQuery, read_age

HOUR, DAY, WEEK = 3_600_000, 86_400_000, 7 * 86_400_000
NOW = 100 * WEEK


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("tea > 5 days", AgedQuery(query="tea", until_ms=NOW - 5 * DAY)),
        ("tea >5 days old", AgedQuery(query="tea", until_ms=NOW - 5 * DAY)),
        ("green tea < 3 Hours", AgedQuery(query="green tea", since_ms=NOW - 3 * HOUR)),
        ("tea 1-2 weeks", AgedQuery(query="tea", since_ms=NOW - 2 * WEEK, until_ms=NOW - WEEK)),
        ("tea 2 – 1 weeks old", AgedQuery(query="tea", since_ms=NOW - 2 * WEEK, until_ms=NOW - WEEK)),
        ("tea 5 days old", AgedQuery(query="tea", since_ms=NOW - 11 * DAY // 2, until_ms=NOW - 9 * DAY // 2)),
        ("tea > 1 month", AgedQuery(query="tea", until_ms=NOW - 30 * DAY)),
        ('tea "5 days old"', AgedQuery(query='tea "5 days old"')),
        ("what happened 5 days ago", AgedQuery(query="what happened 5 days ago")),
        ("we waited 5 days", AgedQuery(query="we waited 5 days")),
        ("> 5 days", AgedQuery(query="> 5 days")),
        ("tea > 5 days and more", AgedQuery(query="tea > 5 days and more")),
        ("", AgedQuery(query="")),
    ],
)
def test_ages(query: str, expected: AgedQuery) -> None:
    assert read_age(query, NOW) == expected


@given(st.text(alphabet="tea 12<>-–daysoldweeks"))
def test_any_query_keeps_its_words(query: str) -> None:
    aged = read_age(query, NOW)
    assert query.startswith(aged.query) or aged.query in query
    assert aged.query or not query
