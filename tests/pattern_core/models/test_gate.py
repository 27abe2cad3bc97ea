from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from pattern_core.models.errors import (
    ModelError,
    ModelOverloaded,
    ModelRejected,
    ModelServerError,
    ModelTimeout,
    ModelUnreachable,
)
from pattern_core.models.model import Allowance, ModelReply, RateStatus, Usage
from pattern_core.models.throttle import BREAKER_PATIENCE_S, FAILURES_MAX, PAUSE_S, ClientLimits, Gate, Outcome
from pattern_core.testing import says

OUTAGE = ModelServerError("500", provider="vendor", status=500)
OVERLOAD = ModelOverloaded("429", provider="vendor", status=429)


def gate(**limits: int) -> Gate:
    return Gate(("vendor",), ClientLimits(**limits))


def virtually(test: Callable[[], Awaitable[None]]) -> None:
    trio.run(test, clock=MockClock(autojump_threshold=0))


async def enter(one: Gate, flow: str = "", tokens: int = 0, deadline: float = math.inf) -> int:
    return await one.enter(flow=flow, tokens=tokens, deadline=deadline)


async def call(one: Gate, outcome: Outcome, *, tokens: int = 0, takes_s: float = 0.0, pause_s: float = 0.0) -> None:
    number = await enter(one, tokens=tokens)
    await trio.sleep(takes_s)
    one.leave(number, outcome, pause_s=pause_s)


def told(requests: tuple[int, int] | None = None, tokens: tuple[int, int] | None = None) -> ModelReply:
    """An answer of 100 tokens with the limit and what remains of it."""
    requested, used = (pair and Allowance(limit=pair[0], remaining=pair[1]) for pair in (requests, tokens))
    return ModelReply(
        parts=says("x").parts,
        finish_reason="stop",
        usage=Usage(input_tokens=80, output_tokens=20),
        rate=RateStatus(requests=requested, tokens=used),
    )


async def test_flows_take_turns() -> None:
    one = gate(calls_max=1)
    order: list[str] = []

    async def wait(flow: str, name: str) -> None:
        number = await enter(one, flow)
        order.append(name)
        one.leave(number, says("x"))

    first = await enter(one)
    async with trio.open_nursery() as nursery:
        for flow, name in [("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1")]:
            nursery.start_soon(wait, flow, name)
            await wait_all_tasks_blocked()
        assert (one.snapshot().waiting, one.snapshot().flows_waiting) == (5, 3)
        one.leave(first, says("x"))
    assert order == ["a1", "b1", "c1", "a2", "a3"]
    assert (one.snapshot().running, one.snapshot().waiting, one.snapshot().calls_total) == (0, 0, 6)


def test_limits_told_by_answers_space_the_calls() -> None:
    async def test() -> None:
        one = gate()
        await call(one, told(requests=(60, 1), tokens=(6_000, 6_000)))
        assert one.tokens.limit == 6_000
        times = []
        for _ in range(4):
            await call(one, says("x"))
            times.append(trio.current_time())
        assert times == pytest.approx([0, 1, 2, 3])  # 60 a minute, one of them at once

    virtually(test)


def test_tokens_are_held_by_estimate_and_corrected_by_use() -> None:
    async def test() -> None:
        one = gate()
        await call(one, told(tokens=(6_000, 1_000)))
        number = await enter(one, tokens=900)
        assert one.snapshot().tokens_level == 100
        one.leave(number, told())  # it used 100 in truth
        assert one.snapshot().tokens_level == 900
        await enter(one, tokens=1_400)
        assert trio.current_time() == pytest.approx(5)

    virtually(test)


def test_what_an_answer_tells_leaves_out_the_calls_that_were_sent_later() -> None:
    async def test() -> None:
        one = gate()
        first, second, third = [await enter(one, tokens=100) for _ in range(3)]
        one.leave(second, told(tokens=(600, 450), requests=(60, 58)))
        seen = one.snapshot()
        assert (seen.tokens_level, seen.requests_level) == (350, 57), "the third call came after the vendor's count"
        one.leave(first, told(tokens=(600, 600)))
        assert one.snapshot().tokens_level == 350, "an older answer tells nothing new, and its call was counted"
        one.leave(third, told())  # it used 100, as was held
        assert one.snapshot().tokens_level == 350

    virtually(test)


def test_many_waiters_watch_one_clock_and_all_get_through() -> None:
    async def test() -> None:
        one = gate(requests_per_minute=60, calls_max=100)
        async with trio.open_nursery() as nursery:
            for _ in range(90):
                nursery.start_soon(call, one, says("x"))
        assert trio.current_time() == pytest.approx(30)  # 60 at once, 30 more at one a second

    virtually(test)


