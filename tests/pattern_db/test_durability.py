from __future__ import annotations

from pattern_db.durability import Durability, EmbeddedDurability


async def test_on_one_machine_the_commit_was_enough() -> None:
    durability: Durability = EmbeddedDurability()
    assert not durability.deferred
    await durability.barrier(7)
