from __future__ import annotations

import math
from collections import defaultdict
from functools import partial

import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

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
from pattern_core.models.model import Allowance, ModelReply, RateStatus, Usage
from pattern_core.models.throttle import (
    BREAKER_PATIENCE_S,
    FAILURES_MAX,
    PAUSE_S,
    PAUSE_S_MAX,
    SUCCESSES_PER_STEP,
    Bucket,
    ClientLimits,
    FairQueue,
    Gate,
    Health,
    Outcome,
    RetryPolicy,
)
from pattern_core.testing import says

# Bucket


def learned(limit: int = 600, remaining: int = 600, reset_s: float | None = None, now: float = 0.0) -> Bucket:
    bucket = Bucket()
    bucket.learn(1, Allowance(limit=limit, remaining=remaining, reset_s=reset_s), now, later=0)
    return bucket


def test_no_call_is_held_back_before_a_limit_is_known() -> None:
    bucket = Bucket()
    assert (bucket.limit, bucket.level(0), bucket.wait_s(10**9, 0)) == (None, None, 0)
    bucket.take(10**9, 0)
    bucket.settle(1, 10**9, 1, 1)
    assert bucket.wait_s(10**9, 1) == 0


@pytest.mark.parametrize(
    ("limit", "remaining", "reset_s", "units", "wait_s"),
    [
        (600, 100, 50, 100, 0),
        (600, 100, 50, 300, 20),  # 500 in 50 s
        (600, 0, None, 100, 10),  # without a reset the limit is one per minute
        (1_440, 0, 3_600, 1, 2.5),
        (1_440, 1_439, 3_600, 1_440, 60),  # slowed down to a daily limit at most
        (600, 590, None, 10_000, 1),  # a call larger than the bucket waits until it is full
    ],
)
def test_what_is_missing_is_waited_for(
    limit: int, remaining: int, reset_s: float | None, units: int, wait_s: float
) -> None:
    bucket = learned(limit, remaining, reset_s)
    assert bucket.wait_s(units, 0) == pytest.approx(wait_s)
    assert bucket.level(10_000) == limit, "it never holds more"


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


# Health


def tripped(now: float = 0.0) -> Health:
    health = Health(1)
    health.newest = 60
    for number in range(1, FAILURES_MAX + 1):
        assert health.state(now) == "closed"
        health.failed(number, now)
    return health


def test_an_answer_between_failures_begins_the_count_again() -> None:
    health = Health(1)
    for number in range(1, 3 * FAILURES_MAX):
        health.failed(number, 0)
        if number % 2:
            health.answered()
    assert health.state(0) == "closed"


def test_each_failed_probe_doubles_the_pause_up_to_a_bound() -> None:
    health = tripped()
    now, pauses = PAUSE_S, []
    for number in range(100, 110):
        health.newest = number
        assert health.state(now) == "half_open"
        health.failed(number, now)
        pauses.append(health.ready_at(now, number) - now)
        now = health.ready_at(now, number)
    assert pauses[:3] == [2 * PAUSE_S, 4 * PAUSE_S, 8 * PAUSE_S]
    assert pauses[-1] == PAUSE_S_MAX
    health.answered(is_refusal=True)
    for number in range(110, 110 + FAILURES_MAX):
        health.failed(number, now)
    assert health.ready_at(now, 0) == now + PAUSE_S, "success forgets the long pauses"


def test_stragglers_from_before_do_not_prolong_the_pause() -> None:
    health = tripped()
    health.failed(50, PAUSE_S - 1)
    assert health.ready_at(PAUSE_S - 1, 60) == PAUSE_S
    health.newest = 61
    health.failed(51, PAUSE_S)
    assert health.ready_at(PAUSE_S, 61) == math.inf, "the probe is still out"


def test_overload_halves_once_per_burst_and_answers_in_a_row_add_one() -> None:
    health = Health(16)
    health.newest = 5
    for number in (3, 1, 5):
        health.overloaded(number)
        assert health.allowed == 8
    for _ in range(SUCCESSES_PER_STEP - 1):
        health.answered()
    health.newest = 9
    health.overloaded(5)  # of the same burst, but it begins the count again
    for allowed in (*[8] * (SUCCESSES_PER_STEP - 1), *[9] * SUCCESSES_PER_STEP, 10):
        health.answered()
        assert health.allowed == allowed
    health.overloaded(6)
    assert health.allowed == 5


