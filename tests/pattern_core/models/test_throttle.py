from __future__ import annotations

import math
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.models.errors import (
    ModelError,
    ModelGarbage,
    ModelNotConfigured,
    ModelOverloaded,
    ModelRefused,
    ModelRejected,
    ModelServerError,
    ModelTimeout,
    ModelUnreachable,
    WindowExceeded,
)
from pattern_core.models.model import Allowance
from pattern_core.models.throttle import (
    FAILURES_MAX,
    PAUSE_S,
    PAUSE_S_MAX,
    SUCCESSES_PER_STEP,
    Breaker,
    Bucket,
    Concurrency,
    FairQueue,
    RetryPolicy,
)

# Bucket


def learned(limit: int = 600, remaining: int = 600, reset_s: float | None = None, now: float = 0.0) -> Bucket:
    bucket = Bucket()
    bucket.learn(1, Allowance(limit=limit, remaining=remaining, reset_s=reset_s), now, later=0)
    return bucket


def test_nobody_is_held_back_before_a_limit_is_known() -> None:
    bucket = Bucket()
    assert (bucket.limit, bucket.level(0), bucket.wait_s(10**9, 0)) == (None, None, 0)
    bucket.take(10**9, 0)
    bucket.settle(1, 10**9, 1, 1)
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
    bucket.take(500, 0)
    assert bucket.level(0) == 100
    bucket.settle(2, 500, 200, 0)
    assert bucket.level(0) == 400
    bucket.take(100, 0)
    bucket.settle(3, 100, 350, 0)
    assert bucket.level(0) == 50, "and what was used beyond it is gone"


def test_the_vendors_count_stands_for_the_calls_that_it_has_seen() -> None:
    bucket = learned()
    for _ in (2, 3, 4):
        bucket.take(100, 0)
    bucket.learn(3, Allowance(limit=600, remaining=450), 0, later=100)
    assert bucket.level(0) == 350, "the call number 4 came after the answer's count"
    bucket.settle(2, 100, 1, 0)
    bucket.settle(3, 100, 1, 0)
    assert bucket.level(0) == 350, "both were counted by the vendor"
    bucket.settle(4, 100, 40, 0)
    assert bucket.level(0) == 410


def test_an_answer_that_was_overtaken_tells_nothing_new() -> None:
    bucket = learned()
    bucket.learn(3, Allowance(limit=600, remaining=50), 0, later=0)
    bucket.learn(2, Allowance(limit=600, remaining=500), 0, later=100)
    assert bucket.level(0) == 50


def test_the_operators_limit_holds_where_the_vendor_allows_more() -> None:
    bucket = Bucket(stated=60)
    assert bucket.level(0) == 60
    bucket.take(60, 0)
    bucket.learn(1, Allowance(limit=1_000, remaining=999), 0, later=0)
    assert bucket.limit == 60
    assert bucket.wait_s(10, 0) == pytest.approx(10)
    bucket.learn(1, Allowance(limit=30, remaining=5), 0, later=0)
    assert (bucket.limit, bucket.level(0)) == (30, 5)


@settings(max_examples=60)
@given(
    limit=st.integers(1, 10_000),
    steps=st.lists(st.tuples(st.integers(0, 5_000), st.floats(0, 100), st.booleans()), max_size=30),
)
def test_no_more_flows_than_the_limit_and_its_refill_allow(limit: int, steps: list[tuple[int, float, bool]]) -> None:
    bucket = learned(limit=limit, remaining=limit)
    now = sent = 0.0
    for number, (units, pause_s, is_settled) in enumerate(steps, 2):
        now += pause_s
        wait_s = bucket.wait_s(units, now)
        assert 0 <= wait_s < math.inf
        now += wait_s
        bucket.take(units, now)
        sent += units
        # Calls larger than the bucket may overdraw it once each; the debt is paid before the next call goes.
        assert sent <= limit + now * limit / 60 + max(0, units - limit) + 0.01
        if is_settled:
            bucket.settle(number, units, units, now)
        level = bucket.level(now)
        assert level is not None
        assert level <= limit


# Breaker


def tripped(now: float = 0.0) -> Breaker:
    breaker = Breaker()
    for number in range(1, FAILURES_MAX + 1):
        assert breaker.state(now) == "closed"
        breaker.failed(number, 60, now)
    return breaker


