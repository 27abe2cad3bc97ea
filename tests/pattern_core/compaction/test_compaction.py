"""Making room: whatever the summariser does, the conversation fits, and no message is lost."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.compaction.choose import NOTE
from pattern_core.compaction.compaction import Leaving, list_summaries, store
from pattern_core.conversation.history import to_row
from pattern_core.conversation.opening import OPENING_ID, opening_message
from pattern_core.errors import Conflict, LimitReached
from pattern_core.events import Event
from pattern_core.messages import Text, ToolCall, ToolResult
from pattern_core.models.errors import ModelServerError, WindowExceeded
from pattern_core.models.model import ModelReply, ModelRequest
from pattern_core.models.tokens import message_tokens
from pattern_core.testing.model import NO_USAGE, Answer, Paced, says
from pattern_db.connection import Connection
from pattern_db.journal import turns
from pattern_db.journal.turns import Started
from pattern_db.tables import messages
from tests.pattern_core.compaction.rig import ADA, START, Stage, stage

T = TypeVar("T")
SUMMARY = "Ruth asked many numbered questions about words, and got an answer to each."
BROKEN = ModelServerError("down", provider="scripted")
TOO_LONG = WindowExceeded("too long", provider="scripted")
GARBAGE = ModelReply(parts=(Text(text=" ... "),), finish_reason="stop", usage=NO_USAGE)


async def test_where_there_is_room_nothing_happens() -> None:
    async with stage(said=5) as world:
        made = await world.make_room(10_000)
        assert (made.messages, made.summary_ids, world.provider.asked) == (0, [], 0)
        assert await world.summaries() == []


async def test_what_leaves_is_summarised_and_both_are_found() -> None:
    async with stage(otherwise=says(SUMMARY), said=30) as world:
        made = await world.make_room(2_000)
        assert made.tokens_before > 2_000
        first = world.history.messages[0]
        assert (first.id, first.role) == (OPENING_ID, "user")
        assert SUMMARY in first.text
        (summary,) = await world.summaries()
        assert (summary.summary, summary.is_stub, summary.depth) == (SUMMARY, False, 0)
        assert summary.model == "scripted/script-1"
        assert SUMMARY in await world.found("numbered questions")
        assert any(text.startswith("answer0 ") for text in await world.found("answer0"))
        (event,) = await world.events()
        assert event.data["tokens_after"] == made.tokens_after
        assert event.data["summary_id"] == summary.id == made.summary_ids[0]
        assert len(world.usage.settled) == world.provider.asked > 0
        *shown, last = world.history.messages
        assert last.text == "and now?"
        await world.reload()  # as a new process does; the turn's own message was not stored
        assert list(world.history.messages) == shown


@pytest.mark.parametrize(
    ("answer", "trouble"),
    [
        (BROKEN, "down"),
        (GARBAGE, "the model's answer was empty"),
        (TOO_LONG, "too long"),
        (says("la " * 200), "the model repeated itself"),
        (says(" ".join(f"w{number}" for number in range(3_000))), "the summary was longer than its record"),
    ],
    ids=["down", "dots", "window", "la", "long"],
)
async def test_without_a_summary_a_stub_says_what_left(answer: Answer, trouble: str) -> None:
    async with stage(otherwise=answer, config={"summary_tokens": 2_000}, window=60_000, said=12) as world:
        made = await world.make_room(1_000)
        assert made.trouble == trouble
        (summary,) = await world.summaries()
        assert (summary.is_stub, summary.model) == (True, None)
        assert f"{summary.message_count} messages" in world.history.messages[0].text
        assert len(world.usage.settled) == len(world.usage.reserved) == world.provider.asked
        assert summary.summary in await world.found("question")


async def test_a_record_that_is_too_long_is_halved() -> None:
    def picky(request: ModelRequest) -> ModelReply | Exception:
        return says(SUMMARY) if len(request.messages[0].text) < 3_000 else TOO_LONG

    async with stage(otherwise=picky, said=12) as world:
        await world.make_room(1_000)
        assert [row.summary for row in await world.summaries()] == [SUMMARY]
        assert world.provider.asked <= 6


async def test_cancelled_in_the_middle_everything_is_as_before(autojump_clock: object) -> None:
    gate = trio.Event()
    async with stage(otherwise=Paced(answer=says(SUMMARY), gate=gate), said=30) as world:
        before = world.history.messages
        with trio.move_on_after(1):
            await world.make_room(2_000)
        assert world.history.messages == before
        assert await world.summaries() == []
        assert not any(row.is_archived for row in await world.rows())
        gate.set()
        await world.make_room(2_000)  # and works the next time


@pytest.mark.parametrize("dies", ["before", "after"])
async def test_a_process_that_dies_at_the_commit_loses_nothing(dies: str) -> None:
    async with stage(otherwise=says(SUMMARY), said=30) as world:
        before = world.history.messages

        async def dying(fn: Callable[[Connection], tuple[T, list[Event]]]) -> T:
            if dies == "after":
                await world.database.write(fn)
            raise Died

        journal = copy(world.compaction.journal)
        journal.commit = dying  # type: ignore[method-assign]  # this one process has such an end
        with pytest.raises(Died):
            await world.make_room(2_000, replace(world.compaction, journal=journal))
        assert world.history.messages == before
        await world.begin()  # as the next process does
        await world.assert_nothing_lost()
        made = await world.make_room(2_000)
        assert made.messages == 0 if dies == "after" else made.messages > 0


class Died(Exception):
    """The process is gone."""


async def test_a_slow_summary_takes_half_of_the_turns_time(autojump_clock: object) -> None:
    async with stage(otherwise=Paced(answer=says(SUMMARY), delay_s=100), said=30) as world:
        world.deadline = trio.current_time() + 60
        made = await world.make_room(2_000)
        assert trio.current_time() <= world.deadline - 30
        assert made.trouble


async def test_twice_without_a_new_message_no_model_is_asked() -> None:
    async with stage(otherwise=says(SUMMARY), said=30) as world:
        await world.make_room(2_000)
        asked = world.provider.asked
        await world.make_room(700)
        assert world.provider.asked == asked


async def test_one_turn_does_not_compact_without_end() -> None:
    async with stage(otherwise=says(SUMMARY), said=60) as world:
        for room in (5_000, 2_800, 1_200, 400, 200):
            world.history.append(world.new("user", Text(text="more")))
            await world.make_room(room)
        assert [row.is_stub for row in await world.summaries()] == [False, False, False, True, True]


async def test_summaries_follow_one_another_and_are_merged_when_there_are_many() -> None:
    async with stage(otherwise=says(SUMMARY), config={"summary_tokens": 50}) as world:
        for _round in range(16):
            await world.said(14)
            await world.begin()
            await world.make_room(1_500)
        rows = await world.summaries()
        assert [row.previous_summary_id for row in rows] == [None, *(row.id for row in rows[:-1])]
        assert max(row.depth for row in rows) >= 1
        deepest = next(row for row in rows if row.depth == 1)
        assert deepest.start_position == rows[0].start_position
        [own] = [event.data["messages"] for event in await world.events() if event.data["summary_id"] == deepest.id]
        assert deepest.message_count == sum(row.message_count for row in rows[: rows.index(deepest)]) + own  # type: ignore[operator]  # JSON


async def test_the_recursive_strategy_has_one_summary_that_grows_deeper() -> None:
    async with stage(otherwise=says(SUMMARY), config={"type": "recursive_summarization", "keep_recent": 4}) as world:
        for _round in range(3):
            await world.said(10)
            await world.begin()
            await world.make_room(1_100)
        assert [row.depth for row in await world.summaries()] == [0, 1, 2]
        assert (await world.summaries())[-1].message_count == sum(row.is_archived for row in await world.rows())
        assert world.history.messages[0].text.count(SUMMARY) == 1
        asked = world.provider.requests[-1].messages[0].text
        assert f"Summary of what was before: {SUMMARY}" in asked


@pytest.mark.parametrize("type_", ["truncate", "importance_based", "time_decay"])
async def test_strategies_without_a_model_ask_none(type_: str) -> None:
    async with stage(config={"type": type_, "keep_recent": 6, "min_keep_recent": 6}) as world:
        await world.said(30, tools=2)
        await world.begin()
        await world.make_room(1_500)


async def test_ten_thousand_imported_messages_leave_in_portions() -> None:
    async with stage(otherwise=says(SUMMARY), read_max=500) as world:
        await world.imported(10_000)
        await world.begin()
        assert world.history.opening.unloaded == 9_500
        assert "9500 messages" in world.history.messages[0].text
        assert len(world.history.messages) == 502
        made = await world.make_room(1_500)
        assert world.history.opening.unloaded == 0
        assert len(made.summary_ids) == 2 + 1
        assert world.provider.asked <= 6
        assert "past 3 " in [f"{text} " for text in await world.found('"past 3"')]


async def test_imported_words_of_tools_leave_with_the_others() -> None:
    async with stage(otherwise=BROKEN, read_max=50) as world:
        await world.imported(200, role="tool")
        await world.said(20)
        await world.begin()
        await world.make_room(600)
        rows = await world.rows()
        assert sum(not row.is_archived for row in rows) == len(world.history.messages) - 2  # opening, turn


def _wait(connection: Connection, batch_id: str) -> None:
    turns.take_first_message(connection, ADA.id, 1)
    turns.start(connection, 1, Started(batch_id=batch_id, epoch=1, started_at=START, deadline_at=START))
    turns.wait(connection, 1, time_left_ms=1_000)


@pytest.mark.parametrize("read_max", [2_000, 12])
async def test_a_turn_that_waits_for_a_person_stays(read_max: int) -> None:
    async with stage(otherwise=says(SUMMARY), read_max=read_max) as world:
        await world.said(30)
        waiting = (await world.rows())[4]
        assert waiting.batch_id is not None
        await world.database.write(_wait, waiting.batch_id)
        await world.begin()
        await world.make_room(1_000)
        kept = [row for row in await world.rows() if not row.is_archived]
        assert {waiting.batch_id} <= {row.batch_id for row in kept}
        assert len([row for row in kept if row.batch_id == waiting.batch_id]) == 2
        assert len(kept) < 60


async def test_a_turn_of_many_calls_is_shown_shorter_and_stays_whole() -> None:
    async with stage(otherwise=BROKEN, said=3, asks="find it out") as world:
        for number in range(12):
            call = ToolCall(call_id=f"r{number}", tool="read", arguments={"path": "x" * 500})
            world.history.append(world.new("assistant", Text(text="look"), call))
            content = f"result {number} " + "data " * 800
            world.history.append(world.new("tool", ToolResult(call_id=f"r{number}", tool="read", content=content)))
            await world.make_room(3_000)
            assert world.history.messages[-1].role == "tool"
        assert NOTE.strip() in str(world.history.messages)
        assert "find it out" in [message.text for message in world.history.messages]


async def test_a_model_that_cannot_write_is_not_asked() -> None:
    async with stage(config={"summarization_model": "embedded/rules"}, said=30) as world:
        made = await world.make_room(2_000)
        assert made.trouble == "embedded models cannot write summaries"
    async with stage(window=500, said=30) as world:
        made = await world.make_room(400)
        assert "too small" in str(made.trouble)


async def test_by_hand_nothing_is_asked_while_the_agent_is_at_work() -> None:
    async with stage(otherwise=says(SUMMARY)) as world:
        await world.said(30)
        await world.database.write(turns.start, 1, Started(batch_id="1", epoch=1, started_at=START, deadline_at=START))
        with pytest.raises(Conflict, match="busy"):
            await world.compaction.by_hand(world.agent, usage=world.usage)
        assert (world.provider.asked, world.usage.reserved) == (0, [])


async def test_a_person_compacts_where_there_is_room_but_not_two_at_once() -> None:
    gate = trio.Event()
    async with stage(otherwise=Paced(answer=says(SUMMARY), gate=gate)) as world:
        await world.said(30)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(world.compaction.by_hand, world.agent, usage=world.usage))
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(Conflict, match="already"):
                await world.compaction.by_hand(world.agent, usage=world.usage)
            gate.set()
        assert world.provider.asked == 1
        assert [row.summary for row in await world.summaries()] == [SUMMARY]
        await world.said(3)
        made = await world.compaction.by_hand(world.agent, usage=world.usage)
        assert made.messages > 0
        assert made.tokens_after < made.tokens_before
        await world.reload()
        await world.assert_nothing_lost()


async def test_what_a_person_archived_meanwhile_is_not_archived_twice() -> None:
    async with stage(otherwise=says(SUMMARY), said=30) as world:
        await world.compaction.by_hand(world.agent, usage=world.usage)
        assert len(await world.summaries()) == 1
        await world.make_room(2_500)


class Turn(NamedTuple):
    """What one turn says: words of the question, words of each call's result."""

    words: int
    results: tuple[int, ...]


