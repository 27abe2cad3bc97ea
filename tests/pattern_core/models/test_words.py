from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pattern_core.models.words import Joiner, mended

ANY_TEXT = st.text(alphabet=st.characters(codec=None))


def test_halves_are_joined_or_replaced() -> None:
    assert mended("plain") == "plain"
    assert mended("zażółć 😀") == "zażółć 😀"
    assert mended("\ud83d\ude00!") == "😀!"
    assert mended("a\ud83db\ude00") == "a\ufffdb\ufffd"


def test_a_character_in_two_pieces_comes_out_whole() -> None:
    joiner = Joiner()
    assert [joiner.feed("a\ud83d"), joiner.feed("\ude00b"), joiner.feed("\ud83d"), joiner.end(), joiner.end()] == [
        "a",
        "😀b",
        "",
        "\ufffd",
        "",
    ]


@given(ANY_TEXT, st.integers(min_value=0))
def test_any_cut_gives_the_same_storable_text(text: str, cut: int) -> None:
    at = cut % (len(text) + 1)
    joiner = Joiner()
    joined = joiner.feed(text[:at]) + joiner.feed(text[at:]) + joiner.end()
    assert joined == mended(text)
    assert joined.encode().decode() == joined
