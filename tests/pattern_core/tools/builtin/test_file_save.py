from __future__ import annotations

from pathlib import Path

import pytest

from pattern_core.errors import InvalidInput, PermissionDenied
from pattern_core.tools.builtin.file import FILE_CHARS_MAX, file
from pattern_core.tools.builtin.file_save import file_save
from pattern_db.enums import EffectClass, FolderAccess
from tests.pattern_core.files.samples import Shelf
from tests.pattern_core.tools.builtin.rig import ToolRig


def test_it_reaches_outside_and_must_be_enabled() -> None:
    assert file_save.effect is EffectClass.IDEMPOTENT
    assert not file_save.enabled_by_default


async def test_a_file_is_written_to_the_disk_and_found(tools: ToolRig, tmp_path: Path) -> None:
    shelf = Shelf(tools.rig.database)
    await shelf.local(tmp_path, access=FolderAccess.READ_WRITE)
    for _ in range(2):  # as after a crash
        await tools.call(file_save, path="notes/new/plan.md", content="Plant tulips.\n")
    assert (tmp_path / "new" / "plan.md").read_text() == "Plant tulips.\n"
    hits = (await tools.call(file, op="search", query="tulips"))["data"]["hits"]
    assert [hit["path"] for hit in hits] == ["notes/new/plan.md"]
    report = await shelf.index()
    assert (report.indexed, report.unchanged) == (0, 1)


async def test_what_does_not_fit_is_refused(tools: ToolRig, tmp_path: Path) -> None:
    shelf = Shelf(tools.rig.database)
    await shelf.local(tmp_path / "..", "up")
    folder_id = await shelf.local(tmp_path, access=FolderAccess.READ)
    with pytest.raises(PermissionDenied):
        await tools.call(file_save, path="notes/a.md", content="x")
    await shelf.folders.attach(folder_id, "agt_ada", FolderAccess.READ_WRITE)
    (tmp_path / "link.md").symlink_to(tmp_path.parent / "out.md")
    for path, content in (
        ("notes/../a.md", "x"),
        ("notes/link.md", "x"),
        ("notes/a.md", " "),
        ("notes/a.md", "x" * (FILE_CHARS_MAX + 1)),
    ):
        with pytest.raises(InvalidInput):
            await tools.call(file_save, path=path, content=content)
    with pytest.raises(InvalidInput, match="file_save"):
        await tools.call(file, op="write", path="notes/a.md", content="x")
    assert [one.name for one in tmp_path.iterdir()] == ["link.md"]
    assert not (tmp_path.parent / "out.md").exists()
