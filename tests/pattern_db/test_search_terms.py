from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pattern_db.search_terms import TERMS_READ, parse, spellings


def words(text: str) -> list[str]:
    return [" ".join(term.words) for term in parse(text).terms]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("two words", ["two", "words"]),
        ("what did the cat eat?", ["cat", "eat"]),
        ("who is it", ["who", "is", "it"]),
        ("Caroline's identity", ["caroline", "identity"]),
        ("don't stop", ["don't", "stop"]),
        ("foo-bar: baz", ["foo", "bar", "baz"]),
        ("C++ rocks", ["c++", "rocks"]),
        ("tea OR milk", ["tea", "milk"]),
        ("tea tea Tea", ["tea", "tea"]),
        ("我喜欢猫", ["我喜", "喜欢", "欢猫"]),
        ("猫", ["猫"]),
        ("tea と 猫", ["tea", "と", "猫"]),
        ("AND NOT NEAR", ["near"]),
        ("***", []),
        ('tea "--"', ["tea"]),
        ("tea _ __", ["tea"]),
        ('"3-4 cups?"', ["3 4 cups"]),
        ("", []),
    ],
)
def test_the_terms_of_a_text(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def test_phrases_beginnings_and_what_is_left_out() -> None:
    wanted = parse('"hot tea" mil* -coffee -"cold water"')
    assert [term.match for term in wanted.terms] == ['"hot tea"', '"mil"*']
    assert [term.match for term in wanted.excluded] == ['"coffee"', '"cold water"']
    assert [term.match for term in wanted.required] == ['"hot tea"']
    assert parse('"quick bro"*').terms[0].match == '"quick bro"*'


def test_a_phrase_in_a_question_need_not_occur() -> None:
    assert parse('What did Tim think of "The Alchemist"?').required == ()


def test_signs_that_the_index_does_not_know_are_looked_for_in_the_text() -> None:
    (term,) = parse("C++").terms
    assert (term.match, term.literal) == ('"C"', "c++")
    assert [term.literal for term in parse("F# and C").terms] == ["f#", None]
    assert parse('"in C++"').terms[0].literal == "in c++"


def test_emoji_stand_in_no_index() -> None:
    emoji, word = parse("🎉 party").terms
    assert (emoji.match, emoji.literal, word.match) == ("", "🎉", '"party"')
    assert not emoji.is_plain
    assert word.is_plain


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("getUserName", ["get User Name"]),
        ("HTTPServer", ["HTTP Server"]),
        ("Größe", ["groesse"]),
        ("Groesse", ["größe"]),
        ("ﬁnance", ["finance"]),
        ("книга", []),
        ("tea", []),
    ],
)
def test_how_else_a_word_is_written(word: str, expected: list[str]) -> None:
    assert spellings(word) == expected


def test_a_very_long_text_is_cut() -> None:
    found = parse(" ".join(f"word{number}" for number in range(5000)))
    assert (len(found.terms), found.count) == (TERMS_READ, 5000)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60) | st.text(alphabet="ab*\"-()^:+{}\\\0 ORNT'猫", max_size=25))
@example("\0\ud800")
@example('a"b"c* -"')
def test_terms_are_quoted_whatever_the_text(text: str) -> None:
    wanted = parse(text)
    for term in (*wanted.terms, *wanted.excluded):
        assert (term.cjk is not None) != bool(term.match or term.literal)
        if term.match:
            assert term.match.rstrip("*").count('"') == 2
            assert "\0" not in term.match
