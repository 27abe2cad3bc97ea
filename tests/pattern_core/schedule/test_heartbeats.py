"""Heartbeats: schedules that ask a model only when something changed."""

from __future__ import annotations

from typing import Any

import pytest
import trio.testing

from pattern_core.memory.block import NewBlock
from pattern_core.schedule.plan import ScheduleCondition
from pattern_db.columns import iso
from pattern_db.enums import BlockType, TaskStatus
from tests.pattern_core.schedule.rig import HOUR_S, START_MS, Scheduled, scheduled
from tests.support import BY_USER, rows

EVERY = {"every": float(HOUR_S)}


async def reasons(here: Scheduled) -> list[str]:
    """Why the turns of the schedule came about."""
    found = await here.running.database.read(
        rows, "SELECT content FROM messages WHERE batch_type = 'system_trigger' AND role = 'user' ORDER BY position"
    )
    return [str(content).partition("Why now: ")[2] for (content,) in found]


async def test_an_idle_day_asks_no_model() -> None:
    async with scheduled() as here:
        await here.schedule({**EVERY, "when": [{"kind": "inbox"}, {"kind": "activity", "count": 2}]})
        for _ in range(24):
            await here.pass_time(HOUR_S)
        assert here.running.provider.requests == []
        assert [one[1] for one in await here.found()] == ["skipped"] * 24


async def test_what_was_said_fires_it_once() -> None:
    async with scheduled() as here:
        await here.running.agent("bob")
        await here.schedule({**EVERY, "when": [{"kind": "inbox"}]})
        await here.running.say("hello", "bob")
        await here.pass_time(HOUR_S)
        await here.running.say("hello", "ada")
        for _ in range(3):
            await here.pass_time(HOUR_S)
        assert [one[1] for one in await here.found()] == ["skipped", "fired", "skipped", "skipped"]
        assert await reasons(here) == ["new messages: 1"]


@pytest.mark.parametrize(
    ("condition", "said", "why"),
    [
        ({"kind": "activity", "count": 2}, ["a", "b"], "messages in the constellation: 2"),
        ({"kind": "activity", "count": 3}, ["a", "b"], None),
        ({"kind": "pattern", "pattern": "late|tomorrow"}, ["I am LATE again"], "a message says: I am LATE again"),
        ({"kind": "pattern", "pattern": "late|tomorrow"}, ["I am early"], None),
        ({"kind": "threshold", "metric": "messages"}, ["a"], "messages: 1"),
        ({"kind": "threshold", "metric": "failed"}, ["a"], None),
        ({"kind": "elapsed", "seconds": 3600.0}, [], "3600 seconds have passed"),
        ({"kind": "elapsed", "seconds": 3601.0}, [], None),
        (
            {"kind": "inbox", "name": "mail", "priority": "high"},
            ["a"],
            "mail (high): new messages: 1",
        ),
    ],
)
async def test_what_conditions_compare(condition: dict[str, Any], said: list[str], why: str | None) -> None:
    async with scheduled() as here:
        await here.schedule({**EVERY, "when": [condition]})
        for words in said:
            await here.running.say(words)
        await here.pass_time(HOUR_S)
        assert [one[1] for one in await here.found()] == ["skipped" if why is None else "fired"]
        assert await reasons(here) == ([] if why is None else [why])


async def test_a_block_that_another_changed_fires_it() -> None:
    async with scheduled() as here:
        memory, ada = here.running.constellation.memory, await here.running.constellation.roster.get("ada")
        await memory.create(ada.id, NewBlock(label="plan", block_type=BlockType.CORE, content="one"), by=BY_USER)
        await here.schedule({**EVERY, "when": [{"kind": "block", "label": "plan"}, {"kind": "block", "label": "none"}]})
        await here.pass_time(HOUR_S)
        await here.running.database.write(_note_change, ada.id, f"agent:{ada.id}")
        await here.pass_time(HOUR_S)
        await here.running.database.write(_note_change, ada.id, "user:usr_ada")
        await here.pass_time(HOUR_S)
        await here.pass_time(HOUR_S)
        assert [one[1] for one in await here.found()] == ["skipped", "skipped", "fired", "skipped"]
        assert await reasons(here) == ["the block plan changed"]