def test_concurrency_stays_within_its_bounds() -> None:
    health = Health(2)
    for _ in range(2 * SUCCESSES_PER_STEP):
        health.answered()
    assert health.allowed == 2
    for health.newest in range(1, 4):
        health.overloaded(health.newest)
    assert health.allowed == 1


# FairQueue


@settings(max_examples=60)
@given(pushed=st.lists(st.tuples(st.sampled_from("abc"), st.integers()), max_size=40))
def test_no_call_waits_for_more_than_one_of_each_other_flow(pushed: list[tuple[str, int]]) -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue()
    for item in pushed:
        queue.push(item[0], item)
    served: list[tuple[str, int]] = []
    while (first := queue.peek()) is not None:
        queue.remove(first[0], first, is_served=True)
        served.append(first)
    by_flow: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for item in pushed:
        by_flow[item[0]].append(item)
    for flow, items in by_flow.items():
        assert [item for item in served if item[0] == flow] == items
        places = [place for place, item in enumerate(served) if item[0] == flow]
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
    assert policy.delay_s(1, failed(ModelOverloaded, 8), draw=0.5) == 8 * (1 + policy.jitter / 2)


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


def test_a_request_to_come_back_absurdly_late_ends_the_attempts() -> None:
    policy = RetryPolicy(retry_after_cap_s=300)
    assert policy.again(1, failed(ModelOverloaded, 300))
    assert not policy.again(1, failed(ModelOverloaded, 301))
    assert policy.is_absurd(failed(ModelOverloaded, 301)) and not policy.is_absurd(failed(ModelOverloaded))


# Gate

OUTAGE = ModelServerError("500", provider="vendor", status=500)
OVERLOAD = ModelOverloaded("429", provider="vendor", status=429)
LATE = ModelTimeout("late", provider="vendor")
LATE.details["deadline"] = True  # the turn's own, which says nothing of the vendor


def gate(**limits: int) -> Gate:
    return Gate(("vendor",), ClientLimits(**limits))


async def enter(one: Gate, flow: str = "", tokens: int = 0, deadline: float = math.inf) -> int:
    return await one.enter(flow=flow, tokens=tokens, deadline=deadline)


async def call(one: Gate, outcome: Outcome, *, tokens: int = 0, takes_s: float = 0.0, pause_s: float = 0.0) -> None:
    number = await enter(one, tokens=tokens)
    await trio.sleep(takes_s)
    one.leave(number, outcome, pause_s=pause_s)


def stating(requests: tuple[int, int] | None = None, tokens: tuple[int, int] | None = None) -> ModelReply:
    """An answer of 100 tokens with the limit and what remains of it."""
    requested, used = (pair and Allowance(limit=pair[0], remaining=pair[1]) for pair in (requests, tokens))
    return ModelReply(
        parts=says("x").parts,
        finish_reason="stop",
        usage=Usage(input_tokens=80, output_tokens=20),
        rate=RateStatus(requests=requested, tokens=used),
    )


@pytest.mark.parametrize("tokens", [None, (6_000, 6_000)])
async def test_limits_stated_by_answers_space_the_calls(
    tokens: tuple[int, int] | None, autojump_clock: MockClock
) -> None:
    one = gate()
    await call(one, stating(requests=(60, 1), tokens=tokens))
    assert one.tokens.limit == (tokens and 6_000)
    times = []
    for _ in range(4):
        await call(one, says("x"))
        times.append(trio.current_time())
    assert times == pytest.approx([0, 1, 2, 3])  # 60 a minute, one of them at once


