"""The recovery matrix, row by row: as a decision on rows, and as a constellation that starts on what another left."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio

from pattern_core.agents import recovery
from pattern_core.agents.active import Ending
from pattern_core.agents.recovery import Act, AskAgain, Found, decide
from pattern_core.approvals import Answer
from pattern_core.limits import TurnLimits
from pattern_core.testing.model import Answer as Scripted
from pattern_core.testing.model import Paced, calls, says, together
from pattern_db.enums import ApprovalKind
from pattern_db.journal import turns
from pattern_db.journal.effects import EffectRow
from pattern_db.journal.steps import StepRow
from pattern_db.journal.turns import TurnRow
from tests.support import USER, Outside, in_memory, note, rows, running

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
    return decide(row, Found(step=step, calls=effects), TurnLimits(), NOW)


def test_a_wish_to_stop_comes_first() -> None:
    found = verdict(replace(ROW, cancel_reason="user", deadline_at=NOW))
    assert isinstance(found, Ending)
    assert found.status == "cancelled"


def test_a_deadline_that_passed_meanwhile_interrupts() -> None:
    found = verdict(replace(ROW, deadline_at=NOW))
    assert isinstance(found, Ending)
    assert (found.status, (found.error or {})["code"]) == ("interrupted", "deadline_passed")


def test_a_step_that_was_cut_off_too_often_is_given_up() -> None:
    found = verdict(replace(ROW, steps=2, resumes=TurnLimits().resumes_max))
    assert isinstance(found, Ending)
    assert (found.error or {})["code"] == "gave_up"


def test_restarts_of_an_earlier_step_do_not_count() -> None:
    assert verdict(replace(ROW, steps=1, resumes=9)) == AskAgain(STEP)


def test_an_open_step_is_asked_again() -> None:
    assert verdict() == AskAgain(STEP)


def test_a_done_step_runs_what_has_no_result() -> None:
    done = replace(STEP, status="done")
    planned, ended = effect("planned"), effect("done", call=1)
    assert verdict(ROW, done, planned, ended) == Act([planned])
    assert verdict(ROW, done, ended) == Act([])


def test_only_unsafe_started_calls_are_in_doubt() -> None:
    assert recovery.is_doubtful(effect("started"))
    assert not any(recovery.is_doubtful(effect("started", kind)) for kind in ("idempotent", "verifiable"))
    assert not recovery.is_doubtful(effect("planned"))


def test_a_turn_that_came_as_far_as_to_wait_is_not_given_up() -> None:
    row = replace(ROW, status="waiting", steps=2, resumes=TurnLimits().resumes_max)
    agreed = effect("planned")
    assert verdict(row, replace(STEP, status="done"), agreed) == Act([agreed])


def test_closing_says_what_may_have_happened() -> None:
    asked = replace(effect("awaiting_approval"), attempts=1)  # it was started before a person was asked about it
    planned, started, doubted = recovery.close_calls([effect("planned"), effect("started"), asked])
    assert (planned.status, started.status, doubted.status) == ("cancelled", "in_doubt", "in_doubt")
    assert "may or may not" in started.content


# What follows starts a second constellation on what the first one left behind when it was torn down. What a start finds
# in the rows, kind by kind, is in `tests/scenarios/test_recovery_matrix.py`.


async def test_a_model_call_that_was_cut_off_is_superseded_and_charged() -> None:
    async with in_memory() as database:
        gate = trio.Event()
        async with running([Paced(answer=says("late"), gate=gate)], database=database) as first:
            await first.agent()
            turn_id = await first.submit("hello")
            await trio.testing.wait_all_tasks_blocked()
        async with running([says("again")], database=database) as second:
            view = await second.constellation.wait(turn_id)
            assert [message.content for message in view.messages] == ["hello", "again"]
            assert view.usage.is_estimate
            assert "step.superseded" in await second.names(turn_id)
            attempts = await database.read(rows, "SELECT attempt, status FROM step ORDER BY attempt")
            assert attempts == [(1, "superseded"), (2, "done")]
            assert second.provider.requests[0].seed is not None


async def test_a_queued_message_is_taken_up_after_a_crash() -> None:
    async with in_memory() as database:
        gate = trio.Event()
        async with running([Paced(answer=says("one"), gate=gate)], database=database) as first:
            await first.agent()
            turns = [await first.submit(text) for text in ("first", "second", "third")]
            await trio.testing.wait_all_tasks_blocked()
        async with running([says("a"), says("b"), says("c")], database=database) as second:
            views = [await second.constellation.wait(turn) for turn in turns]
            assert [[m.content for m in view.messages] for view in views] == [
                ["first", "a"],
                ["second", "b"],
                ["third", "c"],
            ]


async def test_siblings_with_results_keep_them() -> None:
    outside = Outside(gate=trio.Event())
    async with in_memory() as database:
        script = [together(calls("note", {"text": "x"}), calls("note", {"text": "y"}), calls("mail", {"to": "bob"}))]
        async with running(script, tools=[note, *outside.tools], database=database) as first:
            await first.agent()
            turn_id = await first.submit("go")
            await trio.testing.wait_all_tasks_blocked()
        again = Outside()
        async with running([says("over")], tools=[note, *again.tools], database=database) as second:
            view = await second.constellation.wait(turn_id)
            assert view.status == "completed"
            assert again.done == []
            noted = [event for event in await second.events(turn_id) if event.name == "noted"]
            assert sorted(str(event.data["text"]) for event in noted) == ["x", "y"]
            stored = await database.read(rows, "SELECT status FROM effect ORDER BY call")
            assert stored == [("done",), ("done",), ("in_doubt",)]


async def test_a_person_decides_whether_an_unsafe_call_in_doubt_is_repeated() -> None:
    outside = Outside(gate=trio.Event())
    async with in_memory() as database:
        async with running([calls("mail", {"to": "bob"})], tools=outside.tools, database=database) as first:
            await first.agent()
            turn_id = await first.submit("go")
            await trio.testing.wait_all_tasks_blocked()
        again = Outside()
        script = [calls("mail", {"to": "bob"}), calls("mail", {"to": "eve"}), says("over")]
        async with running(script, tools=again.tools, database=database) as second:
            constellation = second.constellation
            assert (await constellation.wait(turn_id)).status == "waiting"
            [asked] = await constellation.approvals.list(9)
            assert asked.kind is ApprovalKind.RECOVERY
            await constellation.approvals.decide(asked.id, Answer(approve=False, by=USER))
            assert (await constellation.wait(turn_id)).status == "completed"
            assert again.done == [("mail", "eve")]
            stored = await database.read(rows, "SELECT status FROM effect ORDER BY step")
            assert stored == [("in_doubt",), ("denied",), ("done",)]


@pytest.mark.parametrize(("approve", "done", "status"), [(True, 1, "done"), (False, 0, "in_doubt")])
async def test_an_agent_may_leave_doubt_to_a_person(approve: bool, done: int, status: str) -> None:
    outside = Outside(gate=trio.Event())
    async with in_memory() as database:
        async with running([calls("mail", {"to": "bob"})], tools=outside.tools, database=database) as first:
            await first.agent()
            await first.constellation.roster.update("ada", {"config": {"on_doubt": "ask_human"}})
            turn_id = await first.submit("go")
            await trio.testing.wait_all_tasks_blocked()
        again = Outside()
        async with running([says("over")], tools=again.tools, database=database) as second:
            approvals = second.constellation.approvals
            assert (await second.constellation.wait(turn_id)).status == "waiting"
            [asked] = await approvals.list(9)
            await approvals.decide(asked.id, Answer(approve=approve, by=USER))
            assert (await second.constellation.wait(turn_id)).status == "completed"
            assert len(again.done) == done
            assert await database.read(rows, "SELECT status FROM effect") == [(status,)]


async def test_an_agent_may_fail_in_doubt() -> None:
    outside = Outside(gate=trio.Event())
    async with in_memory() as database:
        async with running([calls("mail", {"to": "bob"})], tools=outside.tools, database=database) as first:
            await first.agent()
            await first.constellation.roster.update("ada", {"config": {"on_doubt": "fail_turn"}})
            turn_id = await first.submit("go")
            await trio.testing.wait_all_tasks_blocked()
        async with running(tools=Outside().tools, database=database) as second:
            view = await second.constellation.wait(turn_id)
            assert (view.status, (view.error or {})["code"]) == ("failed", "in_doubt")
            assert await database.read(rows, "SELECT status FROM effect") == [("in_doubt",)]


async def test_a_step_that_kills_the_process_each_time_is_given_up() -> None:
    async with in_memory() as database:
        turn_id = ""
        for attempt in range(TurnLimits().resumes_max + 1):
            gate = trio.Event()
            async with running([Paced(answer=says("late"), gate=gate)], database=database) as deadly:
                if attempt == 0:
                    await deadly.agent()
                    turn_id = await deadly.submit("poison")
                await trio.testing.wait_all_tasks_blocked()
        async with running([says("fine")], database=database) as last:
            view = await last.constellation.wait(turn_id)
            assert (view.status, (view.error or {})["code"]) == ("interrupted", "gave_up")
            assert (await last.say("harmless")).status == "completed"


async def test_the_turns_of_a_restored_copy_end_instead_of_happening_twice() -> None:
    outside = Outside(gate=trio.Event())
    async with in_memory() as database:
        async with running([calls("mail", {"to": "bob"})], tools=outside.tools, database=database) as first:
            await first.agent()
            turns_made = [await first.submit(text) for text in ("running", "queued")]
            await trio.testing.wait_all_tasks_blocked()
        assert await database.write(turns.request_cancel_all, "restored_as_a_copy") == 2
        async with running([says("new")], tools=outside.tools, database=database) as copy:
            for turn_id in turns_made:
                assert (await copy.constellation.wait(turn_id)).status == "cancelled"
            assert (await copy.say("hello")).status == "completed"
            assert len(outside.done) == 1


async def test_what_was_not_to_be_forgotten_is_said_again() -> None:
    async with in_memory() as database:
        gate = trio.Event()
        script: list[Scripted] = [says("done"), Paced(answer=says("late"), gate=gate)]
        async with running(script, tools=[note], database=database) as first:
            await first.agent()
            rules = [{"tool": "note", "type": "required_before_exit"}]
            await first.constellation.roster.update("ada", {"tool_rules": rules})
            turn_id = await first.submit("go")
            await trio.testing.wait_all_tasks_blocked()
            said = first.provider.requests[-1].tail
        async with running([calls("note", {"text": "n"}), says("over")], tools=[note], database=database) as second:
            assert (await second.constellation.wait(turn_id)).status == "completed"
            assert any("This turn is not finished" in text for text in said)
            assert second.provider.requests[0].tail == said
