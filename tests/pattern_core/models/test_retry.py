from __future__ import annotations

import math

import pytest
from hypothesis import given
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
from pattern_core.models.retry import RetryPolicy


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