async def test_a_file_that_is_added_changed_or_removed_fires_it() -> None:
    async with scheduled() as here:
        folders = here.running.constellation.folders
        for name in ("notes", "other"):
            await folders.create(name, embedding_model="none")
        await folders.put_file("notes", "plan.md", b"one")
        await here.schedule({**EVERY, "when": [{"kind": "file", "folder": "notes"}, {"kind": "file", "folder": "no"}]})
        await here.pass_time(HOUR_S)
        await folders.put_file("other", "plan.md", b"one")
        await here.pass_time(HOUR_S)
        await folders.put_file("notes", "plan.md", b"two")
        await here.pass_time(HOUR_S)
        await folders.put_file("notes", "more.md", b"more")
        await here.pass_time(HOUR_S)
        await folders.delete_file("notes", "more.md")
        await here.pass_time(HOUR_S)
        await here.pass_time(HOUR_S)
        assert [one[1] for one in await here.found()] == ["skipped", "skipped", "fired", "fired", "fired", "skipped"]
        assert await reasons(here) == ["files in notes changed"] * 3
        assert len(here.running.provider.requests) == 3


async def test_a_new_search_result_fires_it_but_no_message_of_a_schedule() -> None:
    async with scheduled() as here:
        folders = here.running.constellation.folders
        await folders.create("notes", embedding_model="none")
        await here.running.say("Where is the boat?")
        await here.schedule({**EVERY, "when": [{"kind": "search", "query": "boat"}]})
        await here.schedule({"at": "2026-01-01T03:30"}, name="other")
        await here.running.constellation.schedules.update("other", {"message": "Clean the boat."})
        await here.pass_time(HOUR_S)
        await here.running.say("The train is late.")
        await here.pass_time(HOUR_S)
        await here.running.say("Someone sold the boat.")
        await here.pass_time(HOUR_S)
        for _ in range(2):
            await here.pass_time(HOUR_S / 2)
        await folders.put_file("notes", "harbour.md", b"A new boat arrived.")
        for _ in range(2):
            await here.pass_time(HOUR_S)
        assert [one[1] for one in await here.found()] == [
            "skipped", "skipped", "fired", "skipped", "fired", "skipped"]  # fmt: skip
        assert await reasons(here) == ["new results for boat: 1", "", "new results for boat: 1"]


async def test_a_task_that_is_due_or_that_another_changed_fires_it() -> None:
    async with scheduled() as here:
        ada, tasks = await here.running.constellation.roster.get("ada"), here.running.constellation.tasks
        due = {"agent_id": ada.id, "due_at": iso(START_MS + 90 * 60_000)}
        [task] = await tasks.create(["Pay"], due, author=f"agent:{ada.id}")
        await here.schedule({**EVERY, "when": [{"kind": "task"}]})
        await here.pass_time(HOUR_S)
        await here.pass_time(HOUR_S)
        await tasks.update(task.id, {"notes": "half"}, author=f"agent:{ada.id}")
        await here.pass_time(HOUR_S)
        await tasks.update(task.id, {"notes": "whole"}, author="user:usr_ada")
        await here.pass_time(HOUR_S)
        await tasks.update(task.id, {"status": TaskStatus.COMPLETED}, author="user:usr_ada")
        await here.pass_time(HOUR_S)
        assert [one[1] for one in await here.found()] == ["skipped", "fired", "skipped", "fired", "skipped"]
        assert await reasons(here) == ["tasks that are due or changed: 1"] * 2


def _note_change(connection: Any, agent_id: str, author: str) -> None:
    connection.execute(
        "INSERT INTO memory_block_history (block_id, version_frontiers, changed_by, timestamp) SELECT id, '[]', ?,"
        " created_at FROM memory_blocks WHERE agent_id = ? AND label = 'plan'",
        (author, agent_id),
    )


async def test_a_pattern_that_cannot_be_matched_is_visible() -> None:
    async with scheduled() as here:
        await here.schedule({**EVERY, "when": [{"kind": "pattern", "pattern": "("}]})
        await here.running.say("hello")
        await here.pass_time(HOUR_S)
        await trio.testing.wait_all_tasks_blocked()
        [(reason,)] = await here.running.database.read(rows, "SELECT reason FROM schedule_occurrence")
        assert "malformed" in str(reason)


def test_a_condition_without_what_it_needs() -> None:
    for kind in ("block", "file", "search", "elapsed", "pattern", "threshold"):
        with pytest.raises(Exception, match=f"kind {kind} needs"):
            ScheduleCondition(kind=kind).check()
