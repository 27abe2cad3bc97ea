from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pattern_core.errors import Conflict
from pattern_core.memory import damage
from pattern_core.memory.checkpoint import Consolidator, whole_document
from pattern_core.memory.damage import Repaired, damage_of, damaged_blocks, mend
from pattern_core.memory.document import state_of
from pattern_core.memory.history import BlockHistory
from pattern_core.testing.clock import StoppedClock
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.tables import block_checkpoints, memory_blocks
from tests.pattern_core.memory.life import Life, create
from tests.pattern_core.memory.pen import Pen
from tests.pattern_core.memory.rig import NOW, constellation

A = "agent:agt_ada"
CLOCK = StoppedClock(0)


@pytest.fixture
async def database() -> AsyncIterator[Database]:
    async with Database.in_memory(constellation()) as opened:
        yield opened


@pytest.fixture
async def life(database: Database) -> Life:
    """Six versions: a checkpoint each at 2 and 4, then two updates."""
    life = await database.read(_life)
    for number in range(1, 7):
        life.append(A, f" {number}")
        if number == 3:
            life.edit(A, lambda document: document.splice(0, 1, "B"))
        if number in (2, 4):
            await Consolidator(database, CLOCK, lambda *_: None).consolidate(life.block_id)
    return life


def _life(connection: Connection) -> Life:
    create(connection, "sound", "mem_sound")
    return Life(connection, create(connection, "begin"))


async def repaired(database: Database, block_id: str) -> Repaired:
    return await database.write(mend, await damage_of(database, block_id), NOW, 99)


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
SOUND_TO = {"an update": 6, "a lost update": 5, "the last update": 6}


@pytest.mark.parametrize("wreck", WRECKS)
async def test_damage_is_found_and_repaired_from_what_is_known(database: Database, life: Life, wreck: str) -> None:
    before = state_of(life.document)
    life.connection.execute(WRECKS[wreck])
    [found] = await damaged_blocks(database)
    assert (found.block.id, found.version) == (life.block_id, SOUND_TO.get(wreck, -1))
    assert found.reason
    done = await repaired(database, life.block_id)
    assert (done.version, done.is_exact) == (8, True)
    assert await damaged_blocks(database) == []
    life.reopen(100)
    assert state_of(life.document) == before
    assert (await database.read(whole_document, life.block_id)).text == before["content"]
    aside = await database.read(block_checkpoints.damaged_of, life.block_id)
    assert bool(aside) == (wreck != "the last update")
    life.append(A, "!")
    life.undo(A)
    life.undo(A)
    assert life.text == "Begin 1 2 3 4 5"
    assert (await BlockHistory(database).state_at(life.block_id, 3))["content"] == "begin 1 2 3"


async def test_a_text_that_is_known_outlives_everything_else(database: Database, life: Life) -> None:
    before = life.text
    life.connection.execute("UPDATE memory_block_checkpoints SET snapshot = x'6a756e6b'")
    life.connection.execute("UPDATE memory_block_history SET change = NULL WHERE seq = 3")
    done = await repaired(database, life.block_id)
    assert not done.is_exact
    assert "may be lost" in done.note
    life.reopen(100)
    assert life.text == before


async def test_a_text_that_differs_from_what_is_shown_is_not_exact(database: Database, life: Life) -> None:
    life.connection.execute("UPDATE memory_block_updates SET update_blob = x'00' WHERE seq = 7")
    life.connection.execute("UPDATE memory_blocks SET content_preview = 'shown' WHERE id = ?", (life.block_id,))
    done = await repaired(database, life.block_id)
    assert not done.is_exact
    assert "may be lost" in done.note
    life.reopen(100)
    assert life.text == "shown"


async def test_what_a_block_was_created_with(database: Database, life: Life) -> None:
    life.connection.execute("UPDATE memory_blocks SET loro_snapshot = x'6a756e6b' WHERE id = 'mem_sound'")
    assert [(one.block.id, one.version) for one in await damaged_blocks(database)] == [("mem_sound", -1)]
    done = await repaired(database, "mem_sound")
    assert (done.is_exact, done.version) == (True, 1)
    assert (await database.read(memory_blocks.get, "mem_sound")).last_seq == 1
    assert Life(life.connection, "mem_sound", 100).text == "sound"


async def test_a_child_that_dies_condemns_only_what_it_died_of(
    database: Database, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(damage, "_CHECK", "os")  # a module that ends at once and says nothing
    found = await damaged_blocks(database)
    assert {one.reason for one in found} == {"opening it ended a separate process"}
    assert len(found) == 2
    monkeypatch.setattr(damage, "BATCH_BYTES_MAX", 1)
    monkeypatch.setattr(damage, "_CHECK", "pattern_core.memory.document_check")
    assert await damaged_blocks(database) == []


async def test_a_check_that_hangs_is_given_up(database: Database, life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage, "STORED_TIMEOUT_S", 0.01)
    assert len(await damaged_blocks(database)) == 2
    assert Pen(1).text == ""
