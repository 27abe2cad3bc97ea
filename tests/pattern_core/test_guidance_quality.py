"""What guidance must be like, and which type of task words are about. P15 to P43 are cases of Delia's analysis."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pattern_core.guidance_quality import (
    KEYWORDS,
    band,
    contradicts,
    detect,
    faults,
    length_fault,
    like_others,
    likeness,
    normal,
    to_archive,
    utility_ratio,
)
from pattern_db.enums import GuidanceSource
from tests.pattern_db.tables.test_guidance import row

LEARNED, MANUAL = GuidanceSource.LEARNED, GuidanceSource.MANUAL


@pytest.mark.parametrize(
    ("helpful", "harmful", "seed", "ratio", "rank"),
    [
        (5, 0, 0.8333, 1.0, 0.8571),  # P15
        (0, 0, 0.0, 0.5, 0.5),  # P16
        (9, 1, 0.8182, 0.9, 0.8333),  # P17
        (3, 1, 0.6, 0.75, 0.6667),
        (1, 1, 0.3333, 0.5, 0.5),
        (1, 0, 0.5, 1.0, 0.6667),  # P36: below 50 of 51
        (50, 1, 0.9615, 0.9804, 0.9623),
    ],
)
def test_p15_to_p17_utility(helpful: int, harmful: int, seed: float, ratio: float, rank: float) -> None:
    one = replace(row("a"), helpful=helpful, harmful=harmful)
    assert round(one.utility_score, 4) == seed
    assert round(utility_ratio(helpful, harmful), 4) == ratio
    assert round(one.rank, 4) == rank


def test_p18_bands() -> None:
    assert [band(score) for score in (0.29, 0.3, 0.69, 0.7)] == ["low", "moderate", "moderate", "high"]


@pytest.mark.parametrize(
    ("content", "source", "code"),
    [
        ("Use pathlib.Path over os.path", LEARNED, None),  # P19
        ("Use tests", LEARNED, "too_short"),  # P20
        ("Write good code", LEARNED, "vague"),  # P21
        ("TODO: describe caching", LEARNED, "placeholder"),  # P22
        ("def foo(x): return x", LEARNED, "code"),  # P23
        ("def foo(x): return x", MANUAL, None),
        ("class component is legacy", LEARNED, None),  # P24
        ("Use placeholder text in forms", LEARNED, None),  # P25
        ("x" * 301, LEARNED, None),  # P26
        ("x" * 501, LEARNED, "too_long"),
        ("71 files need migration", LEARNED, "moment"),  # P31
        ("Currently using Redis", LEARNED, "moment"),
        ("Found 3 bugs last week", LEARNED, "moment"),
        ("Currently using Redis", MANUAL, None),
        ("Handle errors", LEARNED, "vague"),  # P32
        ("Be careful", LEARNED, "vague"),
        ("Follow best practices", LEARNED, "vague"),
        ("use good libraries", LEARNED, "vague"),
        ("Use type hints", LEARNED, "obvious"),
        ("Never block the loop", LEARNED, "obvious"),  # the profile says it
    ],
)
def test_p19_to_p32_gates(content: str, source: GuidanceSource, code: str | None) -> None:
    found = list(faults(content, source, "# Core\n- never  block the loop."))
    assert [fault.code for fault in found] == ([] if code is None else [code])
    assert all(fault.reason for fault in found)
    assert length_fault(content) == (found[0] if code in ("too_short", "too_long") else None)


def test_p27_and_p28_what_is_alike_is_found() -> None:
    assert normal("  Use PATHLIB\n now ") == "use pathlib now"
    near = {49: 0.9899, 39: 0.8864, 13: 0.8125}  # equal letters: of 99, 88 and 32 in both
    for (equal, ratio), whole, code in zip(near.items(), (99, 88, 32), ("similar", "nearly", None), strict=True):
        one = "".join(chr(0x4E00 + n) for n in range(equal))
        other = one + "".join(chr(0x5E00 + n) for n in range(whole - 2 * equal))
        assert round(likeness(one, other, 0.0), 4) == ratio
        found = like_others(other, [("x", "nothing like it"), ("a", one)])
        assert (None if found is None else (found.code, found.other)) == (code and (code, "a"))
    assert likeness("abc", "xyz", 0.5) == 0.0
    found = like_others(" use TABS in makefiles", [("a", "Use tabs in Makefiles")])
    assert found is not None and (found.code, found.other) == ("duplicate", "a")


def test_p29_and_p30_contradictions() -> None:
    assert not contradicts("Use async handlers", "Use async queues")
    assert contradicts("Use tabs", "Never use tabs")
    assert contradicts("Don't use tabs", "always use tabs") and not contradicts("Avoid tabs", "Never use tabs")
    assert like_others("Use async queues", [("a", "Use async handlers")]) is None
    found = like_others("Never use tabs in Makefiles", [("a", "Use tabs in Makefiles")])
    assert found is not None and (found.code, found.other) == ("contradiction", "a")


@pytest.mark.parametrize(
    ("helpful", "harmful", "days", "archived"),
    [
        (0, 0, 91, True),  # P37
        (0, 0, 90, False),
        (1, 0, 91, False),
        (1, 4, 0, True),  # P38
        (0, 4, 0, False),
        (2, 3, 0, False),
    ],
)
def test_p37_and_p38_what_should_be_archived(helpful: int, harmful: int, days: float, archived: bool) -> None:
    assert (to_archive(replace(row("a"), helpful=helpful, harmful=harmful), days) is not None) is archived


@pytest.mark.parametrize(
    ("words", "primary", "secondary", "confidence"),
    [
        # P41. The weights behind the original's confidences are its own: ours is a third for each keyword.
        ("Implement a new login form", "coding", [], 0.333),
        ("fix the failing test", "debugging", ["testing"], 0.667),
        ("add an endpoint", "api", ["coding"], 0.333),
        ("Improve the prime sieve", "project", [], 0.0),  # P42: whole words
        ("explain the latest news", "project", [], 0.333),
        ("Review the author list", "project", [], 0.0),
        ("", "project", [], 0.0),  # P43
        ("Debugging, tested; caching. A PR on GRAPHQL and ci/cd; think through it", "debugging", [
            "testing", "performance", "api", "deployment", "git", "architecture"], 0.333),
        ("refactor", "coding", [], 0.333),
        ("add, create, build and write", "coding", [], 1.0),
        ("restful prs: shipped", "deployment", [], 0.333),
    ],
)  # fmt: skip
def test_p41_to_p43_types_of_task(words: str, primary: str, secondary: list[str], confidence: float) -> None:
    found = detect(words)
    assert (found.primary, found.secondary, found.confidence) == (primary, secondary, confidence)
    assert set(found.matched) == ({primary, *secondary} if confidence else set())


def test_every_keyword_of_the_seed_is_found() -> None:
    assert len(KEYWORDS) == 10
    for kind, words in KEYWORDS.items():
        for word in words:
            assert word in detect(f"it: {word.upper()}.").matched[kind]