def test_opens_after_failures_in_a_row_and_then_lets_one_probe() -> None:
    breaker = tripped(now=10)
    assert (breaker.state(10), breaker.ready_at(10, 0)) == ("open", 10 + PAUSE_S)
    after = 10 + PAUSE_S
    assert (breaker.state(after), breaker.ready_at(after, 60)) == ("half_open", -math.inf)
    assert breaker.ready_at(after, 61) == math.inf, "one probe at a time"
    breaker.succeeded()
    assert (breaker.state(after), breaker.failures, breaker.ready_at(after, 61)) == ("closed", 0, -math.inf)


def test_an_answer_between_failures_begins_the_count_again() -> None:
    breaker = Breaker()
    for number in range(1, 3 * FAILURES_MAX):
        breaker.failed(number, number, 0)
        if number % 2:
            breaker.succeeded()
    assert breaker.state(0) == "closed"


def test_each_failed_probe_doubles_the_pause_up_to_a_bound() -> None:
    breaker = tripped()
    now, pauses = PAUSE_S, []
    for number in range(100, 110):
        assert breaker.state(now) == "half_open"
        breaker.failed(number, number, now)
        pauses.append(breaker.ready_at(now, number) - now)
        now = breaker.ready_at(now, number)
    assert pauses[:3] == [2 * PAUSE_S, 4 * PAUSE_S, 8 * PAUSE_S]
    assert pauses[-1] == PAUSE_S_MAX
    breaker.succeeded()
    for number in range(110, 110 + FAILURES_MAX):
        breaker.failed(number, number, now)
    assert breaker.ready_at(now, 0) == now + PAUSE_S, "success forgets the long pauses"


def test_stragglers_from_before_do_not_prolong_the_pause() -> None:
    breaker = tripped()
    breaker.failed(50, 60, PAUSE_S - 1)
    assert breaker.ready_at(PAUSE_S - 1, 60) == PAUSE_S
    breaker.failed(51, 61, PAUSE_S)
    assert breaker.ready_at(PAUSE_S, 61) == math.inf, "the probe is still out"


# Concurrency


def test_halves_at_once_and_grows_one_by_one() -> None:
    some = Concurrency(16)
    assert some.allowed == 16
    some.overloaded(1, newest=1)
    assert some.allowed == 8
    for _ in range(SUCCESSES_PER_STEP - 1):
        some.succeeded()
    assert some.allowed == 8
    some.succeeded()
    assert some.allowed == 9


def test_a_burst_that_is_refused_halves_once() -> None:
    some = Concurrency(16)
    for number in (3, 1, 5):
        some.overloaded(number, newest=5)
        assert some.allowed == 8
    some.overloaded(6, newest=9)
    assert some.allowed == 4


def test_a_refusal_begins_the_count_of_successes_anew() -> None:
    some = Concurrency(4)
    some.overloaded(1, newest=2)
    for _ in range(SUCCESSES_PER_STEP - 1):
        some.succeeded()
    some.overloaded(2, newest=2)
    for _ in range(SUCCESSES_PER_STEP - 1):
        some.succeeded()
    assert some.allowed == 2
    some.succeeded()
    assert some.allowed == 3