async def test_tokens_are_held_by_estimate_and_corrected_by_use(autojump_clock: MockClock) -> None:
    one = gate()
    await call(one, stating(tokens=(6_000, 1_000)))
    number = await enter(one, tokens=900)
    assert one.figures()["tokens_level"] == 100
    one.leave(number, stating())  # it used 100 in truth
    assert one.figures()["tokens_level"] == 900
    await call(one, stating(), tokens=50)
    assert one.figures()["tokens_level"] == 800, "what was used beyond the estimate is gone"
    await enter(one, tokens=1_300)
    assert trio.current_time() == pytest.approx(5)


async def test_what_an_answer_states_leaves_out_the_calls_that_were_sent_later(autojump_clock: MockClock) -> None:
    one = gate()
    first, second, third = [await enter(one, tokens=held) for held in (100, 100, 150)]
    one.leave(second, stating(tokens=(600, 450), requests=(60, 58)))
    seen = one.figures()
    assert (seen["tokens_level"], seen["requests_level"]) == (300, 57), "the third call came after the vendor's count"
    one.leave(first, stating(tokens=(600, 600)))
    assert one.figures()["tokens_level"] == 300, "an older answer says nothing new, and its call was counted"
    one.leave(third, stating())  # it used 100 of the 150 that were held
    assert one.figures()["tokens_level"] == 350


async def test_many_waiters_watch_one_clock_and_all_get_through(autojump_clock: MockClock) -> None:
    one = gate(requests_per_minute=60, calls_max=100)
    async with trio.open_nursery() as nursery:
        for _ in range(90):
            nursery.start_soon(call, one, says("x"))
    assert trio.current_time() == pytest.approx(30)  # 60 at once, 30 more at one a second


async def test_a_first_in_the_row_that_gives_up_hands_the_watch_on(autojump_clock: MockClock) -> None:
    async def give_up_after_a_while() -> None:
        with trio.move_on_after(0.3) as scope:
            await enter(one)
        assert scope.cancelled_caught

    one = gate(requests_per_minute=60)
    for _ in range(60):
        await call(one, says("x"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(give_up_after_a_while)
        await wait_all_tasks_blocked()
        nursery.start_soon(call, one, says("x"))
        await wait_all_tasks_blocked()
        assert one.figures()["waiting"] == 2
    assert trio.current_time() == pytest.approx(1)
    assert one.figures()["waiting"] == one.figures()["running"] == 0


async def test_overload_halves_and_pauses_all_calls(autojump_clock: MockClock) -> None:
    one = gate(calls_max=8)
    numbers = [await enter(one) for _ in range(8)]
    for number in numbers:
        one.leave(number, OVERLOAD, pause_s=20)
    seen = one.figures()
    assert (seen["concurrency"], seen["closed_for_s"], seen["overloads_total"], seen["state"]) == (4, 20, 8, "closed")
    with pytest.raises(ModelOverloaded, match="asked for a delay, for longer") as caught:
        await enter(one, deadline=10)
    assert (caught.value.retry_after_s, trio.current_time(), one.figures()["refused_total"]) == (20, 0, 1)
    await enter(one)
    assert trio.current_time() == 20


async def test_a_wait_of_unknown_length_ends_at_the_deadline(autojump_clock: MockClock) -> None:
    one = gate(calls_max=1)
    running = await enter(one)
    with trio.fail_after(100), pytest.raises(ModelOverloaded, match="it could not be sent"):
        await enter(one, deadline=2)
    assert trio.current_time() == 2
    one.leave(running, OUTAGE)
    for _ in range(FAILURES_MAX - 1):
        await call(one, OUTAGE)
    await trio.sleep(PAUSE_S)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(call, one, says("x"), takes_s=600))
        await wait_all_tasks_blocked()
        asked_at = trio.current_time()
        with trio.fail_after(100), pytest.raises(ModelOverloaded, match="it could not be sent"):
            await enter(one, deadline=asked_at + 2)
        assert trio.current_time() == asked_at + 2


async def test_those_behind_learn_of_a_pause_too(autojump_clock: MockClock) -> None:
    one = gate(calls_max=1)
    running = await enter(one)
    refused: list[float] = []

    async def wait_a_little() -> None:
        with pytest.raises(ModelOverloaded, match="asked for a delay"):
            await enter(one, "b", deadline=2)
        refused.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call, one, says("x"))
        await wait_all_tasks_blocked()
        nursery.start_soon(wait_a_little)
        await wait_all_tasks_blocked()
        one.leave(running, OVERLOAD, pause_s=20)
    assert (refused, trio.current_time()) == ([0.0], 20)


