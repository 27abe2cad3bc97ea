"""How much an exchange seems worth keeping, by marks that need no model; pure.

Weights as in the original: who speaks (system 10, user 5, assistant 3, tool 1), how recent (up to 5), how long (up to
3), a question 2, a tool call 4, and 1.5 for each word that says that something matters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pattern_core.messages import Message

ROLES = {"system": 10.0, "user": 5.0, "assistant": 3.0, "tool": 1.0}
RECENCY, LENGTH_MAX, QUESTION, CALL, KEYWORD = 5.0, 3.0, 2.0, 4.0, 1.5
LENGTH_CHARS = 200  # for each of these a point, up to LENGTH_MAX
KEYWORDS = ("important", "remember", "critical", "always", "never")
_KEYWORDS = {word: re.compile(rf"\b{word}\b", re.IGNORECASE) for word in KEYWORDS}


def importance(messages: Sequence[Message], recency: float) -> float:
    """What the best of the messages is worth; `recency` goes from 0 (the oldest exchange) to 1 (the newest)."""
    return max((score(message, recency) for message in messages), default=0.0)


def score(message: Message, recency: float) -> float:
    """What one message is worth."""
    text = message.text
    return (
        ROLES[message.role]
        + RECENCY * recency
        + min(len(text) / LENGTH_CHARS, LENGTH_MAX)
        + (QUESTION if "?" in text else 0.0)
        + (CALL if message.tool_calls else 0.0)
        + KEYWORD * sum(pattern.search(text) is not None for pattern in _KEYWORDS.values())
    )
