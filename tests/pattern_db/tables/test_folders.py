from __future__ import annotations

import apsw
import pytest

from pattern_db import vectors
from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import FolderAccess, PathType, SearchKind
from pattern_db.errors import NotFound
from pattern_db.tables import files, folders, passages
from pattern_db.tables.files import FileRow
from pattern_db.tables.folders import FolderAttachment, FolderRow
from pattern_db.tables.passages import Piece
from tests.pattern_db import vector_rows
from tests.pattern_db.vector_rows import VectorRow

NOW = "2026-11-21T22:24:40.123Z"


def folder(name: str, path_type: PathType = PathType.VIRTUAL) -> FolderRow:
    path = f"/srv/{name}" if path_type is PathType.LOCAL else None
    return FolderRow(
        id=f"fld_{name}", name=name, path_type=path_type, path_value=path, embedding_model="m", created_at=NOW
    )


def lend(db: Connection, name: str, agent: str, access: FolderAccess = FolderAccess.READ) -> None:
    folders.attach(
        db, FolderAttachment(folder_id=f"fld_{name}", agent_id=f"agt_{agent}", access=access, attached_at=NOW)
    )


def test_a_folder_comes_back_as_it_was_stored(db: Connection) -> None:
    folders.create(db, folder("papers"))
    assert folders.find(db, "papers") == folders.find(db, "fld_papers") == folder("papers")
    with pytest.raises(apsw.ConstraintError):
        folders.create(db, folder("papers"))
    folders.change(db, "fld_papers", name="books", description="Read ones.")
    assert [(row.name, row.description) for row in folders.list_all(db)] == [("books", "Read ones.")]
    for call in (lambda: folders.find(db, "papers"), lambda: folders.change(db, "x", name="y", description=None)):
        with pytest.raises(NotFound):
            call()


def test_an_id_comes_before_a_name(db: Connection) -> None:
    folders.create(db, folder("papers"))
    folders.create(db, folder("other"))
    folders.change(db, "fld_other", name="fld_papers", description=None)
    assert folders.find(db, "fld_papers").id == "fld_papers"


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
    assert [row.name for row in folders.attached_local(db)] == ["notes"]
    folders.detach(db, "fld_papers", "agt_ada")
    with pytest.raises(NotFound):
        folders.detach(db, "fld_papers", "agt_ada")
    with pytest.raises(apsw.ConstraintError):
        lend(db, "nowhere", "ada")


def test_a_deleted_folder_takes_everything_along(db: Connection) -> None:
    folders.create(db, folder("papers"))
    lend(db, "papers", "ada")
    files.put(db, FileRow(id="file_1", folder_id="fld_papers", name="a", uploaded_at=NOW, status="indexed"), b"x")
    passages.replace(db, "file_1", [Piece(content="zebra", start_line=1, end_line=1)], new_id=lambda: "psg_1", now=NOW)
    vector_rows.insert(
        db,
        VectorRow(
            kind=SearchKind.FILE,
            ref="psg_1",
            scope="fld_papers",
            vector=vectors.packed([1, 0, 0, 0]),
            content_hash="h",
            created_at=NOW,
            parent="file_1",
        ),
    )
    folders.delete(db, "fld_papers")
    for table in ("folder_files", "file_passages", "file_index", "folder_attachments", "embeddings"):
        assert fetch_all(db, f"SELECT count(*) FROM {table}") == [(0,)]
    assert fetch_all(db, "SELECT rowid FROM file_passage_fts WHERE file_passage_fts MATCH 'zebra'") == []
    db.execute("INSERT INTO file_passage_fts(file_passage_fts, rank) VALUES ('integrity-check', 1)")
    with pytest.raises(NotFound):
        folders.delete(db, "fld_papers")
