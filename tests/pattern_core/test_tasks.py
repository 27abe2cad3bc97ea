"""Tasks as people and agents change them: what is checked, what follows from a status, and what others are told."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from pattern_core.errors import Conflict, InvalidInput, NotFound, VersionMismatch
from pattern_core.tasks import (
    CREATED_MAX,
    TAGS_MAX,
    TEXT_CHARS_MAX,
    TITLE_CHARS_MAX,
    Task,
    Tasks,
    event_data,
    version_of,
)
from pattern_db.enums import TaskStatus
from pattern_db.errors import RowNotFound
from pattern_db.tables import timers
from tests.support import START, Running, rows, running

BY = "user:u"


@asynccontextmanager
async def tasked() -> AsyncIterator[tuple[Running, Tasks, str]]:
    """A running constellation, its tasks, and the id of the agent ada."""
    async with running() as one:
        yield one, one.constellation.tasks, (await one.agent()).id


async def test_a_task_is_created_changed_and_deleted_with_an_event_each() -> None:
    async with tasked() as (one, tasks, ada):
        whole, other = await tasks.create(
            ["Travel  to Rome", "Pay"], {"agent_id": ada, "due_at": "2026-02-01"}, author=BY
        )
        assert (whole.title, whole.due_at, whole.changed_by) == ("Travel to Rome", "2026-02-01T00:00:00.000Z", BY)
        [part] = await tasks.create(["Pack"], {"parent_task_id": whole.id}, author=BY)
        assert part.agent_id == ada, "its parent's"
        changed = await tasks.update(part.id, {"notes": "shoes"}, author="user:v")
        assert changed == await tasks.get(part.id)
        assert (changed.notes, changed.changed_by) == ("shoes", "user:v")
        assert await tasks.page(9) == [whole, other, changed]
        assert await tasks.page(9, due_before="2026-02-02", owners=[ada]) == [whole, other]
        await tasks.delete(whole.id)
        for task in (whole, part):
            with pytest.raises(RowNotFound, match=task.id):
                await tasks.get(task.id)
        told = await one.database.read(rows, "SELECT name, data FROM event WHERE name LIKE 'task.%' ORDER BY seq")
        assert [(name, json.loads(str(data))) for name, data in told] == [
            ("task.created", event_data(whole)),
            ("task.created", event_data(other)),
            ("task.created", event_data(part)),
            ("task.changed", event_data(part)),
            ("task.deleted", event_data(whole)),
        ]


async def test_what_follows_from_a_status() -> None:
    async with tasked() as (_one, tasks, _ada):
        [task] = await tasks.create(["Pay"], {"status": TaskStatus.COMPLETED}, author=BY)
        assert task.completed_at == START
        task = await tasks.update(task.id, {"status": TaskStatus.IN_PROGRESS}, author=BY)
        assert task.completed_at is None
        task = await tasks.update(task.id, {"status": TaskStatus.BLOCKED, "blocked_reason": "rain"}, author=BY)
        assert (await tasks.update(task.id, {"blocked_reason": "snow"}, author=BY)).blocked_reason == "snow"
        task = await tasks.update(task.id, {"status": TaskStatus.PENDING}, author=BY)
        assert (task.blocked_reason, await tasks.get(task.id)) == (None, task)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"title": " "}, "title has 1 to"),
        ({"title": "x" * (TITLE_CHARS_MAX + 1)}, "title has 1 to"),
        ({"title": "a\x00b"}, "control characters"),
        ({"notes": "x" * (TEXT_CHARS_MAX + 1)}, "`notes` has at most"),
        ({"due_at": "soon"}, "`due_at` is not a valid time"),
        ({"scheduled_at": "2026-01-01T09:00:00"}, "`scheduled_at` is not a valid time"),
        ({"scheduled_at": "2026-01-01"}, "starts no one"),
        ({"estimated_minutes": -1}, "`estimated_minutes` is between"),
        ({"actual_minutes": 10**9}, "`actual_minutes` is between"),
        ({"tags": [""]}, "tags of 1 to"),
        ({"tags": ["x"] * (TAGS_MAX + 1)}, "tags of 1 to"),
        ({"status": TaskStatus.BLOCKED}, "needs a `blocked_reason`"),
    ],
)
async def test_what_is_refused(given: dict[str, object], message: str) -> None:
    async with tasked() as (_one, tasks, _ada):
        [task] = await tasks.create(["Pay"], {}, author=BY)
        with pytest.raises(InvalidInput, match=message):
            await tasks.update(task.id, given, author=BY)
        rest = {name: value for name, value in given.items() if name != "title"}
        with pytest.raises(InvalidInput, match=message):
            await tasks.create([str(given.get("title", "Pay"))], rest, author=BY)
        assert await tasks.page(9) == [task]


async def test_places_that_are_refused_change_nothing() -> None:
    async with tasked() as (_one, tasks, _ada):
        [whole] = await tasks.create(["Travel"], {}, author=BY)
        [part] = await tasks.create(["Pack"], {"parent_task_id": whole.id}, author=BY)
        with pytest.raises(Conflict, match="below itself"):
            await tasks.update(whole.id, {"parent_task_id": part.id, "notes": "x"}, author=BY)
        with pytest.raises(NotFound, match="task_none"):
            await tasks.update(whole.id, {"parent_task_id": "task_none"}, author=BY)
        for titles in ([], ["x"] * (CREATED_MAX + 1)):
            with pytest.raises(InvalidInput, match=f"1 to {CREATED_MAX}"):
                await tasks.create(titles, {}, author=BY)
        assert await tasks.page(9) == [whole, part]


async def test_a_version_protects_the_changes_of_others() -> None:
    async with tasked() as (_one, tasks, _ada):
        [task] = await tasks.create(["Pay"], {}, author=BY)
        seen = version_of(task)
        changed = await tasks.update(task.id, {"tags": ["x"]}, author=BY, version=seen)
        with pytest.raises(VersionMismatch):
            await tasks.update(task.id, {"notes": "y"}, author=BY, version=seen)
        assert await tasks.get(task.id) == changed


async def test_two_that_put_each_other_below_themselves_at_once() -> None:
    async with tasked() as (_one, tasks, _ada):
        one, other = await tasks.create(["One", "Other"], {}, author=BY)
        refused: list[Conflict] = []

        async def move(task: Task, below: Task) -> None:
            try:
                await tasks.update(task.id, {"parent_task_id": below.id}, author=BY)
            except Conflict as error:
                refused.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(move, one, other)
            nursery.start_soon(move, other, one)
        assert len(refused) == 1
        assert len([task for task in await tasks.page(9) if task.parent_task_id is None]) == 1


async def test_a_time_sets_a_timer() -> None:
    async with tasked() as (one, tasks, ada):
        at = "2027-01-31T09:00:00.000Z"
        [task] = await tasks.create(["Pay"], {"agent_id": ada, "scheduled_at": at}, author=BY)
        assert await one.database.read(timers.first_due) == at
        await tasks.update(task.id, {"agent_id": None}, author=BY)
        assert await one.database.read(timers.first_due) is None
