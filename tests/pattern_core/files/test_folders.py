from __future__ import annotations

from pathlib import Path

import pytest

from pattern_core.errors import Conflict, InvalidInput, LimitReached, NotFound, Unavailable
from pattern_core.files import folders as module
from pattern_core.files.disk import FILE_BYTES_MAX, UnreadableFile
from pattern_core.files.folders import NewFolder
from pattern_db.enums import FolderAccess, PathType
from tests.pattern_core.files.samples import ADA, Shelf


async def test_a_folders_life(shelf: Shelf) -> None:
    folder_id = await shelf.virtual("papers")
    changed = await shelf.folders.change("papers", name="books", description="Read ones.")
    assert (changed.id, changed.name, changed.description) == (folder_id, "books", "Read ones.")
    assert (await shelf.folders.change(folder_id, description="")).description is None
    assert [row.name for row in await shelf.folders.all()] == ["books"]
    await shelf.folders.delete("books")
    assert await shelf.folders.all() == []
    with pytest.raises(NotFound):
        await shelf.folders.get("books")


async def test_names_are_given_once(shelf: Shelf) -> None:
    await shelf.virtual("papers")
    await shelf.virtual("books")
    with pytest.raises(Conflict):
        await shelf.virtual("papers")
    with pytest.raises(Conflict):
        await shelf.folders.change("books", name="papers")


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", " a", "a ", "x" * 101, "a\nb"])
async def test_names_that_do_not_fit_are_refused(shelf: Shelf, name: str) -> None:
    with pytest.raises(InvalidInput):
        await shelf.virtual(name)


async def test_kinds_that_do_not_fit_are_refused(shelf: Shelf) -> None:
    for path_type, root in ((PathType.REMOTE, None), (PathType.LOCAL, None), (PathType.VIRTUAL, Path("/x"))):
        with pytest.raises(InvalidInput):
            await shelf.folders.create(NewFolder(name="x", path_type=path_type, embedding_model="m", root=root))
    with pytest.raises(InvalidInput):
        await shelf.folders.create(
            NewFolder(name="x", path_type=PathType.VIRTUAL, embedding_model="m", description="x" * 2_001)
        )


async def test_folders_are_bounded(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FOLDERS_MAX", 1)
    await shelf.virtual("one")
    with pytest.raises(LimitReached):
        await shelf.virtual("two")


async def test_files_are_put_and_removed(shelf: Shelf) -> None:
    await shelf.virtual()
    stored = await shelf.folders.put_file("papers", "notes/a.md", b"Tulips.")
    assert (stored.is_new, stored.file.name, stored.file.status) == (True, "notes/a.md", "indexed")
    assert not (await shelf.folders.put_file("papers", "notes/a.md", b"Roses.")).is_new
    row, data = await shelf.folders.content("papers", "notes/a.md")
    assert (row.size_bytes, data) == (6, b"Roses.")
    changes = shelf.changes
    await shelf.folders.delete_file("papers", "notes/a.md")
    assert shelf.changes == changes + 1  # its vectors have to go
    with pytest.raises(NotFound):
        await shelf.folders.content("papers", "notes/a.md")
    with pytest.raises(NotFound):
        await shelf.folders.delete_file("papers", "notes/a.md")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("../a.md", b"x"),
        ("a.txt", b"\x7fELF\0"),
        ("a.md", b""),
        ("a.exe", b"MZ"),
        ("a.md", b"x" * (FILE_BYTES_MAX + 1)),
    ],
)
async def test_what_cannot_be_read_is_not_stored(shelf: Shelf, name: str, data: bytes) -> None:
    await shelf.virtual()
    with pytest.raises(InvalidInput):
        await shelf.folders.put_file("papers", name, data)
    assert await shelf.rows("papers") == {}


async def test_a_directorys_files_are_not_changed_from_here(shelf: Shelf, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("Tulips.")
    await shelf.local(tmp_path)
    await shelf.index()
    assert (await shelf.folders.content("notes", "a.md"))[1] == b"Tulips."
    with pytest.raises(InvalidInput, match="directory"):
        await shelf.folders.put_file("notes", "b.md", b"x")
    with pytest.raises(InvalidInput, match="directory"):
        await shelf.folders.delete_file("notes", "a.md")
    (tmp_path / "a.md").unlink()
    (tmp_path / "a.md").symlink_to("/etc/hostname")
    with pytest.raises(UnreadableFile):
        await shelf.folders.content("notes", "a.md")
    await shelf.folders.delete("notes")
    assert (tmp_path / "a.md").is_symlink()


async def test_a_directory_that_is_away_says_so(shelf: Shelf, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a.md").write_text("Tulips.")
    await shelf.local(tmp_path / "d")
    await shelf.index()
    (tmp_path / "d").rename(tmp_path / "e")
    with pytest.raises(Unavailable):
        await shelf.folders.content("notes", "a.md")


async def test_folders_are_attached_and_taken_away(shelf: Shelf) -> None:
    folder_id = await shelf.virtual()
    first = await shelf.folders.attach("papers", ADA, FolderAccess.READ)
    shelf.clock.advance(1_000)
    second = await shelf.folders.attach("papers", ADA, FolderAccess.READ_WRITE)
    assert (second.access, second.attached_at) == (FolderAccess.READ_WRITE, first.attached_at)
    assert [one.agent_id for one in await shelf.folders.attachments(folder_id)] == [ADA]
    with pytest.raises(NotFound):
        await shelf.folders.attach("papers", "agt_nobody", FolderAccess.READ)
    await shelf.folders.detach("papers", ADA)
    with pytest.raises(NotFound):
        await shelf.folders.detach("papers", ADA)
    assert await shelf.folders.attachments("papers") == []
