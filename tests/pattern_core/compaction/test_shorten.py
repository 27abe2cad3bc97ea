"""A turn that alone passes the window is shown shorter: no call without its result, what it was asked stays."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.compaction.shorten import NOTE, shortened
from pattern_core.messages import Message, Text, ToolCall, ToolResult, user
from pattern_core.models.tokens import estimate_messages
from tests.pattern_core.compaction.rig import loose_ends


def turn(results: list[int], arguments: int = 10) -> list[Message]:
    """A question, and for each number a step with two calls whose results have so many words."""
    said = [user("find it out")]
    for number, words in enumerate(results):
        calls = tuple(
            ToolCall(call_id=f"{number}{place}", tool="read", arguments={"path": "x" * arguments}) for place in "ab"
        )
        said.append(Message(role="assistant", parts=(Text(text="look"), *calls)))
        said += [
            Message(role="tool", parts=(ToolResult(call_id=call.call_id, tool="read", content="word " * words),))
            for call in calls
        ]
    return said


def after(said: list[Message], excess: int) -> list[Message]:
    changes = {id(original): shown for original, shown in shortened(said, excess)}
    shown = [changes.get(id(message), message) for message in said]
    return [message for message in shown if message is not None]


@settings(max_examples=60)
@given(st.lists(st.integers(0, 400), max_size=6), st.integers(0, 3_000), st.sampled_from([10, 900]))
def test_it_saves_what_is_asked_or_all_that_can_be_saved(results: list[int], excess: int, arguments: int) -> None:
    said = turn(results, arguments)
    shown = after(said, excess)
    assert loose_ends(shown) == []
    assert shown[0] is said[0]
    saved = estimate_messages(said) - estimate_messages(shown)
    most = estimate_messages(said) - estimate_messages(after(said, 10**9))
    assert saved >= min(excess, most)
    if excess == 0:
        assert shown == said
    if results:
        assert [message.role for message in shown[-3:]] == ["assistant", "tool", "tool"]


def test_old_results_give_way_before_steps_and_the_newest_last() -> None:
    said = turn([300, 300, 300])
    little = after(said, 500)
    assert len(little) == len(said)
    cut = [message for message in little if message.role == "tool" and NOTE in message.parts[0].content]  # type: ignore[union-attr]  # tool messages hold results
    assert cut == [little[2], little[3]]
    more = after(said, 1_600)
    assert [message.role for message in more] == ["user", "assistant", "tool", "tool"]
    assert more[1] is said[7]


def test_of_the_newest_step_long_arguments_are_named_only() -> None:
    said = turn([1], arguments=5_000)
    (question, decision, *_results) = after(said, 2_000)
    assert question is said[0]
    for call in decision.tool_calls:
        path = call.arguments["path"]
        assert isinstance(path, str)
        assert path.endswith(NOTE)
        assert len(path) < 400
