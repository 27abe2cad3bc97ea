from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from pattern_core.messages import ToolCall, user
from pattern_core.models.errors import ModelUnreachable
from pattern_core.models.model import Delta, ModelReply, ModelRequest, ReasoningDelta, TextDelta
from pattern_core.testing import START_MS, Paced, ScriptedProvider, StoppedClock, TrioClock, calls, says, together
from pattern_core.testing.model import Answer


def request(text: str = "hello") -> ModelRequest:
    return ModelRequest(model="any", system=(), messages=[user(text)])


async def ask(provider: ScriptedProvider, text: str = "hello") -> tuple[ModelReply, list[Delta]]:
    seen: list[Delta] = []

    async def on_delta(delta: Delta) -> None:
        seen.append(delta)

    return await provider.ask(request(text), on_delta), seen


async def test_answers_in_the_order_of_the_script_and_remembers_the_questions() -> None:
    provider = ScriptedProvider([says("one"), says("two", reasoning="hm")], otherwise=says("more"))
    assert await ask(provider, "a") == (says("one"), [TextDelta(text="one")])
    assert await ask(provider, "b") == (says("two", reasoning="hm"), [ReasoningDelta(text="hm"), TextDelta(text="two")])
    assert (await ask(provider))[0] == (await ask(provider))[0] == says("more")
    assert [question.messages[0].text for question in provider.requests] == ["a", "b", "hello", "hello"]
    assert provider.asked == 4


async def test_a_question_beyond_the_script_is_a_bug_of_the_test() -> None:
    with pytest.raises(AssertionError, match=r"no answer to question 1 .*hello"):
        await ask(ScriptedProvider())


async def test_functions_and_errors_of_the_script() -> None:
    broken = ModelUnreachable("gone", provider="scripted")
    script: list[Answer] = [lambda question: says(question.messages[-1].text.upper()), broken, lambda question: broken]
    provider = ScriptedProvider(script)
    assert (await ask(provider))[0].parts == says("HELLO").parts
    for _ in range(2):
        with pytest.raises(ModelUnreachable):
            await ask(provider)


async def test_tool_calls_get_ids_that_repeat_for_the_same_question_only() -> None:
    def script() -> list[Answer]:
        return [together(calls("search", {"query": "tea"}), calls("search", {"query": "cake"}))]

    first, _ = await ask(ScriptedProvider(script()))
    again, _ = await ask(ScriptedProvider(script()))
    other, _ = await ask(ScriptedProvider(script()), "something else")
    ids = [part.call_id for reply in (first, other) for part in reply.parts if isinstance(part, ToolCall)]
    assert first == again
    assert len(set(ids)) == 4
    given, _ = await ask(ScriptedProvider([calls("search", call_id="mine")]))
    assert given.parts == (ToolCall(call_id="mine", tool="search"),)


async def test_breaks_in_the_middle() -> None:
    seen: list[Delta] = []

    async def on_delta(delta: Delta) -> None:
        seen.append(delta)

    for shown in (2, 3, 9):
        seen.clear()
        error = ModelUnreachable("cut", provider="scripted")
        provider = ScriptedProvider([Paced(answer=says("abc"), breaks=error, shown=shown)], slice_chars=1)
        with pytest.raises(ModelUnreachable):
            await provider.ask(request(), on_delta)
        assert len(seen) == min(shown, 3)


async def test_waits_at_a_gate_and_counts_cancellations() -> None:
    gate = trio.Event()
    provider = ScriptedProvider([Paced(answer=says("late"), gate=gate), Paced(answer=says("late"), gate=gate)])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, provider)
        nursery.start_soon(ask, provider)
        await wait_all_tasks_blocked()
        assert (provider.running, provider.cancelled) == (2, 0)
        nursery.cancel_scope.cancel()
    assert (provider.running, provider.cancelled) == (0, 2)
    await provider.aclose()
    assert provider.closed


def test_stopped_clock_moves_only_by_hand() -> None:
    clock = StoppedClock(1_000)
    assert (clock.now_ms(), clock.now_ms()) == (1_000, 1_000)
    assert clock.advance(250) == 1_250
    assert clock.advance(-500) == clock.now_ms() == 750
    assert StoppedClock().now_ms() == START_MS


def test_trio_clock_follows_virtual_time() -> None:
    async def readings() -> list[int]:
        clock = TrioClock(5_000)
        first = clock.now_ms()
        await trio.sleep(3_600)
        return [first, clock.now_ms()]

    assert trio.run(readings, clock=MockClock(autojump_threshold=0)) == [5_000, 3_605_000]
