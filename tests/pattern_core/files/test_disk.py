"""Nothing outside a folder's directory is ever read or written, whatever lies in it."""

from __future__ import annotations

import os
import unicodedata
from functools import partial
from pathlib import Path

import pytest

from pattern_core.errors import InvalidInput, NotFound, PatternError, Unavailable
from pattern_core.files import disk
from pattern_core.files.disk import DEPTH_MAX, UnreadableFile, matches


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "root"
    (made / "inner").mkdir(parents=True)
    (made / "a.md").write_text("in a")
    (made / "inner" / "b.md").write_text("in b")
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "deep.txt").write_text("secret")
    return made.resolve()


def test_a_walk_finds_what_can_be_read(root: Path) -> None:
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text("x")
    (root / ".env").write_text("x")
    (root / "node_modules").mkdir()
    (root / "node_modules" / "x.js").write_text("x")
    (root / "a.pyc").write_text("x")
    (root / "venv").write_text("a file, and no directory")
    found = disk.walk(root)
    assert [entry.name for entry in found.entries] == ["a.md", "inner/b.md", "venv"]
    assert found.is_complete
    assert not found.skipped
    assert disk.read_file(root, "inner/b.md") == b"in b"


def test_links_are_not_followed(root: Path) -> None:
    (root / "file.md").symlink_to(root.parent / "secret.txt")
    (root / "dir").symlink_to(root.parent / "outside")
    (root / "loop").symlink_to(root)
    (root / "same.md").symlink_to("a.md")
    found = disk.walk(root)
    assert [entry.name for entry in found.entries] == ["a.md", "inner/b.md"]
    assert {one.name for one in found.skipped} == {"file.md", "dir", "loop", "same.md"}
    assert all("link" in one.reason for one in found.skipped)
    for name in ("file.md", "same.md"):
        with pytest.raises(UnreadableFile, match="link"):
            disk.read_file(root, name)
    for name in ("dir/deep.txt", "loop/a.md"):
        with pytest.raises((UnreadableFile, NotFound)):
            disk.read_file(root, name)
        with pytest.raises(PatternError):
            disk.write_file(root, name, b"mine")
    with pytest.raises(InvalidInput, match="link"):
        disk.write_file(root, "file.md", b"x")
    assert (root.parent / "outside" / "deep.txt").read_text() == (root.parent / "secret.txt").read_text() == "secret"


def test_pipes_and_directories_are_no_files(root: Path) -> None:
    os.mkfifo(root / "pipe.txt")
    assert [one.reason for one in disk.walk(root).skipped] == ["is not a regular file"]
    with pytest.raises(UnreadableFile, match="regular"):
        disk.read_file(root, "pipe.txt")  # and does not wait for a writer
    with pytest.raises(UnreadableFile):
        disk.read_file(root, "inner")
    with pytest.raises(InvalidInput, match="regular"):
        disk.write_file(root, "pipe.txt", b"x")


def test_a_file_that_is_too_long_or_grows_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (root / "huge.txt").open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(UnreadableFile) as caught:
        disk.read_file(root, "huge.txt")
    assert caught.value.message == disk.too_long(2**30).message
    assert "has 1073741824 bytes; at most 20971520" in caught.value.message
    monkeypatch.setattr(disk, "FILE_BYTES_MAX", 3)
    with pytest.raises(UnreadableFile, match="has 4 bytes"):
        disk.read_file(root, "a.md")


def test_a_missing_directory_says_so(root: Path) -> None:
    for call in (lambda: disk.walk(root / "gone"), lambda: disk.read_file(root / "gone", "a.md")):
        with pytest.raises(Unavailable, match="does not exist"):
            call()
    with pytest.raises(NotFound):
        disk.read_file(root, "nothing.md")
    with pytest.raises(NotFound):
        disk.look(root, "a.md/b")


def test_a_link_on_the_way_to_the_directory_leads_nowhere(root: Path) -> None:
    assert disk.read_file(root / "inner", "b.md") == b"in b"
    root.rename(root.parent / "moved")
    root.symlink_to(root.parent / "moved")
    for folder in (root, root / "inner"):
        with pytest.raises(Unavailable):
            disk.walk(folder)
        with pytest.raises(Unavailable):
            disk.read_file(folder, "b.md")


def open_files() -> int:
    """How many descriptors this process has open, where the system tells."""
    listed = Path("/proc/self/fd")
    return sum(1 for _ in listed.iterdir()) if listed.exists() else 0


def test_no_descriptor_is_left_open(root: Path) -> None:
    before = open_files()
    for _ in range(3):
        disk.walk(root)
        disk.write_file(root, "inner/x.md", disk.read_file(root, "inner/b.md"))
        for call in (lambda: disk.walk(root / "gone"), lambda: disk.read_file(root, "inner/no/no.md")):
            with pytest.raises((Unavailable, NotFound)):
                call()
    assert open_files() == before


def test_names_in_another_form_of_unicode_are_found(root: Path) -> None:
    decomposed = unicodedata.normalize("NFD", "Grün")
    (root / decomposed).mkdir()
    (root / decomposed / unicodedata.normalize("NFD", "Bäume.md")).write_text("Linde")
    assert "Grün/Bäume.md" in [entry.name for entry in disk.walk(root).entries]
    assert disk.read_file(root, "Grün/Bäume.md") == b"Linde"


