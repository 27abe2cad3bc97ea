"""A connection while it lasts, and the row of calls."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from pattern_core.errors import LimitReached, Unavailable
from pattern_core.mcp_servers.life import WAITING_MAX, CallQueue, McpCall, own, reason_of
from pattern_core.mcp_servers.tools import Answer
from tests.pattern_core.mcp_servers.rig import owned, program, until


def make(tool: str = "t") -> McpCall:
    return McpCall(tool=tool, arguments={}, meta={}, seconds=1)


def test_the_first_answer_counts() -> None:
    call = make()
    call.settle(Answer(text="one"))
    call.settle(Unavailable("two"))
    assert (call.answer, call.done.is_set()) == (Answer(text="one"), True)


async def test_first_come_first_served_and_who_leaves_makes_room() -> None:
    calls = CallQueue()
    made = [make(str(number)) for number in range(WAITING_MAX)]
    assert all(calls.add(call) for call in made)
    assert not calls.add(make("more"))
    calls.leave(made[0])
    calls.leave(made[0])
    assert calls.add(made[0])
    assert [(await calls.next()).tool for _ in range(2)] == ["1", "2"]


async def test_waiting_for_a_call_takes_none_when_it_is_cancelled() -> None:
    calls = CallQueue()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(calls.next)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            calls.add(make())
    assert len(calls) == 1


def test_all_are_told_when_nobody_comes() -> None:
    calls = CallQueue()
    call = make()
    calls.add(call)
    error = Unavailable("gone")
    calls.give_up(error)
    assert (call.answer, len(calls)) == (error, 0)


async def test_calls_run_side_by_side(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with owned({"x": program(log)}) as it:
        await it.servers.ready(["x__*"])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(it.call, "x__hang")
            await until(log, "hangs")
            assert await it.call("x__echo", text="meanwhile") == "meanwhile"
            nursery.cancel_scope.cancel()


async def test_tools_that_come_later_are_there_without_a_restart(tmp_path: Path) -> None:
    async with owned({"x": program(tmp_path / "log", "paged")}) as it:
        await it.servers.ready(["x__*"])
        assert len(it.registry.names) == 10
        assert await it.call("x__grow") == "grown"
        while "x__grown" not in it.registry.names:
            await trio.sleep(0.01)
        assert "x__grown" in [spec.name for spec in it.registry.specs(["x__*"])]


async def test_a_lazy_one_rests_when_nobody_needs_it_and_keeps_its_tools(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with owned({"x": program(log, idle_s=0.2), "y": program(log, idle_s=0.2, lazy=False)}) as it:
        assert await it.call("x__echo", text="a") == "a"
        while it.servers.views()[0].state != "resting":
            await trio.sleep(0.02)
        assert "x__echo" in it.registry.names
        assert await it.call("x__echo", text="b") == "b"
        assert it.servers.views()[1].state == "ready"
    assert log.read_text().split().count("initialized") == 3


async def test_cancellation_goes_on_and_errors_are_given_back() -> None:
    error = ValueError("x")
    assert own(error) is error
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as cancelled:
            own(BaseExceptionGroup("both", [error, cancelled]))
    assert scope.cancelled_caught


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ExceptionGroup("g", [ExceptionGroup("h", [OSError("no\nway")])]), "no"),
        (KeyError(), "KeyError"),
        (LimitReached("enough"), "enough"),
    ],
)
def test_reasons(error: Exception, words: str) -> None:
    assert reason_of(error) == words
