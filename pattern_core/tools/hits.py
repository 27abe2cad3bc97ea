"""Hits of a search as a tool's answer: the best ones whole, the others cut around the match, all within a bound."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pattern_core.search import Hit, SearchResult
from pattern_db.enums import SearchKind

LIMIT_MAX = 100
ANSWER_CHARS_MAX = 18_000  # below what a result may hold, so that the JSON is never cut
# (rank up to which it holds, characters of content shown)
_SHOWN: Sequence[tuple[int, int]] = ((5, 4_000), (15, 1_500), (LIMIT_MAX, 800))
_ELLIPSIS = "…"


def clamp(limit: int) -> int:
    """`limit`, moved into 1 to 100: an odd number is not a reason to refuse a search."""
    return min(max(limit, 1), LIMIT_MAX)


def found(result: SearchResult, one: str, many: str) -> dict[str, object]:
    """Return the answer `{"success", "message", "hits": [{"kind", "id", "content", "snippet", "score", "created_at",
    …}]}`.

    Hits that would make it too long are left out, and the message says so. A search that found nothing relevant, or
    was not quite the one that was asked for, has a `notice`.
    """
    shown: list[dict[str, object]] = []
    chars = 0
    for rank, hit in enumerate(result.hits, start=1):
        entry = shown_hit(hit, next(bound for last, bound in _SHOWN if rank <= last))
        chars += len(json.dumps(entry, ensure_ascii=False)) + 1
        if chars > ANSWER_CHARS_MAX:
            break
        shown.append(entry)
    count = len(result.hits)
    message = f"Found {count} {one if count == 1 else many}" if count else f"Found no {many}; try other words"
    if len(shown) < count:
        message += f"; the first {len(shown)} are shown, ask more narrowly for others"
    answer: dict[str, object] = {"success": True, "message": message, "hits": shown}
    if result.notice:
        answer["notice"] = result.notice
    return answer


def shown_hit(hit: Hit, content_chars_max: int) -> dict[str, object]:
    """Return one hit for the model."""
    entry: dict[str, object] = {
        "kind": hit.kind.value,
        "id": hit.id,
        "content": excerpt(hit.content, hit.snippet, content_chars_max),
        "snippet": hit.snippet,
        "score": round(hit.score, 3),
        "created_at": hit.created_at,
    }
    more = {
        "role": None if hit.role is None else hit.role.value,
        "label": hit.label,
        "session_id": hit.session_id,
        "answers": hit.answers,
    }
    entry |= {name: value for name, value in more.items() if value is not None}
    if hit.kind is SearchKind.SUMMARY and isinstance(hit.metadata, dict):
        entry["stands_for"] = (  # the way from a summary to the messages
            f"{hit.metadata.get('message_count')} messages from {hit.metadata.get('started_at')} to {hit.created_at};"
            " search that time (start_time, end_time) for their own words"
        )
    return entry


def excerpt(content: str, snippet: str, chars_max: int) -> str:
    """Return at most `chars_max` characters of `content` around the place that `snippet` shows, with ellipses."""
    if len(content) <= chars_max:
        return content
    core = snippet.strip(_ELLIPSIS)
    at = max(content.find(core), 0) if core else 0
    inner = max(chars_max - 2, 0)
    start = min(max(at + len(core) // 2 - inner // 2, 0), len(content) - inner)
    before = _ELLIPSIS if start > 0 else ""
    after = _ELLIPSIS if start + inner < len(content) else ""
    return before + content[start : start + inner] + after
