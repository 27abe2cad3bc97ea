"""Which exchanges leave a conversation so that the rest fits; pure.

Whatever the strategy, exchanges leave whole; the turn under way, one that waits for a person, and the newest exchange
never do; and either what remains fits the target or nothing more can leave.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pattern_core.compaction.importance import importance
from pattern_core.compaction.settings import CompactionSettings, Strategy
from pattern_core.conversation.history import Exchange
from pattern_db.columns import unix_ms

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is asked: the exchanges, oldest first; the tokens that may remain; the time (unix ms)."""

    exchanges: Sequence[Exchange]
    target: int
    now_ms: int

    @property
    def free(self) -> list[int]:
        """The places of the exchanges that may leave at all, oldest first."""
        free = [
            place for place, exchange in enumerate(self.exchanges) if not exchange.is_running and not exchange.is_held
        ]
        newest = len(self.exchanges) - 1
        return free[:-1] if free and free[-1] == newest else free


def choose(choice: Choice, settings: CompactionSettings) -> list[int]:
    """The places of the exchanges that leave, oldest first.

    After it `remaining(choice, …) <= choice.target`, or all that may leave does.
    """
    chosen = _STRATEGIES[settings.type](choice, settings)
    return drop_oldest(choice, chosen)


def drop_oldest(choice: Choice, chosen: Sequence[int] = ()) -> list[int]:
    """`chosen` and, until the rest fits, the oldest others: the last resort, which needs no settings."""
    free = choice.free
    gone = set(chosen) & set(free)
    left = remaining(choice, gone)
    for place in free:
        if left <= choice.target:
            break
        if place not in gone:
            gone.add(place)
            left -= choice.exchanges[place].tokens
    return sorted(gone)


def remaining(choice: Choice, gone: Sequence[int] | set[int]) -> int:
    """The tokens of what does not leave."""
    away = set(gone)
    return sum(exchange.tokens for place, exchange in enumerate(choice.exchanges) if place not in away)


def _truncate(choice: Choice, settings: CompactionSettings) -> list[int]:
    return list(range(_before_newest(choice, settings.keep_recent)))


def _importance_based(choice: Choice, settings: CompactionSettings) -> list[int]:
    """All but the newest and the best; the best are taken in order of their worth as long as they fit."""
    old = _before_newest(choice, settings.keep_recent)
    count = len(choice.exchanges)
    worth = {place: importance(choice.exchanges[place].messages, place / count) for place in range(old)}
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
    """The oldest share of the tokens; `choose` lets more go where that is not enough."""
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
    """How many exchanges stand before the newest ones that hold at least so many messages."""
    kept = 0
    for place in range(len(choice.exchanges) - 1, -1, -1):
        kept += len(choice.exchanges[place].messages)
        if kept >= messages:
            return place
    return 0


_STRATEGIES: dict[Strategy, Callable[[Choice, CompactionSettings], list[int]]] = {
    "truncate": _truncate,
    "importance_based": _importance_based,
    "recursive_summarization": _truncate,
    "sliding_window": _sliding_window,
    "time_decay": _time_decay,
}
