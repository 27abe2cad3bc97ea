from __future__ import annotations

import pytest

from pattern_core.search.dates import NamedDate, named_dates, nearness


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("on 23 May, 2023", [NamedDate(2023, 5, 23)]),
        ("on May 3, 2023", [NamedDate(2023, 5, 3)]),
        ("in December 2023", [NamedDate(2023, 12, None)]),
        ("the 3rd of March", [NamedDate(None, 3, 3)]),
        ("in July", [NamedDate(None, 7, None)]),
        ("2024-01-31 or 2024-02", [NamedDate(2024, 1, 31), NamedDate(2024, 2, None)]),
        ("what may I march for", []),
        ("2024-13-01", []),
        ("", []),
    ],
)
def test_dates_that_are_named(query: str, expected: list[NamedDate]) -> None:
    assert named_dates(query) == expected


@pytest.mark.parametrize(
    ("query", "day", "expected"),
    [
        ("23 May 2023", "2023-05-23", 1.0),
        ("23 May 2023", "2023-05-24", 1.0),
        ("23 May 2023", "2023-05-30", 0.7),
        ("23 May 2023", "2023-06-20", 0.3),
        ("23 May 2023", "2024-05-23", 0.0),
        ("23 May", "2024-05-23", 1.0),
        ("May 2023", "2023-05-01", 1.0),
        ("December 2023", "2024-01-05", 0.3),
        ("July", "2020-08-05", 0.3),
        ("30 February 2023", "2023-02-28", 0.0),
        ("no date", "2023-02-28", 0.0),
    ],
)
def test_how_near_a_day_is(query: str, day: str, expected: float) -> None:
    assert nearness(named_dates(query), f"{day}T12:00:00.000Z") == expected
