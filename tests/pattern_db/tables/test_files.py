from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import apsw
import pytest

from pattern_db.connection import Connection, fetch_all, transaction
from pattern_db.enums import FolderAccess, PathType, SearchKind
from pattern_db.errors import RowNotFound
from pattern_db.tables import files, folders, passages
from pattern_db.tables.files import FileRow
from pattern_db.tables.folders import FolderAttachment, FolderRow
from pattern_db.tables.passages import PassagePlace, Piece
from tests.pattern_db import vector_rows
from tests.pattern_db.conftest import NOW
from tests.pattern_db.vector_rows import VectorRow

Write = Callable[..., None]


def folder(name: str, path_type: PathType = PathType.VIRTUAL) -> FolderRow:
    path = f"/srv/{name}" if path_type is PathType.LOCAL else None
    return FolderRow(
        id=f"fld_{name}", name=name, path_type=path_type, path_value=path, embedding_model="m", created_at=NOW
    )


@pytest.fixture
def shelf(db: Connection) -> Connection:
    """The folder papers, empty."""
    folders.create(db, folder("papers"))
    return db


def file(name: str, **columns: object) -> FileRow:
    values: dict[str, object] = {"id": f"file_{name}", "status": "indexed", "uploaded_at": NOW, **columns}
    return FileRow(folder_id="fld_papers", name=name, **values)  # type: ignore[arg-type]  # columns as the test names them


def piece(content: str, line: int = 1, **columns: object) -> Piece:
    return Piece(content=content, start_line=line, end_line=line, **columns)  # type: ignore[arg-type]  # columns as the test names them


def test_a_file_comes_back_as_it_was_stored(shelf: Connection) -> None:
    row = file(
        "a.md", content_type="text/markdown", size_bytes=3, indexed_at=NOW, mtime_ns=5, content_hash=b"h", line_count=1
    )
    files.put(shelf, row, b"one")
    assert files.find(shelf, "fld_papers", "a.md") == files.find(shelf, "fld_papers", "file_a.md") == row
    assert files.content(shelf, row.id) == b"one"
    files.put(shelf, file("a.md", status="unreadable", error="broken"))
    assert files.find(shelf, "fld_papers", "a.md").error == "broken"
    assert files.content(shelf, row.id) == b"one"
    files.touch(shelf, row.id, 9)
    assert files.find(shelf, "fld_papers", "a.md").mtime_ns == 9


def test_names_are_once_in_a_folder_and_errors_belong_to_the_unreadable(shelf: Connection) -> None:
    files.put(shelf, file("a.md"))
    for row in (
        file("a.md", id="file_2"),
        file("b", error="x"),
        file("c", status="unreadable"),
        file("d", status="odd"),
    ):
        with pytest.raises(apsw.ConstraintError), transaction(shelf):
            files.put(shelf, row)
    assert files.count(shelf, "fld_papers") == 1


def test_files_are_listed_by_name_page_by_page(shelf: Connection) -> None:
    for name in ("b", "a", "c"):
        files.put(shelf, file(name))
    assert [row.name for row in files.list_in(shelf, "fld_papers")] == ["a", "b", "c"]
    assert [row.name for row in files.list_in(shelf, "fld_papers", limit=1, after="a")] == ["b"]


def test_a_deleted_file_takes_its_passages_along(shelf: Connection) -> None:
    files.put(shelf, file("a"))
    with pytest.raises(RowNotFound):
        files.content(shelf, "file_a")  # it is on the disk
    passages.replace(shelf, "file_a", [piece("zebra")], new_id=lambda: "psg_1", now=NOW)
    files.delete(shelf, "file_a")
    assert fetch_all(shelf, "SELECT count(*) FROM file_passages") == [(0,)]
    for call in (files.delete, files.content):
        with pytest.raises(RowNotFound):
            call(shelf, "file_a")


def lend(db: Connection, name: str, agent: str, access: FolderAccess = FolderAccess.READ) -> None:
    folders.attach(
        db, FolderAttachment(folder_id=f"fld_{name}", agent_id=f"agt_{agent}", access=access, attached_at=NOW)
    )


def test_a_folder_comes_back_as_it_was_stored(db: Connection) -> None:
    folders.create(db, folder("papers"))
    assert folders.find(db, "papers") == folders.find(db, "fld_papers") == folder("papers")
    with pytest.raises(apsw.ConstraintError):
        folders.create(db, folder("papers"))
    folders.change(db, "fld_papers", {"name": "books", "description": "Read ones."})
    assert [(row.name, row.description) for row in folders.list_all(db)] == [("books", "Read ones.")]
    folders.create(db, replace(folder("other"), name="fld_papers"))
    assert folders.find(db, "fld_papers").name == "books", "an id goes before a name"
    with pytest.raises(RowNotFound, match="there is no folder 'papers'"):
        folders.find(db, "papers")
    with pytest.raises(RowNotFound, match="there is no folder 'x'"):
        folders.change(db, "x", {"name": "y"})


def test_what_became_of_looking_through_is_noted(db: Connection) -> None:
    folders.create(db, folder("notes", PathType.LOCAL))
    folders.note_unavailable(db, "fld_notes", "gone")
    found = folders.find(db, "notes")
    assert (found.status, found.status_reason, found.indexed_at) == ("unavailable", "gone", None)
    folders.note_indexed(db, "fld_notes", NOW)
    found = folders.find(db, "notes")
    assert (found.status, found.status_reason, found.indexed_at) == ("ready", None, NOW)


