from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.models.bucket import Bucket


def learned(limit: int = 600, remaining: int = 600, reset_s: float | None = None, now: float = 0.0) -> Bucket:
    bucket = Bucket()
    hold = bucket.take(0, now)
    bucket.learn(hold, limit, remaining, reset_s, now)
    bucket.settle(hold, None, now)
    return bucket


def test_nobody_is_held_back_before_a_limit_is_known() -> None:
    bucket = Bucket()
    assert (bucket.is_known, bucket.level(0), bucket.wait_s(10**9, 0)) == (False, None, 0)
    hold = bucket.take(10**9, 0)
    bucket.settle(hold, 1, 1)
    assert bucket.wait_s(10**9, 1) == 0


def test_what_is_missing_is_waited_for_at_the_speed_that_the_reset_tells() -> None:
    bucket = learned(limit=600, remaining=100, reset_s=50)  # 500 in 50 s
    assert bucket.wait_s(100, 0) == 0
    assert bucket.wait_s(300, 0) == pytest.approx(20)
    assert bucket.level(10) == pytest.approx(200)
    assert bucket.level(1_000) == 600, "it never holds more than the limit"


def test_without_a_reset_the_limit_is_one_per_minute() -> None:
    assert learned(limit=600, remaining=0).wait_s(100, 0) == pytest.approx(10)


def test_a_reset_far_away_slows_the_bucket_down_to_a_daily_limit_at_most() -> None:
    assert learned(limit=1_440, remaining=0, reset_s=3_600).wait_s(1, 0) == pytest.approx(2.5)
    assert learned(limit=1_440, remaining=1_439, reset_s=3_600).wait_s(1_440, 0) == pytest.approx(60)


def test_a_call_larger_than_the_bucket_waits_until_it_is_full() -> None:
    bucket = learned(limit=600, remaining=590)
    assert bucket.wait_s(10_000, 0) == pytest.approx(1)
    bucket.take(10_000, 1)
    assert bucket.wait_s(1, 1) == pytest.approx((10_000 - 600 + 1) / 10)


def test_what_was_held_too_much_comes_back() -> None:
    bucket = learned()
    hold = bucket.take(500, 0)
    assert bucket.level(0) == 100
    bucket.settle(hold, 200, 0)
    assert bucket.level(0) == 400
    more = bucket.take(100, 0)
    bucket.settle(more, 350, 0)
    assert bucket.level(0) == 50, "and what was used beyond it is gone"


def test_the_vendors_count_stands_for_the_calls_that_it_has_seen() -> None:
    bucket = learned()
    first, second, third = (bucket.take(100, 0) for _ in range(3))
    bucket.learn(second, 600, 450, None, 0)
    assert bucket.level(0) == 350, "the third call came after the answer's count"
    bucket.settle(first, 1, 0)
    bucket.settle(second, 1, 0)
    assert bucket.level(0) == 350, "both were counted by the vendor"
    bucket.settle(third, 40, 0)
    assert bucket.level(0) == 410


def test_an_answer_that_was_overtaken_tells_nothing_new() -> None:
    bucket = learned()
    first, second = bucket.take(100, 0), bucket.take(100, 0)
    bucket.learn(second, 600, 50, None, 0)
    bucket.learn(first, 600, 500, None, 0)
    assert bucket.level(0) == 50


def test_the_operators_limit_holds_where_the_vendor_allows_more() -> None:
    bucket = Bucket(stated=60)
    assert bucket.level(0) == 60
    hold = bucket.take(60, 0)
    bucket.learn(hold, 1_000, 999, None, 0)
    assert bucket.limit == 60
    assert bucket.wait_s(10, 0) == pytest.approx(10)
    bucket.learn(hold, 30, 5, None, 0)
    assert (bucket.limit, bucket.level(0)) == (30, 5)


@pytest.mark.parametrize(("limit", "remaining"), [(None, 5), (5, None), (0, 0)])
def test_half_of_a_header_is_none(limit: int | None, remaining: int | None) -> None:
    bucket = Bucket()
    bucket.learn(bucket.take(1, 0), limit, remaining, 1.0, 0)
    assert not bucket.is_known


@settings(max_examples=60)
@given(
    limit=st.integers(1, 10_000),
    steps=st.lists(st.tuples(st.integers(0, 5_000), st.floats(0, 100), st.booleans()), max_size=30),
)
def test_no_more_flows_than_the_limit_and_its_refill_allow(limit: int, steps: list[tuple[int, float, bool]]) -> None:
    bucket = learned(limit=limit, remaining=limit)
    now = sent = 0.0
    for units, pause_s, is_settled in steps:
        now += pause_s
        wait_s = bucket.wait_s(units, now)
        assert 0 <= wait_s < math.inf
        now += wait_s
        hold = bucket.take(units, now)
        sent += units
        # Calls larger than the bucket may overdraw it once each; the debt is paid before the next call goes.
        assert sent <= limit + now * limit / 60 + max(0, units - limit) + 0.01
        if is_settled:
            bucket.settle(hold, units, now)
        level = bucket.level(now)
        assert level is not None
        assert level <= limit
