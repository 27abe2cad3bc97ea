from __future__ import annotations

from pathlib import Path

import pytest

from pattern_core.errors import Conflict, InvalidInput, NotFound, PermissionDenied
from pattern_core.tools.builtin.file import FILE_CHARS_MAX, KNOWN_MAX, file, file_save
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.enums import FolderAccess
from tests.pattern_core.files.samples import Shelf
from tests.pattern_core.tools.rig import ToolRig


@pytest.fixture
async def shelf(tools: ToolRig) -> Shelf:
    """Ada may write in `papers`, which holds garden.md."""
    shelf = Shelf(tools.rig.database)
    await shelf.virtual(access=FolderAccess.READ_WRITE)
    await shelf.folders.put_file("papers", "garden.md", b"# Beds\n\nTulips in the north.\n\n# Shed\n\nA rake.\n")
    return shelf


async def test_files_are_listed_and_read(tools: ToolRig, shelf: Shelf) -> None:
    listed = await tools.call(file, op="list")
    assert listed["data"]["files"] == [{"path": "papers/garden.md", "lines": 7}]
    await shelf.virtual("books", access=FolderAccess.READ)
    listed = await tools.call(file, op="list")
    assert [one["folder"] for one in listed["data"]["folders"]] == ["books", "papers"]
    assert (await tools.call(file, op="list", folder="books"))["message"] == "0 files"
    read = await tools.call(file, op="read", path="papers/garden.md", start_line=3, lines=2)
    assert read["data"] == {"content": "Tulips in the north.\n", "start_line": 3, "end_line": 4, "total_lines": 7}
    assert "start_line 5" in read["message"]


async def test_lines_and_passages_are_found(tools: ToolRig, shelf: Shelf) -> None:
    found = await tools.call(file, op="grep", pattern="tulips", ignore_case=True)
    assert found["data"]["matches"] == [{"path": "papers/garden.md", "line": 3, "text": "Tulips in the north."}]
    hits = (await tools.call(file, op="search", query="tulip"))["data"]["hits"]
    assert [(hit["path"], hit["start_line"], hit["end_line"]) for hit in hits] == [("papers/garden.md", 1, 7)]
    assert (await tools.call(file, op="search", query="unheard"))["data"]["hits"] == []
    await shelf.virtual("books", access=FolderAccess.READ)
    for folder, count in (("books", 0), ("papers", 1)):
        found = await tools.call(file, op="search", query="tulip", folder=folder)
        assert len(found["data"]["hits"]) == count
    with pytest.raises(NotFound):
        await tools.call(file, op="search", query="tulip", folder="nowhere")
    tools.agent_id = "agt_bob"
    assert (await tools.call(file, op="search", query="tulip"))["data"]["hits"] == []


async def test_files_are_written_with_the_call(tools: ToolRig, shelf: Shelf) -> None:
    """Case 159."""
    await tools.call(file, op="write", path="papers/log.md", content="One.\n")
    await tools.call(file, op="append", path="papers/log.md", content="Two.\n")
    assert (await shelf.folders.content("papers", "log.md"))[1] == b"One.\nTwo.\n"
    hits = (await tools.call(file, op="search", query="two"))["data"]["hits"]
    assert [hit["path"] for hit in hits] == ["papers/log.md"]
    await tools.call(file, op="write", path="papers/log.md", content="New.\n")
    assert (await shelf.folders.content("papers", "log.md"))[1] == b"New.\n"


async def test_a_text_that_stands_once_is_replaced(tools: ToolRig, shelf: Shelf) -> None:
    path = "papers/log.md"
    await tools.call(file, op="write", path=path, content="One owl.\nTwo mice.\nTwo mice.\n")
    said = await tools.call(file, op="replace", path=path, old="One owl", content="An owl")
    assert said["message"] == "Changed papers/log.md"
    assert (await shelf.folders.content("papers", "log.md"))[1] == b"An owl.\nTwo mice.\nTwo mice.\n"
    for old, words in (("Two mice", "occurs in it 2 times"), ("three", "is not in it"), ("", "is not in it")):
        with pytest.raises(InvalidInput, match=words):
            await tools.call(file, op="replace", path=path, old=old, content="x")
    with pytest.raises(InvalidInput, match="is not in it"):
        await tools.call(file, op="replace", path="papers/none.md", old="x", content="y")


