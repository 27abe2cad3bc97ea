"""The record of a turn: what is recorded is stored whole with the next flush, and memory shows what is stored."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from typing import NoReturn, TypeVar

import pytest
import trio
import trio.testing

from pattern_core.budgets.usage import Budgets
from pattern_core.errors import Overloaded
from pattern_core.events import TERMINAL, Draft, Event, read
from pattern_core.journal import Journal
from pattern_core.limits import Limits
from pattern_core.messages import Text, ToolCall
from pattern_core.turns import admission
from pattern_core.turns.admission import Arrival, IncomingMessage
from pattern_core.turns.record import CallRefused
from pattern_core.turns.state import COMPLETED, DeadAttempt, Ending, FinishedCall
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.connection import Connection
from pattern_db.enums import ApprovalKind, EffectClass, EffectStatus
from pattern_db.errors import DiskFull, RowConflict, StorageFailed
from pattern_db.journal import steps, turns
from pattern_db.journal.approvals import ApprovalRow
from pattern_db.journal.budgets import BudgetRow, BudgetScope, Period, Unit
from pattern_db.journal.steps import EffectRow
from pattern_db.tables import meta
from tests.pattern_core.turns.rig import ADA, DEADLINE, EPOCH, Rig, accepted, asking, reply
from tests.support import START, USER

T = TypeVar("T")
LATER = "2026-01-01T01:00:00.000Z"
NOTE = ToolCall(call_id="c1", tool="note", arguments={"text": "x"})
MAIL = ToolCall(call_id="c2", tool="mail", arguments={"to": "bob"})


def refuse(_connection: Connection) -> NoReturn:
    raise RowConflict("somebody was first")


def done(row: EffectRow, content: str = "ok") -> FinishedCall:
    return FinishedCall(row=row, status="done", content=content)


def noting(*writes: Callable[[Connection], object]) -> tuple[UnitOfWork, list[bool]]:
    """Work that notes something and then does `writes`, and how it was settled."""
    work, settled = UnitOfWork(), list[bool]()
    work.store(meta.put, "noted", "x")
    work.event("noted", {"text": "x"})
    for write in writes:
        work.store(write)
    work.when_settled(settled.append)
    return work, settled


async def noted(rig: Rig) -> list[tuple[object, ...]]:
    return await rig.rows("SELECT value FROM meta WHERE key = 'noted'")


async def test_what_is_recorded_waits_for_the_next_flush() -> None:
    async with accepted() as rig:
        incoming = rig.start()
        assert not rig.record.is_flushed
        assert not rig.record.is_started
        assert await rig.names() == ["turn.queued"]
        assert rig.said == [incoming]
        await rig.open()
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
        assert (rig.record.is_flushed, rig.record.is_started) == (True, True)


async def test_a_flush_that_is_refused_stores_nothing_and_loses_nothing() -> None:
    async with accepted() as rig:
        [row] = await rig.decided(NOTE)
        work, settled = noting()
        rig.record.finish(done(row), work, NOTE.arguments)
        before, said = await rig.stored(), rig.said
        refused = UnitOfWork()
        refused.store(refuse)
        with pytest.raises(RowConflict, match="somebody was first"):
            await rig.record.flush(refused)
        assert (await rig.stored(), rig.said, settled) == (before, said, [])
        assert not rig.record.is_flushed
        await rig.record.flush()
        assert (await noted(rig), settled) == ([("x",)], [True])
        assert (await rig.names())[-3:] == ["tool.call", "noted", "tool.result"]


async def test_an_answer_ends_the_turn_in_one_commit() -> None:
    async with accepted() as rig:
        rig.start()
        await rig.open()
        commits = rig.meters.commits
        rig.record.decide(reply(Text(text="hi")), asking(), [])
        await rig.record.end(COMPLETED)
        assert rig.meters.commits == commits + 1
        row = await rig.database.read(turns.by_id, "turn_1")
        assert (row.status, row.ended_at, row.steps, row.error) == ("completed", START, 1, None)
        assert await rig.rows("SELECT status, finish_reason, provider_request_id FROM step") == [
            ("done", "stop", "req_1")
        ]
        assert await rig.rows("SELECT input_tokens, output_tokens, is_estimate FROM usage") == [(10, 5, 0)]
        assert (await rig.names())[-2:] == ["message", "turn.completed"]
        assert [message.text for message in rig.said] == ["hello", "hi"]


async def test_a_decision_stands_in_its_order_with_its_calls_planned() -> None:
    async with accepted() as rig:
        rig.start()
        await rig.open()
        rest = [Draft("text.delta", {"step": 1, "attempt": 1, "text": "see"})]
        rig.record.decide(reply(Text(text="see"), NOTE, MAIL), asking(), rig.planned(NOTE, MAIL), rest=rest)
        await rig.record.flush()
        assert await rig.rows("SELECT call, status, attempts FROM effect") == [(0, "planned", 0), (1, "planned", 0)]
        assert (await rig.names())[-4:] == ["text.delta", "message", "tool.call", "tool.call"]
        # What a row keeps already is not stored in the event a second time.
        stored = await rig.rows("SELECT data FROM event WHERE name IN ('message', 'tool.call')")
        assert not any("see" in str(data) or "bob" in str(data) for (data,) in stored)


async def test_a_dead_attempt_is_superseded_and_charged() -> None:
    async with accepted() as rig:
        rig.start()
        await rig.open()
        for dead in (DeadAttempt(is_charged=True), DeadAttempt(is_charged=False)):
            await rig.record.open_step(asking(prompt=rig.prompt()), dead=dead)
        assert await rig.rows("SELECT attempt, status FROM step") == [(1, "superseded"), (2, "superseded"), (3, "open")]
        [(attempt, tokens, is_estimate)] = await rig.rows("SELECT attempt, input_tokens, is_estimate FROM usage")
        assert (attempt, is_estimate) == (1, 1)
        assert tokens
        assert (await rig.names())[-2:] == ["step.superseded", "step.started"]
        rig.record.decide(reply(Text(text="hi")), asking(), [])
        await rig.record.flush()
        assert await rig.rows("SELECT attempt FROM usage") == [(1,), (3,)]


async def test_an_intent_is_stored_with_its_decision() -> None:
    async with accepted() as rig:
        planned = await rig.decided(NOTE, MAIL, effect=EffectClass.UNSAFE)
        await rig.record.start_calls(planned[1:], timeout_s=1.5)
        assert await rig.rows("SELECT status, epoch, attempts, started_at, deadline_at FROM effect") == [
            ("planned", None, 0, None, None),
            ("started", EPOCH, 1, START, "2026-01-01T00:00:01.500Z"),
        ]
        before = await rig.stored()
        with pytest.raises(RowConflict):
            await rig.record.start_calls(planned, timeout_s=1.5)  # one of them started already
        assert await rig.stored() == before


async def test_a_result_commits_with_the_calls_own_writes_and_the_next_step() -> None:
    async with accepted() as rig:
        [row] = await rig.decided(NOTE)
        work, settled = noting()
        rig.record.finish(done(row), work, NOTE.arguments)
        assert (rig.record.holds_work, settled) == (True, [])
        commits = rig.meters.commits
        await rig.open()
        assert rig.meters.commits == commits + 1
        assert (rig.record.step, rig.record.attempt, rig.record.holds_work, settled) == (2, 1, False, [True])
        assert await noted(rig) == [("x",)]
        assert await rig.rows("SELECT status, message_id FROM effect") == [("done", rig.said[-1].id)]
        assert await rig.rows("SELECT no, status FROM step") == [(1, "done"), (2, "open")]
        assert await rig.rows("SELECT content, tool_args FROM messages WHERE role = 'tool'") == [("ok", '{"text":"x"}')]
        assert (await rig.names())[-3:] == ["noted", "tool.result", "step.started"]


@pytest.mark.parametrize("error", [RowConflict("no room"), Overloaded("no room")])
async def test_writes_that_are_refused_become_an_error_and_the_step_waits_for_a_new_prompt(error: Exception) -> None:
    def no_room(_connection: Connection) -> NoReturn:
        raise error

    async with accepted() as rig:
        one, two = await rig.decided(NOTE, MAIL)
        corrected: list[FinishedCall] = []
        rig.record.on_refused = corrected.append
        (work, settled), (other, others) = noting(no_room), noting()
        rig.record.finish(done(one), work, NOTE.arguments)
        rig.record.finish(done(two, "sent"), other, MAIL.arguments)
        before, prompt = await rig.stored(), rig.prompt()
        with pytest.raises(CallRefused):
            await rig.record.open_step(asking(prompt=prompt))
        assert (await rig.stored(), settled, others, rig.record.step) == (before, [False], [], 1)
        [failed] = corrected
        assert (failed.row, failed.status, failed.content) == (one, "error", "Nothing was changed: no room")
        assert [message.parts for message in rig.said[2:]] == [(failed.result,), (done(two, "sent").result,)]
        assert rig.prompt().request != prompt.request
        await rig.open()
        assert others == [True]
        stored = "SELECT sequence_in_batch, content, tool_args FROM messages WHERE role = 'tool' ORDER BY position"
        assert await rig.rows(stored) == [(2, failed.content, '{"text":"x"}'), (3, "sent", '{"to":"bob"}')]


class LateJournal(Journal):
    """Commits that wait for `gate`; the first one fails if it `fails`."""

    gate = trio.Event()
    fails = False
    begun = 0

    @classmethod
    def of(cls, journal: Journal, *, fails: bool = False) -> LateJournal:
        late = cls(**{one.name: getattr(journal, one.name) for one in fields(journal)})
        late.gate, late.fails = trio.Event(), fails
        return late

    async def commit(self, fn: Callable[[Connection], tuple[T, list[Event]]]) -> T:
        self.begun += 1
        is_first = self.begun == 1
        await self.gate.wait()
        if self.fails and is_first:
            raise DiskFull("no space left")
        return await super().commit(fn)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_flush_waits_for_a_flush_by_another_task(*, fails: bool) -> None:
    async def flush_late() -> None:
        with suppress(DiskFull):
            await rig.record.flush()

    async with accepted() as rig, trio.open_nursery() as nursery:
        [row] = await rig.decided(NOTE)
        rig.record.journal = journal = LateJournal.of(rig.journal, fails=fails)
        nursery.start_soon(flush_late)
        await trio.testing.wait_all_tasks_blocked()
        assert not rig.record.is_flushed
        last = UnitOfWork()
        last.store(steps.start_call, row.key, epoch=EPOCH, started_at=LATER, deadline_at=LATER)  # its call waits
        for one in (last, None):
            nursery.start_soon(rig.record.flush, one)
            await trio.testing.wait_all_tasks_blocked()
        assert journal.begun == 1
        journal.gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert (rig.record.is_flushed, await rig.rows("SELECT status FROM effect")) == (True, [("started",)])


async def test_a_discarded_record_waits_for_a_flush_by_another_task() -> None:
    async with accepted() as rig, trio.open_nursery() as nursery:
        await rig.decided(NOTE)
        rig.record.journal = journal = LateJournal.of(rig.journal)
        nursery.start_soon(rig.record.flush)
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0) as scope:  # also a cancelled turn waits until it is known what is stored
            journal.gate.set()
            await rig.record.abandon()
        assert not scope.cancelled_caught
        assert await rig.rows("SELECT status FROM step") == [("done",)]


async def test_a_disk_that_fails_is_no_error_of_a_call() -> None:
    def fail(_connection: Connection) -> NoReturn:
        raise StorageFailed("the disk is gone")

    async with accepted() as rig:
        [row] = await rig.decided(NOTE)
        work, settled = noting(fail)
        rig.record.finish(done(row), work, {})
        with pytest.raises(StorageFailed):
            await rig.record.flush()
        assert settled == []
        await rig.record.abandon()
        assert settled == [False]


async def test_resuming_is_counted_and_told_only_where_a_person_was_waited_for() -> None:
    async with accepted() as rig:
        rig.start()
        await rig.open()
        rig.journal.epoch = EPOCH + 1
        before = await rig.names()
        for _time in range(2):
            rig.record.resume(waited=False)
            await rig.record.flush()
        row = await rig.database.read(turns.by_id, "turn_1")
        assert (row.epoch, row.resumes, row.steps) == (EPOCH + 1, 2, 1)
        assert await rig.names() == before


async def test_an_end_answers_what_is_open() -> None:
    async with accepted() as rig:
        one, two = await rig.decided(NOTE, MAIL)
        await rig.open()
        closed = [
            FinishedCall(row=one, status="cancelled", content="not run"),
            FinishedCall(row=two, status="in_doubt", content="who knows"),
        ]
        ending = Ending(status="cancelled", error={"code": "cancelled", "message": "user"})
        await rig.record.end(ending, closed=closed, cut_off=DeadAttempt(is_charged=True, asking=asking()))
        assert await rig.rows("SELECT status FROM effect") == [("cancelled",), ("in_doubt",)]
        assert await rig.rows("SELECT no, status FROM step") == [(1, "done"), (2, "failed")]
        assert await rig.rows("SELECT input_tokens FROM usage WHERE step = 2 AND is_estimate") == [(10,)]
        assert (await rig.names())[-3:] == ["tool.result", "tool.result", "turn.cancelled"]
        row = await rig.database.read(turns.by_id, "turn_1")
        assert (row.status, row.steps, row.error) == ("cancelled", 2, '{"code": "cancelled", "message": "user"}')
        assert [message.parts[0] for message in rig.said[2:]] == [finished.result for finished in closed]


async def test_a_turn_ends_once() -> None:
    async with accepted() as rig:
        [row] = await rig.decided(NOTE)
        await rig.record.end(Ending(status="limit"), closed=[done(row)])
        before, said = await rig.stored(), rig.said
        for closed in ([], [done(row)]):
            with pytest.raises(RowConflict):
                await rig.record.end(COMPLETED, closed=closed)
        assert (await rig.stored(), rig.said) == (before, said)
        assert [name for name in await rig.names() if name in TERMINAL] == ["turn.limit"]


async def test_what_a_prompt_showed_counts_as_stored_only_when_it_is() -> None:
    async with accepted() as rig:
        [row] = await rig.decided(NOTE)
        assert await rig.rows("SELECT count(*) FROM prompt_log") == [(2,)]
        rig.record.agent = replace(ADA, system_prompt="Be long.")
        work, _settled = noting(refuse)
        rig.record.finish(done(row), work, {})
        with pytest.raises(CallRefused):
            await rig.record.open_step(asking(prompt=rig.prompt()))
        assert await rig.rows("SELECT count(*) FROM prompt_log") == [(2,)]
        await rig.open()
        assert await rig.rows("SELECT count(*) FROM prompt_log") == [(3,)]
        assert await rig.rows("SELECT no FROM step JOIN prompt_log ON digest = prompt_stable") == [(1,), (2,)]


async def test_a_step_for_which_something_is_found_first_is_not_opened() -> None:
    async with accepted() as rig:
        rig.start()
        found = ["a task"]

        def look(_connection: Connection) -> str | None:
            return found.pop() if found else None

        assert await rig.record.open_step(asking(prompt=rig.prompt()), look=look) == "a task"
        assert (rig.record.step, await rig.rows("SELECT no FROM step")) == (0, [])
        assert (await rig.names())[-1] == "turn.started"  # but what was recorded is on disk now
        assert await rig.record.open_step(asking(prompt=rig.prompt()), look=look) is None
        assert rig.record.step == 1
        found.append("another task")
        dead = DeadAttempt(is_charged=True)
        assert await rig.record.open_step(asking(prompt=rig.prompt()), look=look, dead=dead) == "another task"
        assert await rig.rows("SELECT attempt, status FROM step") == [(1, "open")]


async def test_a_budget_that_was_set_during_the_turn_is_kept_and_what_is_held_is_let_go() -> None:
    async with accepted() as rig:
        [row] = await rig.decided(NOTE)
        rig.record.finish(done(row), UnitOfWork(), {})
        assert not rig.record.may_hold
        budget = BudgetRow(BudgetScope.CONSTELLATION, "", Period.TOTAL, Unit.TOKENS, 200)
        await Budgets(database=rig.database, clock=rig.clock, known=rig.journal.budgets).put(budget)
        await rig.open()
        assert (rig.record.may_hold, await rig.rows("SELECT step, tokens FROM reservation")) == (True, [(2, 139)])
        # Nothing was answered, so nothing is charged.
        await rig.record.end(Ending(status="failed"), cut_off=DeadAttempt(is_charged=False, asking=asking()))
        assert await rig.rows("SELECT step FROM reservation") == []
        assert await rig.rows("SELECT step FROM usage") == [(1,)]


def question(row: EffectRow) -> ApprovalRow:
    return ApprovalRow(
        id="apr_1",
        kind=ApprovalKind.TOOL,
        request={"tool": row.tool},
        args_hash=b"q",
        created_at=START,
        audience="human",
        expires_at=LATER,
        turn=row.turn,
        step=row.step,
        call=row.call,
    )


@pytest.mark.parametrize(("left_s", "left_ms"), [(12.5, 12_500), (-3.0, 0)])
async def test_a_turn_rests_with_its_questions_and_continues(left_s: float, left_ms: int) -> None:
    async with accepted() as rig:
        [row] = await rig.decided(MAIL)
        rig.record.ask([(row, question(row))])
        rig.record.deadline = trio.current_time() + left_s
        await rig.record.wait()
        assert await rig.rows("SELECT status FROM effect") == [("awaiting_approval",)]
        assert await rig.rows("SELECT id, turn, step, call, status FROM approval") == [("apr_1", 1, 1, 0, "pending")]
        assert await rig.rows("SELECT status, deadline_at, time_left_ms FROM turn") == [("waiting", None, left_ms)]
        asked, waits = (await rig.database.read(read, 0))[-2:]
        assert (asked.name, asked.data["approval_id"]) == ("approval.requested", "apr_1")
        assert (waits.name, waits.data["approvals"]) == ("turn.waiting", ["apr_1"])
        rig.record.resume(waited=True)
        await rig.record.flush()
        assert await rig.rows("SELECT status, deadline_at, time_left_ms FROM turn") == [("running", DEADLINE, None)]
        assert (await rig.names())[-1] == "turn.resumed"
        rig.record.resume(waited=True)
        with pytest.raises(RowConflict):
            await rig.record.flush()


def steer(connection: Connection, turn_id: str) -> tuple[None, list[Event]]:
    incoming = IncomingMessage(agent_id=ADA.id, content=f"words of {turn_id}", sender=USER, policy="steer")
    arrival = Arrival.of(incoming, ADA, turn_id=turn_id, seed=7, now=START)
    return None, admission.accept(connection, arrival, Limits())[1]


async def test_a_message_does_not_start_before_one_in_front_of_it() -> None:
    async with accepted() as rig:
        await rig.journal.commit(partial(steer, turn_id="turn_2"))
        rig.record.key = 2
        rig.start()
        before = await rig.stored()
        with pytest.raises(RowConflict):
            await rig.record.flush()
        assert await rig.stored() == before


async def test_messages_join_the_turn_but_for_those_that_were_cancelled() -> None:
    async with accepted() as rig:
        await rig.decided(MAIL)
        for number in (2, 3, 4):
            await rig.journal.commit(partial(steer, turn_id=f"turn_{number}"))
        joining = await rig.database.read(turns.steering_messages, ADA.id)
        # One of them is cancelled at this moment.
        await rig.database.write(turns.take_message, joining[2].turn)
        await rig.database.write(turns.end, joining[2].turn, status="cancelled", ended_at=START)
        assert not await rig.record.join(joining[2:])
        assert await rig.record.join(joining)
        assert [message.text for message in rig.said[-2:]] == ["words of turn_2", "words of turn_3"]
        assert await rig.rows("SELECT id, status, joined_turn FROM turn WHERE key IN (2, 3) ORDER BY key") == [
            ("turn_2", "completed", 1),
            ("turn_3", "completed", 1),
        ]
        assert await rig.rows("SELECT turn FROM inbox") == []
        told = [(event.turn_id, event.name) for event in await rig.database.read(read, 0)]
        assert [name for turn_id, name in told if turn_id == "turn_1"][-3:] == ["tool.call"] + ["message.joined"] * 2
        assert [turn_id for turn_id, name in told if name == "turn.completed"] == ["turn_2", "turn_3"]
        assert await rig.rows("SELECT DISTINCT batch_id FROM messages") == [(rig.record.batch_id,)]


# The values of a turn.

ROW = EffectRow(1, 1, 0, "call_1", "mail", "{}", b"a" * 16, "unsafe", "key")


@pytest.mark.parametrize("status", list(EffectStatus))
def test_whatever_is_not_done_reads_as_a_failure(status: EffectStatus) -> None:
    assert FinishedCall(row=ROW, status=status, content="words").result.is_error is (status is not EffectStatus.DONE)