TURNS = st.lists(st.builds(Turn, st.integers(1, 200), st.lists(st.integers(0, 300), max_size=3).map(tuple)), max_size=9)
ANSWERS = st.sampled_from([says(SUMMARY), says("la " * 200), GARBAGE, BROKEN, TOO_LONG])


@settings(max_examples=20, deadline=None)
@given(
    TURNS,
    st.integers(60, 3_000),
    st.sampled_from(["sliding_window", "truncate", "importance_based", "recursive_summarization", "time_decay"]),
    st.lists(ANSWERS, min_size=30, max_size=30),
    st.sampled_from([600, 2_000, 8_192]),
)
def test_whatever_is_said_it_fits_and_nothing_is_lost(
    turns: list[Turn], room: int, type_: str, answers: list[Answer], window: int
) -> None:
    async def live() -> None:
        config = {"type": type_, "keep_recent": 4, "keep_important": 4, "min_keep_recent": 4, "summary_tokens": 60}
        async with stage(answers, otherwise=BROKEN, config=config, window=window) as world:
            for one in turns:
                asked = await world.begin("word " * one.words)
                try:
                    await world.make_room(room)
                except LimitReached as error:  # nothing but the question is left, and it alone is too long
                    assert message_tokens(asked) > room
                    assert str(message_tokens(asked)) in error.message and "shorter message" in error.message
                    assert [message.id for message in world.history.messages if message.position] == [asked.id]
                positions = [message.position for message in world.history.messages if message.position]
                assert positions == sorted(positions)
                await world.turn_of(one.words, one.results)

    trio.run(live)