async def test_a_call_that_is_not_stored_writes_nothing(tools: ToolRig, shelf: Shelf) -> None:
    work = UnitOfWork()
    await file.call(tools.context(work), {"op": "write", "path": "papers/log.md", "content": "One."})
    work.settle(committed=False)
    assert set(await shelf.rows("papers")) == {"garden.md"}


async def test_an_addition_to_what_changed_meanwhile_is_refused(tools: ToolRig, shelf: Shelf) -> None:
    """What a person changes in between is kept, in a folder of the database."""
    work = UnitOfWork()
    await file.call(tools.context(work), {"op": "append", "path": "papers/garden.md", "content": "More."})
    await shelf.folders.put_file("papers", "garden.md", b"Something else.")
    with pytest.raises(Conflict):
        await tools.rig.database.write(work.run)
    assert (await shelf.folders.content("papers", "garden.md"))[1] == b"Something else."


async def test_what_does_not_fit_is_refused(tools: ToolRig, shelf: Shelf) -> None:
    for arguments, error in (
        ({"op": "read", "path": "papers/none.md"}, NotFound),
        ({"op": "read", "path": "papers/../x"}, InvalidInput),
        ({"op": "read", "path": "papers/garden.md", "start_line": 0}, InvalidInput),
        ({"op": "read"}, InvalidInput),
        ({"op": "write", "path": "papers/x.md", "content": " "}, InvalidInput),
        ({"op": "write", "path": "papers/x.pdf", "content": "words"}, InvalidInput),
        ({"op": "write", "path": "papers/x.md", "content": "x" * (FILE_CHARS_MAX + 1)}, InvalidInput),
        ({"op": "grep", "pattern": "("}, InvalidInput),
    ):
        with pytest.raises(error):
            await tools.call(file, **arguments)
    await shelf.folders.attach("papers", "agt_ada", FolderAccess.READ)
    with pytest.raises(PermissionDenied):
        await tools.call(file, op="write", path="papers/x.md", content="words")


async def test_a_file_is_written_to_the_disk_and_found(tools: ToolRig, tmp_path: Path) -> None:
    """Case 155."""
    shelf = Shelf(tools.rig.database)
    await shelf.local(tmp_path, access=FolderAccess.READ_WRITE)
    for _ in range(2):  # as after a crash
        await tools.call(file_save, path="notes/new/plan.md", content="Plant tulips.\n")
    assert (tmp_path / "new" / "plan.md").read_text() == "Plant tulips.\n"
    hits = (await tools.call(file, op="search", query="tulips"))["data"]["hits"]
    assert [hit["path"] for hit in hits] == ["notes/new/plan.md"]
    report = await shelf.index()
    assert (report.indexed, report.unchanged) == (0, 1)


async def test_what_does_not_fit_is_not_saved(tools: ToolRig, tmp_path: Path) -> None:
    """Cases 156 and 162: a folder that may only be read, and paths that lead out."""
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


@pytest.fixture
async def outside(tools: ToolRig, tmp_path: Path) -> Shelf:
    """Ada may write in `notes`, a directory."""
    shelf = Shelf(tools.rig.database)
    await shelf.local(tmp_path, access=FolderAccess.READ_WRITE)
    return shelf


@pytest.fixture
async def notes(tools: ToolRig, outside: Shelf, tmp_path: Path) -> Path:
    """A file with six lines in `notes`, which Ada has read."""
    place = tmp_path / "list.md"
    place.write_text("one\ntwo\nthree\nfour\nfive\nsix\n")
    await outside.index()
    await tools.call(file, op="read", path="notes/list.md")
    return place


async def save(tools: ToolRig, text: str) -> str:
    return str((await tools.call(file_save, path="notes/list.md", content=text))["message"])


