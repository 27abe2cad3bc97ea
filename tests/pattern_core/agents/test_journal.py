"""The moments of a turn: each is stored whole or not at all, and what memory shows is what is stored."""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

import pytest
import trio
import trio.testing

from pattern_core.agents import pauses
from pattern_core.agents.active import COMPLETED, Ending, Finished
from pattern_core.agents.rows import step_row
from pattern_core.events import Draft
from pattern_core.messages import Message, Part, Text, ToolCall
from pattern_core.models.model import ModelReply, Usage
from pattern_core.prompts.prompt import Prompt
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.connection import Connection
from pattern_db.enums import EffectClass
from pattern_db.errors import Conflict
from pattern_db.journal import budgets, steps, turns
from pattern_db.journal.budgets import BudgetRow, BudgetScope, Period, Unit
from pattern_db.journal.effects import EffectRow
from pattern_db.tables import meta
from tests.pattern_core.agents.rig import DEADLINE, EPOCH, Rig, accepted
from tests.support import START

NOTE = ToolCall(call_id="c1", tool="note", arguments={"text": "x"})
MAIL = ToolCall(call_id="c2", tool="mail", arguments={"to": "bob"})


def reply(*parts: Part) -> ModelReply:
    return ModelReply(
        parts=parts, finish_reason="stop", usage=Usage(input_tokens=10, output_tokens=5), request_id="req_1"
    )


def refuse(_connection: Connection) -> NoReturn:
    raise Conflict("somebody was first")


def done(row: EffectRow, content: str = "ok") -> Finished:
    return Finished(row=row, status="done", content=content)


async def planned(rig: Rig, *calls: ToolCall, effect: EffectClass = EffectClass.LOCAL) -> list[EffectRow]:
    """A turn that has decided on these calls."""
    await rig.begin()
    found = rig.planned(*calls, effect=effect)
    await rig.journal.decide(rig.turn, reply(*calls), found)
    return found


def shown(rig: Rig) -> list[Message]:
    return list(rig.turn.history.messages)


async def snapshot(rig: Rig) -> list[list[tuple[object, ...]]]:
    """All that the journal has stored."""
    tables = ("turn", "inbox", "step", "effect", "event", "usage", "messages", "meta")
    return [await rig.rows(f"SELECT * FROM {table}") for table in tables]


async def test_a_commit_gives_its_value_and_tells_its_events() -> None:
    async with accepted() as rig:
        before = rig.log.latest
        work = UnitOfWork()
        work.event("a", {"x": 1})
        work.store(meta.put, "key", "value")
        settled: list[bool] = []
        work.when_settled(settled.append)
        await rig.journal.commit_work(work)
        assert (rig.log.latest, settled) == (before + 1, [True])
        assert await rig.database.read(meta.get, "key") == "value"
        assert await rig.journal.commit(lambda _connection: ("value", [])) == "value"
        assert rig.log.latest == before + 1


async def test_a_refused_commit_leaves_nothing() -> None:
    async with accepted() as rig:
        before, latest = await snapshot(rig), rig.log.latest
        work = UnitOfWork()
        work.event("a", {})
        work.store(meta.put, "key", "value")
        work.store(refuse)
        settled: list[bool] = []
        work.when_settled(settled.append)
        with pytest.raises(Conflict, match="somebody was first"):
            await rig.journal.commit_work(work)
        assert settled == [False]
        assert (await snapshot(rig), rig.log.latest) == (before, latest)


async def test_starting_takes_the_message_and_opens_the_first_step() -> None:
    async with accepted() as rig:
        assert await rig.names() == ["turn.queued"]
        incoming = await rig.begin()
        row = await rig.database.read(turns.by_id, "turn_1")
        step = await rig.database.read(steps.latest, 1)
        assert (row.status, row.batch_id, row.epoch) == ("running", incoming.position, EPOCH)
        assert (row.started_at, row.deadline_at) == (START, DEADLINE)
        assert step is not None
        assert (step.no, step.attempt, step.status, step.cursor) == (1, 1, "open", incoming.position)
        assert await rig.rows("SELECT count(*) FROM inbox") == [(0,)]
        assert await rig.rows("SELECT content, batch_id, sequence_in_batch FROM messages") == [
            ("hello", incoming.position, 0)
        ]
        assert await rig.names() == ["turn.queued", "turn.started", "step.started"]


