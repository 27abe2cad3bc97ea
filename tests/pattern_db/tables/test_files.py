from __future__ import annotations

import apsw
import pytest

from pattern_db.connection import Connection, fetch_all, transaction
from pattern_db.enums import PathType
from pattern_db.errors import NotFound
from pattern_db.tables import files, folders, passages
from pattern_db.tables.files import FileRow
from pattern_db.tables.folders import FolderRow
from pattern_db.tables.passages import Piece

NOW = "2026-11-21T22:24:40.123Z"


@pytest.fixture
def shelf(db: Connection) -> Connection:
    """The folder fld_1, empty."""
    row = FolderRow(id="fld_1", name="papers", path_type=PathType.VIRTUAL, embedding_model="m", created_at=NOW)
    folders.create(db, row)
    return db


def file(name: str, **columns: object) -> FileRow:
    values: dict[str, object] = {"status": "indexed", "uploaded_at": NOW, **columns}
    return FileRow(id=f"file_{name}", folder_id="fld_1", name=name, **values)  # type: ignore[arg-type]  # columns as the test names them


def test_a_file_comes_back_as_it_was_stored(shelf: Connection) -> None:
    row = file(
        "a.md", content_type="text/markdown", size_bytes=3, indexed_at=NOW, mtime_ns=5, content_hash=b"h", line_count=1
    )
    assert files.put(shelf, row, b"one")
    assert files.find(shelf, "fld_1", "a.md") == files.find(shelf, "fld_1", "file_a.md") == row
    assert files.content(shelf, row.id) == b"one"
    assert not files.put(shelf, file("a.md", status="unreadable", error="broken"))
    assert files.find(shelf, "fld_1", "a.md").error == "broken"
    assert files.content(shelf, row.id) == b"one"
    files.touch(shelf, row.id, 9)
    assert files.find(shelf, "fld_1", "a.md").mtime_ns == 9


def test_names_are_once_in_a_folder_and_errors_belong_to_the_unreadable(shelf: Connection) -> None:
    files.put(shelf, file("a.md"))
    other = FileRow(id="file_2", folder_id="fld_1", name="a.md", status="indexed", uploaded_at=NOW)
    for row in (other, file("b", error="x"), file("c", status="unreadable"), file("d", status="odd")):
        with pytest.raises(apsw.ConstraintError), transaction(shelf):
            files.put(shelf, row)
    assert files.count(shelf, "fld_1") == 1


def test_files_are_listed_by_name_page_by_page(shelf: Connection) -> None:
    for name in ("b", "a", "c"):
        files.put(shelf, file(name))
    assert [row.name for row in files.list_in(shelf, "fld_1")] == ["a", "b", "c"]
    assert [row.name for row in files.list_in(shelf, "fld_1", limit=1, after="a")] == ["b"]


def test_a_deleted_file_takes_its_passages_along(shelf: Connection) -> None:
    files.put(shelf, file("a"))
    piece = Piece(content="zebra", start_line=1, end_line=1)
    passages.replace(shelf, "file_a", [piece], new_id=lambda: "psg_1", now=NOW)
    files.delete(shelf, "file_a")
    assert fetch_all(shelf, "SELECT count(*) FROM file_passages") == [(0,)]
    for call in (files.delete, files.content):
        with pytest.raises(NotFound):
            call(shelf, "file_a")


def test_content_on_disk_is_not_here(shelf: Connection) -> None:
    files.put(shelf, file("a"))
    with pytest.raises(NotFound):
        files.content(shelf, "file_a")
