"""Defects of a model's answer that its text shows: a piece repeated without end, or a copy of the prompt. Pure.

Small models do both, and learn it from their earlier answers. So such text is not stored.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

PIECE_CHARS_MAX = 400  # of a repeated piece
COMPARED_CHARS = 12  # at the end of an answer, which occur again if it repeats itself
PIECES_MIN = 12  # of the same, up to the end: more than in any table or verse …
RUN_CHARS_MIN = 600  # … and together longer than lines of dashes
GUIDES_KNOWN_MAX = 100
SENTENCE_CHARS_MIN = 30  # shorter ones may be equal by chance

CUT = {
    "length": "it was cut at max_output_tokens",
    "content_filter": "its vendor withheld the rest",
    "repetition": "it repeated itself without end",
}  # why an answer is incomplete, by what stopped it

_FENCE = re.compile(r'<data from="[^">\n]*">\n?|(?m:^)</data>\n?')
_OPEN_FENCE = '<data from="'
_SIGNS = ("#", _OPEN_FENCE, "(It is ")  # else only sentences can be copies
_TIME = re.compile(
    r"^\(It is \d{4}-\d\d-\d\d \d\d:\d\d UTC, \w+\.\)\n?", re.MULTILINE
)  # as prompts show it before a question
_SENTENCE_END = re.compile(r"(?<=[.:!?])\s+|\n")


def why_cut(finish: str) -> str:
    """Return the reason why an answer is incomplete: what stopped it, or the status with which its turn ended."""
    return CUT.get(finish, f"its turn ended as {finish}")


def without_run(text: str) -> str:
    """Return the text with only one of the pieces that it repeats to its end; itself if there are none."""
    end = len(text.rstrip())
    ending, at = text[max(end - COMPARED_CHARS, 0) : end], end - COMPARED_CHARS
    first = max(end - COMPARED_CHARS - min(PIECE_CHARS_MAX, end // PIECES_MIN), 0)
    while end >= RUN_CHARS_MIN and (at := text.rfind(ending, first, at + COMPARED_CHARS - 1)) >= 0:
        length = end - COMPARED_CHARS - at
        piece = text[end - length : end]
        times = max(PIECES_MIN, -(-RUN_CHARS_MIN // length))
        if text.endswith(piece * times, 0, end):
            begin = end - length * times
            while text.endswith(piece, 0, begin):
                begin -= length
            return text[: begin + length].rstrip()
    return text


def without_echo(text: str, *, guide: Sequence[str], memory: Sequence[str]) -> str:
    """Return an answer without copies of its prompt; itself if there are none.

    A copy is a sentence of the `guide` (instructions for every agent), a fence of data, the line with the time, or a
    heading of the `memory` with its brackets, or two consecutive ones without. Other headings are Markdown, and the
    content of the memory may be repeated.
    """
    sentences = [one for one in _spoken(tuple(guide)) if one in text]
    if not sentences and not any(sign in text for sign in _SIGNS):
        return text
    headings = {whole.partition("\n")[0].strip() for whole in memory}
    labels = {heading.partition(" (")[0] for heading in headings}
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    is_copied = not (headings - labels).isdisjoint(lines) or any({*pair} <= labels for pair in pairwise(lines))
    if not sentences and not is_copied and _OPEN_FENCE not in text and _TIME.search(text) is None:
        return text
    for sentence in sentences:
        text = text.replace(sentence, "")
    rest = _TIME.sub("", "\n".join(line for line in text.splitlines() if line.strip() not in headings | labels))
    return (_FENCE.sub("", rest) if _OPEN_FENCE in rest else rest).strip()


@lru_cache(GUIDES_KNOWN_MAX)  # the same in every answer of an agent
def _spoken(guide: tuple[str, ...]) -> list[str]:
    sentences = (one.strip() for whole in guide for one in _SENTENCE_END.split(whole))
    return [one for one in sentences if len(one) >= SENTENCE_CHARS_MIN]
