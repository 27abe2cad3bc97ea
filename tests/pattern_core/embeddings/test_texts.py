from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pattern_core.embeddings.work import (
    PIECE_CHARS,
    PIECES_MAX,
    PREVIOUS_CHARS,
    pieces_of,
    split,
)
from pattern_db.enums import SearchKind
from pattern_db.tables.embedding_sources import EmbeddingSource, Said


def message(text: str, speaker: str | None = None, previous: Said | None = None) -> EmbeddingSource:
    return EmbeddingSource(
        kind=SearchKind.MESSAGE, ref="msg_1", scope="agt_ada", text=text, speaker=speaker, previous=previous
    )


def texts_of(source: EmbeddingSource) -> list[str]:
    return [piece.text for piece in pieces_of(source)]


def test_a_message_is_embedded_with_what_was_said_before() -> None:
    assert texts_of(message("Yes, in May.")) == ["Yes, in May."]
    before = Said(text="Will you go to Lisbon?", speaker="Ruth")
    assert texts_of(message("Yes, in May.", "Bea", before)) == ["Ruth: Will you go to Lisbon?\nBea: Yes, in May."]
    assert texts_of(message("Yes.", None, Said(text=" ", speaker=None))) == ["Yes."]


def test_of_a_long_message_before_only_the_end_counts() -> None:
    (text,) = texts_of(message("Yes.", None, Said(text="word " * 500 + "the question?", speaker=None)))
    assert text.endswith("the question?\nYes.")
    assert len(text) <= PREVIOUS_CHARS + 10


def test_the_title_stands_with_every_piece() -> None:
    block = EmbeddingSource(kind=SearchKind.BLOCK, ref="b", scope="a", text="words. " * 500, title="notes")
    pieces = texts_of(block)
    assert len(pieces) > 2
    assert all(piece.startswith("notes\nwords.") for piece in pieces)


def test_blank_texts_have_nothing_to_embed() -> None:
    assert pieces_of(message(" \n\t")) == []


def test_a_piece_ends_where_a_reader_would_end_it() -> None:
    paragraph = "One sentence. " * 50
    assert split(f"{paragraph}\n\n{paragraph}") == [paragraph.strip(), paragraph.strip()]
    assert all(piece.endswith(".") for piece in split("A sentence of some words. " * 200))
    assert all(piece.endswith("word") for piece in split("word " * 1_000))
    assert [len(piece) for piece in split("x" * 2_000)] == [PIECE_CHARS, PIECE_CHARS, 200]
    assert len(split("x" * PIECE_CHARS * (PIECES_MAX + 5))) == PIECES_MAX


def test_equal_texts_have_equal_hashes_and_others_do_not() -> None:
    (one,), (other,), (odd,) = (pieces_of(message(text)) for text in ("a", "b", "\ud800"))
    assert pieces_of(message("a")) == [one]
    assert one.content_hash != other.content_hash
    assert len(odd.content_hash) == 32


@given(st.lists(st.sampled_from(["word", " ", ".", "\n", "\n\n", "日本。", "🙂"]), max_size=2_000).map("".join))
def test_nothing_is_lost_and_no_piece_is_too_long(text: str) -> None:
    pieces = split(text)
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert all(0 < len(piece) <= PIECE_CHARS for piece in pieces)
