from __future__ import annotations

from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.errors import Conflict, LimitReached
from pattern_core.files import passages
from pattern_core.files.disk import UnreadableFile
from pattern_core.files.passages import CHARS_MAX, hash_of, prepare, split, store
from pattern_core.files.reading import Document, FileKind, Syntax
from pattern_db.enums import FolderAccess
from pattern_db.tables import files
from pattern_db.tables.passages import Piece
from tests.pattern_core.files.samples import Shelf


def pieces(text: str, syntax: Syntax = "prose", pages: tuple[int, ...] = ()) -> list[Piece]:
    kind = FileKind(content_type="text/plain", syntax=syntax)
    return split("a.md", Document(text=text, kind=kind, pages=pages))


def lines_of(text: str, found: list[Piece]) -> None:
    """Each passage is what stands on its lines."""
    lines = text.split("\n")
    for piece in found:
        there = "\n".join(lines[piece.start_line - 1 : piece.end_line])
        assert piece.content == there or (piece.start_line == piece.end_line and piece.content in there)


def test_what_is_short_stands_together() -> None:
    assert pieces("\n\nOne.\n\nTwo.\n") == [Piece(content="One.\n\nTwo.", start_line=3, end_line=5, heading="a.md")]
    assert len(pieces("# A\nx\n# B\ny\n# C\nz\n", "markdown")) == 1
    found = pieces("one\ntwo\nthree", pages=(1, 2, 3))  # but for pages
    assert [(piece.page, piece.content) for piece in found] == [(1, "one"), (2, "two"), (3, "three")]


def test_markdown_ends_at_headings_and_keeps_their_path() -> None:
    words = "word " * 80
    text = f"# Garden\n{words}\n## Beds\n{words}\n```\n# no heading\n```\n### North\n{words}\n## Shed\n{words}"
    found = pieces(text, "markdown")
    assert [piece.heading for piece in found] == [
        "a.md › Garden",
        "a.md › Garden › Beds",
        "a.md › Garden › Beds › North",
        "a.md › Garden › Shed",
    ]
    assert [piece.start_line for piece in found] == [1, 3, 8, 10]
    lines_of(text, found)


def test_code_ends_at_definitions() -> None:
    body = "".join(f"    value_{number} = compute({number})  # a line\n" for number in range(12))
    text = f"import os\n\n\nclass Garden:\n    def water(self):\n{body}\n    def weed(self):\n{body}"
    text += f"\n\ndef main():\n{body}"
    found = pieces(text, "code")
    assert [piece.content.split("\n")[0].strip() for piece in found][1:] == ["def weed(self):", "def main():"]
    assert [piece.heading for piece in found] == ["a.md", "a.md › Garden › weed", "a.md › main"]
    lines_of(text, found)


def test_prose_ends_at_paragraphs() -> None:
    paragraph = "A sentence about gardens that is neither long nor short. " * 8
    text = "\n\n".join([paragraph] * 9)
    found = pieces(text)
    assert all(len(piece.content) <= CHARS_MAX for piece in found)
    assert all(piece.content.startswith("A sentence") for piece in found)
    assert len(found) == 3
    lines_of(text, found)


def test_a_line_without_end_is_cut_after_sentences_or_words_and_loses_nothing() -> None:
    for text in ("word " * 2_000, "x" * 5_000, "One sentence. " * 400, "一つの文です。" * 600):
        found = pieces(text)
        assert "".join(piece.content for piece in found).rstrip() == text.rstrip()
        assert {(piece.start_line, piece.end_line) for piece in found} == {(1, 1)}
        assert all(len(piece.content) <= CHARS_MAX for piece in found)


def test_a_change_moves_only_what_is_near() -> None:
    section = "## Part {0}\n" + "Words of part {0} about it. " * 20 + "\n\n"
    before = "# Book\n\n" + "".join(section.format(number) for number in range(30))
    after = before.replace("Words of part 12 about it. ", "New words, and many more of them than before. ", 3)
    kept = {(p.heading, p.content) for p in pieces(before, "markdown")}
    new = [p for p in pieces(after, "markdown") if (p.heading, p.content) not in kept]
    assert [p.heading for p in new] == ["a.md › Book › Part 12"]


