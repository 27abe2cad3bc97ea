"""Documents that may not open: from outside, and stored ones that were damaged and are repaired."""

from __future__ import annotations

import json
import sys

import pytest

from pattern_core.errors import Conflict, NotFound
from pattern_core.memory import damage
from pattern_core.memory.block import NewBlock
from pattern_core.memory.checkpoint import whole_document
from pattern_core.memory.damage import Repaired, damage_of, damaged_blocks, first_unopened, repair_block, store_repair
from pattern_core.memory.document import DocumentDamaged, framed, opened_parts
from pattern_core.memory.edits import AppendText, SetField
from pattern_core.memory.history import state_at, versions
from pattern_db.connection import Connection, fetch_all
from pattern_db.database import Database
from pattern_db.enums import HistoryKind, Permission
from pattern_db.tables import memory_blocks
from tests.pattern_core.memory.life import Life, Pen, create, splice
from tests.pattern_core.memory.rig import NOW
from tests.support import BY_USER, Running, running

A = "agent:agt_ada"


@pytest.fixture
async def life(database: Database) -> Life:
    """Six versions: a checkpoint each at 2 and 4, then two updates."""
    life = await database.read(_life)
    for number in range(1, 7):
        life.append(A, f" {number}")
        if number == 3:
            life.edit(A, splice(0, 1, "B"))
        if number in (2, 4):
            await life.consolidate(database)
    return life


def _life(connection: Connection) -> Life:
    create(connection, "sound", "mem_sound")
    return Life(connection, create(connection, "begin"))


async def repaired(database: Database, block_id: str) -> Repaired:
    return await database.write(store_repair, await damage_of(database, block_id), NOW, 99)


async def test_sound_blocks_are_none_of_them(database: Database, life: Life) -> None:
    assert life.text == "Begin 1 2 3 4 5 6"
    assert await damaged_blocks(database) == []
    with pytest.raises(Conflict, match="nothing to repair"):
        await repaired(database, life.block_id)


WRECKS = {
    "an update": "UPDATE memory_block_updates SET update_blob = x'00' WHERE seq = 7",
    "a lost update": "DELETE FROM memory_block_updates WHERE seq = 6",
    "the last update": "DELETE FROM memory_block_updates WHERE seq = 7",
    "the newest checkpoint": "UPDATE memory_block_checkpoints SET snapshot = x'6a756e6b' WHERE up_to_seq = 5",
    "all checkpoints": "UPDATE memory_block_checkpoints SET snapshot = x'6a756e6b'",
    "a frame that is none": "UPDATE memory_block_checkpoints SET encoding = 'zstd'",
}
PUT_ASIDE = "SELECT part FROM memory_block_damaged WHERE reason <> ''"
SOUND_TO = {"an update": 6, "a lost update": 5, "the last update": 6}


@pytest.mark.parametrize("wreck", WRECKS)
async def test_damage_is_found_and_repaired_from_what_is_known(database: Database, life: Life, wreck: str) -> None:
    before = life.document.state()
    life.connection.execute(WRECKS[wreck])
    [found] = await damaged_blocks(database)
    assert (found.block.id, found.version) == (life.block_id, SOUND_TO.get(wreck, -1))
    assert found.reason
    done = await repaired(database, life.block_id)
    assert (done.version, done.is_exact) == (8, True)
    assert await damaged_blocks(database) == []
    life.reopen(100)
    assert life.document.state() == before
    assert (await database.read(whole_document, life.block_id)).state()["content"] == before["content"]
    assert bool(await database.read(fetch_all, PUT_ASIDE)) == (wreck != "the last update")
    life.append(A, "!")
    life.undo(A)
    life.undo(A)
    assert life.text == "Begin 1 2 3 4 5"
    assert (await database.read(state_at, life.block_id, 3))["content"] == "begin 1 2 3"


@pytest.mark.parametrize(
    ("wreck", "change", "text"),
    [
        ("all checkpoints", "UPDATE memory_block_history SET change = NULL WHERE seq = 3", "Begin 1 2 3 4 5 6"),
        ("an update", "UPDATE memory_blocks SET content_preview = 'shown' WHERE id <> 'mem_sound'", "shown"),
    ],
)
async def test_the_text_that_is_shown_outlives_what_is_not_known(
    database: Database, life: Life, wreck: str, change: str, text: str
) -> None:
    life.connection.execute(WRECKS[wreck])
    life.connection.execute(change)
    done = await repaired(database, life.block_id)
    assert not done.is_exact
    assert "may be lost" in done.note
    life.reopen(100)
    assert life.text == text


