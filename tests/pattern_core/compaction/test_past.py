"""Summaries for people to read."""

from __future__ import annotations

from pattern_core.compaction.past import list_summaries
from pattern_core.testing.model import says
from tests.pattern_core.compaction.rig import ADA, stage


async def test_summaries_newest_first_and_by_pages() -> None:
    async with stage(otherwise=says("They talked about many things.")) as world:
        for _round in range(3):
            await world.said(20)
            await world.begin()
            await world.compaction.make_room(world.turn, room=2_000, purse=world.purse)
        ids = [row.id for row in await world.summaries()]
        assert len(ids) == 3
        first = await list_summaries(world.database, ADA.id, limit=2)
        rest = await list_summaries(world.database, ADA.id, limit=2, before=first[-1].id)
        assert [row.id for row in (*first, *rest)] == ids[::-1]