async def test_limits_that_leave_no_room_before_the_deadline_refuse_at_once(autojump_clock: MockClock) -> None:
    one = gate(tokens_per_minute=600)
    await call(one, None, tokens=600)
    with pytest.raises(ModelOverloaded, match="is reached, for longer"):
        await enter(one, tokens=600, deadline=30)
    assert trio.current_time() == 0


async def test_an_outage_opens_the_gate_to_one_probe_only(autojump_clock: MockClock) -> None:
    one = gate()
    for _ in range(FAILURES_MAX):
        await call(one, OUTAGE)
    assert (one.figures()["state"], one.figures()["closed_for_s"]) == ("open", PAUSE_S)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(call, one, says("x"), takes_s=3))
        await wait_all_tasks_blocked()
        await enter(one)
        # The probe went at the end of the pause, took 3 s, and only then the next one was let in.
        assert trio.current_time() == PAUSE_S + 3
    assert one.figures()["state"] == "closed"


async def test_a_vendor_that_stays_away_is_not_waited_for(autojump_clock: MockClock) -> None:
    one = gate()
    for _ in range(FAILURES_MAX + 3):
        await call(one, OUTAGE)
    assert one.figures()["closed_for_s"] > BREAKER_PATIENCE_S
    with pytest.raises(ModelUnreachable, match="failed 8 times in a row and is not called"):
        await enter(one)


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (OUTAGE, "open"),
        (ModelTimeout("slow", provider="v"), "open"),
        (ModelOverloaded("503", provider="v", status=503), "open"),
        (OVERLOAD, "closed"),
        (LATE, "closed"),
        (ModelRejected("400", provider="v"), "closed"),
        (None, "closed"),
    ],
)
async def test_only_outages_count(outcome: Outcome, state: str) -> None:
    one = gate()
    for _ in range(FAILURES_MAX):
        number = await enter(one)
        one.leave(number, outcome)
    assert one.figures()["state"] == state


@settings(max_examples=25, deadline=None)
@example(calls=[("a", "ok", 0.0, 0.0), ("a", "cancel", 1.0, 1.0), ("a", "ok", 1.0, 1.0)], calls_max=1)
@given(
    calls=st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.sampled_from(["ok", "overload", "outage", "cancel"]),
            st.floats(0, 5),
            st.floats(0, 5),
        ),
        min_size=1,
        max_size=25,
    ),
    calls_max=st.integers(1, 4),
)
def test_whatever_happens_no_call_hangs_and_every_slot_comes_back(
    calls: list[tuple[str, str, float, float]], calls_max: int
) -> None:
    async def test() -> None:
        one = gate(calls_max=calls_max, requests_per_minute=600)
        outcomes: dict[str, ModelReply | ModelError | None] = {
            "ok": says("x"), "overload": OVERLOAD, "outage": OUTAGE, "cancel": None
        }  # fmt: skip
        running = 0

        async def one_call(flow: str, how: str, begins_s: float, takes_s: float) -> None:
            nonlocal running
            await trio.sleep(begins_s)
            try:
                with trio.CancelScope(deadline=trio.current_time() + takes_s if how == "cancel" else math.inf):
                    number = await one.enter(flow=flow, tokens=1, deadline=trio.current_time() + 100)
                    running += 1
                    assert running <= calls_max
                    try:
                        await trio.sleep(takes_s)
                    finally:
                        running -= 1
                        one.leave(number, outcomes[how], pause_s=1.0)
            except (ModelOverloaded, ModelUnreachable):
                pass

        async with trio.open_nursery() as nursery:
            for each in calls:
                nursery.start_soon(one_call, *each)
        seen = one.figures()
        assert (seen["running"], seen["waiting"], seen["flows_waiting"]) == (0, 0, 0)
        assert trio.current_time() < 1_000

    trio.run(test, clock=MockClock(autojump_threshold=0))
