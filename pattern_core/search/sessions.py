"""Ranking conversations by their messages. Pure.

The work is bounded by the messages that were compared (`breadth.SESSIONS`), however many conversations
there are: only those that one of these messages belongs to are ranked. What a conversation is worth comes from its best
messages, from how much of it is near in meaning, and from how many of the query's terms it holds altogether. The
last two find conversations where the answer is spread over several messages. Figures: `python -m tests.bench locomo`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from pattern_core.search.ranked import Ranked

BEST = 3  # messages of a session: the mean of their values counts as much as the best one
NEARNESS = 0.3  # all its messages that are near in meaning; 1.0 for the session with the most of them
COVERAGE = 0.2  # the query's terms that it holds; 1.0 for the session that holds the most
SATURATION = 1.2  # a term counts less with every further message that holds it


def by_session(found: Sequence[Ranked], weights: Sequence[float]) -> list[tuple[float, Ranked, int]]:
    """For each session its value, its best message and how many were found, best first.

    `found` are messages, best first; `weights` say how telling each term of the query is. A message without a session
    stands for itself.
    """
    together: dict[tuple[str | None, str], list[Ranked]] = {}
    for one in found:
        key = (one.row.agent_id, one.row.id if one.row.session_id is None else f"session {one.row.session_id}")
        together.setdefault(key, []).append(one)
    groups = list(together.values())
    near = _scaled([sum(one.parts.get("meaning", 0.0) * one.factor for one in group) for group in groups])
    held = _scaled(_coverage(groups, weights))
    values = [
        _best(group) + NEARNESS * near_by + COVERAGE * covered
        for group, near_by, covered in zip(groups, near, held, strict=True)
    ]
    ranked = [(value, group[0], len(group)) for value, group in zip(values, groups, strict=True)]
    ranked.sort(key=lambda session: -session[0])
    return ranked


def _best(group: Sequence[Ranked]) -> float:
    mean = sum(one.value for one in group[:BEST]) / BEST
    return (group[0].value + mean) / 2


def _coverage(groups: Sequence[Sequence[Ranked]], weights: Sequence[float]) -> list[float]:
    """What the terms that each session holds are worth: those that few sessions hold are worth more."""
    counts = [Counter(term for one in group for term in one.held) for group in groups]
    spread = Counter(term for count in counts for term in count)
    worth = {
        term: weights[term] * math.log(1 + (len(groups) - sessions + 0.5) / (sessions + 0.5))
        for term, sessions in spread.items()
    }
    return [
        sum(worth[term] * number * (1 + SATURATION) / (number + SATURATION) for term, number in count.items())
        for count in counts
    ]


def _scaled(values: Sequence[float]) -> list[float]:
    greatest = max(values, default=0.0)
    return [value / greatest if greatest > 0 else 0.0 for value in values]
