from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.models.concurrency import SUCCESSES_PER_STEP, Concurrency


def test_halves_at_once_and_grows_one_by_one() -> None:
    some = Concurrency(16)
    assert some.allowed == 16
    assert some.overloaded(1, newest=1)
    assert some.allowed == 8
    for _ in range(SUCCESSES_PER_STEP - 1):
        some.succeeded()
    assert some.allowed == 8
    some.succeeded()
    assert some.allowed == 9


def test_a_burst_that_is_refused_halves_once() -> None:
    some = Concurrency(16)
    assert [some.overloaded(number, newest=5) for number in (3, 1, 5)] == [True, False, False]
    assert some.allowed == 8
    assert some.overloaded(6, newest=9)
    assert some.allowed == 4


def test_a_refusal_begins_the_count_of_successes_anew() -> None:
    some = Concurrency(4, successes_per_step=2)
    some.overloaded(1, newest=2)
    some.succeeded()
    some.overloaded(2, newest=2)
    some.succeeded()
    assert some.allowed == 2
    some.succeeded()
    assert some.allowed == 3


@settings(max_examples=60)
@given(most=st.integers(1, 64), least=st.integers(1, 8), outcomes=st.lists(st.booleans(), max_size=200))
def test_stays_within_its_bounds_and_moves_by_its_rules(most: int, least: int, outcomes: list[bool]) -> None:
    some = Concurrency(most, least=least, successes_per_step=3)
    for number, is_success in enumerate(outcomes):
        before = some.allowed
        if is_success:
            some.succeeded()
            assert some.allowed in (before, before + 1)
        else:
            some.overloaded(number, newest=number)
            assert some.allowed == max(before // 2, some.least)
        assert 1 <= some.least <= some.allowed <= some.most == most
