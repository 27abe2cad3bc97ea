"""The recovery matrix, row by row: as a decision on rows, and as a constellation that starts on what another left."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio

from pattern_core.conversation.history import History
from pattern_core.errors import Conflict
from pattern_core.events import Draft, append
from pattern_core.limits import Limits, TurnLimits
from pattern_core.messages import Part, Reasoning, Text
from pattern_core.models.model import ModelReply
from pattern_core.testing import StoppedClock
from pattern_core.testing.model import NO_USAGE, Answer, Paced, ScriptedProvider, calls, says, together
from pattern_core.tools.builtin.send_message import send_message
from pattern_core.tools.tool import Probe, ToolContext, tool
from pattern_core.turns import admission, recovery
from pattern_core.turns.admission import Arrival, IncomingMessage
from pattern_core.turns.recovery import FoundTurn, RunCalls, decide
from pattern_core.turns.state import DeadAttempt, Ending
from pattern_core.turns.turn import Turn
from pattern_db.columns import Json
from pattern_db.connection import Connection
from pattern_db.enums import ApprovalKind, EffectClass
from pattern_db.journal import turns
from pattern_db.journal.approvals import ApprovalRow
from pattern_db.journal.events import EventRow
from pattern_db.journal.steps import EffectRow, StepRow
from pattern_db.journal.turns import TurnRow
from pattern_db.tables import agents
from tests.support import (
    PATIENCE_S,
    START,
    Outside,
    Running,
    acting,
    crashed,
    in_memory,
    last_words,
    note,
    rows,
    running,
)

NOW = "2026-01-01T00:00:00.000Z"
LATER = "2026-01-01T00:05:00.000Z"
ROW = TurnRow(
    key=1,
    id="turn_1",
    agent_id="agent_1",
    parent_turn=None,
    depth=0,
    sender="user:u",
    status="running",
    batch_id="0" * 19,
    seed=7,
    epoch=1,
    steps=0,
    resumes=0,
    cancel_reason=None,
    error=None,
    deadline_at=LATER,
    created_at=NOW,
    started_at=NOW,
    ended_at=None,
    fingerprint=None,
)
STEP = StepRow(1, 2, 1, "open", "scripted", "m", "", b"p" * 16, b"r" * 16, None, NOW)


def effect(status: str, effect_class: str = "unsafe", *, step: int = 2, call: int = 0) -> EffectRow:
    return EffectRow(1, step, call, f"call_{call}", "mail", "{}", b"h" * 16, effect_class, "key", status)


def verdict(row: TurnRow = ROW, step: StepRow | None = STEP, *effects: EffectRow) -> object:
    return decide(row, FoundTurn(step=step, calls=effects), TurnLimits(), NOW)


def code(found: object) -> tuple[str, object]:
    assert isinstance(found, Ending)
    return found.status, (found.error or {})["code"]


def test_a_request_to_stop_comes_first() -> None:
    assert code(verdict(replace(ROW, cancel_reason="user", deadline_at=NOW))) == ("cancelled", "cancelled")


def test_a_deadline_that_passed_interrupts() -> None:
    assert code(verdict(replace(ROW, deadline_at=NOW, resumes=99))) == ("interrupted", "deadline_passed")
    assert verdict(replace(ROW, deadline_at=None)) == DeadAttempt(is_charged=True)  # it waited


@pytest.mark.parametrize(("steps", "step"), [(2, STEP), (2, STEP._replace(status="done")), (0, None)])
def test_a_step_that_was_cut_off_too_often_is_given_up(steps: int, step: StepRow | None) -> None:
    """Also one that dies before its first step is opened."""
    most = TurnLimits().resumes_max
    assert code(verdict(replace(ROW, steps=steps, resumes=most), step)) == ("interrupted", "gave_up")
    assert not isinstance(verdict(replace(ROW, steps=steps, resumes=most - 1), step), Ending)


def test_restarts_of_an_earlier_step_do_not_count() -> None:
    assert verdict(replace(ROW, steps=1, resumes=9)) == DeadAttempt(is_charged=True)


def test_a_done_step_runs_what_has_no_result() -> None:
    done = STEP._replace(status="done")
    planned, ended = effect("planned"), effect("done", call=1)
    earlier, denied = effect("planned", step=1), effect("denied", call=2)
    assert verdict(ROW, done, earlier, planned, ended, denied) == RunCalls([(planned, None), (denied, None)])
    assert verdict(ROW, done, ended, denied._replace(message_id="msg_1")) == RunCalls([])


def test_a_call_comes_with_the_newest_answer_about_it() -> None:
    call, done = effect("planned"), STEP._replace(status="done")
    first, second, other = (
        ApprovalRow(
            id=f"apr_{number}",
            kind=ApprovalKind.TOOL,
            request={},
            args_hash=b"q",
            created_at=NOW,
            audience="human",
            expires_at=LATER,
            turn=1,
            step=2,
            call=number // 2,
        )
        for number in range(3)
    )
    found = FoundTurn(step=done, calls=[call], approvals=[first, second, other])
    assert decide(ROW, found, TurnLimits(), NOW) == RunCalls([(call, second)])


def test_a_turn_that_came_as_far_as_to_wait_is_not_given_up() -> None:
    row = replace(ROW, status="waiting", steps=2, resumes=TurnLimits().resumes_max)
    agreed = effect("planned")
    assert verdict(row, STEP._replace(status="done"), agreed) == RunCalls([(agreed, None)])


def test_closing_says_what_may_have_happened() -> None:
    asked = effect("awaiting_approval")._replace(attempts=1)  # it was started before a person was asked about it
    planned, started, doubted = recovery.close_calls([effect("planned"), effect("started"), asked])
    assert (planned.status, started.status, doubted.status) == ("cancelled", "in_doubt", "in_doubt")
    assert "may or may not" in started.content


# What follows starts a second constellation on what the first one left behind when it was torn down. What a start finds
# in the rows, kind by kind, is in `tests/scenarios/test_recovery_matrix.py`.


async def test_a_person_decides_whether_an_unsafe_call_in_doubt_is_repeated() -> None:
    outside = Outside(gate=trio.Event())
    async with crashed(calls("mail", {"to": "bob"}), tools=outside.tools) as (database, turn_id):
        again = Outside()
        script = [calls("mail", {"to": "bob"}), calls("mail", {"to": "eve"}), says("over")]
        async with running(script, tools=again.tools, database=database) as second:
            roster = second.constellation.roster
            assert (await second.wait(turn_id)).status == "waiting"
            await roster.update("ada", {"enabled_tools": []})
            with pytest.raises(Conflict, match="ada may not use the tool mail any more"):
                await second.answer()
            await roster.update("ada", {"enabled_tools": ["mail"]})
            assert (await second.answer(approve=False)).kind is ApprovalKind.RECOVERY
            assert (await second.wait(turn_id)).status == "completed"
            assert again.done == [("mail", "eve")]
            stored = await database.read(rows, "SELECT status FROM effect ORDER BY step")
            assert stored == [("in_doubt",), ("denied",), ("done",)]


async def test_a_call_that_a_person_left_in_doubt_is_not_repeated_unasked() -> None:
    outside, again = Outside(gate=trio.Event()), Outside()
    config = {"on_doubt": "ask_human"}
    async with crashed(calls("mail", {"to": "bob"}), tools=outside.tools, config=config) as (database, turn_id):
        async with running(
            [calls("mail", {"to": "bob"}), says("over")], tools=again.tools, database=database
        ) as second:
            for _ in ("the call that was cut off", "its repetition by the model"):
                assert (await second.wait(turn_id)).status == "waiting"
                assert (await second.answer(approve=False)).kind is ApprovalKind.RECOVERY
            assert (await second.wait(turn_id)).status == "completed"
        assert again.done == []


async def test_what_kills_the_process_before_anything_is_asked_is_given_up_too() -> None:
    async def deadly(_key: str) -> Probe:
        await trio.sleep_forever()
        raise AssertionError

    @tool(effect=EffectClass.VERIFIABLE, probe=deadly)
    async def book(_context: ToolContext) -> str:
        """Book until the process dies."""
        await trio.sleep_forever()
        raise AssertionError

    async with in_memory() as database:
        turn_id = ""
        for attempt in range(TurnLimits().resumes_max + 1):
            async with running([calls("book")], tools=[book], database=database) as life:
                if attempt == 0:
                    await life.agent()
                    turn_id = await life.submit("go")
                await trio.testing.wait_all_tasks_blocked()
        async with running(tools=[book], database=database) as last:
            view = await last.constellation.wait(turn_id)
            assert (view.status, (view.error or {})["code"]) == ("interrupted", "gave_up")
            assert await database.read(rows, "SELECT status FROM effect") == [("in_doubt",)]


async def test_what_a_dead_process_had_streamed_stays_when_the_turn_is_given_up() -> None:
    """Also where a later attempt died before it said anything."""
    streams = Paced(answer=says("half a thought"), between_s=PATIENCE_S)
    silent = Paced(answer=says("late"), gate=trio.Event())
    limits = Limits(turn=TurnLimits(resumes_max=1), delta_flush_s=0.0)
    async with in_memory() as database:
        async with running(
            provider=ScriptedProvider([streams], slice_chars=4), database=database, limits=limits
        ) as first:
            await first.agent()
            turn_id = await first.submit("go")
            await trio.testing.wait_all_tasks_blocked()
        async with running([silent], database=database, limits=limits):
            await trio.testing.wait_all_tasks_blocked()
        async with running(database=database, limits=limits) as last:
            view = await last.constellation.wait(turn_id)
            assert (view.status, (view.error or {})["code"]) == ("interrupted", "gave_up")
            assert [(one.content, one.source_metadata) for one in view.messages] == [
                ("go", None),
                ("half", {"partial": "interrupted"}),
            ]
            assert "text.delta" not in await last.names(turn_id)


async def test_a_turn_that_shall_fail_on_doubt_runs_no_sibling_again() -> None:
    both, config = together(calls("put", {"text": "x"}), calls("mail", {"to": "bob"})), {"on_doubt": "fail_turn"}
    outside = Outside(gate=trio.Event())
    async with crashed(both, tools=outside.tools, config=config) as (database, turn_id):
        assert sorted(what for what, _to in outside.done) == ["mail", "put"]
        again = Outside()
        async with running(tools=again.tools, database=database) as second:
            view = await second.constellation.wait(turn_id)
            assert (view.status, (view.error or {})["code"]) == ("failed", "in_doubt")
            assert again.done == []
            assert await database.read(rows, "SELECT status FROM effect") == [("in_doubt",), ("in_doubt",)]


async def test_a_turn_that_shall_fail_on_doubt_goes_on_where_there_is_none() -> None:
    late = Paced(answer=says("late"), gate=trio.Event())
    fields = {"config": {"on_doubt": "fail_turn"}, "tool_rules": [{"tool": "note", "type": "required_before_exit"}]}
    async with crashed(says("one"), late, tools=[note], **fields) as (database, turn_id):
        # As if it had died before the second step was opened.
        await database.write(rows, "DELETE FROM step WHERE status = 'open'")
        async with running([calls("note", {"text": "n"}), says("two")], tools=[note], database=database) as second:
            view = await second.constellation.wait(turn_id)
            assert (view.status, [message.content for message in view.messages][-1]) == ("completed", "two")


async def test_the_turns_of_a_restored_copy_end_instead_of_happening_twice() -> None:
    outside = Outside(gate=trio.Event())
    async with in_memory() as database:
        async with acting([calls("mail", {"to": "bob"})], tools=outside.tools, database=database) as first:
            turns_made = [await first.submit(text) for text in ("running", "queued")]
            await trio.testing.wait_all_tasks_blocked()
        await database.write(turns.request_cancel_all, "restored_as_a_copy")
        async with running([says("new")], tools=outside.tools, database=database) as copy:
            for turn_id in turns_made:
                assert (await copy.constellation.wait(turn_id)).status == "cancelled"
            assert (await copy.say("hello")).status == "completed"
            assert len(outside.done) == 1


async def test_what_was_not_to_be_forgotten_is_said_again() -> None:
    async with in_memory() as database:
        gate = trio.Event()
        script: list[Answer] = [says("done"), Paced(answer=says("late"), gate=gate)]
        async with running(script, tools=[note], database=database) as first:
            rules = [{"tool": "note", "type": "required_before_exit"}]
            await first.agent(tool_rules=rules)
            turn_id = await first.submit("go")
            await trio.testing.wait_all_tasks_blocked()
            said = last_words(first.provider.requests[-1])
        async with running([calls("note", {"text": "n"}), says("over")], tools=[note], database=database) as second:
            assert (await second.constellation.wait(turn_id)).status == "completed"
            assert "This turn is not finished" in said
            assert last_words(second.provider.requests[0]) == said


# What a process knew of its turn, read from its rows again.


def story(*told: str) -> list[EventRow]:
    """Events in short: `n` a step that is opened, `c` room that is made."""
    return [
        EventRow(seq, 1, "history.compacted", "{}", START)
        if one == "c"
        else EventRow(seq, 1, "step.started", json.dumps({"step": int(one), "attempt": 1}), START)
        for seq, one in enumerate(told, 1)
    ]


@pytest.mark.parametrize(
    ("told", "is_open", "steps"),
    [
        ("", True, []),
        ("12", True, []),
        ("c1", True, [1]),
        ("1cc2", False, [2]),  # a stub and a summary make room together
        ("1c2c2", True, [2, 2]),  # the vendor found the second prompt too long
        ("1c", True, [1]),
        ("1c", False, [2]),
    ],
)
def test_room_is_made_for_the_step_that_follows(told: Sequence[str], is_open: bool, steps: list[int]) -> None:
    assert recovery._compactions(story(*told), is_open=is_open) == steps


def thought(*parts: Part) -> ModelReply:
    return ModelReply(parts=parts, finish_reason="tool_calls", usage=NO_USAGE)


async def test_what_was_said_and_written_is_restored_as_the_process_knew_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    looking = trio.Event()

    @tool(effect=EffectClass.PURE)
    async def look(_context: ToolContext) -> str:
        """Look until the process dies."""
        looking.set()
        await trio.sleep_forever()

    sent = {"to": "user", "content": "hello from a tool"}
    script = [
        thought(Reasoning(text="hm"), Text(text="One."), *calls("note", {"text": "x"}).parts),
        calls("send_message", sent),
        says(""),  # wants to end, and may not
        says("Four."),  # likewise
        thought(Reasoning(text="well")),  # likewise, so that the rule makes the call
    ]
    async with running(script, tools=[note, look, send_message]) as one:
        rules = [{"tool": "look", "type": "required_before_exit"}]
        await one.agent(tool_rules=rules)
        turn_id = await one.submit("go")
        with trio.fail_after(PATIENCE_S):
            await looking.wait()
            await trio.sleep(1)  # what takes long holds nothing back
        row = await one.database.read(turns.by_id, turn_id)
        told = await one.database.read(recovery.restore, row)
        forced = await one.database.read(rows, "SELECT step FROM effect WHERE tool = 'look'")
    assert forced == [(5,)]
    assert set(told.said) == {1, 4}
    assert told.output_chars == len("hmOne.Four.well")
    assert (told.source, told.compactions, told.children) == ("user", [], 0)


# How a turn is taken up: as its rows say it is, with the time that it has left.


@asynccontextmanager
async def under_way(clock: StoppedClock, rules: Json = None) -> AsyncIterator[tuple[Running, str]]:
    """A turn that is calling something outside, or waits for a person to agree to that; it has a minute."""
    outside = Outside(gate=trio.Event())
    both = together(calls("mail", {"to": "bob"}, text="One moment."), calls("note", {"text": "y"}))
    async with running([calls("note", {"text": "x"}), both], tools=[note, *outside.tools], clock=clock) as world:
        await world.agent(config={"limits": {"wall_s": 60}}, tool_rules=rules)
        turn_id = await world.submit("go")
        await trio.testing.wait_all_tasks_blocked()
        yield world, turn_id


async def found(world: Running, turn_id: str) -> Turn:
    row = await world.database.read(turns.by_id, turn_id)
    left = await world.database.read(recovery.restore, row)
    agent = await world.constellation.roster.get(row.agent_id)
    return world.constellation._actors._found(row, left, agent, History())


def _add_to(connection: Connection, turn_id: str) -> None:
    """Add to a turn a request to another agent, room that was made, and a call that may have happened."""
    row = turns.by_id(connection, turn_id)
    child = IncomingMessage(
        agent_id=row.agent_id, content="do", sender=f"agent:{row.agent_id}", parent_turn=row.key, depth=1
    )
    admission.accept(
        connection,
        Arrival.of(child, agents.find(connection, row.agent_id), turn_id="turn_child", seed=1, now=START),
        Limits(),
    )
    append(connection, (row.key, row.id), [Draft("history.compacted", {})], created_at=START)
    connection.execute("UPDATE effect SET status = 'in_doubt' WHERE step = 1").fetchall()


async def test_a_turn_is_found_as_its_rows_say() -> None:
    clock = StoppedClock()
    async with under_way(clock) as (world, turn_id):
        clock.advance(10_000)
        await world.database.write(_add_to, turn_id)
        turn = await found(world, turn_id)
        record = turn.record
        assert (record.id, record.step, record.attempt, turn.record.source) == (turn_id, 2, 1, "user")
        assert record.sequence == 5, "the next message stands behind the five that are stored"
        assert (turn.output_chars, turn.judge.said, record.batch_type) == (len("One moment."), {2}, "user_request")
        [(noted,)] = await world.database.read(rows, "SELECT args_hash FROM effect WHERE step = 1")
        assert (turn.record.children, turn.judge.compactions, turn.calls.in_doubt) == (1, [3], {noted})
        assert turn.record.deadline == pytest.approx(trio.current_time() + 50, abs=20)
        assert turn.record.deadline_at == "2026-01-01T00:01:00.000Z"
        assert not turn.is_addressed, "nobody wrote after its newest decision"
        await world.database.write(rows, "UPDATE messages SET source = 'mail' WHERE role = 'user'")
        assert (await found(world, turn_id)).record.source == "mail", "what the sender named comes before who it is"


async def test_a_clock_that_was_set_back_gives_a_turn_no_more_than_its_time() -> None:
    clock = StoppedClock()
    async with under_way(clock) as (world, turn_id):
        clock.advance(-86_400_000)
        turn = await found(world, turn_id)
        assert turn.record.deadline == pytest.approx(trio.current_time() + 60, abs=20)


async def test_a_waiting_turn_has_the_time_that_it_had() -> None:
    clock = StoppedClock()
    async with under_way(clock, [{"tool": "mail", "type": "requires_consent"}]) as (world, turn_id):
        assert (await world.constellation.turn(turn_id)).status == "waiting"
        clock.advance(3_600_000)
        turn = await found(world, turn_id)
        assert turn.record.batch_type == "continuation"
        assert turn.record.deadline == pytest.approx(trio.current_time() + 60, abs=20)
        assert turn.record.deadline_at.startswith("2026-01-01T01:0")
