"""The texts of entries: split into chunks, and compared by their words. Pure.

The comparison is strict: texts that differ in a name, a number, a negation or the order of words are different facts
("Anna is 30", "Anna is 31"; "Anna likes Bob", "Bob likes Anna"), and storing a fact twice is better than losing one.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b

CHUNK_CHARS_MAX = 1_200  # about 256 word pieces, the limit of small embedding models
# Where to cut, best first: after a paragraph, a sentence (in Chinese no blank follows it), a line, a word.
_BORDERS = (
    re.compile(r"\n[ \t]*\n\s*"),
    re.compile(r"[.!?…][\"'”’)\]]*\s+|[。！？]"),
    re.compile(r"\n"),
    re.compile(r"\s+"),
)

HASH_BYTES = 16
SHINGLE_WORDS = 3
SIMILAR_MIN = 0.9  # share of common shingles: one word of sixty replaced
LONG_WORDS_MIN = 40  # shorter texts must be equal
COMPARED_CHARS_MAX = 20_000  # longer texts are compared only by their hash
LENGTH_RATIO_MIN = 0.8  # a much shorter text cannot have that much in common
GROUPS, GROUP_WORDS, WINDOW_WORDS = 3, 4, 60

# Words that change no fact.
_FILLERS = frozenset({"a", "an", "the", "also", "really", "very", "please"})
_DENIALS = frozenset({"not", "no", "never", "none", "nor", "neither", "without", "cannot", "nothing", "nobody"})
_BEFORE, _AFTER = "\"'“”‘’«»([{", "\"'“”‘’«»)]}.,;:!…"


def split(text: str, chars_max: int = CHUNK_CHARS_MAX) -> list[str]:
    """Return `text` in parts of 1 to `chars_max` characters; joined they are the text. One part if it is short enough.

    A part ends at the last good border in its second half, so that none is much shorter than necessary; only a word
    longer than half a part is split.
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
    """Return where the part that begins at `start` ends, at most at `end`."""
    middle = start + (end - start) // 2
    for border in _BORDERS:
        last = 0
        for found in border.finditer(text, middle, end):
            last = found.end()
        if last:
            return last
    return end


def content_hash(text: str) -> bytes:
    """Return a 16-byte hash that is equal for texts that differ only in case, blanks and the full stop at the end."""
    plain = " ".join(unicodedata.normalize("NFC", text).casefold().split()).rstrip(" .!")
    return blake2b(plain.encode(), digest_size=HASH_BYTES).digest()


def is_near(text: str, known: str) -> bool:
    """Return whether both texts have the same meaning, judged by their words.

    Either their words are equal and in the same order, except for fillers such as "the"; or both are long, nearly all
    runs of three words are common, and no different word could be a name, a number or a negation.
    """
    first, second = _words(text), _words(known)
    if [word.casefold() for word in first] == [word.casefold() for word in second]:
        return bool(first)
    if min(len(first), len(second)) < LONG_WORDS_MIN:
        return False
    one, other = _shingles(first), _shingles(second)
    differing = Counter(first) - Counter(second) | Counter(second) - Counter(first)
    is_harmless = all(word.islower() and word.isalpha() and word not in _DENIALS for word in differing)
    return is_harmless and len(one & other) / len(one | other) >= SIMILAR_MIN


def telling_groups(text: str) -> list[list[str]]:
    """Return groups of words to look up texts similar to `text`: each of those has all words of at least one group.

    Up to 3 groups: the longest 4 words of each of the first stretches of the text, each word with a letter or digit.
    """
    words = [word.casefold() for word in _words(text)][: GROUPS * WINDOW_WORDS]
    size = max(-(-len(words) // GROUPS), 1) if len(words) >= LONG_WORDS_MIN else max(len(words), 1)
    groups = []
    for start in range(0, len(words), size):
        telling = {word for word in words[start : start + size] if any(map(str.isalnum, word))}
        groups.append(sorted(telling, key=lambda word: (-len(word), word))[:GROUP_WORDS])
    return [group for group in groups if group]


def _words(text: str) -> list[str]:
    """Return the words in order, in their own case, without fillers and the punctuation around them; `C++` and `-5`
    stay.
    """
    stripped = (word.lstrip(_BEFORE).rstrip(_AFTER) for word in unicodedata.normalize("NFC", text).split())
    return [word for word in stripped if word and word.casefold() not in _FILLERS]


def _shingles(words: Sequence[str]) -> set[tuple[str, ...]]:
    folded = [word.casefold() for word in words]
    return {tuple(folded[at : at + SHINGLE_WORDS]) for at in range(len(folded) - SHINGLE_WORDS + 1)}
