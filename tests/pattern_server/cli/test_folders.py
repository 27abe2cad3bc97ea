"""`pattern folder add`: what is left out. The rest is in tests/recorded/commands/files.txt."""

from __future__ import annotations

from pathlib import Path

from tests.pattern_server.cli.conftest import Pattern

AT = ("-c", "home")


def test_what_a_folder_does_not_take(home: Pattern, tmp_path: Path) -> None:
    """A file that is no text or is too large is named; a hidden one and a link in a directory are passed over."""
    notes = tmp_path / "notes"
    (notes / "sub").mkdir(parents=True)
    (notes / "sub" / "a.md").write_text("# Beds\nTulips.\n")
    (notes / "b.txt").write_bytes(b"\x7fELF")
    (notes / ".hidden").write_text("x")
    (notes / "link.md").symlink_to(notes / "sub" / "a.md")
    assert home("folder", "create", "papers", *AT).code == 0
    added = home("folder", "add", "papers", str(notes), *AT)
    assert (added.code, "added to papers: 1 of 2" in added.out, "b.txt" in added.err) == (3, True, True), added
    shown = home("folder", "show", "papers", *AT, "--json").json
    assert [(row["name"], row["line_count"]) for row in shown["files"]] == [("sub/a.md", 2)]
    for folder in ("papers", "nowhere"):
        assert home("folder", "add", folder, str(notes / "b.txt"), *AT).code == 1
    with (notes / "huge.txt").open("wb") as file:
        file.truncate(2**30)
    assert "1073741824" in home("folder", "add", "papers", str(notes / "huge.txt"), *AT).err
