"""The ranking of decisions, number by number. L16 to L37 are the numbered cases of the original."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pattern_core.decision_ranking import (
    SCORED_MAX,
    DecisionIndex,
    DecisionQuestion,
    prompt_tokens,
    ranked,
    score,
    similar,
    tokens_of,
)
from pattern_db.columns import to_json, unix_ms
from pattern_db.enums import DecisionSource
from pattern_db.tables.decisions import DecisionRow, DecisionWords

CREATED = "2026-02-01T00:00:00.000Z"
CWD = "/repos/example"
BASE = DecisionRow(
    id="b",
    workspace="w",
    title="Decision",
    text="We decided to use git checkpoints for memory recovery.",
    created_at=CREATED,
    updated_at=CREATED,
    changed_by="user:u",
    cwd=CWD,
    project="example",
    tags=["decision"],
)
WORDS = "memory recovery checkpoints"


def words_of(row: DecisionRow) -> DecisionWords:
    is_shown, texts = not row.archived and row.superseded_by is None, (row.tags, row.text, row.summary, row.details)
    tags, text, summary, details = texts
    return DecisionWords(
        row.id, is_shown, row.archived, row.title, to_json([*tags]), text, summary or "", to_json([*details])
    )


def indexed(rows: Sequence[DecisionRow]) -> DecisionIndex:
    return DecisionIndex([*map(words_of, rows)])


def points(words: str = WORDS, *, asks: dict[str, Any] | None = None, **fields: Any) -> tuple[int, int]:
    """The score for a search, and for a prompt."""
    given: dict[str, Any] = {"workspace": "w", "cwd": CWD, **(asks or {})}
    question = DecisionQuestion(tokens=tokens_of(words), now_ms=unix_ms(CREATED), **given)
    row = replace(BASE, **fields)
    return score(row, question), score(row, replace(question, is_for_prompt=True))


@pytest.mark.parametrize(
    ("case", "made", "expected"),
    [
        ("L16", {}, (21, 19)),
        ("L17 no folder of the workspace", {"asks": {"workspace": "", "cwd": None}}, (15, 13)),
        ("L17, L35 the same name, another project", {"asks": {"workspace": "other", "cwd": CWD}}, (15, 13)),
        ("L17 a folder below", {"asks": {"cwd": f"{CWD}/src"}}, (19, 17)),
        ("L18", {"title": WORDS, "text": "unrelated"}, (30, 28)),
        ("L19 here", {"words": "checkpoint", "text": "checkpointing"}, (13, 0)),
        (
            "L19 elsewhere",
            {"words": "checkpoint", "text": "checkpointing", "asks": {"workspace": "other"}},
            (7, 0),
        ),
        ("L20", {"important": True}, (29, 23)),
        ("L21 13 days", {"created_at": "2026-01-19T00:00:00.000Z"}, (20, 18)),
        ("L21 100 days", {"created_at": "2025-10-24T00:00:00.000Z"}, (19, 17)),
        ("L21 215 days", {"created_at": "2025-07-01T00:00:00.000Z"}, (17, 15)),
        ("L21 in the future", {"created_at": "2026-05-01T00:00:00.000Z"}, (21, 19)),
        ("L21 no date", {"created_at": None}, (19, 17)),
        ("L22", {"confidence": "high", "freshness": "current"}, (26, 22)),
        ("L22", {"confidence": "medium", "freshness": "may_be_stale"}, (23, 19)),
        ("L22", {"confidence": "low", "freshness": "stale"}, (18, 13)),
        ("L23", {"superseded_by": "another"}, (17, 0)),
        ("L24", {"conflicts_with": ["another"]}, (19, 15)),
        ("L25", {"retrieval_count": 50, "injection_count": 50}, (31, 19)),
        ("L26", {"archived": True}, (0, 0)),
        ("L27", {"words": "memory"}, (15, 0)),
        ("L28", {"words": "decision workflow", "important": True, "tags": ["workflow"]}, (30, 0)),
        ("L29 two of five", {"words": f"{WORDS[:15]} apples pears plums"}, (18, 0)),
        ("L29 three of five", {"words": f"{WORDS} apples pears"}, (21, 19)),
        ("L30 bugfix", {"words": "memory recovery", "source": DecisionSource.EXTRACTED, "tags": ["bugfix"]}, (14, 0)),
        (
            "L30 workflow",
            {"words": "memory recovery", "source": DecisionSource.EXTRACTED, "tags": ["workflow"]},
            (14, 14),
        ),
        ("L31", {"source": DecisionSource.TURN, "important": True}, (25, 0)),
        (
            "L32",
            {
                "words": "python session analysis",
                "title": "Ran python session analysis",
                "source": DecisionSource.EXTRACTED,
            },
            (26, 0),
        ),
        ("L33 no tags", {"tags": []}, (21, 19)),
        ("a file of its own", {"kb_path": "/k/a.md"}, (24, 22)),
        ("nothing in common", {"words": "apples pears"}, (0, 0)),
        ("a word of one that is repeated", {"words": "memory memory"}, (18, 16)),
    ],
)
def test_l16_to_l33_and_l35_scores(case: str, made: dict[str, Any], expected: tuple[int, int]) -> None:
    assert points(**made) == expected, case


def test_long_questions_count_less_in_a_prompt() -> None:
    more = " ".join(f"word{number}" for number in range(29))
    # 9 points for three words of 32: max(1, round(9 * sqrt(8 / 32))) = 5
    assert points(f"{WORDS} {more}") == (21, 15)


def test_words_are_those_of_the_original() -> None:
    assert tokens_of("The API-KEY use: src/main.ts, a.b. v2 https://x.y/z ok!") == [
        "api-key",
        "src/main.ts",
        "a.b",
        "https://x.y/z",
    ]
    assert tokens_of("日本 été ab") == []
    assert prompt_tokens("Please fix the Lisbon cache. Lisbon!") == ["lisbon", "cache"]
    assert len(prompt_tokens(" ".join(f"word{number}" for number in range(99)))) == 32


def test_rare_words_weigh_more() -> None:
    one, other = replace(BASE, text="lisbon garden"), replace(BASE, text="garden")
    weight = indexed([one, other, replace(BASE, text="lisbon", archived=True)]).weight
    assert weight("garden") == 0.75
    assert round(weight("lisbon"), 4) == 1.1555
    assert weight("porto") == 1.0
    many = indexed([one, *(replace(other, id=str(number)) for number in range(99))]).weight
    assert many("lisbon") == 2.5


def test_the_best_come_first_then_the_newest_and_a_prompt_gets_three() -> None:
    rows = [replace(BASE, id=str(number), created_at=f"2026-02-01T00:00:0{number}.000Z") for number in range(5)]
    rows += [replace(BASE, id="best", important=True), replace(BASE, id="far", workspace="other", important=True)]
    question = DecisionQuestion(tokens=tokens_of(WORDS), now_ms=unix_ms(CREATED), workspace="w", cwd=CWD)
    assert [row.id for _, row in ranked(rows, question)] == ["best", "far", "4", "3", "2", "1", "0"]
    shown = ranked(rows, replace(question, is_for_prompt=True))
    assert [(points, row.id) for points, row in shown] == [(23, "best"), (19, "4"), (19, "3")]
    weak = replace(BASE, text="memory recovery", source=DecisionSource.EXTRACTED, freshness="stale", created_at=None)
    assert ranked([weak], replace(question, is_for_prompt=True, cwd=None)) == []


def test_of_many_only_those_with_two_of_the_words_are_read() -> None:
    rows = [replace(BASE, id=f"d{number}", text=f"word{number} garden") for number in range(200)]
    rows += [
        replace(BASE, id="old", text="lisbon garden"),
        replace(BASE, id="gone", text="lisbon garden", archived=True),
    ]
    rows[-2] = replace(rows[-2], superseded_by="d1")
    index = indexed(rows)
    assert index.likely(["word7", "garden"]) == ["d7"]
    assert index.likely(["lisbon", "garden"]) == index.likely(["word7"]) == index.likely(["porto"]) == []
    assert index.likely(["nowhere", "never"]) == []
    many = index.likely(["decision", "garden", "word9"])
    assert (len(many), many[0]) == (SCORED_MAX, "d9")


def test_an_index_that_follows_changes_is_as_a_new_one() -> None:
    rows = [replace(BASE, id=f"d{number}", text=f"word{number % 7} garden") for number in range(50)]
    changes: list[list[DecisionRow]] = [
        [*rows, replace(BASE, id="new", text="lisbon garden")],
        [replace(rows[0], archived=True), *rows[1:]],
        [rows[0], replace(rows[1], text="lisbon", details=["harbour"]), *rows[2:]],
        [replace(rows[0], superseded_by="d1"), *rows[1:]],
        [*rows[:20], *rows[30:]],
        rows[:49],
        [],
        rows,
    ]
    index = indexed(rows)
    words = ["lisbon", "garden", "harbour", "decision", *(f"word{number}" for number in range(7))]
    for changed in changes:
        index.update([*map(words_of, changed)])
        fresh = indexed(changed)
        assert [index.weight(word) for word in words] == [fresh.weight(word) for word in words]
        for word in words:
            assert index.likely([word, "garden"]) == fresh.likely([word, "garden"])


# Id, title, text and tags of decisions; then questions with the ids that are to be found first, and shown in a prompt.
REMEMBERED = [
    ("wal", "Keep WAL mode on", "We decided to keep the journal in WAL mode: readers never block.", ["sqlite"]),
    ("tabs", "Indent with tabs", "The editor shows tabs as wide as anyone prefers.", ["style", "preference"]),
    ("cache", "Cache of Lisbon prices", "Prices of Lisbon are cached for an hour.", ["prices"]),
    ("deploy", "Deploy on Tuesdays", "The release checklist ends with a deploy on Tuesday morning.", ["workflow"]),
    ("backup", "Nightly backup of the journal", "A backup of the sqlite journal is copied at night.", ["sqlite"]),
    ("retry", "Retry failed payments thrice", "A payment that failed is retried three times, then reported.", []),
]
QUESTIONS = [
    ("journal mode readers", ["wal", "backup"], ["wal"]),
    ("how wide are tabs in the editor", ["tabs"], ["tabs"]),
    ("cached lisbon prices", ["cache"], ["cache"]),
    ("release checklist deploy", ["deploy"], ["deploy"]),
    ("sqlite journal backup", ["backup", "wal"], ["backup", "wal"]),
    ("payment retried", ["retry"], ["retry"]),
    ("tuesday morning", ["deploy"], ["deploy"]),
    ("journal night", ["backup", "wal"], ["backup"]),
    ("prices hour", ["cache"], ["cache"]),
    ("greenhouse roses", [], []),
    ("tabs", ["tabs"], []),
]


@pytest.mark.parametrize(("words", "found", "shown"), QUESTIONS)
def test_l39_what_is_found_and_shown_for_questions(words: str, found: list[str], shown: list[str]) -> None:
    """The original has eleven such cases over its own decisions; these are ours."""
    rows = [replace(BASE, id=one, title=title, text=text, tags=tags) for one, title, text, tags in REMEMBERED]
    index = indexed(rows)
    asked = DecisionQuestion(tokens=tokens_of(words), now_ms=unix_ms(CREATED), workspace="w", cwd=CWD, index=index)
    assert [row.id for _, row in ranked(rows, asked)][: len(found)] == found
    assert [row.id for _, row in ranked(rows, replace(asked, is_for_prompt=True))] == shown
    assert {*shown} <= {*index.likely(asked.tokens)}


def test_l37_what_says_nearly_the_same() -> None:
    row = replace(BASE, title="Pi Memory staleness review cadence", text="")
    assert similar("Memory staleness review cadence", "", [BASE, row]) is row
    assert similar("Colour of the door", "Green.", [BASE, row]) is None
    assert similar("Memory staleness review cadence", "", [replace(row, archived=True)]) is None
    assert similar("", "", [row]) is None