async def test_a_turn_starts_once() -> None:
    async with accepted() as rig:
        await rig.begin()
        before = await snapshot(rig)
        with pytest.raises(Conflict):
            await rig.begin()
        assert await snapshot(rig) == before


async def test_an_answer_ends_the_turn_in_one_transaction() -> None:
    async with accepted() as rig:
        await rig.begin()
        await rig.journal.decide(rig.turn, reply(Text(text="hi")), [], ending=COMPLETED)
        row = await rig.database.read(turns.by_id, "turn_1")
        step = await rig.database.read(steps.latest, 1)
        assert (row.status, row.ended_at, row.steps, row.error) == ("completed", START, 1, None)
        assert step is not None
        assert (step.status, step.finish_reason) == ("done", "stop")
        assert await rig.rows("SELECT provider_request_id FROM step") == [("req_1",)]
        assert await rig.rows("SELECT input_tokens, output_tokens, is_estimate FROM usage") == [(10, 5, 0)]
        assert (await rig.names())[-2:] == ["message", "turn.completed"]
        assert [message.text for message in shown(rig)] == ["hello", "hi"]


async def test_a_decision_is_stored_before_its_calls_run() -> None:
    async with accepted() as rig:
        await rig.begin()
        found = rig.planned(NOTE, MAIL)
        rest = [Draft("text.delta", {"step": 1, "attempt": 1, "text": "see"})]
        await rig.journal.decide(rig.turn, reply(Text(text="see"), NOTE, MAIL), found, rest=rest)
        assert await rig.rows("SELECT call, status, attempts FROM effect") == [(0, "planned", 0), (1, "planned", 0)]
        assert (await rig.names())[-4:] == ["text.delta", "message", "tool.call", "tool.call"]
        assert (await rig.database.read(turns.by_id, "turn_1")).status == "running"


async def test_a_refused_decision_shows_nowhere() -> None:
    async with accepted() as rig:
        await rig.begin()
        before = await snapshot(rig)
        rig.turn.attempt = 2  # an attempt that was never opened
        with pytest.raises(Conflict, match="is not open"):
            await rig.journal.decide(rig.turn, reply(Text(text="hi")), [], ending=COMPLETED)
        assert await snapshot(rig) == before
        assert [message.text for message in shown(rig)] == ["hello"]


async def test_a_dead_attempt_is_superseded_and_charged() -> None:
    async with accepted() as rig:
        await rig.begin()
        dead = step_row(rig.turn, rig.prompt(), START)
        rig.turn.attempt = 2
        spent = Usage(input_tokens=100, output_tokens=0)
        await rig.journal.open_step(rig.turn, rig.prompt(), dead=dead, spent=spent)
        assert await rig.rows("SELECT attempt, status FROM step") == [(1, "superseded"), (2, "open")]
        assert await rig.rows("SELECT attempt, input_tokens, is_estimate FROM usage") == [(1, 100, 1)]
        assert (await rig.names())[-2:] == ["step.superseded", "step.started"]
        await rig.journal.decide(rig.turn, reply(Text(text="hi")), [], ending=COMPLETED)
        assert await rig.rows("SELECT attempt FROM usage") == [(1,), (2,)]


async def test_pieces_are_dropped_when_the_turn_ends() -> None:
    async with accepted() as rig:
        await rig.begin()
        before = rig.turn.is_streamed
        await rig.journal.stream(rig.turn, [Draft("text.delta", {"step": 1, "attempt": 1, "text": "h"})])
        assert (before, rig.turn.is_streamed) == (False, True)
        assert (await rig.names())[-1] == "text.delta"
        await rig.journal.decide(rig.turn, reply(Text(text="hi")), [], ending=COMPLETED)
        assert (await rig.names())[-3:] == ["step.started", "message", "turn.completed"]


async def test_an_intent_is_stored_before_anything_leaves() -> None:
    async with accepted() as rig:
        found = await planned(rig, NOTE, MAIL, effect=EffectClass.UNSAFE)
        await rig.journal.start_effects(rig.turn, found[1:], timeout_s=1.5)
        assert await rig.rows("SELECT status, epoch, attempts, started_at, deadline_at FROM effect") == [
            ("planned", None, 0, None, None),
            ("started", EPOCH, 1, START, "2026-01-01T00:00:01.500Z"),
        ]
        before = await snapshot(rig)
        with pytest.raises(Conflict):
            await rig.journal.start_effects(rig.turn, found, timeout_s=1.5)  # one of them started already
        assert await snapshot(rig) == before


