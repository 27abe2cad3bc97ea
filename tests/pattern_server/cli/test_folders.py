"""`pattern folder …`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pattern_server.cli.conftest import Pattern

AT = ("-c", "home")


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """A directory with a text, a binary, a hidden file and a link."""
    root = tmp_path / "notes"
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "a.md").write_text("# Beds\nTulips.\n")
    (root / "b.txt").write_bytes(b"\x7fELF")
    (root / ".hidden").write_text("x")
    (root / "link.md").symlink_to(root / "sub" / "a.md")
    return root


def test_a_folder_that_is_filled(home: Pattern, notes: Path) -> None:
    made = home("folder", "create", "papers", *AT, "--description", "What was read.")
    assert made.code == 0, made.err
    added = home("folder", "add", "papers", str(notes), *AT)
    assert added.code == 3
    assert "Added 1 of 2" in added.out
    assert "b.txt" in added.err
    assert "link.md" not in added.err
    shown = home("folder", "show", "papers", *AT, "--json").json
    assert [(row["name"], row["line_count"]) for row in shown["files"]] == [("sub/a.md", 2)]
    assert "sub/a.md" in home("folder", "show", "papers", *AT).out
    assert home("folder", "index", "papers", *AT).code == 0
    assert home("folder", "add", "papers", str(notes / "b.txt"), *AT).code == 1
    huge = notes / "huge.txt"
    with huge.open("wb") as file:
        file.truncate(2**30)
    assert "1073741824" in home("folder", "add", "papers", str(huge), *AT).err


def test_a_folder_of_a_directory(home: Pattern, notes: Path) -> None:
    made = home("folder", "create", "notes", *AT, "--path", str(notes))
    assert made.code == 0, made.err
    assert "read 1, unchanged 0" in made.out
    assert "b.txt" in made.err
    assert [row["name"] for row in home("folder", "list", *AT, "--json").json] == ["notes"]
    attached = home("folder", "attach", "notes", *AT, "-a", "ada", "--write")
    assert "read and write" in attached.out
    assert "ada (read_write)" in home("folder", "show", "notes", *AT).out
    assert home("folder", "detach", "notes", *AT, "-a", "ada").code == 0
    assert home("folder", "detach", "notes", *AT, "-a", "ada").code == 1
    (notes / "sub" / "a.md").write_text("Roses.")
    indexed = home("folder", "index", "notes", *AT, "--json")
    assert (indexed.code, indexed.json["indexed"]) == (3, 1)
    assert home("folder", "delete", "notes", *AT).code == 2
    assert home("folder", "delete", "notes", *AT, "--yes").code == 0
    assert "no folder yet" in home("folder", "list", *AT).out
    assert (notes / "sub" / "a.md").read_text() == "Roses."


def test_what_is_not_there_is_told(home: Pattern, tmp_path: Path) -> None:
    assert home("folder", "show", "nowhere", *AT).code == 1
    assert home("folder", "create", "x", *AT, "--path", str(tmp_path / "gone")).code == 1
    (tmp_path / "a.md").write_text("x")
    assert home("folder", "add", "nowhere", str(tmp_path / "a.md"), *AT).code == 1
