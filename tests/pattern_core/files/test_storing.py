from __future__ import annotations

import pytest

from pattern_core.errors import Conflict, LimitReached
from pattern_core.files import storing
from pattern_core.files.disk import UnreadableFile
from pattern_core.files.storing import hash_of, prepare, put_of, refused, store
from pattern_core.ids import Ids, seeded_randomness
from pattern_core.testing.clock import StoppedClock
from pattern_db.database import Database
from pattern_db.enums import FolderAccess
from pattern_db.tables import files
from tests.pattern_core.files.samples import Shelf

NOW = "2026-11-21T22:24:40.123Z"


def ids() -> Ids:
    return Ids(StoppedClock(), seeded_randomness(9))


async def test_reading_and_its_failure_are_both_results() -> None:
    good = await prepare("a.md", b"# Beds\nFour.\n")
    assert (good.error, len(good.pieces), good.content_hash) == (None, 1, hash_of(b"# Beds\nFour.\n"))
    bad = await prepare("a.txt", b"\x7fELF")
    assert bad.error is not None
    assert not bad.pieces
    assert refused("x", 2**30, UnreadableFile("too long")).content_hash is None


async def test_passages_with_the_same_words_keep_their_ids(shelf: Shelf) -> None:
    folder_id = await shelf.virtual(access=FolderAccess.READ)
    section = "## Part {0}\n" + "Words of part {0} about it. " * 20 + "\n\n"
    text = "".join(section.format(number) for number in range(5))
    await shelf.folders.put_file("papers", "a.md", text.encode())
    before = await shelf.passages("a.md", "papers")
    changed = "A new first line.\n\n" + text.replace("Words of part 3", "New words of part 3", 1)
    stored = await shelf.folders.put_file("papers", "a.md", changed.encode())
    after = await shelf.passages("a.md", "papers")
    kept = {row.id for row in before} & {row.id for row in after}
    assert len(before) == 5
    assert len(kept) >= 3
    assert all(row.start_line == old.start_line + 2 for row in after for old in before if row.id == old.id)
    assert stored.file.folder_id == folder_id
    assert not stored.is_new
    assert [row.chunk_index for row in after] == list(range(len(after)))


async def test_a_file_is_replaced_only_if_it_is_the_expected_one(shelf: Shelf) -> None:
    folder_id = await shelf.virtual()
    await shelf.folders.put_file("papers", "a.md", b"one")

    async def put(data: bytes, expected: bytes) -> None:
        prepared = await prepare("a.md", data)
        put = put_of(prepared, folder_id=folder_id, ids=ids(), now=NOW, content=data, expected_hash=hash_of(expected))
        await shelf.database.write(store, put)

    with pytest.raises(Conflict):
        await put(b"two", b"zero")
    await put(b"two", b"one")
    assert (await shelf.folders.content("papers", "a.md"))[1] == b"two"


async def test_a_full_folder_takes_no_new_file(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    await shelf.virtual()
    await shelf.folders.put_file("papers", "a.md", b"one")
    monkeypatch.setattr(storing, "FILES_MAX", 1)
    with pytest.raises(LimitReached):
        await shelf.folders.put_file("papers", "b.md", b"two")
    await shelf.folders.put_file("papers", "a.md", b"two")


async def test_lines_are_counted_as_people_count_them(shelf: Shelf) -> None:
    await shelf.virtual()
    for name, data, count in (("a", b"x", 1), ("b", b"x\n", 1), ("c", b"x\ny", 2), ("d", b"x\n\ny\n", 3)):
        stored = await shelf.folders.put_file("papers", name, data)
        assert stored.file.line_count == count


async def test_reading_again_is_no_new_upload(shelf: Shelf) -> None:
    folder_id = await shelf.virtual()
    await shelf.folders.put_file("papers", "a.md", b"one")
    before = (await shelf.rows("papers"))["a.md"]
    shelf.clock.advance(60_000)
    await shelf.index("papers", again=True)
    after = (await shelf.rows("papers"))["a.md"]
    assert after.uploaded_at == before.uploaded_at
    assert after.indexed_at != before.indexed_at
    content: bytes = await shelf.database.read(files.content, after.id)
    assert content == b"one"
    assert isinstance(shelf.database, Database)
    assert folder_id == after.folder_id
