from __future__ import annotations

from itertools import count

import pytest

from pattern_db import vectors
from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import PathType, SearchKind
from pattern_db.tables import files, folders, passages
from pattern_db.tables.files import FileRow
from pattern_db.tables.folders import FolderRow
from pattern_db.tables.passages import PassagePlace, Piece, Replaced
from tests.pattern_db import vector_rows
from tests.pattern_db.vector_rows import VectorRow

NOW = "2026-11-21T22:24:40.123Z"


@pytest.fixture
def shelf(db: Connection) -> Connection:
    """The file file_1, named a.md, in the folder papers."""
    row = FolderRow(id="fld_1", name="papers", path_type=PathType.VIRTUAL, embedding_model="m", created_at=NOW)
    folders.create(db, row)
    files.put(db, FileRow(id="file_1", folder_id="fld_1", name="a.md", status="indexed", uploaded_at=NOW))
    return db


class Writer:
    """Replaces the file's passages by texts of one line each; ids count up from psg_1."""

    def __init__(self, db: Connection) -> None:
        self._db = db
        self._numbers = count(1)

    def write(self, *texts: str, heading: str = "a.md", page: int | None = None) -> Replaced:
        pieces = [
            Piece(content=text, start_line=line, end_line=line, heading=heading, page=page)
            for line, text in enumerate(texts, start=1)
        ]
        return passages.replace(self._db, "file_1", pieces, new_id=lambda: f"psg_{next(self._numbers)}", now=NOW)


def found(db: Connection, word: str) -> list[object]:
    """Ids of the passages that the full-text index finds."""
    rows = fetch_all(db, "SELECT passage_id FROM file_passage_fts WHERE file_passage_fts MATCH ?", (word,))
    db.execute("INSERT INTO file_passage_fts(file_passage_fts, rank) VALUES ('integrity-check', 1)")
    return sorted(row[0] for row in rows)


def test_what_stays_keeps_its_id_and_what_goes_takes_its_vector_along(shelf: Connection) -> None:
    writer = Writer(shelf)
    assert writer.write("apple", "beet", "cress") == Replaced(kept=0, added=3, removed=0)
    for number in (1, 2):
        vector_rows.insert(
            shelf,
            VectorRow(
                kind=SearchKind.FILE,
                ref=f"psg_{number}",
                scope="fld_1",
                vector=vectors.packed([1, 0, 0, 0]),
                content_hash="h",
                created_at=NOW,
                parent="file_1",
            ),
        )
    assert writer.write("dill", "apple", "cress", "cress") == Replaced(kept=2, added=2, removed=1)
    rows = passages.of_file(shelf, "file_1")
    assert [(row.id, row.content, row.start_line) for row in rows] == [
        ("psg_4", "dill", 1),
        ("psg_1", "apple", 2),
        ("psg_3", "cress", 3),
        ("psg_5", "cress", 4),
    ]
    assert fetch_all(shelf, "SELECT ref FROM embeddings") == [("psg_1",)]
    assert found(shelf, "beet") == []
    assert found(shelf, "cress") == ["psg_3", "psg_5"]


def test_the_heading_is_searched_with_the_words(shelf: Connection) -> None:
    writer = Writer(shelf)
    writer.write("apple", heading="orchard.md › Autumn")
    assert found(shelf, "autumn") == ["psg_1"]
    writer.write("apple", heading="orchard.md › Winter")
    assert found(shelf, "autumn") == []
    assert found(shelf, "winter") == ["psg_2"]
    shelf.execute("UPDATE file_passages SET heading = 'spring'")
    assert found(shelf, "spring") == ["psg_2"]
    shelf.execute("INSERT INTO file_passage_fts(file_passage_fts) VALUES ('rebuild')")
    assert found(shelf, "spring apple") == ["psg_2"]


def test_passages_of_some_lines_and_their_places(shelf: Connection) -> None:
    Writer(shelf).write("apple", "beet", "cress", page=4)
    assert [row.content for row in passages.of_file(shelf, "file_1", first_line=2, last_line=2)] == ["beet"]
    assert passages.places(shelf, ["psg_2", "psg_9"]) == {
        "psg_2": PassagePlace(folder="papers", file="a.md", start_line=2, end_line=2, page=4)
    }


def test_nothing_is_left_of_an_emptied_file(shelf: Connection) -> None:
    writer = Writer(shelf)
    writer.write("apple", "beet")
    assert writer.write() == Replaced(kept=0, added=0, removed=2)
    assert passages.of_file(shelf, "file_1") == []
