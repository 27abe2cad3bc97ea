"""Tasks that start their agent: on time, once, also after a kill, or visibly not at all."""

from __future__ import annotations

from dataclasses import replace

from pattern_core.budgets.usage import UsageQuestion
from pattern_core.limits import Limits
from pattern_core.schedule.starts import task_message
from pattern_core.tasks import Task
from pattern_core.testing import StoppedClock
from pattern_db.columns import iso
from pattern_db.database import Database
from pattern_db.enums import AgentStatus, Priority, TaskStatus, TrustLevel
from pattern_db.journal.usage import Grouping
from pattern_db.tables import timers
from tests.pattern_core.schedule.rig import HOUR_S, START_MS, Scheduled, scheduled, turns_of
from tests.pattern_core.schedule.test_kill_points import live
from tests.support import in_memory, rows

AT = iso(START_MS + HOUR_S * 1000)
LATER = iso(START_MS + 2 * HOUR_S * 1000)


async def planned(here: Scheduled, at: str = AT) -> Task:
    """Create a task of ada's that starts her."""
    ada = await here.running.constellation.roster.get("ada")
    given = {"agent_id": ada.id, "scheduled_at": at, "description": "By bank."}
    [task] = await here.running.constellation.tasks.create(["Pay the rent"], given, author="user:u")
    return task


async def changed(here: Scheduled, task: Task, **given: object) -> None:
    await here.running.constellation.tasks.update(task.id, given, author="user:u")


async def said(database: Database) -> list[str]:
    """What the system told agents."""
    found = await database.read(
        rows, "SELECT content FROM messages WHERE batch_type = 'system_trigger' AND role = 'user'"
    )
    return [str(content) for (content,) in found]


async def test_a_task_starts_its_agent_once_at_its_time() -> None:
    async with scheduled() as here:
        task = await planned(here)
        await here.pass_time(HOUR_S - 1)
        assert await turns_of(here.running.database) == 0
        await here.pass_time(1)
        assert await said(here.running.database) == [task_message(task)]
        [turn] = await here.running.database.read(rows, "SELECT id FROM turn")
        assert (await here.running.constellation.turn(str(turn[0]))).trust is TrustLevel.SOURCE
        _, [line] = await here.running.constellation.budgets.report(UsageQuestion(by=Grouping.CAUSE))
        assert line.key == "task"
        started = await here.running.constellation.tasks.get(task.id)
        assert (started.status, started.started_at, started.changed_by) == (TaskStatus.IN_PROGRESS, AT, "system")
        await changed(here, task, title="Pay the rent now", status=TaskStatus.PENDING, scheduled_at=AT)
        await here.pass_time(9 * HOUR_S)
        assert await turns_of(here.running.database) == 1, "the same time again starts nobody"
        await changed(here, task, scheduled_at=LATER)
        await here.pass_time(0)
        assert await turns_of(here.running.database) == 2, "another one does, also one that is past"


async def test_a_moved_task_starts_later_and_one_that_is_done_or_deleted_does_not() -> None:
    async with scheduled() as here:
        moved, done, deleted = [await planned(here) for _ in range(3)]
        await changed(here, moved, scheduled_at=LATER)
        await changed(here, done, status=TaskStatus.COMPLETED)
        await here.running.constellation.tasks.delete(deleted.id)
        await here.pass_time(HOUR_S)
        assert await turns_of(here.running.database) == 0
        await here.pass_time(HOUR_S)
        assert await turns_of(here.running.database) == 1
        assert await here.running.database.read(timers.first_due) is None


async def test_a_hibernated_agent_is_woken_and_an_archived_one_blocks_its_task() -> None:
    async with scheduled() as here:
        roster, first = here.running.constellation.roster, await planned(here)
        await roster.update("ada", {"status": AgentStatus.HIBERNATED})
        await here.pass_time(HOUR_S)
        assert (await roster.get("ada")).status is AgentStatus.ACTIVE
        assert await turns_of(here.running.database) == 1
        second = await planned(here, LATER)
        await roster.update("ada", {"status": AgentStatus.ARCHIVED})
        await here.pass_time(HOUR_S)
        stuck = await here.running.constellation.tasks.get(second.id)
        assert stuck.status is TaskStatus.BLOCKED
        assert "could not be started" in str(stuck.blocked_reason) and "archived" in str(stuck.blocked_reason)
        await roster.update("ada", {"status": AgentStatus.ACTIVE})
        await changed(here, second, status=TaskStatus.PENDING)
        await here.pass_time(0)
        assert await turns_of(here.running.database) == 2, "as soon as it is pending again"
        assert (await here.running.constellation.tasks.get(first.id)).status is TaskStatus.IN_PROGRESS


async def test_the_task_of_a_deleted_agent_starts_nobody() -> None:
    async with scheduled() as here:
        task = await planned(here)
        await here.running.constellation.delete_agent("ada")
        await here.pass_time(HOUR_S)
        left = await here.running.constellation.tasks.get(task.id)
        assert (left.agent_id, left.started_at, await turns_of(here.running.database)) == (None, None, 0)


async def test_a_full_inbox_blocks_the_task() -> None:
    async with scheduled(limits=Limits(inbox_per_agent_max=0)) as here:
        task = await planned(here)
        await here.pass_time(HOUR_S)
        stuck = await here.running.constellation.tasks.get(task.id)
        assert (stuck.status, await turns_of(here.running.database)) == (TaskStatus.BLOCKED, 0)
        assert "messages wait" in str(stuck.blocked_reason)


async def test_a_kill_after_any_commit_starts_the_agent_once() -> None:
    async def lived(kill_at: int) -> tuple[list[tuple[object, ...]], list[str], int]:
        async with in_memory() as database:
            async with scheduled(database) as here:
                await planned(here)
                await planned(here, LATER)
            clock = StoppedClock()
            clock.advance(3 * HOUR_S * 1000)
            survived, commits = await live(database, clock, kill_at=kill_at, seed=2)
            if not survived:
                await live(database, clock, kill_at=0, seed=3)
            turns = await database.read(rows, "SELECT status FROM turn WHERE sender = 'system:task'")
            states = await database.read(rows, "SELECT status, started_at IS NULL FROM tasks")
            return [*turns, *states], await said(database), commits

    whole, words, commits = await lived(0)
    assert whole == [("completed",)] * 2 + [("in_progress", 0)] * 2
    assert commits >= 4
    for kill_at in range(1, commits + 1):
        assert (await lived(kill_at))[:2] == (whole, words), f"killed after commit {kill_at}"


def test_the_message_says_what_the_agent_needs() -> None:
    task = Task("task_1", "Pay", created_at=AT, updated_at=AT)
    assert task_message(task) == "It is time for your task: Pay\n(medium priority; its id is task_1)"
    more = replace(task, priority=Priority.HIGH, due_at=LATER, description="By bank.", notes="Twice.")
    assert task_message(more).splitlines()[1:] == [
        f"(high priority, due {LATER}; its id is task_1)", "", "By bank.", "", "Twice.",
    ]  # fmt: skip
