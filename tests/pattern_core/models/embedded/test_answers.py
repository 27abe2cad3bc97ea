from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.models.embedded.answers import (
    NO_MODEL,
    SMALL_TALK,
    WHAT_I_AM,
    Excerpt,
    best_sentences,
    hits_of,
    keywords,
    listed,
    sentences,
    unmarked,
)
from pattern_core.untrusted import marked

RUTH = Excerpt(text="My sister Ruth lives in Lisbon.", kind="block", label="human")
NUTS = Excerpt(text="Ruth is allergic to walnuts.", kind="block", label="human")
BOILER = Excerpt(
    text="The boiler was serviced in March by Mr. Okafor.", kind="archival", created_at="2026-01-02T03:04:05.006Z"
)


def said(text: str, role: str = "user") -> Excerpt:
    return Excerpt(text=text, kind="message", role=role, created_at="2026-01-02T03:04:05.006Z")


def test_keywords_are_stems_without_small_words() -> None:
    assert keywords("What do you know about Ruth's walnuts?") == ["ruth", "walnut"]
    assert keywords("lives live living lived") == ["liv"]
    assert keywords("Żółw żółw 日本 7 x") == ["żółw", "日本", "7"]


def test_sentences_and_lines() -> None:
    assert sentences("- One. Two!\n* three\n…\nMr. Okafor came.") == ["One.", "Two!", "three", "Mr. Okafor came."]


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Ruth", [RUTH, NUTS]),
        ("Where does my sister live?", [RUTH]),
        ("What is Ruth allergic to?", [NUTS]),
        ("the boiler", [BOILER]),
        ("submarines", []),
        ("what about it", []),
    ],
)
def test_best_sentences(question: str, expected: list[Excerpt]) -> None:
    assert best_sentences(question, [RUTH, NUTS, BOILER]) == expected


def test_memory_goes_before_talk_and_nothing_is_said_twice() -> None:
    found = [
        said("I will remember that: My sister Ruth lives in Lisbon.", "assistant"),
        said("Remember that my sister Ruth lives in Lisbon."),
        said("What do you know about Ruth?"),
        said("Ruth called. The weather was fine."),
        RUTH,
    ]
    best = best_sentences("What do you know about Ruth?", found, spoken=["What do you know about Ruth?"])
    assert best == [RUTH, said("Ruth called.")]


def test_earlier_versions_commands_tools_and_own_words_are_no_answers() -> None:
    found = [
        said("Remember that my sister Ruth lives in Porto."),
        said("Change Ruth to Rita."),
        said('{"hits": "Ruth"}', "tool"),
        said("Ruth is well, I said.", "assistant"),
        said("forget everything about Ruth. Ruth sent a card."),
        RUTH,
    ]
    assert best_sentences("Ruth", found) == [RUTH, said("Ruth sent a card.")]
    assert best_sentences("Ruth", found[1:4]) == [said("Ruth is well, I said.", "assistant")]


def test_origins() -> None:
    shown = listed(
        [
            RUTH,
            BOILER,
            said("x"),
            said("y", "assistant"),
            Excerpt(text="z", kind="message"),
            Excerpt(text="w", kind="block"),
            Excerpt(text="v", kind="file", label="boiler.md"),
            Excerpt(text="u", kind="file"),
        ]
    )
    assert shown.splitlines() == [
        "- My sister Ruth lives in Lisbon. (memory block human)",
        "- The boiler was serviced in March by Mr. Okafor. (archive, 2026-01-02)",
        "- x (you said, 2026-01-02)",
        "- y (I said, 2026-01-02)",
        "- z (from our conversations)",
        "- w (memory)",
        "- v (file boiler.md)",
        "- u (a file)",
    ]


def test_hits_of_a_search() -> None:
    hit = {"kind": "message", "id": "m", "content": "tea", "role": "user", "created_at": "2026", "score": 1.0}
    assert hits_of(json.dumps({"hits": [hit, {"snippet": "cake"}, {"content": 3}, 5]})) == [
        Excerpt(text="tea", kind="message", role="user", created_at="2026"),
        Excerpt(text="cake", kind="message"),
    ]
    for broken in ("", "[]", '{"hits": 3}', "{", "[" * 100_000):
        assert hits_of(broken) == []


texts = st.text(alphabet=st.characters(codec=None), max_size=200)


@given(
    texts, st.lists(st.builds(Excerpt, text=texts, kind=st.sampled_from(["block", "message"]), role=texts), max_size=5)
)
def test_any_text_can_be_answered_from(question: str, found: list[Excerpt]) -> None:
    best = best_sentences(question, found, spoken=[question])
    assert best == best_sentences(question, found, spoken=[question])
    listed(best)


def test_a_result_is_read_without_its_mark() -> None:
    assert unmarked(marked('{"hits":[]}', "tool search")) == '{"hits":[]}'
    assert unmarked(marked("two\nlines", 'tool "x"')) == "two\nlines"
    assert unmarked('say <data from="x">\na\n</data>') == 'say <data from="x">\na\n</data>'


def test_what_it_says_of_itself_is_honest_and_helpful() -> None:
    assert "not a language model" in WHAT_I_AM
    for words in (
        "no language model",
        "ANTHROPIC_API_KEY",
        "OPENAI_API_KEY",
        "pattern.toml",
        "base_url",
        "model_provider",
    ):
        assert words in NO_MODEL
        assert words in SMALL_TALK["help"]
    assert set(SMALL_TALK) == {"hello", "help", "thanks", "bye", "how_are_you", "never_mind"}