def test_names_that_are_no_text_or_too_deep_are_named_and_passed_over(root: Path) -> None:
    (Path(os.fsdecode(os.fsencode(root) + b"/\xff.txt"))).write_text("x")
    deep = root.joinpath(*["d"] * 25)
    deep.mkdir(parents=True)
    (deep / "x.md").write_text("x")
    found = disk.walk(root)
    assert [one.reason for one in found.skipped] == ["has a name that cannot be used here, or is too deep"] * 2
    assert all(one.name.encode() for one in found.skipped)


def test_too_many_files_are_not_taken_for_all(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "FILES_MAX", 1)
    found = disk.walk(root)
    assert [entry.name for entry in found.entries] == ["a.md"]
    assert not found.is_complete
    assert found.skipped


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is closed to root")
def test_what_may_not_be_opened_is_not_taken_for_gone(root: Path) -> None:
    (root / "inner").chmod(0)
    try:
        found = disk.walk(root)
    finally:
        (root / "inner").chmod(0o755)
    assert found.unseen == ["inner"]


def test_a_file_is_written_whole_and_keeps_its_mode(root: Path) -> None:
    (root / "a.md").chmod(0o600)
    disk.write_file(root, "a.md", b"new")
    assert (root / "a.md").read_text() == "new"
    assert (root / "a.md").stat().st_mode & 0o777 == 0o600
    assert disk.look(root, "a.md").size == 3
    disk.write_file(root, "new/dir/c.md", b"c")
    assert (root / "new" / "dir" / "c.md").read_text() == "c"
    assert [entry.name for entry in disk.walk(root).entries] == ["a.md", "inner/b.md", "new/dir/c.md"]


def test_which_directories_may_become_folders(root: Path) -> None:
    data = root.parent / "data"
    data.mkdir()
    assert disk.check_root(str(root), allowed=None, kept_out=[data]) == root
    assert disk.check_root(str(root / "inner"), allowed=[root], kept_out=[]) == root / "inner"
    (root / "way-out").symlink_to(root.parent / "outside")
    for path, allowed in (
        ("", None),
        ("relative", None),
        (str(root / "gone"), None),
        (str(root / "a.md"), None),
        (str(root), []),
        (str(root.parent / "outside"), [root]),
        (str(root / "way-out"), [root]),
        (f"{root}/../outside", [root]),
        (str(data), None),
        (str(root.parent), None),  # around the server's own data
    ):
        with pytest.raises(InvalidInput):
            disk.check_root(path, allowed=allowed, kept_out=[data])


@pytest.mark.parametrize("name", ["a.md", "notes/garden plan.md", "ä/日本語.txt", "a..b/c...d", "C++/x"])
def test_paths_within_a_folder_are_names(name: str) -> None:
    assert disk.check_name(name) == disk.check_name(unicodedata.normalize("NFD", name)) == name


LEADING_OUT = ["", "/etc/passwd", "..", "../secret", "a/../../b", "a/./b", "a//b", "a/", ".env", "a/.git/config"]
UNUSABLE = ["a\\..\\b", "a\0b", "a\nb", "\ud800", "x" * 256, "ä" * 128, "x/" * 300 + "x", "d/" * DEPTH_MAX + "f"]


@pytest.mark.parametrize("name", LEADING_OUT + UNUSABLE)
def test_nothing_else_is(name: str, tmp_path: Path) -> None:
    for call in (disk.read_file, disk.look, partial(disk.write_file, data=b"x")):
        with pytest.raises(InvalidInput):
            call(tmp_path, name)


def test_a_directory_is_listed_within_its_bound(tmp_path: Path) -> None:
    assert disk.list_directory(tmp_path, ".") == []
    for number in range(disk.LISTED_MAX + 1):
        (tmp_path / f"f{number}").touch()
    with pytest.raises(UnreadableFile, match="list a part"):
        disk.list_directory(tmp_path, ".")
    with pytest.raises(NotFound):
        disk.list_directory(tmp_path, "f1")


@pytest.mark.parametrize(
    ("name", "as_file", "as_directory"),
    [
        ("a.md", False, False),
        ("venv", False, True),
        ("x/venv/a.md", True, True),
        ("x/.git/a.md", True, True),
        (".env", True, True),
        ("a.pyc", True, False),
    ],
)
def test_what_programs_leave_behind_is_left_out(name: str, as_file: bool, as_directory: bool) -> None:
    assert disk.is_left_out(name) is as_file
    assert disk.is_left_out(name, is_directory=True) is as_directory


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("*.rs", "foo.rs", True),
        ("*.rs", "foo.txt", False),
        ("src/**/*.rs", "src/foo.rs", True),
        ("src/**/*.rs", "src/a/b.rs", True),
        ("src/**/*.rs", "test/foo.rs", False),
        ("[", "a", False),
        ("a?.md", "ab.md", True),
    ],
)
def test_patterns_of_files(pattern: str, name: str, fits: bool) -> None:
    """Case 154."""
    assert matches(pattern, name) is fits


def test_directories_that_are_kept_out_need_not_exist(tmp_path: Path) -> None:
    disk.check_kept_out(tmp_path / "notes", [tmp_path / "data"])
    for around in (tmp_path, tmp_path / "data", tmp_path / "data" / "secrets", tmp_path / "notes" / ".." / "data"):
        with pytest.raises(InvalidInput, match="server's own data"):
            disk.check_kept_out(around, [tmp_path / "data"])