async def test_summaries_are_listed_newest_first_and_in_pages() -> None:
    async with stage(otherwise=says("They talked about many things.")) as world:
        for _round in range(3):
            await world.said(20)
            await world.begin()
            await world.make_room(2_000)
        ids = [row.id for row in await world.summaries()]
        assert len(ids) == 3
        first = await list_summaries(world.database, ADA.id, limit=2)
        rest = await list_summaries(world.database, ADA.id, limit=2, before=first[-1].id)
        assert [row.id for row in (*first, *rest)] == ids[::-1]


# One transaction: marks, summary and event together, or nothing of them


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


async def test_what_leaves_is_marked_and_named_and_published() -> None:
    async with stage(said=3) as world:
        left = await leaving(world, 4)
        (_, opening), (event,) = await world.database.write(store, left)
        assert [row.is_archived for row in await world.rows()] == [True] * 4 + [False] * 2
        (row,) = await world.summaries()
        assert (row.id, row.message_count, row.is_stub) == ("sum_1", 4, True)
        ends = (left.messages[0], left.messages[-1])
        assert ((row.start_position, row.started_at), (row.end_position, row.ended_at)) == ends
        assert opening.chain.head == (row,)
        assert (event.name, event.turn_id) == ("history.compacted", "turn_1")
        shown = opening_message(opening)
        assert shown is not None
        assert event.data["tokens_after"] == left.rest + message_tokens(shown)
        assert (event.data["from"], event.data["to"], event.data["messages"]) == (ends[0][0], ends[1][0], 4)


