"""What a file says of its vectors and folders, without anybody at work on it."""

from __future__ import annotations

from pattern_core.condition import condition
from pattern_core.embeddings.embedder import EmbedderInfo
from pattern_db.enums import IndexState, PathType
from pattern_db.tables import embedding_indexes, folders
from pattern_db.tables.folders import FolderRow
from tests.pattern_core.memory.life import create
from tests.pattern_core.memory.rig import NOW, constellation

MODEL = EmbedderInfo(provider="deterministic", model="words", dimension=4, fingerprint="ab")


def test_an_empty_file() -> None:
    found = condition(constellation())
    assert (found.index, found.done, found.total, found.unavailable) == (None, 0, 0, [])


def test_texts_that_wait_for_vectors() -> None:
    connection = constellation()
    create(connection, "Ruth lives in Lisbon.")
    before = condition(connection)
    assert (before.index, before.done, before.total) == (None, 0, 1)
    index = embedding_indexes.begin(connection, MODEL, IndexState.ACTIVE, NOW)
    found = condition(connection)
    assert (found.index, found.done, found.total) == (index, 0, 1)


def test_folders_that_could_not_be_read() -> None:
    connection = constellation()
    for name in ("gone", "there"):
        row = FolderRow(id=f"fld_{name}", name=name, path_type=PathType.VIRTUAL, embedding_model="", created_at=NOW)
        folders.create(connection, row)
    folders.note_unavailable(connection, "fld_gone", "it was moved")
    assert [(one.name, one.status_reason) for one in condition(connection).unavailable] == [("gone", "it was moved")]
