"""What people do with folders; passages follow the files, and what cannot be seen is not taken for gone."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from pattern_core.errors import Conflict, InvalidInput, LimitReached, NotFound, Unavailable
from pattern_core.files import disk, passages
from pattern_core.files import folders as module
from pattern_core.files.disk import FILE_BYTES_MAX, Skipped, UnreadableFile
from pattern_core.search import SearchRequest, search
from pattern_db.enums import FolderAccess, PathType, SearchKind
from pattern_db.errors import RowConflict, RowNotFound
from pattern_db.tables import files
from pattern_db.tables.files import FileRow
from tests.pattern_core.files.samples import ADA, Shelf, docx_of, locked, pdf_of


async def test_a_folders_life(shelf: Shelf) -> None:
    folder_id = await shelf.virtual("papers")
    changed = await shelf.folders.change("papers", name="books", description="Read ones.")
    assert (changed.id, changed.name, changed.description) == (folder_id, "books", "Read ones.")
    assert (await shelf.folders.change(folder_id, description="")).description is None
    assert [row.name for row in await shelf.folders.all()] == ["books"]
    await shelf.folders.delete("books")
    assert await shelf.folders.all() == []
    with pytest.raises(RowNotFound):
        await shelf.folders.get("books")


async def test_names_are_given_once_and_folders_are_bounded(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FOLDERS_MAX", 2)
    await shelf.virtual("papers")
    await shelf.virtual("books")
    with pytest.raises(Conflict):
        await shelf.folders.change("books", name="papers")
    with pytest.raises(LimitReached):
        await shelf.virtual("more")
    await shelf.folders.delete("books")
    with pytest.raises(Conflict):
        await shelf.virtual("papers")


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", " a", "a ", "x" * 101, "a\nb"])
async def test_names_that_do_not_fit_are_refused(shelf: Shelf, name: str) -> None:
    with pytest.raises(InvalidInput):
        await shelf.virtual(name)
    with pytest.raises(InvalidInput, match="at most 2000"):
        await shelf.folders.create("x", embedding_model="m", description="x" * 2_001)


async def test_files_are_put_and_removed(shelf: Shelf) -> None:
    await shelf.virtual()
    row, is_new = await shelf.folders.put_file("papers", "notes/a.md", b"Tulips.")
    assert (is_new, row.name, row.status) == (True, "notes/a.md", "indexed")
    assert not (await shelf.folders.put_file("papers", "notes/a.md", b"Roses."))[1]
    row, data = await shelf.folders.content("papers", "notes/a.md")
    assert (row.size_bytes, data) == (6, b"Roses.")
    changes = shelf.changes
    await shelf.folders.delete_file("papers", "notes/a.md")
    assert shelf.changes == changes + 1  # its vectors have to go
    for call in (shelf.folders.content, shelf.folders.delete_file):
        with pytest.raises(NotFound):
            await call("papers", "notes/a.md")


async def test_what_cannot_be_read_is_not_stored(shelf: Shelf) -> None:
    await shelf.virtual()
    for name, data in (("../a.md", b"x"), ("a.txt", b"\x7fELF\0"), ("a.md", b"x" * (FILE_BYTES_MAX + 1))):
        with pytest.raises(InvalidInput):
            await shelf.folders.put_file("papers", name, data)
    assert await shelf.rows("papers") == {}


async def test_a_directorys_files_are_not_changed_from_here(shelf: Shelf, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("Tulips.")
    await shelf.local(tmp_path)
    await shelf.index()
    assert (await shelf.folders.content("notes", "a.md"))[1] == b"Tulips."
    with pytest.raises(InvalidInput, match="put the file there"):
        await shelf.folders.put_file("notes", "b.md", b"x")
    with pytest.raises(InvalidInput, match="remove the file there"):
        await shelf.folders.delete_file("notes", "a.md")
    (tmp_path / "a.md").unlink()
    (tmp_path / "a.md").symlink_to("/etc/hostname")
    with pytest.raises(UnreadableFile):
        await shelf.folders.content("notes", "a.md")
    tmp_path.rename(tmp_path.with_name("elsewhere"))
    with pytest.raises(Unavailable):
        await shelf.folders.content("notes", "a.md")
    await shelf.folders.delete("notes")
    assert (tmp_path.with_name("elsewhere") / "a.md").is_symlink()


async def test_folders_are_attached_and_taken_away(shelf: Shelf) -> None:
    folder_id = await shelf.virtual()
    first = await shelf.folders.attach("papers", ADA, FolderAccess.READ)
    shelf.clock.advance(1_000)
    second = await shelf.folders.attach("papers", ADA, FolderAccess.READ_WRITE)
    assert (second.access, second.attached_at) == (FolderAccess.READ_WRITE, first.attached_at)
    assert [one.agent_id for one in await shelf.folders.attachments(folder_id)] == [ADA]
    with pytest.raises(RowConflict):
        await shelf.folders.attach("papers", "agt_nobody", FolderAccess.READ)
    await shelf.folders.detach("papers", ADA)
    with pytest.raises(NotFound, match="not attached"):
        await shelf.folders.detach("papers", ADA)
    assert await shelf.folders.attachments("papers") == []


NOW = "2026-01-01T00:00:00.000Z"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "notes" / "inner").mkdir(parents=True)
    write(tmp_path / "notes" / "a.md", "# Beds\nFour beds of tulips.\n")
    write(tmp_path / "notes" / "inner" / "b.txt", "A shed with a rake.\n")
    return tmp_path / "notes"


def write(path: Path, text: str | bytes, *, age_s: int = 100) -> None:
    """Write a file that was changed some time ago."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    changed = path.stat().st_mtime - age_s
    os.utime(path, (changed, changed))


