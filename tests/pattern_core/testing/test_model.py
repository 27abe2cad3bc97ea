from __future__ import annotations

import pytest

from pattern_core.messages import ToolCall, user
from pattern_core.models.model import Delta, ModelReply, ModelRequest
from pattern_core.testing import ScriptedProvider, calls, together


async def ask(provider: ScriptedProvider, text: str = "hello") -> ModelReply:
    async def on_delta(delta: Delta) -> None:
        """Show nothing."""

    return await provider.ask(ModelRequest(model="any", system=(), messages=[user(text)]), on_delta)


async def test_a_question_beyond_the_script_is_a_bug_of_the_test() -> None:
    provider = ScriptedProvider()
    with pytest.raises(AssertionError, match=r"no answer to question 1 .*hello"):
        await ask(provider)
    assert provider.asked == 1


async def test_tool_calls_get_ids_that_repeat_for_the_same_question_only() -> None:
    search = together(calls("search", {"query": "tea"}), calls("search", {"query": "cake"}))
    first, again, other = [await ask(ScriptedProvider([search]), text) for text in ("hello", "hello", "else")]
    ids = [part.call_id for reply in (first, other) for part in reply.parts if isinstance(part, ToolCall)]
    assert first == again
    assert len(set(ids)) == 4
    given = await ask(ScriptedProvider([calls("search", call_id="mine")]))
    assert given.parts == (ToolCall(call_id="mine", tool="search"),)
