"""Repair through a running constellation: one block is damaged, everything else goes on, and it comes back."""

from __future__ import annotations

import pytest

from pattern_core.errors import Conflict, NotFound
from pattern_core.memory.block import NewBlock
from pattern_core.memory.document import DocumentDamaged
from pattern_core.memory.edits import AppendText, SetField
from pattern_db.connection import Connection
from pattern_db.enums import Permission
from pattern_db.tables import block_checkpoints
from pattern_db.tables.memory_blocks import Attribution
from tests.support import USER, Running, running

BY_USER = Attribution(author=USER)
PROFILE = {"Map": {"fields": [{"name": name, "field_type": "Text"} for name in ("name", "city")]}}


async def damage(here: Running, block_id: str) -> None:
    """Let the last byte of the block's only update flip, as a disk might."""

    def flip(connection: Connection) -> None:
        of_block = "WHERE block_id = ?"
        select = f"SELECT update_blob FROM memory_block_updates {of_block}"
        ((data,),) = connection.execute(select, (block_id,)).fetchall()
        assert isinstance(data, bytes)
        flipped = data[:-1] + bytes([data[-1] ^ 0xFF])
        connection.execute(f"UPDATE memory_block_updates SET update_blob = ? {of_block}", (flipped, block_id))

    await here.database.write(flip)


async def made(here: Running, new: NewBlock) -> tuple[str, str]:
    """An agent ada with the block, not open: what is stored is all that there is. Its id, and the block's."""
    ada = await here.agent("ada")
    block = await here.constellation.memory.create(ada.id, new, author=USER)
    return ada.id, block.id


async def test_a_damaged_block_comes_back_and_nobody_opens_it_before() -> None:
    async with running() as here:
        memory, repairs = here.constellation.memory, here.constellation.repairs
        ada, block_id = await made(here, NewBlock(label="notes", content="one"))
        with pytest.raises(Conflict, match="nothing to repair"):
            await repairs.repair(ada, "notes", BY_USER)
        await memory.edit(ada, "notes", AppendText(text=" two"), author=USER)
        memory.blocks.forget(ada)
        await damage(here, block_id)
        with pytest.raises(DocumentDamaged, match="pattern memory repair notes"):
            await memory.edit(ada, "notes", AppendText(text=" three"), author=USER)
        with pytest.raises(DocumentDamaged):
            await memory.blocks.check(await memory.view(ada, "notes"))
        repaired = await repairs.repair(ada, "notes", BY_USER)
        assert (repaired.version, repaired.is_exact) == (2, True)
        assert "nothing was lost" in repaired.note
        last = (await here.events())[-1]
        assert (last.name, last.data["version"], last.data["repaired"]) == ("memory.changed", 2, True)
        assert [one.reason for one in await here.database.read(block_checkpoints.damaged_of, block_id)]
        edited = await memory.edit(ada, "notes", AppendText(text=" three"), author=USER)
        assert (edited.block.content, edited.block.version) == ("one two three", 3)
        undone = await here.constellation.revisions.undo(ada, "notes", BY_USER)
        assert undone.block.content == "one two"
        kinds = [one.kind for one in await here.constellation.history.versions(block_id, limit=9)]
        assert kinds == ["undo", "edit", "repair", "edit", "create"]
        await memory.blocks.check(await memory.view(ada, "notes"))


async def test_what_lists_show_of_a_form_is_what_is_left_of_it() -> None:
    async with running() as here:
        memory = here.constellation.memory
        new = NewBlock(label="profile", schema=PROFILE, value={"name": "Ruth"})
        ada, block_id = await made(here, new)
        await memory.edit(ada, "profile", SetField(field="city", value="Lisbon"), author=USER)
        memory.blocks.forget(ada)
        await damage(here, block_id)
        await here.database.write(lambda c: c.execute("UPDATE memory_block_history SET change = NULL WHERE seq = 1"))
        repaired = await here.constellation.repairs.repair(ada, "profile", BY_USER)
        assert not repaired.is_exact
        assert "may be lost" in repaired.note
        view = await memory.view(ada, "profile")
        assert await memory.value_of(view) == {"name": "Ruth", "city": None}
        assert "Lisbon" not in view.content
        assert "Ruth" in view.content


async def test_a_person_may_repair_what_agents_only_read_and_nobody_what_is_not_there() -> None:
    async with running() as here:
        new = NewBlock(label="notes", content="one", permission=Permission.READ_ONLY)
        ada, block_id = await made(here, new)
        await here.constellation.memory.edit(ada, "notes", AppendText(text="!"), author=USER)
        await damage(here, block_id)  # under the document that is still open
        assert (await here.constellation.repairs.repair(ada, "notes", BY_USER)).version == 2
        edited = await here.constellation.memory.edit(ada, "notes", AppendText(text="?"), author=USER)
        assert (edited.block.content, edited.block.version) == ("one!?", 3)
        here.constellation.memory.blocks.forget(ada)
        await here.constellation.memory.blocks.check(edited.block)
        with pytest.raises(NotFound, match="notes"):
            await here.constellation.repairs.repair(ada, "nothing", BY_USER)
