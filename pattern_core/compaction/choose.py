"""Choice of the messages that leave a conversation so that the rest fits; pure.

Whatever the strategy, exchanges leave as a whole; the running turn, turns that wait for a person, and the newest
exchange never leave; and either the rest fits the target or nothing else can leave.

A running turn that alone exceeds the window is shortened. Nothing of it is archived, and every call that is still shown
keeps its result: first the results of its older steps are cut, then those steps are left out, then the newest step's
results and arguments are cut. Its question stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from pattern_core.agent_settings import CompactionSettings, Strategy
from pattern_core.conversation.history import MessageGroup
from pattern_core.messages import Message, ToolCall, ToolResult
from pattern_core.models.tokens import clip_middle, estimate_text, message_tokens
from pattern_db.columns import unix_ms

HOUR_MS = 3_600_000
# The importance of a message, by features that need no model. Weights as in the original: who speaks, how
# recent, how long, a question, a tool call, and each word that signals importance.
ROLES = {"system": 10.0, "user": 5.0, "assistant": 3.0, "tool": 1.0}
RECENCY, LENGTH_MAX, QUESTION, CALL, KEYWORD = 5.0, 3.0, 2.0, 4.0, 1.5
LENGTH_CHARS = 200  # for each of these a point, up to LENGTH_MAX
KEYWORDS = ("important", "remember", "critical", "always", "never")

RESULT_TOKENS_MIN = 40
NOTE = " [… left out to make room; the whole is in the history …] "

_KEYWORDS = [re.compile(rf"\b{word}\b", re.IGNORECASE) for word in KEYWORDS]
_ARGUMENTS_CHARS_MAX = 200

Change = tuple[Message, Message | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The input of a strategy: the exchanges, oldest first; the tokens that may remain; the time (unix ms)."""

    exchanges: Sequence[MessageGroup]
    target: int
    now_ms: int

    @property
    def free(self) -> list[int]:
        """The indexes of the exchanges that may leave, oldest first."""
        older = enumerate(self.exchanges[:-1])
        return [place for place, exchange in older if not exchange.is_running and not exchange.is_held]


def choose(choice: Choice, settings: CompactionSettings) -> list[int]:
    """Return the indexes of the exchanges that leave, oldest first.

    The rest has at most `choice.target` tokens, or everything that may leave leaves.
    """
    chosen = _STRATEGIES[settings.type](choice, settings)
    return drop_oldest(choice, chosen)


def drop_oldest(choice: Choice, chosen: Sequence[int] = ()) -> list[int]:
    """Return `chosen` and, until the rest fits, the oldest others: the last resort, which needs no settings."""
    free = choice.free
    gone = set(chosen) & set(free)
    left = sum(exchange.tokens for place, exchange in enumerate(choice.exchanges) if place not in gone)
    for place in free:
        if left <= choice.target:
            break
        if place not in gone:
            gone.add(place)
            left -= choice.exchanges[place].tokens
    return sorted(gone)


def _truncate(choice: Choice, settings: CompactionSettings) -> list[int]:
    return list(range(_before_newest(choice, settings.keep_recent)))


def _importance_based(choice: Choice, settings: CompactionSettings) -> list[int]:
    """Return all but the newest and the most important; these stay in order of their importance as long as they fit."""
    old = _before_newest(choice, settings.keep_recent)
    count = len(choice.exchanges)
    worth = {
        place: max(score(message, place / count) for message in choice.exchanges[place].messages)
        for place in range(old)
    }
    left = sum(exchange.tokens for exchange in choice.exchanges[old:])
    kept: set[int] = set()
    messages = 0
    for place in sorted(worth, key=lambda place: (-worth[place], -place)):
        exchange = choice.exchanges[place]
        if messages + len(exchange.messages) > settings.keep_important or left + exchange.tokens > choice.target:
            continue
        kept.add(place)
        messages += len(exchange.messages)
        left += exchange.tokens
    return [place for place in range(old) if place not in kept]


def _time_decay(choice: Choice, settings: CompactionSettings) -> list[int]:
    border_ms = choice.now_ms - int(settings.compress_after_hours * HOUR_MS)
    old = _before_newest(choice, settings.min_keep_recent)
    return [place for place in range(old) if unix_ms(choice.exchanges[place].messages[-1].created_at) < border_ms]


