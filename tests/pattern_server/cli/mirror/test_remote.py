"""Blocks through the API."""

from __future__ import annotations

import pytest

from pattern_db.enums import CONSTELLATION_OWNER as EVERYONE
from pattern_server.cli.client import ServerFailed
from pattern_server.cli.mirror.content import Form
from pattern_server.cli.mirror.remote import Owner
from tests.pattern_server.cli.mirror.shelf import ADA, Shelf

OWNER = Owner(id="agent_ada", name="ada")


async def test_owners() -> None:
    shelf = Shelf(agents=[ADA, {"id": "agent_old", "name": "old", "status": "archived"}])
    assert await shelf.memory().owners([]) == [OWNER, Owner(id=EVERYONE, name=EVERYONE)]
    assert await shelf.memory().owners(["ada", EVERYONE]) == [OWNER, Owner(id=EVERYONE, name=EVERYONE)]
    with pytest.raises(ServerFailed):
        await shelf.memory().owners(["nobody"])


async def test_a_blocks_life() -> None:
    shelf = Shelf()
    shelf.add("lent", "another's", owner="agent_bob")
    memory = shelf.memory()
    made = await memory.create(OWNER, "file:notes", "one\n")
    assert [block.label for block in await memory.blocks(OWNER)] == ["file:notes"]
    changed = await memory.put(made, "two\n")
    assert (changed.remote.version, changed.remote.text, changed.remote.form) == (1, "two\n", Form.TEXT)
    with pytest.raises(ServerFailed, match="another version"):
        await memory.put(made, "three\n")
    assert await memory.text_at(changed, 0) == "one\n"
    assert await memory.text_at(changed, 9) is None
    assert await memory.past(await memory.block(made)) == ((0, "one\n"),)
    shelf.has_past = False
    assert await memory.past(changed) == ()
    with pytest.raises(ServerFailed):
        await memory.delete(made)
    await memory.delete(changed)
    assert await memory.blocks(OWNER) == []


async def test_logs_are_locked() -> None:
    shelf = Shelf()
    shelf.add("diary", [], schema={"Log": {}})
    (block,) = await shelf.memory().blocks(OWNER)
    assert block.remote.locked is not None