def before_reading(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Let something happen to a directory that is open already, just before it is read."""

    def and_it_happens(descriptor: int) -> list[str]:
        monkeypatch.undo()
        happens()
        return os.listdir(descriptor)

    monkeypatch.setattr(os, "listdir", and_it_happens)


async def found(shelf: Shelf, query: str) -> list[str]:
    """The names of files in which ada finds the words."""
    request = SearchRequest(query=query, kinds=[SearchKind.FILE], agents=[ADA])
    return [str(hit.label) for hit in (await search(shelf.database, request)).hits]


async def test_a_directory_is_read_and_followed(shelf: Shelf, root: Path) -> None:
    """Case 163."""
    await shelf.local(root, access=FolderAccess.READ)
    report = await shelf.index()
    assert (report.indexed, report.unchanged, report.removed, report.skipped) == (2, 0, 0, [])
    assert await found(shelf, "tulips") == ["a.md"]
    assert await found(shelf, "rake") == ["inner/b.txt"]

    before = (await shelf.rows())["a.md"]
    os.utime(root / "a.md", (1_000_000_000, 1_000_000_000))  # what was only touched is not read into passages again
    report = await shelf.index()
    assert (report.indexed, report.unchanged, shelf.changes) == (0, 2, 2)
    after = (await shelf.rows())["a.md"]
    assert (after.indexed_at, after.mtime_ns) == (before.indexed_at, 1_000_000_000 * 10**9)

    write(root / "a.md", "# Beds\nFour beds of roses.\n", age_s=50)
    (root / "inner" / "b.txt").unlink()
    write(root / "c.md", "A compost heap.\n")
    report = await shelf.index()
    assert (report.indexed, report.unchanged, report.removed) == (2, 0, 1)
    assert await found(shelf, "tulips") == []
    assert await found(shelf, "roses") == ["a.md"]
    assert await found(shelf, "rake") == []
    assert (await shelf.folders.get("notes")).status == "ready"


async def test_a_change_within_the_same_moment_is_seen(shelf: Shelf, root: Path) -> None:
    await shelf.local(root)
    moment = shelf.clock.now_ms() / 1000 - 1
    for words in ("Two words", "Few words"):
        (root / "a.md").write_text(words)
        os.utime(root / "a.md", (moment, moment))
        await shelf.index()
    assert [row.content for row in await shelf.passages("a.md")] == ["Few words"]


async def test_what_cannot_be_read_is_named_and_the_rest_goes_on(shelf: Shelf, root: Path) -> None:
    write(root / "binary.txt", b"\x7fELF\x02\x01\x01" + bytes(100))
    write(root / "empty.md", b"")
    write(root / "photo.png", b"\x89PNG")
    write(root / "locked.pdf", locked(pdf_of(["words"])))
    write(root / "broken.docx", b"PK\x03\x04 nothing")
    write(root / "good.pdf", pdf_of(["A pond on page one.", "A bench on page two."]))
    write(root / "good.docx", docx_of(("Heading 1", "Paths"), ("Normal", "Gravel everywhere.")))
    write(root / "good.html", b"<h1>Trees</h1><p>An old linden.")
    with (root / "huge.log").open("wb") as file:
        file.truncate(2**30)
    (root / "way-out.md").symlink_to("/etc/hostname")
    await shelf.local(root, access=FolderAccess.READ)
    report = await shelf.index()
    assert report.indexed == 5
    reasons = {one.name: one.reason for one in report.skipped}
    assert set(reasons) == {
        "binary.txt", "empty.md", "photo.png", "locked.pdf", "broken.docx", "huge.log", "way-out.md"
    }  # fmt: skip
    assert "1073741824" in reasons["huge.log"]
    rows = await shelf.rows()
    assert {name for name, row in rows.items() if row.error} == set(reasons) - {"way-out.md"}
    assert all(rows[name].error == reasons[name] for name in reasons if name in rows)
    assert [row.page for row in await shelf.passages("good.pdf")] == [1, 2]
    assert await found(shelf, "bench") == ["good.pdf"]
    assert await found(shelf, "gravel") == ["good.docx"]
    assert await found(shelf, "linden") == ["good.html"]
    again = await shelf.index()
    assert (again.indexed, again.unchanged) == (0, 5)
    assert {one.name for one in again.skipped} == set(reasons)


async def test_a_stored_file_is_read_if_it_never_was_or_again_is_asked_for(shelf: Shelf) -> None:
    folder_id = await shelf.virtual(access=FolderAccess.READ)
    imported = FileRow(id="file_1", folder_id=folder_id, name="a.md", uploaded_at=NOW, status="indexed")
    await shelf.database.write(files.put, imported, b"Tulips.")
    for again, counts in ((False, (1, 0)), (False, (0, 1)), (True, (1, 0))):
        report = await shelf.index("papers", again=again)
        assert (report.indexed, report.unchanged, report.removed, report.skipped) == (*counts, 0, [])
        assert await found(shelf, "tulips") == ["a.md"]


async def test_a_file_that_turns_unreadable_and_back_is_followed(shelf: Shelf, root: Path) -> None:
    await shelf.local(root, access=FolderAccess.READ)
    await shelf.index()
    write(root / "a.md", bytes(50), age_s=60)
    await shelf.index()
    assert await found(shelf, "tulips") == []
    assert (await shelf.rows())["a.md"].status == "unreadable"
    write(root / "a.md", "Tulips again.", age_s=30)
    await shelf.index()
    assert await found(shelf, "tulips") == ["a.md"]


async def test_a_directory_that_vanishes_takes_nothing_away(shelf: Shelf, root: Path) -> None:
    await shelf.local(root, access=FolderAccess.READ)
    await shelf.index()
    shutil.rmtree(root)
    with pytest.raises(Unavailable, match="does not exist"):
        await shelf.index()
    folder = await shelf.folders.get("notes")
    assert (folder.status, "does not exist" in str(folder.status_reason)) == ("unavailable", True)
    assert await found(shelf, "tulips") == ["a.md"]
    root.mkdir()
    write(root / "a.md", "# Beds\nFour beds of tulips.\n")
    await shelf.index()
    assert (await shelf.folders.get("notes")).status == "ready"


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_a_directory_that_vanishes_while_it_is_read_takes_nothing_away(
    shelf: Shelf, root: Path, monkeypatch: pytest.MonkeyPatch, is_replaced: bool
) -> None:
    await shelf.local(root, access=FolderAccess.READ)
    await shelf.index()

    def go() -> None:
        root.rename(root.parent / "old")
        if is_replaced:
            root.mkdir()

    before_reading(monkeypatch, go)
    with pytest.raises(Unavailable, match="exchanged" if is_replaced else "does not exist"):
        await shelf.index()
    assert set(await shelf.rows()) == {"a.md", "inner/b.txt"}
    assert await found(shelf, "rake") == ["inner/b.txt"]


async def test_files_that_vanish_between_look_and_reading_are_left_for_the_next_look(
    shelf: Shelf, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shelf.local(root)
    stat = os.stat

    def and_the_file_goes(path: str, **options: Any) -> os.stat_result:
        seen = stat(path, **options)
        if path == "a.md":
            (root / "a.md").unlink()
        return seen

    monkeypatch.setattr(os, "stat", and_the_file_goes)
    report = await shelf.index()
    assert (report.indexed, report.skipped) == (1, [])


async def test_what_lies_in_a_closed_directory_is_kept(
    shelf: Shelf, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shelf.local(root)
    await shelf.index()
    open_file = os.open

    def closed(path: str, flags: int, mode: int = 0o777, **options: Any) -> int:
        if path == "inner":
            raise PermissionError(errno.EACCES, "closed")
        return open_file(path, flags, mode, **options)

    monkeypatch.setattr(os, "open", closed)
    report = await shelf.index()
    assert (report.removed, report.skipped) == (0, [Skipped(name="inner", reason="the server may not read it")])
    assert set(await shelf.rows()) == {"a.md", "inner/b.txt"}


async def test_what_is_kept_has_its_place_in_a_full_folder(
    shelf: Shelf, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shelf.local(root)
    await shelf.index()
    monkeypatch.setattr(passages, "FILES_MAX", 2)
    monkeypatch.setattr(disk, "FILES_MAX", 2)
    for name in ("a2.md", "a3.md"):  # in their order these come first, so that what is known is not seen
        write(root / name, "Words.")
    report = await shelf.index()
    assert (report.removed, report.skipped[-1].name) == (0, "a2.md")
    assert "holds 2 files" in report.skipped[-1].reason
    assert set(await shelf.rows()) == {"a.md", "inner/b.txt"}


async def test_attached_directories_are_followed_by_themselves(shelf: Shelf, root: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    await shelf.local(gone, "gone", access=FolderAccess.READ)
    gone.rmdir()
    await shelf.local(root)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shelf.folders.run)
            while (await shelf.folders.get("gone")).status != "unavailable":
                await trio.sleep(0.01)
            assert await shelf.rows() == {}  # no agent may use it yet
            await shelf.folders.attach("notes", ADA, FolderAccess.READ)  # wakes the indexer, which waits for long
            while set(await shelf.rows()) != {"a.md", "inner/b.txt"}:
                await trio.sleep(0.01)
            shutil.rmtree(root)
            root.mkdir()
            await shelf.folders.attach("notes", ADA, FolderAccess.READ)
            while not (await shelf.folders.get("notes")).status_reason:
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    assert "empty" in str((await shelf.folders.get("notes")).status_reason)
    assert await found(shelf, "tulips") == ["a.md"]
    assert (await shelf.index()).removed == 2  # who asks for it is believed
    assert await found(shelf, "tulips") == []


async def test_no_directory_shows_what_is_kept_out(shelf: Shelf, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    await shelf.virtual("papers")
    await shelf.folders.create("notes", path_type=PathType.LOCAL, path=str(tmp_path / "notes"), embedding_model="m")
    await shelf.database.read(module.check_directories, [tmp_path / "data"])
    with pytest.raises(InvalidInput, match="server's own data"):
        await shelf.database.read(module.check_directories, [tmp_path])