def _sliding_window(choice: Choice, settings: CompactionSettings) -> list[int]:
    """Return the oldest share of the tokens; `choose` adds more if that is not enough."""
    share = settings.percentage * sum(exchange.tokens for exchange in choice.exchanges)
    total = 0
    gone: list[int] = []
    for place in choice.free:
        if total >= share:
            break
        total += choice.exchanges[place].tokens
        gone.append(place)
    return gone


def _before_newest(choice: Choice, messages: int) -> int:
    """Return how many exchanges come before the newest ones with at least this many messages."""
    kept = 0
    for place in range(len(choice.exchanges) - 1, -1, -1):
        kept += len(choice.exchanges[place].messages)
        if kept >= messages:
            return place
    return 0


def score(message: Message, recency: float) -> float:
    """Return the importance of a message; `recency` is 0 for the oldest exchange and 1 for the newest."""
    text = message.text
    return (
        ROLES[message.role]
        + RECENCY * recency
        + min(len(text) / LENGTH_CHARS, LENGTH_MAX)
        + (QUESTION if "?" in text else 0.0)
        + (CALL if message.tool_calls else 0.0)
        + KEYWORD * sum(pattern.search(text) is not None for pattern in _KEYWORDS)
    )


_STRATEGIES: dict[Strategy, Callable[[Choice, CompactionSettings], list[int]]] = {
    "truncate": _truncate,
    "importance_based": _importance_based,
    "recursive_summarization": _truncate,
    "sliding_window": _sliding_window,
    "time_decay": _time_decay,
}


def shortened(messages: Sequence[Message], excess: int) -> list[Change]:
    """Return which messages of a turn to shorten (or, with None, to hide) to save `excess` tokens, as far as possible.

    `messages` are the turn's, oldest first, each call before its results.
    """
    shown: list[Message | None] = list(messages)
    missing = excess

    def show(place: int, message: Message | None) -> None:
        """Use it here, if that saves tokens."""
        nonlocal missing
        saved = _tokens(shown[place]) - _tokens(message)
        if saved > 0:
            shown[place] = message
            missing -= saved

    steps = [place for place, message in enumerate(messages) if message.role == "assistant"]
    newest = steps[-1] if steps else len(messages)
    older = [place for place in range(newest) if messages[place].role == "tool"]
    results = [place for place in range(newest, len(messages)) if messages[place].role == "tool"]
    for place in older:
        if missing > 0:
            show(place, _cut(messages[place]))
    for begin, end in pairwise(steps):
        if missing > 0:
            for place in range(begin, end):
                if messages[place].role in ("assistant", "tool"):
                    show(place, None)
    if missing > 0:
        sizes = [message_tokens(messages[place]) for place in results]
        most = _level(sizes, sum(sizes) - missing)
        for place in results:
            show(place, _cut(messages[place], most))
    if steps and missing > 0:
        calls = tuple(_brief(part) if isinstance(part, ToolCall) else part for part in messages[newest].parts)
        show(newest, replace(messages[newest], parts=calls))
    return [(before, now) for before, now in zip(messages, shown, strict=True) if now is not before]


def _tokens(message: Message | None) -> int:
    return 0 if message is None else message_tokens(message)


def _level(sizes: Sequence[int], most: int) -> int:
    """Return to which size to cut the longest of these, so that they are `most` in all."""
    for place, size in enumerate(sorted(sizes)):
        if size * (len(sizes) - place) > most:
            return most // (len(sizes) - place)
        most -= size
    return max(sizes, default=0)


def _cut(message: Message, tokens_max: int = 0) -> Message:
    """Return a tool's message of so many tokens with only the beginning and end of its result, or as little as it may
    be.
    """
    result = message.parts[0]
    if not isinstance(result, ToolResult):
        return message
    room = tokens_max - message_tokens(message) + estimate_text(result.content)
    content = clip_middle(result.content, max(room, RESULT_TOKENS_MIN), NOTE)
    return replace(message, parts=(replace(result, content=content),))


def _brief(call: ToolCall) -> ToolCall:
    arguments = {key: _short(value) for key, value in call.arguments.items()}
    return replace(call, arguments=arguments, invalid=_short(call.invalid))


def _short(value: Any) -> Any:  # Any: a JSON value
    text = str(value)
    return value if len(text) <= _ARGUMENTS_CHARS_MAX else f"{text[:_ARGUMENTS_CHARS_MAX]}{NOTE}"
