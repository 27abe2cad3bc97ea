"""What agents see is read once, until something is stored."""

from __future__ import annotations

from pattern_core.memory.block import NewBlock
from pattern_core.memory.edits.edit import AppendText
from pattern_core.testing.model import says
from pattern_db.enums import BlockType
from tests.pattern_core.memory.rig import prompt_blocks
from tests.support import USER, running


async def test_every_change_shows_in_the_next_prompt() -> None:
    async with running(otherwise=says("ok")) as world:
        ada = await world.agent()
        memory = world.constellation.memory
        await world.say("one")
        await memory.create(ada.id, NewBlock(label="tea", content="green", block_type=BlockType.CORE), author=USER)
        await world.say("two")
        await memory.edit(ada.id, "tea", AppendText(text=" or black"), author=USER)
        await world.say("three")
        await memory.delete(ada.id, "tea", author=USER)
        await world.say("four")
        shown = ["\n".join(request.system) for request in world.provider.requests]
        assert ["green" in text for text in shown] == [False, True, True, False]
        assert ["green or black" in text for text in shown] == [False, False, True, False]


async def test_nothing_is_read_again_without_a_change() -> None:
    async with running(otherwise=says("ok")) as world:
        ada = await world.agent()
        memory = world.constellation.memory
        first = await prompt_blocks(memory, ada.id)
        await world.database.write(lambda connection: connection.execute("DELETE FROM memory_blocks").fetchall())
        assert await prompt_blocks(memory, ada.id) == first  # nobody but the store writes blocks
        memory.forget(ada.id)
        assert await prompt_blocks(memory, ada.id) == []
