"""The recovery matrix, row by row: as a decision on rows, and as a constellation that starts on what another left."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio

from pattern_core.agents import recovery
from pattern_core.agents.active import Ending
from pattern_core.agents.recovery import Act, AskAgain, Found, decide
from pattern_core.limits import Limits, TurnLimits
from pattern_core.messages import ToolResult
from pattern_core.testing.clock import StoppedClock
from pattern_core.testing.model import Paced, calls, says, together
from pattern_core.tools.tool import Probe, Tool, ToolContext, tool
from pattern_db.database import Database
from pattern_db.enums import EffectClass
from pattern_db.journal import turns
from pattern_db.journal.effects import EffectRow
from pattern_db.journal.steps import StepRow
from pattern_db.journal.turns import TurnRow
from tests.support import Outside, in_memory, note, rows, running

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


def test_closing_says_what_may_have_happened() -> None:
    planned, started = recovery.close_calls([effect("planned"), effect("started")])
    assert (planned.status, started.status) == ("cancelled", "in_doubt")
    assert "may or may not" in started.content


# What follows starts a second constellation on what the first one left behind when it was torn down.


def blocking(effect_class: EffectClass, outside: list[str], gate: trio.Event, probe: Probe | None = None) -> Tool:
    """A tool that leaves a trace outside and, while the gate is closed, never answers."""

    async def asked(key: str) -> Probe | tuple[Probe, str]:
        outside.append(f"probe {key}")
        return ("done", "it was done") if probe == "done" else (probe or "unknown")

    @tool(effect=effect_class, name="act", probe=asked if effect_class is EffectClass.VERIFIABLE else None)
    async def act(context: ToolContext) -> str:
        """Do something outside."""
        outside.append(context.idempotency_key)
        await gate.wait()
        return "acted"

    return act


async def crash_within_call(database: Database, effect_class: EffectClass, outside: list[str]) -> str:
    """Run a turn into a call that never answers, and tear everything down there."""
    gate = trio.Event()
    async with running([calls("act")], tools=[blocking(effect_class, outside, gate)], database=database) as first:
        await first.agent()
        turn_id = await first.submit("go")
        while not outside:
            await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
    return turn_id


@pytest.mark.parametrize(
    ("effect_class", "probe", "runs", "status"),
    [
        (EffectClass.PURE, None, 2, "done"),
        (EffectClass.IDEMPOTENT, None, 2, "done"),
        (EffectClass.VERIFIABLE, "done", 1, "done"),
        (EffectClass.VERIFIABLE, "absent", 2, "done"),
        (EffectClass.VERIFIABLE, "unknown", 1, "in_doubt"),
        (EffectClass.UNSAFE, None, 1, "in_doubt"),
    ],
)
async def test_a_started_call_after_a_crash(
    effect_class: EffectClass, probe: Probe | None, runs: int, status: str
) -> None:
    outside: list[str] = []
    async with in_memory() as database:
        turn_id = await crash_within_call(database, effect_class, outside)
        gate = trio.Event()
        gate.set()
        again = blocking(effect_class, outside, gate, probe)
        async with running([says("over")], tools=[again], database=database) as second:
            view = await second.constellation.wait(turn_id)
            assert view.status == "completed"
            keys = [entry for entry in outside if not entry.startswith("probe")]
            assert len(keys) == runs
            assert len(set(keys)) == 1  # the same key each time
            [(stored,)] = await database.read(rows, "SELECT status FROM effect")
            assert stored == status
            shown = second.provider.requests[-1].messages[-1].parts[0]
            assert isinstance(shown, ToolResult)
            assert ("Outcome unknown" in shown.content) == (status == "in_doubt")
            result = [event for event in await second.events(turn_id) if event.name == "tool.result"]
            assert [event.data["status"] for event in result] == [status]


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


async def test_an_identical_unsafe_call_in_doubt_is_refused_in_the_same_turn() -> None:
    outside = Outside(gate=trio.Event())
    async with in_memory() as database:
        async with running([calls("mail", {"to": "bob"})], tools=outside.tools, database=database) as first:
            await first.agent()
            turn_id = await first.submit("go")
            await trio.testing.wait_all_tasks_blocked()
        again = Outside()
        script = [calls("mail", {"to": "bob"}), calls("mail", {"to": "eve"}), says("over")]
        async with running(script, tools=again.tools, database=database) as second:
            await second.constellation.wait(turn_id)
            assert again.done == [("mail", "eve")]
            stored = await database.read(rows, "SELECT status FROM effect ORDER BY step")
            assert stored == [("in_doubt",), ("denied",), ("done",)]


async def test_a_wish_to_stop_that_a_crash_overtook_is_honoured() -> None:
    outside = Outside(gate=trio.Event())
    async with in_memory() as database:
        async with running([calls("mail", {"to": "bob"})], tools=outside.tools, database=database) as first:
            await first.agent()
            turn_id = await first.submit("go")
            await trio.testing.wait_all_tasks_blocked()
        await database.write(lambda connection: connection.execute("UPDATE turn SET cancel_reason = 'user'").fetchall())
        async with running(database=database, tools=outside.tools) as second:
            view = await second.constellation.wait(turn_id)
            assert view.status == "cancelled"
            assert (await second.names(turn_id))[-2:] == ["tool.result", "turn.cancelled"]


async def test_a_turn_whose_time_ran_out_while_nothing_ran() -> None:
    clock = StoppedClock()
    async with in_memory() as database:
        gate = trio.Event()
        async with running([Paced(answer=says("late"), gate=gate)], database=database, clock=clock) as first:
            await first.agent()
            turn_id = await first.submit("hello")
            await trio.testing.wait_all_tasks_blocked()
        clock.advance(1_000 * int(Limits().turn.turn_timeout_s) + 1)
        async with running([says("new")], database=database, clock=clock) as second:
            view = await second.constellation.wait(turn_id)
            assert (view.status, (view.error or {})["code"]) == ("interrupted", "deadline_passed")
            assert (await second.say("next")).status == "completed"


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
