"""What guidance must be like, and which type of task words are about. Pure.

Source: Delia's schema reference, version 2 (2025-12-23): lengths, rules of quality, task types with their keywords.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from pattern_db.enums import GuidanceSource
from pattern_db.tables.guidance import GuidanceRow

CHARS_MIN, CHARS_MAX = 10, 500
CHARS_USUAL_MIN, CHARS_USUAL_MAX = 15, 300
SAME, NEARLY_SAME = 0.90, 0.85  # likeness from which nothing is added: it is one; it counts as help for the other one
LOW, HIGH = 0.3, 0.7  # utility: below, from
FEEDBACK_MIN = 5  # verdicts, before its utility counts
UNUSED_DAYS = 90
DETECTED_CHARS_MAX = 20_000
THIRD = 3  # hits, of which each is a third of certainty

PROJECT = "project"
# In the order in which ties are decided. In capitals: names without other forms.
KEYWORDS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "debugging": ("bug", "error", "fix", "debug", "broken", "failing"),
        "security": ("auth", "password", "token", "injection", "XSS"),
        "testing": ("test", "pytest", "coverage", "mock", "assert"),
        "performance": ("optimize", "cache", "slow", "fast"),
        "api": ("endpoint", "REST", "GraphQL", "request"),
        "deployment": ("docker", "CI/CD", "production", "ship"),
        "git": ("commit", "branch", "merge", "PR", "push", "pull"),
        "architecture": ("design", "pattern", "ADR", "plan", "think through"),
        "coding": ("implement", "add", "create", "build", "write", "refactor"),
        PROJECT: ("how", "what", "where", "explain"),
    }
)


def _forms(keyword: str) -> re.Pattern[str]:
    """Return a pattern for a keyword as a whole word, also with -s, -ed and -ing."""
    if not keyword.islower() or " " in keyword:
        forms = re.escape(keyword)
    elif keyword.endswith("e"):
        forms = f"{keyword[:-1]}(?:e[sd]?|ing)"
    else:
        forms = f"{keyword}(?:e?s|{keyword[-1]}?(?:ed|ing))?"
    return re.compile(rf"(?<![\w/])(?:{forms})(?![\w/])", re.IGNORECASE)


_PATTERNS = {kind: [(word, _forms(word)) for word in words] for kind, words in KEYWORDS.items()}
_WORD = re.compile(r"\w[\w.+#'’-]*\w|\w")
_PLACEHOLDER = re.compile(r"\W*(?:TODO|FIXME|TBD|XXX)\b")
_CODE = re.compile(
    r"```|\b(?:def|function) \w+\(|\bclass \w+(?:\([\w., ]*\))?:|^(?:from [\w.]+ )?import [\w.]+|"
    r"^(?:const|let|var) \w+ =|[;{}]\s*$",
    re.MULTILINE,
)
_MOMENT = re.compile(
    r"\b(?:currently|right now|at the moment|today|yesterday|(?:last|this) (?:week|month|night|year))\b"
    r"|^\d+ \w+ (?:need|are|have|were|remain|fail|pass)|\bfound \d+\b",
    re.IGNORECASE,
)
_VAGUE = frozenset(
    re.findall(
        r"\w+",
        "a all always and be best better bugs careful carefully clean code do errors everything follow good great"
        " handle high improve in it libraries make mistakes nice of practice practices proper properly quality right"
        " software sure test tests the thing things think to use well work works write your",
    )
)
_OBVIOUS = frozenset({"use type hints", "use version control", "read the documentation", "commit your changes"})
_NOT = frozenset({"never", "avoid", "not", "no", "without", "stop", "don't", "don’t"})
_FILLING = frozenset({"do", "always", "use", "using", "the", "a", "an", "please", "should", "must"})


@dataclass(frozen=True, slots=True)
class DetectedTask:
    """Which type of task words are about. `matched` are the keywords by type; `secondary` the other types with some."""

    primary: str
    secondary: Sequence[str]
    confidence: float
    matched: Mapping[str, Sequence[str]]


class Fault(NamedTuple):
    """Why guidance is not good: a code, and the reason in words; `other` is the id of guidance that it is like."""

    code: str
    reason: str
    other: str = ""


def detect(words: str) -> DetectedTask:
    """Return the type of task that words are about: the one with most of its keywords in them, as whole words."""
    text = words[:DETECTED_CHARS_MAX]
    found = {kind: [word for word, form in forms if form.search(text)] for kind, forms in _PATTERNS.items()}
    matched = {kind: hits for kind, hits in found.items() if hits}
    ranked = sorted(matched, key=lambda kind: -len(matched[kind]))  # stable: ties stay in their order
    if not ranked:
        return DetectedTask(PROJECT, [], 0.0, {})
    return DetectedTask(ranked[0], ranked[1:], min(1.0, round(len(matched[ranked[0]]) / THIRD, 3)), matched)


def band(score: float) -> str:
    """Return what a utility score means: `low`, `moderate` or `high`."""
    return "low" if score < LOW else "high" if score >= HIGH else "moderate"


def utility_ratio(helpful: int, harmful: int) -> float:
    """Return the share of verdicts that say that it helped, as Delia's files have it: one half without any."""
    return helpful / (helpful + harmful) if helpful + harmful else 0.5


