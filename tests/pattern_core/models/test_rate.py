from __future__ import annotations

from pattern_core.models.rate import RateStatus


def test_the_moment_is_no_part_of_what_was_told() -> None:
    assert RateStatus(requests_limit=5, at=1.0) == RateStatus(requests_limit=5, at=2.0)
    assert RateStatus(requests_limit=5) != RateStatus(requests_limit=6)
