"""One transaction: marks, summary and event together, or nothing of them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from pattern_core.compaction.storing import Leaving, Sizes, store
from pattern_core.conversation.history import to_row
from pattern_core.conversation.opening import opening_message
from pattern_core.errors import Conflict
from pattern_core.messages import Text
from pattern_core.models.tokens import message_tokens
from pattern_db.connection import Connection
from pattern_db.journal import turns
from pattern_db.journal.turns import Started
from pattern_db.tables import messages
from pattern_db.tables.summaries import Chain
from tests.pattern_core.compaction.rig import ADA, START, Stage, stage

SIZES = Sizes(before=1_000, rest=100, opening_max=200, unloaded=0)


async def leaving(world: Stage, count: int, *, turn: tuple[int, str] | None = (1, "turn_1")) -> Leaving:
    rows = (await world.rows())[:count]
    return Leaving(
        agent_id=ADA.id,
        turn=turn,
        positions=[row.position for row in rows],
        hidden=[],
        started_at=rows[0].created_at,
        ended_at=rows[-1].created_at,
        summary="a stub",
        strategy="truncate",
        chain=Chain(),
    )


async def test_what_leaves_is_marked_and_named_and_told() -> None:
    async with stage() as world:
        await world.said(3)
        left = await leaving(world, 4)
        archived, (event,) = await world.database.write(partial(store, summary_id="sum_1", now=START), left, SIZES)
        assert [row.is_archived for row in await world.rows()] == [True] * 4 + [False] * 2
        (row,) = await world.summaries()
        assert (row.id, row.message_count, row.is_stub) == ("sum_1", 4, True)
        assert (row.start_position, row.end_position) == (left.positions[0], left.positions[-1])
        assert archived.opening.chain.head == (row,)
        assert event.name == "history.compacted"
        assert event.turn_id == "turn_1"
        opening = opening_message(archived.opening)
        assert opening is not None
        assert event.data["tokens_after"] == SIZES.rest + message_tokens(opening)
        assert (event.data["from"], event.data["to"], event.data["messages"]) == (
            left.positions[0],
            left.positions[-1],
            4,
        )


async def test_what_no_prompt_shows_leaves_with_its_turn() -> None:
    async with stage() as world:
        await world.said(1)
        sent = to_row(world.new("assistant", Text(text="sent")), agent_id=ADA.id, batch_id="", sequence=0)
        await world.database.write(messages.append, [sent._replace(tool_call_id="call_1")])
        await world.said(1)
        left = await leaving(world, 4)
        positions = [position for position in left.positions if position != sent.position]
        await world.database.write(
            partial(store, summary_id="sum_1", now=START), replace(left, positions=positions), SIZES
        )
        assert [row.is_archived for row in await world.rows()] == [True] * 4 + [False]
        (row,) = await world.summaries()
        assert row.message_count == 3  # of what a prompt showed


async def test_nothing_is_archived_twice() -> None:
    async with stage() as world:
        await world.said(3)
        left = await leaving(world, 4)
        await world.database.write(partial(store, summary_id="sum_1", now=START), left, SIZES)
        with pytest.raises(Conflict, match="meanwhile"):
            await world.database.write(partial(store, summary_id="sum_2", now=START), left, SIZES)
        assert len(await world.summaries()) == len(await world.events()) == 1


async def test_one_that_was_added_meanwhile_is_not_hidden_by_one_that_does_not_retell_it() -> None:
    async with stage() as world:
        await world.said(4)
        first = replace(await leaving(world, 2), model="m")
        archived, _ = await world.database.write(partial(store, summary_id="sum_1", now=START), first, SIZES)
        rest = await leaving(world, 8)
        merging = replace(rest, chain=archived.opening.chain, merges=True, model="m", summary="all of it")
        meanwhile = replace(rest, positions=rest.positions[2:4], chain=archived.opening.chain, model="m")
        await world.database.write(partial(store, summary_id="sum_2", now=START), meanwhile, SIZES)
        late, _ = await world.database.write(partial(store, summary_id="sum_3", now=START), merging, SIZES)
        assert [row.id for row in late.opening.chain.head] == ["sum_1", "sum_2", "sum_3"]
        assert sum(row.message_count for row in await world.summaries()) == 8
        merging = replace(merging, chain=late.opening.chain, positions=[(await leave_one_more(world))])
        merged, _ = await world.database.write(partial(store, summary_id="sum_4", now=START), merging, SIZES)
        assert [(row.id, row.message_count) for row in merged.opening.chain.head] == [("sum_4", 9)]


async def leave_one_more(world: Stage) -> str:
    """The position of another message."""
    await world.imported(1)
    return (await world.rows())[-1].position


def _start(connection: Connection) -> None:
    turns.take_first_message(connection, ADA.id, 1)
    turns.start(connection, 1, Started(batch_id="0" * 19, epoch=1, started_at=START, deadline_at=START))


async def test_a_person_waits_for_the_end_of_a_turn() -> None:
    async with stage() as world:
        await world.said(3)
        left = await leaving(world, 4, turn=None)
        await world.database.write(_start)
        with pytest.raises(Conflict, match="at work"):
            await world.database.write(partial(store, summary_id="sum_1", now=START), left, SIZES)
        assert await world.summaries() == []