def test_too_many_passages_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passages, "PASSAGES_MAX", 2)
    with pytest.raises(UnreadableFile, match="split"):
        pieces("x" * 10_000)


@given(
    st.lists(st.text(st.sampled_from("ab #`.\n\t{}"), max_size=400), max_size=30).map("\n".join),
    st.sampled_from(get_args(Syntax)),
)
@settings(max_examples=60, deadline=None)
def test_every_word_is_in_exactly_one_passage(text: str, syntax: Syntax) -> None:
    found = pieces(text, syntax)
    lines_of(text, found)
    assert all(0 < len(piece.content) <= CHARS_MAX for piece in found)
    assert all(a.end_line <= b.start_line for a, b in pairwise(found))
    assert "".join("".join(piece.content.split()) for piece in found) == "".join(text.split())


async def test_reading_and_its_failure_are_both_results(shelf: Shelf) -> None:
    good = await prepare(shelf.storage, "fld", "a.md", b"# Beds\nFour.\n")
    assert (good.row.error, len(good.pieces), good.row.content_hash) == (None, 1, hash_of(b"# Beds\nFour.\n"))
    bad = await prepare(shelf.storage, "fld", "a.txt", b"\x7fELF")
    assert (bad.row.status, bad.row.size_bytes, bad.row.content_hash) == ("unreadable", 4, hash_of(b"\x7fELF"))
    assert not bad.pieces


async def test_passages_with_the_same_words_keep_their_ids(shelf: Shelf) -> None:
    folder_id = await shelf.virtual(access=FolderAccess.READ)
    section = "## Part {0}\n" + "Words of part {0} about it. " * 20 + "\n\n"
    text = "".join(section.format(number) for number in range(5))
    await shelf.folders.put_file("papers", "a.md", text.encode())
    before = await shelf.passages("a.md", "papers")
    changed = "A new first line.\n\n" + text.replace("Words of part 3", "New words of part 3", 1)
    row, is_new = await shelf.folders.put_file("papers", "a.md", changed.encode())
    after = await shelf.passages("a.md", "papers")
    kept = {row.id for row in before} & {row.id for row in after}
    assert len(before) == 5
    assert len(kept) >= 3
    assert all(row.start_line == old.start_line + 2 for row in after for old in before if row.id == old.id)
    assert (row.folder_id, is_new) == (folder_id, False)
    assert [row.chunk_index for row in after] == list(range(len(after)))


async def test_a_file_is_replaced_only_if_it_is_the_expected_one(shelf: Shelf) -> None:
    folder_id = await shelf.virtual()
    await shelf.folders.put_file("papers", "a.md", b"one")

    async def put(data: bytes, expected: bytes) -> None:
        prepared = await prepare(shelf.storage, folder_id, "a.md", data)
        await shelf.database.write(store, prepared, data, expected_hash=hash_of(expected))

    with pytest.raises(Conflict):
        await put(b"two", b"zero")
    await put(b"two", b"one")
    assert (await shelf.folders.content("papers", "a.md"))[1] == b"two"


async def test_a_full_folder_takes_no_new_file(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    await shelf.virtual()
    for name, data, count in (("a", b"x", 1), ("b", b"x\n", 1), ("c", b"x\ny", 2), ("d", b"x\n\ny\n", 3)):
        row, _is_new = await shelf.folders.put_file("papers", name, data)
        assert row.line_count == count  # as people count them
    monkeypatch.setattr(passages, "FILES_MAX", 4)
    with pytest.raises(LimitReached):
        await shelf.folders.put_file("papers", "e", b"two")
    await shelf.folders.put_file("papers", "a", b"two")


async def test_reading_again_is_no_new_upload(shelf: Shelf) -> None:
    folder_id = await shelf.virtual()
    await shelf.folders.put_file("papers", "a.md", b"one")
    before = (await shelf.rows("papers"))["a.md"]
    shelf.clock.advance(60_000)
    await shelf.index("papers", again=True)
    after = (await shelf.rows("papers"))["a.md"]
    assert after.uploaded_at == before.uploaded_at
    assert after.indexed_at != before.indexed_at
    content: bytes = await shelf.database.read(files.content, after.id)
    assert content == b"one"
    assert folder_id == after.folder_id