def test_a_first_in_the_row_that_gives_up_hands_the_watch_on() -> None:
    async def test() -> None:
        one = gate(requests_per_minute=60)
        for _ in range(60):
            await call(one, says("x"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_give_up_after, one, 0.3)
            await wait_all_tasks_blocked()
            nursery.start_soon(call, one, says("x"))
            await wait_all_tasks_blocked()
            assert one.snapshot().waiting == 2
        assert trio.current_time() == pytest.approx(1)
        assert one.snapshot().waiting == one.snapshot().running == 0

    virtually(test)


async def _give_up_after(one: Gate, seconds: float) -> None:
    with trio.move_on_after(seconds) as scope:
        await enter(one)
    assert scope.cancelled_caught


def test_overload_halves_and_pauses_everybody() -> None:
    async def test() -> None:
        one = gate(calls_max=8)
        numbers = [await enter(one) for _ in range(8)]
        for number in numbers:
            one.leave(number, OVERLOAD, pause_s=20)
        seen = one.snapshot()
        assert (seen.concurrency, seen.closed_for_s, seen.overloads_total, seen.state) == (4, 20, 8, "closed")
        with pytest.raises(ModelOverloaded, match="asked to be left alone for longer than there is time"):
            await enter(one, deadline=10)
        assert one.snapshot().refused_total == 1
        await enter(one)
        assert trio.current_time() == 20

    virtually(test)


def test_patience_refuses_waits_that_are_known_to_be_long() -> None:
    async def test() -> None:
        one = gate()
        await call(one, OVERLOAD, pause_s=20)
        with pytest.raises(ModelOverloaded) as caught:
            await one.enter(flow="", tokens=0, deadline=math.inf, patience_s=2)
        assert (caught.value.retry_after_s, trio.current_time()) == (20, 0)

    virtually(test)


def test_patience_ends_where_nobody_knows_how_long_it_takes() -> None:
    async def test() -> None:
        one = gate(calls_max=1)
        running = await enter(one)
        with trio.fail_after(100), pytest.raises(ModelOverloaded, match="no turn came"):
            await one.enter(flow="", tokens=0, deadline=math.inf, patience_s=2)
        assert trio.current_time() == 2
        one.leave(running, OUTAGE)
        for _ in range(FAILURES_MAX - 1):
            await call(one, OUTAGE)
        await trio.sleep(PAUSE_S)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_probe, one, 600.0)
            await wait_all_tasks_blocked()
            asked_at = trio.current_time()
            with trio.fail_after(100), pytest.raises(ModelOverloaded, match="no turn came"):
                await one.enter(flow="", tokens=0, deadline=math.inf, patience_s=2)
            assert trio.current_time() == asked_at + 2

    virtually(test)


def test_patience_ends_for_those_behind_too() -> None:
    async def test() -> None:
        one = gate(calls_max=1)
        running = await enter(one)
        refused: list[float] = []

        async def wait_a_little() -> None:
            with pytest.raises(ModelOverloaded, match="asked to be left alone"):
                await one.enter(flow="b", tokens=0, deadline=math.inf, patience_s=2)
            refused.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, one, says("x"))
            await wait_all_tasks_blocked()
            nursery.start_soon(wait_a_little)
            await wait_all_tasks_blocked()
            one.leave(running, OVERLOAD, pause_s=20)
        assert (refused, trio.current_time()) == ([0.0], 20)

    virtually(test)


def test_limits_that_leave_no_room_before_the_deadline_refuse_at_once() -> None:
    async def test() -> None:
        one = gate(tokens_per_minute=600)
        await call(one, None, tokens=600)
        with pytest.raises(ModelOverloaded, match="leave no room for longer"):
            await enter(one, tokens=600, deadline=30)
        assert trio.current_time() == 0

    virtually(test)


def test_an_outage_opens_the_gate_to_one_probe_only() -> None:
    async def test() -> None:
        one = gate()
        for _ in range(FAILURES_MAX):
            await call(one, OUTAGE)
        assert (one.snapshot().state, one.snapshot().closed_for_s) == ("open", PAUSE_S)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_probe, one, 3.0)
            await wait_all_tasks_blocked()
            await enter(one)
            # The probe went at the end of the pause, took 3 s, and only then the next one was let in.
            assert trio.current_time() == PAUSE_S + 3
        assert one.snapshot().state == "closed"

    virtually(test)


async def _probe(one: Gate, takes_s: float) -> None:
    await call(one, says("x"), takes_s=takes_s)


def test_a_vendor_that_stays_away_is_not_waited_for() -> None:
    async def test() -> None:
        one = gate()
        for _ in range(FAILURES_MAX + 3):
            await call(one, OUTAGE)
        assert one.snapshot().closed_for_s > BREAKER_PATIENCE_S
        with pytest.raises(ModelUnreachable, match="failed 8 times in a row and is left alone"):
            await enter(one)

    virtually(test)


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (OUTAGE, "open"),
        (ModelTimeout("slow", provider="v"), "open"),
        (ModelOverloaded("503", provider="v", status=503), "open"),
        (OVERLOAD, "closed"),
        (ModelRejected("400", provider="v"), "closed"),
        (None, "closed"),
    ],
)
async def test_only_outages_count(outcome: Outcome, state: str) -> None:
    one = gate()
    for _ in range(FAILURES_MAX):
        number = await enter(one)
        one.leave(number, outcome)
    assert one.snapshot().state == state


async def test_the_turns_own_deadline_says_nothing_of_the_vendor() -> None:
    one = gate()
    late = ModelTimeout("late", provider="v")
    late.details["deadline"] = True
    for _ in range(FAILURES_MAX):
        one.leave(await enter(one), late)
    assert one.snapshot().failures == 0


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
def test_whatever_happens_nobody_hangs_and_every_slot_comes_back(
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
        seen = one.snapshot()
        assert (seen.running, seen.waiting, seen.flows_waiting) == (0, 0, 0)
        assert trio.current_time() < 1_000

    virtually(test)