def test_attachments_say_who_may_do_what(db: Connection) -> None:
    for name in ("papers", "notes", "alone"):
        folders.create(db, folder(name, PathType.VIRTUAL if name == "papers" else PathType.LOCAL))
    lend(db, "papers", "ada")
    lend(db, "notes", "ada", FolderAccess.READ_WRITE)
    lend(db, "papers", "bob")
    lend(db, "papers", "ada", FolderAccess.READ_WRITE)
    assert [(one.folder.name, one.access.value) for one in folders.of_agent(db, "agt_ada")] == [
        ("notes", "read_write"),
        ("papers", "read_write"),
    ]
    assert [one.agent_id for one in folders.attachments(db, "fld_papers")] == ["agt_ada", "agt_bob"]
    assert [row.name for row in folders.attached(db, PathType.LOCAL)] == ["notes"]
    folders.detach(db, "fld_papers", "agt_ada")
    with pytest.raises(RowNotFound):
        folders.detach(db, "fld_papers", "agt_ada")
    with pytest.raises(apsw.ConstraintError):
        lend(db, "nowhere", "ada")


def test_a_deleted_folder_takes_everything_along(db: Connection) -> None:
    folders.create(db, folder("papers"))
    lend(db, "papers", "ada")
    files.put(db, file("a"), b"x")
    passages.replace(db, "file_a", [piece("zebra")], new_id=lambda: "psg_1", now=NOW)
    vector_rows.insert(db, VectorRow(kind=SearchKind.FILE, ref="psg_1", scope="fld_papers", parent="file_a"))
    folders.delete(db, "fld_papers")
    for table in ("folder_files", "file_passages", "file_index", "folder_attachments", "embeddings"):
        assert fetch_all(db, f"SELECT count(*) FROM {table}") == [(0,)]
    assert fetch_all(db, "SELECT rowid FROM file_passage_fts WHERE file_passage_fts MATCH 'zebra'") == []
    db.execute("INSERT INTO file_passage_fts(file_passage_fts, rank) VALUES ('integrity-check', 1)")
    with pytest.raises(RowNotFound):
        folders.delete(db, "fld_papers")


@pytest.fixture
def write(shelf: Connection) -> Write:
    """Replace the passages of the file file_1 by texts of one line each; ids count up from psg_1."""
    files.put(shelf, file("a.md", id="file_1"))
    numbers = count(1)

    def replace_all(*texts: str, **columns: object) -> None:
        pieces = [piece(text, line, **columns) for line, text in enumerate(texts, start=1)]
        passages.replace(shelf, "file_1", pieces, new_id=lambda: f"psg_{next(numbers)}", now=NOW)

    return replace_all


def found(db: Connection, word: str) -> list[object]:
    """Ids of the passages that the full-text index finds."""
    rows = fetch_all(db, "SELECT passage_id FROM file_passage_fts WHERE file_passage_fts MATCH ?", (word,))
    db.execute("INSERT INTO file_passage_fts(file_passage_fts, rank) VALUES ('integrity-check', 1)")
    return sorted(row[0] for row in rows)


def test_what_stays_keeps_its_id_and_what_goes_takes_its_vector_along(db: Connection, write: Write) -> None:
    write("apple", "beet", "cress")
    for number in (1, 2):
        vector_rows.insert(
            db, VectorRow(kind=SearchKind.FILE, ref=f"psg_{number}", scope="fld_papers", parent="file_1")
        )
    write("dill", "apple", "cress", "cress")
    rows = passages.of_file(db, "file_1")
    assert [(row.id, row.content, row.start_line) for row in rows] == [
        ("psg_4", "dill", 1),
        ("psg_1", "apple", 2),
        ("psg_3", "cress", 3),
        ("psg_5", "cress", 4),
    ]
    assert fetch_all(db, "SELECT ref FROM embeddings") == [("psg_1",)]
    assert found(db, "beet") == []
    assert found(db, "cress") == ["psg_3", "psg_5"]


def test_the_heading_is_searched_with_the_words(db: Connection, write: Write) -> None:
    write("apple", heading="orchard.md › Autumn")
    assert found(db, "autumn") == ["psg_1"]
    write("apple", heading="orchard.md › Winter")
    assert found(db, "autumn") == []
    assert found(db, "winter") == ["psg_2"]
    db.execute("UPDATE file_passages SET heading = 'spring'")
    assert found(db, "spring") == ["psg_2"]
    db.execute("INSERT INTO file_passage_fts(file_passage_fts) VALUES ('rebuild')")
    assert found(db, "spring apple") == ["psg_2"]


def test_passages_of_some_lines_and_their_places(db: Connection, write: Write) -> None:
    write("apple", "beet", "cress", page=4)
    assert [row.content for row in passages.of_file(db, "file_1", first_line=2, last_line=2)] == ["beet"]
    assert passages.places(db, ["psg_2", "psg_9"]) == {
        "psg_2": PassagePlace(folder="papers", file="a.md", start_line=2, end_line=2, page=4)
    }
