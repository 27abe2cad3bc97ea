"""What gives way: exchanges by each strategy's definition, and the turn under way, of which no call loses its result.

For all strategies what remains fits or cannot be less. What a message seems worth has the weights of the original.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.agent_settings import CompactionSettings, Strategy
from pattern_core.compaction.choose import NOTE, RESULT_TOKENS_MIN, Choice, choose, drop_oldest, score, shortened
from pattern_core.conversation.history import MessageGroup
from pattern_core.messages import Message, Part, Role, Text, ToolCall, ToolResult, user
from pattern_core.models.tokens import message_tokens
from pattern_db.columns import iso
from tests.pattern_core.compaction.rig import loose_ends

NOW_MS = 1_767_225_600_000
HOUR_MS = 3_600_000


def exchange(
    tokens: int,
    *,
    messages: int = 2,
    hours_ago: float = 0,
    running: bool = False,
    held: bool = False,
    text: str = "",
) -> MessageGroup:
    created_at = iso(NOW_MS - int(hours_ago * HOUR_MS))
    said = tuple(Message(role="user", parts=(Text(text=text),), created_at=created_at) for _ in range(messages))
    return MessageGroup(messages=said, tokens=tokens, is_running=running, is_held=held)


EXCHANGES = st.lists(
    st.builds(
        exchange, st.integers(1, 400), messages=st.integers(1, 6), hours_ago=st.integers(0, 100), held=st.booleans()
    ),
    max_size=12,
)


@settings(max_examples=150)
@given(
    EXCHANGES,
    st.booleans(),
    st.integers(0, 2_000),
    st.sampled_from(get_args(Strategy)),
    st.integers(1, 30),
    st.sampled_from([0.1, 0.3, 0.9]),
)
def test_what_remains_fits_or_nothing_more_can_leave(
    exchanges: list[MessageGroup], runs: bool, target: int, type_: str, keep: int, share: float
) -> None:
    if runs:
        exchanges = [*exchanges, exchange(50, running=True)]
    choice = Choice(exchanges=exchanges, target=target, now_ms=NOW_MS)
    given_: dict[str, Any] = {
        "type": type_,
        "keep_recent": keep,
        "keep_important": keep,
        "min_keep_recent": keep,
        "percentage": share,
    }
    for places in (choose(choice, CompactionSettings(**given_)), drop_oldest(choice)):
        assert places == sorted(set(places))
        assert set(places) <= set(choice.free)
        assert not any(exchanges[place].is_held or exchanges[place].is_running for place in choice.free)
        assert len(exchanges) - 1 not in choice.free
        left = sum(one.tokens for place, one in enumerate(exchanges) if place not in places)
        assert left <= target or places == choice.free
        if sum(one.tokens for one in exchanges) > target and choice.free:
            assert places  # each attempt shrinks


TEN = [exchange(10)] * 10
BEST = exchange(10, messages=1, text="remember: never, always").messages  # an exchange is worth its best message
MIXED = replace(exchange(10), messages=(*BEST, *exchange(10, messages=1).messages))
MATTERS = [exchange(10), MIXED, *[exchange(10)] * 3]
AGED = [exchange(10, hours_ago=hours) for hours in (50, 40, 30, 20, 10)]


@pytest.mark.parametrize(
    ("exchanges", "target", "config", "expected"),
    [
        (TEN[:5], 1_000, {"type": "truncate", "keep_recent": 5}, [0, 1]),  # 6 of 10 messages stay, in whole turns
        (TEN[:5], 1_000, {"type": "truncate", "keep_recent": 100}, []),
        (TEN[:5], 25, {"type": "truncate", "keep_recent": 100}, [0, 1, 2]),
        (TEN, 70, {}, [0, 1, 2]),  # the window slides by its share, and as far as needed
        (TEN, 65, {}, [0, 1, 2, 3]),
        (TEN, 15, {}, list(range(9))),
        (TEN, 0, {}, list(range(9))),
        (TEN * 10, 75, {}, list(range(93))),
        (TEN, 99, {"percentage": 0.5}, [0, 1, 2, 3, 4]),
        (MATTERS, 1_000, {"type": "importance_based", "keep_recent": 4, "keep_important": 2}, [0, 2]),
        (MATTERS, 20, {"type": "importance_based", "keep_recent": 4, "keep_important": 2}, [0, 1, 2]),
        (AGED, 1_000, {"type": "time_decay", "min_keep_recent": 2}, [0, 1, 2]),
        (AGED, 1_000, {"type": "time_decay", "min_keep_recent": 8}, [0]),
        (AGED, 1_000, {"type": "time_decay", "min_keep_recent": 2, "compress_after_hours": 60}, []),
        ([exchange(500)], 10, {}, []),  # one stays
        ([exchange(500, running=True)], 10, {}, []),
        ([exchange(500), exchange(500, running=True)], 10, {}, [0]),
        ([], 10, {}, []),
    ],
)
def test_what_each_strategy_lets_go(
    exchanges: list[MessageGroup], target: int, config: dict[str, Any], expected: list[int]
) -> None:
    choice = Choice(exchanges=exchanges, target=target, now_ms=NOW_MS)
    assert choose(choice, CompactionSettings(**config)) == expected


def said(role: Role, text: str, *more: Part) -> Message:
    return Message(role=role, parts=(Text(text=text), *more))


@pytest.mark.parametrize(
    ("message", "worth"),
    [
        (said("system", ""), 10),
        (said("user", ""), 5),
        (said("assistant", ""), 3),
        (said("user", "why?"), 5 + 4 / 200 + 2),
        (said("assistant", "", ToolCall(call_id="c", tool="note")), 3 + 4),
        (said("user", "x" * 5_000), 5 + 3),
        (said("user", "Always REMEMBER"), 5 + 15 / 200 + 2 * 1.5),
        (said("user", "remembered"), 5 + 10 / 200),
    ],
)
def test_the_weights(message: Message, worth: float) -> None:
    assert score(message, 0.0) == pytest.approx(worth)
    assert score(message, 1.0) == pytest.approx(worth + 5)


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
    saved = sum(map(message_tokens, said)) - sum(map(message_tokens, shown))
    most = sum(map(message_tokens, said)) - sum(map(message_tokens, after(said, 10**9)))
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


@given(st.lists(st.integers(0, 3_000), min_size=1, max_size=6), st.integers(1, 4_000))
def test_of_the_newest_results_the_longest_give_way_to_one_length(words: list[int], excess: int) -> None:
    """None is cut to little while another one of its length is nearly whole."""
    [question, decision, *_] = turn([1])
    results = [
        Message(role="tool", parts=(ToolResult(call_id=str(place), tool="read", content="word " * count),))
        for place, count in enumerate(words)
    ]
    shown = after([question, decision, *results], excess)[2:]
    lengths = [message_tokens(one) for one in shown]
    cut = [now for one, now, new in zip(results, lengths, shown, strict=True) if new is not one]
    whole = [now for one, now, new in zip(results, lengths, shown, strict=True) if new is one]
    assert not cut or max(cut) - min(cut) <= 6
    assert not (cut and whole) or max(whole) <= max(*cut, RESULT_TOKENS_MIN) + 20
    saved = sum(map(message_tokens, results)) - sum(lengths)
    assert saved <= excess + 8 * len(words)


def test_of_the_newest_step_long_arguments_are_named_only() -> None:
    said = turn([1], arguments=5_000)
    (question, decision, *_results) = after(said, 2_000)
    assert question is said[0]
    for call in decision.tool_calls:
        path = call.arguments["path"]
        assert isinstance(path, str)
        assert path.endswith(NOTE)
        assert len(path) < 400