async def test_what_no_prompt_shows_leaves_with_its_turn() -> None:
    async with stage(said=1) as world:
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
    async with stage(said=3) as world:
        left = await leaving(world, 4)
        await world.database.write(store, left)
        with pytest.raises(Conflict, match="by another request"):
            await world.database.write(store, replace(left, summary_id="sum_2"))
        assert len(await world.summaries()) == len(await world.events()) == 1


async def test_a_merge_hides_no_summary_that_was_added_meanwhile() -> None:
    async with stage(said=4) as world:
        (_, opening), _ = await world.database.write(store, replace(await leaving(world, 2), model="m"))
        rest = replace(await leaving(world, 8), model="m")
        merging = replace(rest, summary_id="sum_3", merged=opening.chain)
        await world.database.write(store, replace(rest, summary_id="sum_2", messages=rest.messages[2:4]))
        (_, late), _ = await world.database.write(store, merging)
        assert [row.id for row in late.chain.head] == ["sum_1", "sum_2", "sum_3"]
        assert sum(row.message_count for row in await world.summaries()) == 8
        await world.imported(1)
        [*_, last] = (await leaving(world, 9)).messages
        merging = replace(merging, summary_id="sum_4", merged=late.chain, messages=[last])
        (_, merged), _ = await world.database.write(store, merging)
        assert [(row.id, row.message_count, row.depth) for row in merged.chain.head] == [("sum_4", 9, 1)]


async def test_a_person_waits_for_the_end_of_a_turn() -> None:
    async with stage(said=3) as world:
        left = await leaving(world, 4, turn=None)
        await world.database.write(turns.start, 1, Started(batch_id="1", epoch=1, started_at=START, deadline_at=START))
        with pytest.raises(Conflict, match="busy"):
            await world.database.write(store, left)
        assert await world.summaries() == []
