"""What a message seems worth, from the weights of the original."""

from __future__ import annotations

import pytest

from pattern_core.compaction.importance import importance, score
from pattern_core.messages import Message, Part, Role, Text, ToolCall


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


def test_an_exchange_is_worth_its_best_message() -> None:
    assert importance([said("assistant", ""), said("user", "")], 0.0) == 5
    assert importance([], 1.0) == 0
