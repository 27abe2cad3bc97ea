from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pattern_core.messages import Message, Reasoning, Text, ToolCall, ToolResult, user
from pattern_core.models.model import ModelRequest, ToolSpec, Usage
from pattern_core.models.tokens import (
    estimate_messages,
    estimate_parts,
    estimate_request,
    estimate_text,
    estimate_tools,
    estimate_usage,
    message_tokens,
)


def test_known_texts() -> None:
    assert [estimate_text(text) for text in ("", "a", "four", "fives", "żółw", "日本", "😀")] == [0, 1, 1, 2, 3, 3, 2]
    assert estimate_text("\ud83d") == 2


@given(st.text(), st.text())
def test_more_text_is_never_fewer_tokens(left: str, right: str) -> None:
    assert estimate_text(left) <= estimate_text(left + right) <= estimate_text(left) + estimate_text(right)


def test_every_part_counts() -> None:
    words = Text(text="a" * 40)
    call = ToolCall(call_id="c", tool="search", arguments={"query": "tea"})
    broken = ToolCall(call_id="c", tool="search", invalid="{" * 40)
    result = ToolResult(call_id="c", tool="search", content="b" * 40)
    assert [estimate_parts([part]) for part in (words, Reasoning(text="a" * 40), call, broken, result)] == [
        10,
        10,
        8 + 2 + 4,
        8 + 2 + 10,
        8 + 10,
    ]
    assert estimate_messages([Message(role="assistant", parts=(words, call))]) == 4 + 10 + 14
    assert message_tokens(Message(role="assistant", parts=(words, call))) == 4 + 10 + 14


def test_a_request_is_all_it_shows() -> None:
    tool = ToolSpec(name="search", description="Find.", parameters={"type": "object"})
    request = ModelRequest(model="m", system=["aaaa", "bbbb"], messages=[user("cccc")], tools=[tool], tail=["dddd"])
    assert estimate_tools([tool]) == 12 + 2 + 2 + 5
    assert estimate_request(request) == 2 + 5 + 21 + 1
    assert estimate_usage(request, [Text(text="eeee")]) == Usage(input_tokens=29, output_tokens=1, is_estimate=True)
