from __future__ import annotations

import math

from pattern_core.models.breaker import FAILURES_MAX, PAUSE_S, PAUSE_S_MAX, Breaker


def tripped(now: float = 0.0) -> Breaker:
    breaker = Breaker()
    for number in range(FAILURES_MAX):
        assert breaker.state(now) == "closed"
        breaker.failed(number, now)
    return breaker


def test_opens_after_failures_in_a_row_and_then_lets_one_probe() -> None:
    breaker = tripped(now=10)
    assert (breaker.state(10), breaker.ready_at(10)) == ("open", 10 + PAUSE_S)
    after = 10 + PAUSE_S
    assert (breaker.state(after), breaker.ready_at(after)) == ("half_open", -math.inf)
    breaker.sent(100, after)
    assert breaker.ready_at(after) == math.inf, "one probe at a time"
    breaker.succeeded()
    assert (breaker.state(after), breaker.failures) == ("closed", 0)


def test_an_answer_between_failures_begins_the_count_anew() -> None:
    breaker = Breaker()
    for number in range(3 * FAILURES_MAX):
        breaker.failed(number, 0)
        if number % 2:
            breaker.succeeded()
    assert breaker.state(0) == "closed"


def test_each_failed_probe_doubles_the_pause_up_to_a_bound() -> None:
    breaker = tripped()
    now, pauses = PAUSE_S, []
    for number in range(100, 110):
        assert breaker.state(now) == "half_open"
        breaker.sent(number, now)
        breaker.failed(number, now)
        pauses.append(breaker.ready_at(now) - now)
        now = breaker.ready_at(now)
    assert pauses[:3] == [2 * PAUSE_S, 4 * PAUSE_S, 8 * PAUSE_S]
    assert pauses[-1] == PAUSE_S_MAX
    breaker.succeeded()
    for number in range(FAILURES_MAX):
        breaker.failed(number, now)
    assert breaker.ready_at(now) == now + PAUSE_S, "success forgets the long pauses"


def test_stragglers_from_before_do_not_prolong_the_pause() -> None:
    breaker = tripped()
    breaker.failed(50, PAUSE_S - 1)
    assert breaker.ready_at(PAUSE_S - 1) == PAUSE_S
    breaker.sent(100, PAUSE_S)
    breaker.failed(51, PAUSE_S)
    assert breaker.ready_at(PAUSE_S) == math.inf, "the probe is still out"


def test_a_probe_given_up_leaves_the_place_to_another() -> None:
    breaker = tripped()
    breaker.sent(100, PAUSE_S)
    breaker.abandoned(99)
    assert breaker.ready_at(PAUSE_S) == math.inf
    breaker.abandoned(100)
    assert breaker.ready_at(PAUSE_S) == -math.inf
