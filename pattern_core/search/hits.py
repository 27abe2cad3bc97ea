"""Hits: the shown fields of each found row, a snippet, and the reason as text. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from pattern_core.search.plan import Plan, Ranked
from pattern_core.search.request import Hit
from pattern_db.columns import from_json
from pattern_db.enums import SearchKind

CHARS_MAX = 220
_ELLIPSIS = "…"
_MATCHES_MAX = 200  # beyond this the best place among the first ones is good enough
_STEM_MIN = 4
# As the indexes read them.
_ACCENTS = {code: unicodedata.normalize("NFD", chr(code))[0] for code in (*range(0xC0, 0x250), *range(0x1E00, 0x1F00))}
_WORD_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")
_WORDS = {
    "words": "its words fit",
    "meaning": "near in meaning",
    "alike": "its words mean what the query's do",
    "answer": "what was said next is near in meaning",
    "question": "it asks",
    "session": "its session holds the words",
    "speaker": "said by whom the query names",
    "date": "near the date that the query names",
}


def hits_of(
    searched: Plan, found: Sequence[tuple[float, Ranked, int]], relevance: float, asked: Mapping[int, str]
) -> list[Hit]:
    """Return the hits for rows with their values and how many finds each stands for, best first. `relevance` is the
    score of the best, `asked` are the questions that messages answer.
    """
    best = found[0][0] if found and found[0][0] > 0 else 1.0
    stems = stems_of(tuple(word for term in searched.wanted.terms for word in term.words))
    return [
        Hit(
            kind=one.row.kind,
            id=one.row.id,
            agent_id=one.row.agent_id,
            content=one.row.content,
            snippet=snippet(one.row.content, stems),
            score=relevance * value / best,
            parts={name: round(value, 4) for name, value in one.parts.items()}
            | ({} if one.factor == 1.0 else {"tool_result": one.factor}),
            reason=reason(one),
            created_at=one.row.created_at,
            label=one.row.label,
            role=one.row.role,
            session_id=one.row.session_id,
            metadata=from_json(one.row.metadata),
            count=count,
            answers=asked.get(one.row.row) if one.row.kind is SearchKind.MESSAGE else None,
            trust=one.row.trust,
        )
        for value, one, count in found
    ]


def reason(one: Ranked) -> str:
    """Return why the row was found, in words, with what each part adds: `its words fit (+0.81), it asks (-0.17)`."""
    said = [f"{_WORDS[name]} ({value:+.2f})" for name, value in one.parts.items() if round(value, 2)]
    if one.factor != 1.0:
        said.append(f"a tool's result (×{one.factor})")
    return ", ".join(said)


@lru_cache(maxsize=1024)
def stems_of(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return what to look for in a text to find any form of the words, in lower case; the longest first."""
    stems = {_folded(word)[: max(_STEM_MIN, len(word) - 2)] for word in words if word}  # other forms end otherwise
    return tuple(sorted(stems, key=lambda stem: (-len(stem), stem)))


def holds(text: str, stems: Sequence[str]) -> bool:
    """Return True if any of the words of `stems_of` occurs in the text."""
    return next(_found(_folded(text), stems), None) is not None


def snippet(text: str, stems: Sequence[str]) -> str:
    """Return at most about 220 characters of `text` around the place with the most different matches; its beginning if
    there is none.
    """
    if len(text) <= CHARS_MAX:
        return " ".join(text.split())
    places = _places(text, stems)
    middle = _densest(places) if places else 0
    start = min(max(middle - CHARS_MAX // 2, 0), len(text) - CHARS_MAX)
    if start > 0:  # at the beginning of a word, if one is near
        start = text.find(" ", start, start + 20) + 1 or start
    end = min(start + CHARS_MAX, len(text))
    blank = text.rfind(" ", end - 20, end) if end < len(text) else -1
    end = blank if blank >= 0 else end
    before = _ELLIPSIS if start > 0 else ""
    after = _ELLIPSIS if end < len(text) else ""
    return before + " ".join(text[start:end].split()) + after


def _folded(text: str) -> str:
    """Return the text in lower case and without accents, of the same length."""
    if text.isascii():
        return text.lower()
    low = text.lower().translate(_ACCENTS)
    return low if len(low) == len(text) else text  # a few letters become two; then what is written the same is found


def _places(text: str, stems: Sequence[str]) -> list[tuple[int, str]]:
    """Return the places of stems, in order, the longest of those at one place; within a word only where there are
    no blanks between words. To make one expression of all words takes longer than a search's other work on its hits.
    """
    places: dict[int, str] = {}
    for at, stem in _found(_folded(text), stems):
        places.setdefault(at, stem)
    return sorted(places.items())[:_MATCHES_MAX]


def _found(low: str, stems: Sequence[str]) -> Iterator[tuple[int, str]]:
    for stem in stems:
        at, count = low.find(stem), 0
        while at >= 0 and count < _MATCHES_MAX:
            if at == 0 or low[at - 1] not in _WORD_CHARACTERS:
                yield at, stem
                count += 1
            at = low.find(stem, at + 1)


def _densest(places: Sequence[tuple[int, str]]) -> int:
    """Return the middle of the window that holds most different words, the first of equals."""
    best_middle, best_count = places[0][0], 0
    for index, (start, _) in enumerate(places):
        within = [place for place in places[index : index + 32] if place[0] < start + CHARS_MAX]
        count = len({word for _, word in within})
        if count > best_count:
            best_count, best_middle = count, (start + within[-1][0]) // 2
    return best_middle