async def test_case_158_what_a_person_and_an_agent_change_is_merged_and_saved(
    tools: ToolRig, outside: Shelf, notes: Path
) -> None:
    notes.write_text("zero\none\ntwo\nthree\nfour\nfive\nSIX\n")
    await outside.index()  # the periodic scan: what the agent knows is still the text that it read
    said = await save(tools, "one\nTWO\nthree\nfive\nsix")
    assert notes.read_text() == "zero\none\nTWO\nthree\nfive\nSIX\n" and "read it again" in said
    hits = (await tools.call(file, op="search", query="zero"))["data"]["hits"]
    assert [hit["path"] for hit in hits] == ["notes/list.md"]
    # The agent did not read it again, and goes on with the text as it knows it.
    notes.write_text(notes.read_text() + "seven\n")
    await save(tools, "one\nTWO\n3\nfive\nsix\n")
    assert notes.read_text() == "zero\none\nTWO\n3\nfive\nSIX\nseven\n"
    await tools.call(file, op="read", path="notes/list.md", start_line=2, lines=1)
    assert await save(tools, "all new\n") == "Wrote notes/list.md"
    assert notes.read_text() == "all new\n"


async def test_a_line_that_both_changed_or_a_file_that_was_not_read_is_not_overwritten(
    tools: ToolRig, outside: Shelf, notes: Path
) -> None:
    theirs = "one\n2\nthree\nfour\nfive\nsix\n"
    notes.write_text(theirs)
    for text in ("one\nTWO\nthree\nfour\nfive\nsix\n", "one\nall new\n"):
        with pytest.raises(Conflict, match="line 2"):
            await save(tools, text)
    tools.agent_id = "agt_bob"
    await outside.folders.attach("notes", "agt_bob", FolderAccess.READ_WRITE)
    with pytest.raises(Conflict, match="read it first"):
        await save(tools, "mine\n")
    assert notes.read_text() == theirs
    await tools.call(file, op="read", path="notes/list.md")
    notes.write_bytes(b"one\r\n2\r\nthree\r\nfour\r\nfive\r\n6\r\n")  # another editor
    await save(tools, "1\n2\nthree\nfour\nfive\nsix\n")
    assert notes.read_bytes() == b"1\r\n2\r\nthree\r\nfour\r\nfive\r\n6\r\n"
    notes.write_bytes(b"\0\1\2 not text")
    with pytest.raises(InvalidInput, match="binary"):
        await save(tools, "mine\n")
    notes.write_text(" \n")
    await save(tools, "mine\n")
    assert notes.read_text() == "mine\n"


async def test_a_save_that_was_not_stored_is_made_once(tools: ToolRig, notes: Path) -> None:
    """As after a crash: the file was written, and the call was not stored."""
    notes.write_text("b\nd\nd\nd\nb\nb\nb\n")
    await tools.call(file, op="read", path="notes/list.md")
    notes.write_text("b\nd\nd\nd\ne\nb\nb\n")
    for _ in range(2):
        work = UnitOfWork()
        content = "b\nd\nd\nd\nb\nb\nb\nd\nb\n"
        await file_save.call(tools.context(work), {"path": "notes/list.md", "content": content})
        work.settle(committed=False)
        assert notes.read_text() == "b\nd\nd\nd\ne\nb\nb\nd\nb\n"


async def test_the_texts_of_only_so_many_files_are_kept(tools: ToolRig, notes: Path) -> None:
    for number in range(KNOWN_MAX):
        await tools.call(file_save, path=f"notes/{number}.md", content="mine\n")
    notes.write_text("theirs\n")
    with pytest.raises(Conflict, match="read it first"):
        await save(tools, "mine\n")


async def test_case_161_a_change_after_reading_some_lines_keeps_the_whole_file(tools: ToolRig, shelf: Shelf) -> None:
    """Defect 50: what was shown was written, with its header, and the rest was gone."""
    lines = [f"line {number}\r\n" for number in range(500)]
    await shelf.folders.put_file("papers", "long.txt", "".join(lines).encode())
    shown = await tools.call(file, op="read", path="papers/long.txt", start_line=100, lines=3)
    assert shown["data"]["content"].count("line") == 3
    await tools.call(file, op="replace", path="papers/long.txt", old="line 100\r\n", content="changed\r\n")
    lines[100] = "changed\r\n"
    assert (await shelf.folders.content("papers", "long.txt"))[1] == "".join(lines).encode()