def to_archive(row: GuidanceRow, days_unused: float) -> str | None:
    """Return why guidance should be archived; None if it should not."""
    verdicts = row.helpful + row.harmful
    if verdicts >= FEEDBACK_MIN and row.utility_score < LOW:
        return f"it helped {row.helpful} of {verdicts} times (utility {row.utility_score:.2f})"
    if days_unused > UNUSED_DAYS and not row.helpful:
        return f"it was not used for {int(days_unused)} days, and has never helped"
    return None


def normal(text: str) -> str:
    """Return a text as it is compared with others: small letters, single blanks."""
    return " ".join(text.casefold().split())


def length_fault(content: str) -> Fault | None:
    """Return what is wrong with the length of guidance, in characters without blanks at its ends."""
    count = len(content.strip())
    if count < CHARS_MIN:
        return Fault("too_short", f"Content too short ({count} chars)")
    return Fault("too_long", f"Content too long ({count} chars)") if count > CHARS_MAX else None


def faults(content: str, source: GuidanceSource, profile: str = "") -> Iterator[Fault]:
    """Yield what is wrong with guidance by itself. People may also write code, and what is true only for now. `profile`
    is what everyone reads anyway.
    """
    if fault := length_fault(content):
        yield fault
        return
    words = [word.casefold() for word in _WORD.findall(content)]
    if _PLACEHOLDER.match(content):
        yield Fault("placeholder", "it is a placeholder; write the advice itself")
    if source is not GuidanceSource.MANUAL and _CODE.search(content):
        yield Fault("code", "it is code; say in words what to do")
    if source is not GuidanceSource.MANUAL and _MOMENT.search(content):
        yield Fault("moment", "it describes a moment; say what stays true")
    if _VAGUE.issuperset(words):
        yield Fault("vague", "it is vague; name a thing, such as `Use pathlib.Path over os.path`")
    if " ".join(words) in _OBVIOUS or normal(content) in normal(profile):
        yield Fault("obvious", "it is obvious, or the core profile says it already")


def likeness(one: str, other: str, least: float) -> float:
    """Return how alike two texts are, from 0 to 1; 0 if that is less than `least`."""
    one, other = normal(one), normal(other)
    if 2 * min(len(one), len(other)) < least * (len(one) + len(other)):
        return 0.0
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    if matcher.quick_ratio() < least:
        return 0.0
    return ratio if (ratio := matcher.ratio()) >= least else 0.0


def contradicts(one: str, other: str) -> bool:
    """Return whether one text says to do something, and the other one not to do the same."""
    (about, denies), (too, denies_too) = _claim(one), _claim(other)
    return about == too and bool(about) and denies != denies_too


@lru_cache(maxsize=2_000)  # each is compared with all others
def _claim(text: str) -> tuple[frozenset[str], bool]:
    words = frozenset(word.casefold() for word in _WORD.findall(text))
    return words - _NOT - _FILLING, bool(words & _NOT)


def like_others(content: str, others: Iterable[tuple[str, str]]) -> Fault | None:
    """Return that a text is like another one, of those with these ids and texts: `duplicate`, `similar`, `nearly`, or
    that they are in `contradiction`.
    """
    best, found = 0.0, None
    for other_id, other in others:
        if normal(other) == normal(content):
            return Fault("duplicate", f"it is there already, as {other_id}", other_id)
        if contradicts(content, other):
            found = found or Fault("contradiction", f"it contradicts {other_id}: {other}", other_id)
        elif (ratio := likeness(content, other, max(NEARLY_SAME, best))) and ratio > best:
            best = ratio
            code = "similar" if ratio >= SAME else "nearly"
            found = Fault(code, f"it is like {other_id} ({ratio:.4f}): {other}", other_id)
    return found
