"""A long text in parts that are small enough to be found and compared by meaning. Pure.

The parts, joined, are the text: not a character is lost or added.
"""

from __future__ import annotations

import re

CHUNK_CHARS_MAX = 1_200  # about 256 word pieces, what small embedding models read of a text
# Where to cut, best first: after a paragraph, a sentence (in Chinese no blank follows it), a line, a word.
_BORDERS = (
    re.compile(r"\n[ \t]*\n\s*"),
    re.compile(r"[.!?…][\"'”’)\]]*\s+|[。！？]"),
    re.compile(r"\n"),
    re.compile(r"\s+"),
)


def split(text: str, chars_max: int = CHUNK_CHARS_MAX) -> list[str]:
    """`text` in parts of 1 to `chars_max` characters that joined are the text; one part if it is short enough.

    A part ends at the last good border of its second half, so that none is much shorter than need be; only a word
    longer than half a part is cut in its middle.
    """
    parts: list[str] = []
    start = 0
    while len(text) - start > chars_max:
        end = _border(text, start, start + chars_max)
        parts.append(text[start:end])
        start = end
    parts.append(text[start:])
    return parts


def _border(text: str, start: int, end: int) -> int:
    """Where the part that begins at `start` ends, at most at `end`."""
    middle = start + (end - start) // 2
    for border in _BORDERS:
        last = 0
        for found in border.finditer(text, middle, end):
            last = found.end()
        if last:
            return last
    return end