async def test_a_result_commits_with_the_calls_own_writes_and_the_next_step() -> None:
    async with accepted() as rig:
        [row] = await planned(rig, NOTE)
        work, settled = UnitOfWork(), list[bool]()
        work.store(meta.put, "noted", "x")
        work.event("noted", {"text": "x"})
        work.when_settled(settled.append)

        async def next_prompt() -> Prompt:
            return rig.prompt()

        prompt = await rig.journal.finish_effect(rig.turn, done(row), work, NOTE.arguments, next_prompt)
        assert prompt is not None
        assert [message.role for message in prompt.request.messages] == ["user", "assistant", "tool"]
        assert prompt.cursor == shown(rig)[-1].position
        assert (rig.turn.step, rig.turn.attempt, settled) == (2, 1, [True])
        assert await rig.database.read(meta.get, "noted") == "x"
        assert await rig.rows("SELECT status, message_id FROM effect") == [("done", shown(rig)[-1].id)]
        assert await rig.rows("SELECT no, status FROM step") == [(1, "done"), (2, "open")]
        assert await rig.rows("SELECT content, tool_args FROM messages WHERE role = 'tool'") == [("ok", '{"text":"x"}')]
        assert (await rig.names())[-3:] == ["noted", "tool.result", "step.started"]


async def test_a_refused_result_leaves_everything_as_it_was() -> None:
    async with accepted() as rig:
        [row] = await planned(rig, NOTE)
        before, history, digest = await snapshot(rig), shown(rig), rig.turn.history.digest
        work, settled = UnitOfWork(), list[bool]()
        work.store(meta.put, "noted", "x")
        work.store(refuse)
        work.when_settled(settled.append)

        async def next_prompt() -> Prompt:
            return rig.prompt()

        with pytest.raises(Conflict, match="somebody was first"):
            await rig.journal.finish_effect(rig.turn, done(row), work, NOTE.arguments, next_prompt)
        assert (await snapshot(rig), settled, rig.turn.step) == (before, [False], 1)
        assert (shown(rig), rig.turn.history.digest) == (history, digest)
        refused = Finished(row=row, status="error", content="refused")
        assert await rig.journal.finish_effect(rig.turn, refused, UnitOfWork(), NOTE.arguments) is None
        assert await rig.rows("SELECT status FROM effect") == [("error",)]
        assert (await rig.rows("SELECT no, status FROM step")) == [(1, "done")]


async def test_a_prompt_that_cannot_be_made_leaves_everything_as_it_was() -> None:
    async with accepted() as rig:
        [row] = await planned(rig, NOTE)
        before, history = await snapshot(rig), shown(rig)
        work, settled = UnitOfWork(), list[bool]()
        work.when_settled(settled.append)

        async def cancelled() -> Prompt:
            await trio.sleep_forever()
            raise AssertionError("nobody waits for this")

        with trio.move_on_after(0.01):
            await rig.journal.finish_effect(rig.turn, done(row), work, NOTE.arguments, cancelled)
        assert (await snapshot(rig), settled, shown(rig), rig.turn.step) == (before, [False], history, 1)


async def test_a_refused_result_does_not_take_its_siblings_away() -> None:
    """Calls that reach outside end side by side: one is refused while the other one's commit is under way."""
    async with accepted() as rig:
        one, two = await planned(rig, NOTE, MAIL)
        both_wait = trio.Event()

        async def refused() -> None:
            async def wait() -> Prompt:
                await both_wait.wait()
                raise Conflict("refused")

            with pytest.raises(Conflict):
                await rig.journal.finish_effect(rig.turn, done(one), UnitOfWork(), NOTE.arguments, wait)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(refused)
            await trio.testing.wait_all_tasks_blocked()
            await rig.journal.finish_effect(rig.turn, done(two, "sent"), UnitOfWork(), MAIL.arguments)
            both_wait.set()
        assert [message.parts for message in shown(rig)[2:]] == [(done(two, "sent").result,)]


