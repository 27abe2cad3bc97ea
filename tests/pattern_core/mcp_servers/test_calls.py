"""The row of calls."""

from __future__ import annotations

import trio

from pattern_core.errors import Unavailable
from pattern_core.mcp_servers.answers import Answer
from pattern_core.mcp_servers.calls import WAITING_MAX, Call, Calls


def make(tool: str = "t") -> Call:
    return Call(tool=tool, arguments={}, meta={}, seconds=1)


def test_the_first_answer_counts() -> None:
    call = make()
    call.settle(Answer(text="one"))
    call.settle(Unavailable("two"))
    assert (call.answer, call.done.is_set()) == (Answer(text="one"), True)


async def test_first_come_first_served_and_who_leaves_makes_room() -> None:
    calls = Calls()
    made = [make(str(number)) for number in range(WAITING_MAX)]
    assert all(calls.add(call) for call in made)
    assert not calls.add(make("more"))
    calls.leave(made[0])
    calls.leave(made[0])
    assert calls.add(made[0])
    assert [(await calls.next()).tool for _ in range(2)] == ["1", "2"]


async def test_waiting_for_a_call_takes_none_when_it_is_cancelled() -> None:
    calls = Calls()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(calls.next)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            calls.add(make())
    assert len(calls) == 1


def test_all_are_told_when_nobody_comes() -> None:
    calls = Calls()
    call = make()
    calls.add(call)
    error = Unavailable("gone")
    calls.give_up(error)
    assert (call.answer, len(calls)) == (error, 0)