async def test_what_a_block_was_created_with(database: Database, life: Life) -> None:
    life.connection.execute("UPDATE memory_blocks SET loro_snapshot = x'6a756e6b' WHERE id = 'mem_sound'")
    assert [(one.block.id, one.version) for one in await damaged_blocks(database)] == [("mem_sound", -1)]
    done = await repaired(database, "mem_sound")
    assert (done.is_exact, done.version) == (True, 1)
    assert (await database.read(memory_blocks.get, "mem_sound")).last_seq == 1
    assert Life(life.connection, "mem_sound", 100).text == "sound"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere memory is not bounded")
async def test_a_child_that_dies_condemns_only_what_it_died_of(
    database: Database, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = damage.CHECK_MEMORY_BYTES
    monkeypatch.setattr(damage, "CHECK_MEMORY_BYTES", 2**20)  # it ends at once and says nothing
    found = await damaged_blocks(database)
    assert {one.reason for one in found} == {"opening it ended a separate process"}
    assert len(found) == 2
    monkeypatch.setattr(damage, "BATCH_BYTES_MAX", 1)
    monkeypatch.setattr(damage, "CHECK_MEMORY_BYTES", bound)
    assert await damaged_blocks(database) == []


# Repair through a running constellation: one block is damaged, the rest keeps working, and it comes back.

PROFILE = {"Map": {"fields": [{"name": name, "field_type": "Text"} for name in ("name", "city")]}}


async def damage_updates(here: Running) -> None:
    """Cut all updates that are stored."""
    await here.database.write(
        lambda c: c.execute("UPDATE memory_block_updates SET update_blob = substr(update_blob, 1, 9)")
    )


async def made(here: Running, new: NewBlock) -> tuple[str, str]:
    """An agent ada with the block, not open: what is stored is all that there is. Its id, and the block's."""
    ada = await here.agent("ada")
    block = await here.constellation.memory.create(ada.id, new, by=BY_USER)
    return ada.id, block.id


async def test_a_damaged_block_comes_back_and_is_not_opened_before() -> None:
    async with running() as here:
        memory = here.constellation.memory
        ada, block_id = await made(here, NewBlock(label="notes", content="one"))
        with pytest.raises(Conflict, match="nothing to repair"):
            await repair_block(memory.blocks, ada, "notes", BY_USER)
        await memory.edit(ada, "notes", AppendText(text=" two"), by=BY_USER)
        memory.blocks.forget(ada)
        await damage_updates(here)
        with pytest.raises(DocumentDamaged, match="pattern memory repair notes"):
            await memory.edit(ada, "notes", AppendText(text=" three"), by=BY_USER)
        with pytest.raises(DocumentDamaged):
            await memory.blocks.check(await memory.view(ada, "notes"))
        assert [one.version for one in await memory.blocks.seen_by(ada) if one.id == block_id] == [1]
        repaired = await repair_block(memory.blocks, ada, "notes", BY_USER)
        assert [one.version for one in await memory.blocks.seen_by(ada) if one.id == block_id] == [2]
        assert (repaired.version, repaired.is_exact) == (2, True)
        assert "nothing was lost" in repaired.note
        last = (await here.events())[-1]
        assert (last.name, last.data["version"], last.data["repaired"]) == ("memory.changed", 2, True)
        assert await here.database.read(fetch_all, PUT_ASIDE)
        edited = await memory.edit(ada, "notes", AppendText(text=" three"), by=BY_USER)
        assert (edited.block.content, edited.block.version) == ("one two three", 3)
        undone = await here.constellation.revisions.revert(ada, "notes", BY_USER, HistoryKind.UNDO)
        assert undone.block.content == "one two"
        kinds = [one.kind for one in await here.database.read(versions, block_id, limit=9)]
        assert kinds == ["undo", "edit", "repair", "edit", "create"]
        await memory.blocks.check(await memory.view(ada, "notes"))


async def test_what_lists_show_of_a_form_is_what_is_left_of_it() -> None:
    async with running() as here:
        memory = here.constellation.memory
        new = NewBlock(label="profile", schema=PROFILE, value={"name": "Ruth"})
        ada, _ = await made(here, new)
        await memory.edit(ada, "profile", SetField(field="city", value="Lisbon"), by=BY_USER)
        memory.blocks.forget(ada)
        await damage_updates(here)
        await here.database.write(lambda c: c.execute("UPDATE memory_block_history SET change = NULL WHERE seq = 1"))
        repaired = await repair_block(here.constellation.memory.blocks, ada, "profile", BY_USER)
        assert not repaired.is_exact
        assert "may be lost" in repaired.note
        view = await memory.view(ada, "profile")
        assert await memory.value_of(view) == {"name": "Ruth", "city": None}
        assert "Lisbon" not in view.content
        assert "Ruth" in view.content


PAST = {
    "an earlier checkpoint": "UPDATE memory_block_checkpoints SET snapshot = x'6a756e6b' WHERE up_to_seq = 2",
    "a segment": "UPDATE memory_block_segments SET data = x'00ff', encoding = 'raw' WHERE last_seq = 2",
    "a segment that is none": "UPDATE memory_block_segments SET data = x'00ff', encoding = 'zstd' WHERE last_seq = 5",
    "an inactive block": "UPDATE memory_blocks SET loro_snapshot = x'00', is_active = 0 WHERE id = 'mem_sound'",
}


@pytest.mark.parametrize("wreck", PAST)
async def test_a_file_from_outside_is_opened_with_its_past(database: Database, life: Life, wreck: str) -> None:
    assert await damaged_blocks(database, with_past=True) == []
    life.connection.execute(PAST[wreck])
    assert life.connection.changes() == 1
    assert await damaged_blocks(database) == []
    [found] = await damaged_blocks(database, with_past=True)
    assert found.reason


async def test_a_person_may_repair_what_agents_only_read_but_not_what_is_not_there() -> None:
    async with running() as here:
        new = NewBlock(label="notes", content="one", permission=Permission.READ_ONLY)
        ada, _ = await made(here, new)
        await here.constellation.memory.edit(ada, "notes", AppendText(text="!"), by=BY_USER)
        await damage_updates(here)  # under the document that is still open
        assert (await repair_block(here.constellation.memory.blocks, ada, "notes", BY_USER)).version == 2
        edited = await here.constellation.memory.edit(ada, "notes", AppendText(text="?"), by=BY_USER)
        assert (edited.block.content, edited.block.version) == ("one!?", 3)
        here.constellation.memory.blocks.forget(ada)
        await here.constellation.memory.blocks.check(edited.block)
        with pytest.raises(NotFound, match="notes"):
            await repair_block(here.constellation.memory.blocks, ada, "nothing", BY_USER)


def parts() -> list[bytes]:
    """A document, and an update that builds on it."""
    document = Pen(5)
    document.append("one")
    document.commit("user:1")
    snapshot, version = document.snapshot(), document.version()
    document.append(" two 🌍")
    document.commit("user:1")
    return [snapshot, document.export_since(version)]


WHOLE, UPDATE = parts()
FLIPPED = bytes([*UPDATE[:20], UPDATE[20] ^ 0x55, *UPDATE[21:]])


async def test_documents_from_outside_open_or_the_first_that_does_not_is_named() -> None:
    assert await first_unopened({}) is None
    assert await first_unopened({str(number): WHOLE for number in range(damage.BATCH_BLOCKS_MAX + 1)}) is None


@pytest.mark.parametrize("data", [b"junk", WHOLE[:-1], UPDATE, FLIPPED])
async def test_bytes_that_are_no_document_are_named_with_the_reason(data: bytes) -> None:
    found = await first_unopened({"a": WHOLE, "b": data, "c": b"junk"})
    assert found is not None
    assert found[0] == "b"
    assert "document" in found[1] or "update" in found[1]


def test_how_far_stored_documents_open() -> None:
    documents = [[WHOLE, UPDATE], [], [b"", UPDATE], [WHOLE, b"junk", UPDATE], [WHOLE]]
    answers = [json.loads(line) for line in opened_parts(framed(documents))]
    assert [count for count, _reason in answers] == [2, 0, 1, 1, 1]
    assert [bool(reason) for _count, reason in answers] == [False, False, True, True, False]