async def test_resuming_is_noted() -> None:
    async with accepted() as rig:
        await rig.begin()
        rig.journal.epoch = EPOCH + 1
        for _time in range(2):
            await pauses.resume(rig.journal, rig.turn, waited=False)
        row = await rig.database.read(turns.by_id, "turn_1")
        assert (row.epoch, row.resumes, row.steps) == (EPOCH + 1, 2, 1)


async def test_an_end_answers_what_is_open() -> None:
    async with accepted() as rig:
        one, two = await planned(rig, NOTE, MAIL)
        rig.turn.step = 2
        await rig.journal.open_step(rig.turn, rig.prompt())
        open_step = await rig.database.read(steps.latest, 1)
        closed = [
            Finished(row=one, status="cancelled", content="not run"),
            Finished(row=two, status="in_doubt", content="who knows"),
        ]
        ending = Ending(status="cancelled", error={"code": "cancelled", "message": "user"})
        await rig.journal.end(rig.turn, ending, closed=closed, open_step=open_step)
        assert await rig.rows("SELECT status FROM effect") == [("cancelled",), ("in_doubt",)]
        assert await rig.rows("SELECT no, status FROM step") == [(1, "done"), (2, "failed")]
        assert (await rig.names())[-3:] == ["tool.result", "tool.result", "turn.cancelled"]
        row = await rig.database.read(turns.by_id, "turn_1")
        assert (row.status, row.steps, row.error) == ("cancelled", 2, '{"code": "cancelled", "message": "user"}')
        assert [message.parts[0] for message in shown(rig)[2:]] == [finished.result for finished in closed]


async def test_a_turn_ends_once() -> None:
    async with accepted() as rig:
        [row] = await planned(rig, NOTE)
        await rig.journal.end(rig.turn, Ending(status="limit"), closed=[done(row)])
        before, history = await snapshot(rig), shown(rig)
        for closed in ([], [done(row)]):
            with pytest.raises(Conflict):
                await rig.journal.end(rig.turn, COMPLETED, closed=closed)
        assert (await snapshot(rig), shown(rig)) == (before, history)


async def test_a_cancelled_task_still_stores_what_it_must() -> None:
    async with accepted() as rig:
        await rig.begin()
        with trio.CancelScope() as scope:
            scope.cancel()
            await rig.journal.decide(rig.turn, reply(Text(text="hi")), [], ending=COMPLETED)
        assert (await rig.database.read(turns.by_id, "turn_1")).status == "completed"
        assert [message.text for message in shown(rig)] == ["hello", "hi"]


async def test_what_a_prompt_showed_counts_as_stored_only_when_it_is() -> None:
    async with accepted() as rig:
        [row] = await planned(rig, NOTE)
        assert await rig.rows("SELECT count(*) FROM prompt_log") == [(2,)]
        rig.turn.agent = replace(rig.turn.agent, system_prompt="Be long.")
        refused = UnitOfWork()
        refused.store(refuse)

        async def following() -> Prompt:
            return rig.prompt()

        with pytest.raises(Conflict):
            await rig.journal.finish_effect(rig.turn, done(row), refused, {}, following)
        assert await rig.rows("SELECT count(*) FROM prompt_log") == [(2,)]
        await rig.journal.finish_effect(rig.turn, done(row), UnitOfWork(), {}, following)
        assert await rig.rows("SELECT count(*) FROM prompt_log") == [(3,)]
        assert await rig.rows("SELECT no FROM step JOIN prompt_log ON digest = prompt_stable") == [(1,), (2,)]


async def test_what_is_held_of_a_budget_is_let_go_and_a_budget_set_meanwhile_is_kept() -> None:
    async with accepted() as rig:
        rig.turn.may_hold = False  # as a turn begins
        [row] = await planned(rig, NOTE)
        assert not rig.turn.may_hold
        budget = BudgetRow(BudgetScope.CONSTELLATION, "", Period.TOTAL, Unit.TOKENS, 200)
        await rig.database.write(budgets.put, budget, now=START)

        async def following() -> Prompt:
            return rig.prompt()

        assert await rig.journal.finish_effect(rig.turn, done(row), UnitOfWork(), {}, following) is not None
        assert (rig.turn.may_hold, await rig.rows("SELECT step, tokens FROM reservation")) == (True, [(2, 100)])
        await rig.journal.decide(rig.turn, reply(Text(text="hi")), [], ending=COMPLETED)
        assert await rig.rows("SELECT step FROM reservation") == []
