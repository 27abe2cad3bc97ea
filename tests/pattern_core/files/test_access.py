"""An agent sees the files of its folders, as lines, and no others."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pattern_core.errors import InvalidInput, NotFound, PermissionDenied
from pattern_core.files import access as module
from pattern_core.files.access import AgentFiles, received_in
from pattern_core.files.disk import UnreadableFile
from pattern_db.enums import FolderAccess, PathType
from pattern_db.tables import agents, folders
from pattern_db.tables.folders import FolderRow
from tests.pattern_core.files.samples import ADA, BOB, Shelf, pdf_of

TEXT = "# Beds\n\nFour.\n\n\n## North\nTulips.\n" + "word " * 800 + "\nlast\n"


@pytest.fixture
async def ada(shelf: Shelf) -> AgentFiles:
    """Ada may read `papers` with a.md and sub/b.pdf."""
    await shelf.virtual(access=FolderAccess.READ)
    await shelf.folders.put_file("papers", "a.md", TEXT.encode())
    await shelf.folders.put_file("papers", "sub/b.pdf", pdf_of(["One.\nTwo.", "Three."]))
    return AgentFiles(shelf.database, ADA)


async def test_lines_come_back_as_they_were(ada: AgentFiles) -> None:
    lines = TEXT.removesuffix("\n").split("\n")
    whole = await ada.read("papers/a.md", start_line=1, lines=100, chars_max=10_000)
    assert whole.text.split("\n") == lines
    assert (whole.first, whole.last, whole.total) == (1, 9, 9)
    part = await ada.read("papers/a.md", start_line=3, lines=4, chars_max=10_000)
    assert (part.text, part.last) == ("\n".join(lines[2:6]), 6)
    assert (await ada.read("papers/sub/b.pdf", start_line=2, lines=2, chars_max=100)).text == "Two.\nThree."


async def test_a_window_has_so_many_characters(ada: AgentFiles) -> None:
    small = await ada.read("papers/a.md", start_line=1, lines=100, chars_max=100)
    assert (small.last, small.is_cut) == (7, False)
    cut = await ada.read("papers/a.md", start_line=8, lines=1, chars_max=100)
    assert (cut.text, cut.is_cut) == ("word " * 20, True)
    with pytest.raises(NotFound, match="9 lines"):
        await ada.read("papers/a.md", start_line=10, lines=1, chars_max=100)


async def test_names_may_leave_out_the_only_folder(ada: AgentFiles, shelf: Shelf) -> None:
    """Case 160."""
    assert (await ada.read("sub/b.pdf", start_line=1, lines=1, chars_max=100)).path == "papers/sub/b.pdf"
    await shelf.virtual("books", access=FolderAccess.READ)
    with pytest.raises(NotFound, match="books/, papers/"):
        await ada.read("sub/b.pdf", start_line=1, lines=1, chars_max=100)


async def test_who_sees_one_session_does_not_see_files_that_came_in_others(ada: AgentFiles, shelf: Shelf) -> None:
    for session in ("ses_1", "ses_2"):
        folder = FolderRow(received_in(session), session, PathType.VIRTUAL, "m", "2026-01-01T00:00:00.000Z")
        await shelf.database.write(folders.create, folder)
        await shelf.folders.attach(folder.id, ADA, FolderAccess.READ)
    assert [one.folder.name for one in await ada.folders()] == ["papers", "ses_1", "ses_2"]
    only = AgentFiles(shelf.database, ADA, sees_only="ses_1")
    assert [one.folder.name for one in await only.folders()] == ["papers", "ses_1"]


async def test_other_agents_see_nothing(ada: AgentFiles, shelf: Shelf) -> None:
    bob = AgentFiles(shelf.database, BOB)
    assert await bob.folders() == []
    assert await bob.list() == []
    for path in ("papers/a.md", "a.md"):
        with pytest.raises(NotFound):
            await bob.read(path, start_line=1, lines=1, chars_max=10)
    with pytest.raises(NotFound):
        await bob.list("papers")
    assert (await bob.grep("Tulips", path=None, files_like=None, limit=5, ignore_case=False)).lines == []
    await shelf.folders.detach("papers", ADA)
    with pytest.raises(NotFound):
        await ada.read("papers/a.md", start_line=1, lines=1, chars_max=10)


@pytest.mark.parametrize("path", ["papers/../a.md", "papers//a.md", "papers/.x", "../papers/a.md"])
async def test_paths_do_not_lead_out(ada: AgentFiles, path: str) -> None:
    with pytest.raises(InvalidInput):
        await ada.read(path, start_line=1, lines=1, chars_max=10)


async def test_case_157_a_path_belongs_to_a_folder_or_to_none(shelf: Shelf, tmp_path: Path) -> None:
    for name in ("one", "two", "one2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.md").write_text(f"In {name}.")
    for name in ("one", "two"):
        await shelf.local(tmp_path / name, name, access=FolderAccess.READ)
    for name in ("one", "two"):
        await shelf.index(name)
    ada = AgentFiles(shelf.database, ADA)

    async def read(path: str) -> str:
        return (await ada.read(path, start_line=1, lines=1, chars_max=100)).text

    root = tmp_path.resolve()
    assert [await read(path) for path in (f"{root}/one/a.md", f"{root}/two/a.md", "two/a.md")] == [
        "In one.",
        "In two.",
        "In two.",
    ]
    for outside in (f"{root}/one2/a.md", f"{root}/one/../one2/a.md", f"{root}/one", "/etc/passwd", "two/none.md"):
        with pytest.raises((NotFound, InvalidInput)):
            await read(outside)
    assert (await ada.locate(f"{root}/two/new.md")).path == "two/new.md"  # to be written


async def test_case_156_the_first_rule_that_matches_a_file_says_whether_it_is_written(
    shelf: Shelf, tmp_path: Path
) -> None:
    rules = [
        {"pattern": "*.config.toml", "access": "read"},
        {"pattern": "src/**/*.rs", "access": "read_write"},
        {"pattern": "src/**", "access": "read"},
    ]
    row = await shelf.database.read(agents.get, ADA)
    await shelf.database.write(agents.update, replace(row, config={"files": rules}))
    await shelf.local(tmp_path, access=FolderAccess.READ_WRITE)
    ada = AgentFiles(shelf.database, ADA)
    for name in ("src/main.rs", "src/a/b.rs", "other", "a/toml", "src.rs"):
        assert (await ada.for_writing(f"notes/{name}", PathType.LOCAL)).name == name
    for name in ("app.config.toml", "deep/app.config.toml", "src/main.py", "src/main.config.toml"):
        with pytest.raises(PermissionDenied, match="you may only read"):
            await ada.for_writing(f"notes/{name}", PathType.LOCAL)
    await shelf.folders.attach("notes", ADA, FolderAccess.READ)
    with pytest.raises(PermissionDenied, match="for reading only"):  # a rule allows no more than the folder
        await ada.for_writing("notes/src/main.rs", PathType.LOCAL)


async def test_files_are_listed_by_pattern(ada: AgentFiles) -> None:
    assert [path for path, _row in await ada.list()] == ["papers/a.md", "papers/sub/b.pdf"]
    assert [path for path, _row in await ada.list("papers", "*.PDF")] == ["papers/sub/b.pdf"]
    assert await ada.list("papers", "c*") == []


async def test_grep_finds_lines(ada: AgentFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    found = await ada.grep("T[uw]", path=None, files_like=None, limit=9, ignore_case=False)
    assert [(name, line) for name, line, _text in found.lines] == [("papers/a.md", 7), ("papers/sub/b.pdf", 2)]
    one = await ada.grep("t[uw]", path="papers/sub/b.pdf", files_like=None, limit=9, ignore_case=True)
    assert [text for _name, _line, text in one.lines] == ["Two."]
    for pattern in ("", "(", "x" * 2_000):
        with pytest.raises(InvalidInput):
            await ada.grep(pattern, path=None, files_like=None, limit=9, ignore_case=False)
    monkeypatch.setattr(module, "GREP_CHARS_MAX", 10)
    assert (await ada.grep("x", path=None, files_like=None, limit=9, ignore_case=False)).left_out == 1


async def test_writing_needs_the_right_kind(ada: AgentFiles, shelf: Shelf) -> None:
    await shelf.folders.attach("papers", ADA, FolderAccess.READ_WRITE)
    with pytest.raises(InvalidInput, match=r"tool file$"):
        await ada.for_writing("papers/new.md", PathType.LOCAL)


async def test_a_file_on_disk_is_read_as_it_is_now_and_when_it_is_away(shelf: Shelf, tmp_path: Path) -> None:
    root = tmp_path / "d"
    root.mkdir()
    (root / "a.md").write_text("Tulips.")
    (root / "a.txt").write_bytes(b"\x7fELF")
    await shelf.local(root, access=FolderAccess.READ)
    await shelf.index()
    ada = AgentFiles(shelf.database, ADA)

    async def read() -> str:
        return (await ada.read("notes/a.md", start_line=1, lines=5, chars_max=100)).text

    with pytest.raises(UnreadableFile, match="program"):
        await ada.read("notes/a.txt", start_line=1, lines=5, chars_max=100)
    (root / "a.md").write_text("Roses, and more of them.")
    assert await read() == "Roses, and more of them."
    (root / "a.md").write_bytes(bytes(100))
    with pytest.raises(UnreadableFile):
        await read()
    shutil.rmtree(root)
    assert await read() == "Tulips."
