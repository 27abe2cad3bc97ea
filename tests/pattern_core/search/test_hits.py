from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pattern_core.search.hits import CHARS_MAX, holds, reason, snippet, stems_of
from pattern_core.search.plan import Ranked
from pattern_db.enums import SearchKind
from pattern_db.search import Row


def test_the_place_with_the_most_different_words_is_shown() -> None:
    text = "needle " + "filler " * 300 + "a needle in the haystack is here " + "filler " * 300
    shown = snippet(text, stems_of(["needles", "haystack"]))
    assert "needle in the haystack" in shown
    assert shown.startswith("…")
    assert shown.endswith("…")


def test_a_text_without_the_words_shows_its_beginning() -> None:
    assert snippet("start " + "filler " * 300, stems_of(["needle"])).startswith("start filler")
    assert snippet("start " * 100, ()).startswith("start")
    assert stems_of([]) == ()


@given(st.text(st.characters(exclude_characters="…"), max_size=600), st.lists(st.text(max_size=6), max_size=3))
def test_it_is_short_and_of_the_text(text: str, words: list[str]) -> None:
    shown = snippet(text, stems_of(words))
    assert len(shown) <= CHARS_MAX + 2
    assert shown.strip("…") in " ".join(text.split())


def test_forms_of_a_word_are_found_where_it_begins() -> None:
    assert holds("We went WALKING there", stems_of(["Walks"]))
    assert not holds("the biking tour", stems_of(["king"]))
    assert holds("昨日は東京タワーへ", stems_of(["タワー"])), "there are no blanks between words"
    assert not holds("anything", ())
    text = "filler " * 100 + "İstanbul: the bazaar " + "filler " * 100
    assert "bazaar" in snippet(text, stems_of(["bazaar"])), "a letter that is two in lower case moves nothing"


ROW = Row(kind=SearchKind.BLOCK, row=1, ref="b", id="b", agent_id="a", content="", created_at="")


def test_the_reason_names_what_counts() -> None:
    assert reason(Ranked(row=ROW, parts={"words": 0.5, "question": -0.17, "length": 0.001})) == (
        "its words fit (+0.50), it asks (-0.17)"
    )
    assert (
        reason(Ranked(row=ROW, parts={"meaning": 0.5}, factor=0.7)) == "near in meaning (+0.50), a tool's result (×0.7)"
    )
