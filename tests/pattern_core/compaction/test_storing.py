"""One transaction: marks, summary and event together, or nothing of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pattern_core.compaction.storing import Leaving, store
from pattern_core.conversation.history import to_row
from pattern_core.conversation.opening import opening_message
from pattern_core.errors import Conflict
from pattern_core.messages import Text
from pattern_core.models.tokens import message_tokens
from pattern_db.connection import Connection
from pattern_db.journal import turns
from pattern_db.journal.turns import Started
from pattern_db.tables import messages
from tests.pattern_core.compaction.rig import ADA, START, Stage, stage


async def leaving(world: Stage, count: int, *, turn: tuple[int, str] | None = (1, "turn_1")) -> Leaving:
    return Leaving(
        summary_id="sum_1",
        agent_id=ADA.id,
        turn=turn,
        messages=[(row.position, row.created_at) for row in (await world.rows())[:count]],
        summary="a stub",
        strategy="truncate",
        tokens_before=1_000,
        rest=100,
        opening_max=200,
        unloaded=0,
        now=START,
    )


async def test_what_leaves_is_marked_and_named_and_told() -> None:
    async with stage() as world:
        await world.said(3)
        left = await leaving(world, 4)
        archived, (event,) = await world.database.write(store, left)
        assert [row.is_archived for row in await world.rows()] == [True] * 4 + [False] * 2
        (row,) = await world.summaries()
        assert (row.id, row.message_count, row.is_stub) == ("sum_1", 4, True)
        ends = (left.messages[0], left.messages[-1])
        assert ((row.start_position, row.started_at), (row.end_position, row.ended_at)) == ends
        assert archived.opening.chain.head == (row,)
        assert (event.name, event.turn_id) == ("history.compacted", "turn_1")
        opening = opening_message(archived.opening)
        assert opening is not None
        assert event.data["tokens_after"] == left.rest + message_tokens(opening)
        assert (event.data["from"], event.data["to"], event.data["messages"]) == (ends[0][0], ends[1][0], 4)


async def test_what_no_prompt_shows_leaves_with_its_turn() -> None:
    async with stage() as world:
        await world.said(1)
        sent = to_row(world.new("assistant", Text(text="sent")), agent_id=ADA.id, batch_id="", sequence=0)
        await world.database.write(messages.append, [sent._replace(tool_call_id="call_1")])
        await world.said(1)
        left = await leaving(world, 4)
        shown = [one for one in left.messages if one[0] != sent.position]
        await world.database.write(store, replace(left, messages=shown))
        assert [row.is_archived for row in await world.rows()] == [True] * 4 + [False]
        (row,) = await world.summaries()
        assert row.message_count == 3  # of what a prompt showed


async def test_nothing_is_archived_twice() -> None:
    async with stage() as world:
        await world.said(3)
        left = await leaving(world, 4)
        await world.database.write(store, left)
        with pytest.raises(Conflict, match="meanwhile"):
            await world.database.write(store, replace(left, summary_id="sum_2"))
        assert len(await world.summaries()) == len(await world.events()) == 1


async def test_one_that_was_added_meanwhile_is_not_hidden_by_one_that_does_not_retell_it() -> None:
    async with stage() as world:
        await world.said(4)
        archived, _ = await world.database.write(store, replace(await leaving(world, 2), model="m"))
        rest = replace(await leaving(world, 8), model="m")
        merging = replace(rest, summary_id="sum_3", merged=archived.opening.chain)
        await world.database.write(store, replace(rest, summary_id="sum_2", messages=rest.messages[2:4]))
        late, _ = await world.database.write(store, merging)
        assert [row.id for row in late.opening.chain.head] == ["sum_1", "sum_2", "sum_3"]
        assert sum(row.message_count for row in await world.summaries()) == 8
        await world.imported(1)
        [*_, last] = (await leaving(world, 9)).messages
        merging = replace(merging, summary_id="sum_4", merged=late.opening.chain, messages=[last])
        merged, _ = await world.database.write(store, merging)
        assert [(row.id, row.message_count, row.depth) for row in merged.opening.chain.head] == [("sum_4", 9, 1)]


def _start(connection: Connection) -> None:
    turns.take_first_message(connection, ADA.id, 1)
    turns.start(connection, 1, Started(batch_id="0" * 19, epoch=1, started_at=START, deadline_at=START))


async def test_a_person_waits_for_the_end_of_a_turn() -> None:
    async with stage() as world:
        await world.said(3)
        left = await leaving(world, 4, turn=None)
        await world.database.write(_start)
        with pytest.raises(Conflict, match="at work"):
            await world.database.write(store, left)
        assert await world.summaries() == []
