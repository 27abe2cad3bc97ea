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
    assert home("folder", "create", "papers", *AT).code == 0
    added = home("folder", "add", "papers", str(notes), *AT)
    assert (added.code, "Added 1 of 2" in added.out, "b.txt" in added.err, "link.md" in added.err) == (
        3,
        True,
        True,
        False,
    )
    shown = home("folder", "show", "papers", *AT, "--json").json
    assert [(row["name"], row["line_count"]) for row in shown["files"]] == [("sub/a.md", 2)]
    assert home("folder", "attach", "papers", *AT, "-a", "ada", "--write").code == 0
    assert "ada (read_write)" in home("folder", "show", "papers", *AT).out
    for folder in ("papers", "nowhere"):
        assert home("folder", "add", folder, str(notes / "b.txt"), *AT).code == 1
    with (notes / "huge.txt").open("wb") as file:
        file.truncate(2**30)
    assert "1073741824" in home("folder", "add", "papers", str(notes / "huge.txt"), *AT).err
