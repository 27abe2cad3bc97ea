"""Texts cut to a number of tokens, by estimate; pure."""

from __future__ import annotations

from pattern_core.models.tokens import estimate_text

ELLIPSIS = "…"
_ENDS = (". ", "! ", "? ", "\n", "。")


def clip(text: str, tokens_max: int) -> str:
    """The text, or its beginning with an ellipsis, in at most `tokens_max` tokens; cut after a sentence if one ends
    in the last third. Empty for no tokens.
    """
    if estimate_text(text) <= tokens_max:
        return text
    low, high = 0, len(text)
    while low < high:  # estimates rise with the length
        middle = (low + high + 1) // 2
        if estimate_text(text[:middle] + ELLIPSIS) <= tokens_max:
            low = middle
        else:
            high = middle - 1
    if low == 0:
        return ELLIPSIS if estimate_text(ELLIPSIS) <= tokens_max else ""
    kept = text[:low]
    end = max(kept.rfind(mark) for mark in _ENDS)
    return (kept[: end + 1] if end >= 2 * low // 3 else kept).rstrip() + ELLIPSIS


def clip_middle(text: str, tokens_max: int, note: str) -> str:
    """The text, or its beginning and end around `note`, in about `tokens_max` tokens."""
    if estimate_text(text) <= tokens_max:
        return text
    share = max(tokens_max - estimate_text(note), 0) // 2
    head = clip(text, share).removesuffix(ELLIPSIS)
    tail = clip(text[::-1], share).removesuffix(ELLIPSIS)[::-1]
    return f"{head}{note}{tail}"