@settings(max_examples=60)
@given(most=st.integers(1, 64), outcomes=st.lists(st.booleans(), max_size=200))
def test_stays_within_its_bounds_and_moves_by_its_rules(most: int, outcomes: list[bool]) -> None:
    some = Concurrency(most)
    for number, is_success in enumerate(outcomes):
        before = some.allowed
        if is_success:
            some.succeeded()
            assert some.allowed in (before, before + 1)
        else:
            some.overloaded(number, newest=number)
            assert some.allowed == max(before // 2, 1)
        assert 1 <= some.allowed <= some.most == most


# FairQueue


def test_flows_take_turns_and_keep_their_order() -> None:
    queue: FairQueue[str] = FairQueue()
    for item in ("a1", "a2", "a3", "b1", "c1", "c2"):
        queue.push(item[0], item)
    assert (len(queue), len(queue.flows), queue.peek()) == (6, 3, "a1")
    assert [queue.pop() for _ in range(6)] == ["a1", "b1", "c1", "a2", "c2", "a3"]
    assert (len(queue), queue.peek()) == (0, None)


def test_an_item_can_leave_before_its_turn() -> None:
    queue: FairQueue[str] = FairQueue()
    for item in ("a1", "a2", "b1"):
        queue.push(item[0], item)
    queue.remove("a", "a1")
    queue.remove("b", "b1")
    queue.remove("b", "b1")
    queue.remove("z", "z1")
    assert (len(queue), len(queue.flows), queue.pop()) == (1, 1, "a2")


@settings(max_examples=60)
@given(pushed=st.lists(st.tuples(st.sampled_from("abc"), st.integers()), max_size=40))
def test_nobody_waits_for_more_than_one_of_each_other_flow(pushed: list[tuple[str, int]]) -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue()
    for item in pushed:
        queue.push(item[0], item)
    popped = [queue.pop() for _ in pushed]
    by_flow: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for item in pushed:
        by_flow[item[0]].append(item)
    for flow, items in by_flow.items():
        assert [item for item in popped if item[0] == flow] == items
        places = [place for place, item in enumerate(popped) if item[0] == flow]
        assert all(place < (rank + 1) * len(by_flow) for rank, place in enumerate(places))


# RetryPolicy


def failed(kind: type[ModelError] = ModelServerError, retry_after_s: float | None = None) -> ModelError:
    return kind("no", provider="any", retry_after_s=retry_after_s)


def test_waits_double_up_to_the_cap() -> None:
    waits = [RetryPolicy().delay_s(attempt, failed()) for attempt in (1, 2, 3, 4, 5, 6, 10_000)]
    assert waits == [1, 2, 4, 8, 16, 30, 30]


def test_the_provider_may_ask_for_more_but_not_for_ever() -> None:
    policy = RetryPolicy()
    assert policy.delay_s(1, failed(ModelOverloaded, 7.5)) == 7.5
    assert policy.delay_s(4, failed(ModelOverloaded, 0.1)) == 8
    assert policy.delay_s(1, failed(ModelOverloaded, 86_400)) == policy.retry_after_cap_s


@pytest.mark.parametrize(
    ("kind", "attempts"),
    [
        (ModelUnreachable, 4),
        (ModelTimeout, 4),
        (ModelOverloaded, 4),
        (ModelServerError, 4),
        (ModelGarbage, 2),
        (ModelRefused, 1),
        (ModelRejected, 1),
        (WindowExceeded, 1),
        (ModelNotConfigured, 1),
    ],
)
def test_attempts_by_kind_of_error(kind: type[ModelError], attempts: int) -> None:
    allowed = [attempt for attempt in range(1, 10) if RetryPolicy().again(attempt, failed(kind))]
    assert len(allowed) + 1 == attempts


seconds = st.floats(min_value=0, max_value=1e9)


@given(
    policy=st.builds(
        RetryPolicy,
        attempts_max=st.integers(1, 20),
        base_s=st.floats(0.001, 60),
        factor=st.floats(1, 10),
        cap_s=st.floats(0.001, 600),
        jitter=st.floats(0, 1),
    ),
    attempt=st.integers(1, 1_000_000),
    retry_after_s=st.none() | seconds,
    draw=st.floats(0, 1, exclude_max=True),
)
def test_waits_are_bounded_grow_and_respect_the_provider(
    policy: RetryPolicy, attempt: int, retry_after_s: float | None, draw: float
) -> None:
    error = failed(ModelOverloaded, retry_after_s)
    wait_s = policy.delay_s(attempt, error, draw=draw)
    longest_s = max(policy.cap_s, policy.retry_after_cap_s if retry_after_s is not None else 0)
    assert 0 < wait_s <= longest_s * (1 + policy.jitter) + 1e-6
    assert math.isfinite(wait_s)
    assert wait_s >= policy.delay_s(attempt, error)
    assert policy.delay_s(attempt + 1, error) >= policy.delay_s(attempt, error)
    if retry_after_s is not None:
        assert wait_s >= min(retry_after_s, policy.retry_after_cap_s)


def test_a_wish_to_come_back_absurdly_late_ends_the_attempts() -> None:
    policy = RetryPolicy(retry_after_cap_s=300)
    assert policy.again(1, failed(ModelOverloaded, 300))
    assert not policy.again(1, failed(ModelOverloaded, 301))
    assert policy.is_absurd(failed(ModelOverloaded, 301)) and not policy.is_absurd(failed(ModelOverloaded))
