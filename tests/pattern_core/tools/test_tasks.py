"""The tools for tasks: an agent breaks work down, reports on it, and sees its own and the constellation's alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio.testing

from pattern_core.errors import InvalidInput
from pattern_core.testing import StoppedClock
from pattern_core.testing.model import calls, says
from pattern_core.tools.builtin.search import search
from pattern_core.tools.builtin.task import LISTED_MAX, SHOWN_CHARS_MAX, task_create, task_list, task_update
from pattern_db.columns import iso, unix_ms
from pattern_db.errors import RowConflict, RowNotFound
from pattern_db.tables import tasks
from tests.pattern_core.memory.rig import BOB, NOW
from tests.pattern_core.tools.rig import ToolRig
from tests.support import rows, running


async def created(tools: ToolRig, *titles: str, **given: object) -> list[str]:
    found: list[str] = (await tools.call(task_create, titles=list(titles), **given))["data"]["ids"]
    return found


async def listed(tools: ToolRig, **given: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await tools.call(task_list, **given))["data"]["tasks"]
    return found


async def test_a_task_is_broken_down_done_and_found(tools: ToolRig) -> None:
    [whole] = await created(tools, "Travel to Rome", due_at="2027-01-31", priority="high", estimated_minutes=90)
    pack, book = await created(tools, "Pack", "Book the train", parent_task_id=whole)
    assert await listed(tools) == [
        {
            "id": whole,
            "title": "Travel to Rome",
            "status": "pending",
            "priority": "high",
            "due_at": "2027-01-31T00:00:00.000Z",
            "estimated_minutes": 90,
        },
        {"id": pack, "title": "Pack", "parent_task_id": whole, "status": "pending", "priority": "medium"},
        {"id": book, "title": "Book the train", "parent_task_id": whole, "status": "pending", "priority": "medium"},
    ]
    assert await tools.call(task_update, task_id=pack, status="in_progress") == {
        "success": True,
        "message": "The task is in progress",
    }
    assert [task["id"] for task in await listed(tools, status="in_progress", parent_task_id=whole)] == [pack]
    done = await tools.call(task_update, task_id=whole, status="completed", actual_minutes=180)
    assert done["message"] == "The task is completed; it lasted 180 minutes, 90 were estimated"
    answer = await tools.call(task_list)
    assert answer["message"] == "Tasks: 2; yours last 2.0 times as long as estimated"
    [hit, *_] = (await tools.call(search, query="trains to book", domain="tasks"))["hits"]
    assert (hit["kind"], hit["id"]) == ("task", book)


async def test_an_agent_has_its_own_tasks_and_everyones(tools: ToolRig) -> None:
    [adas] = await created(tools, "Pay", description="x" * (SHOWN_CHARS_MAX + 1))
    shared = tasks.TaskRow("task_all", "Clean", NOW, NOW)
    await tools.rig.database.write(tasks.create, [shared])
    assert [len(task.get("description", "")) for task in await listed(tools)] == [SHOWN_CHARS_MAX, 0]
    tools.agent_id = BOB
    assert await listed(tools) == [
        {"id": "task_all", "title": "Clean", "status": "pending", "priority": "medium", "for_all": True}
    ]
    for call in ({"task_id": adas, "title": "Do not pay"}, {"task_id": "task_none"}):
        with pytest.raises(RowNotFound):
            await tools.call(task_update, **call)
    with pytest.raises(RowNotFound, match="you have no task"):
        await created(tools, "Part", parent_task_id=adas)
    [part] = await created(tools, "Sweep", parent_task_id="task_all")
    assert (await tools.rig.database.read(tasks.get, part)).agent_id is None, "a part of everyone's is everyone's"
    await tools.call(task_update, task_id="task_all", status="blocked", blocked_reason="no broom")
    assert [task["blocked_reason"] for task in await listed(tools, status="blocked")] == ["no broom"]


async def test_what_is_too_long_for_one_answer_is_cut_and_said(tools: ToolRig) -> None:
    for at in range(0, LISTED_MAX + 1, 17):
        await created(tools, *[f"task {at + number}" for number in range(17)])
    answer = await tools.call(task_list)
    assert answer["message"] == f"Tasks: {LISTED_MAX}; there are more, ask for those of one status or parent"
    assert len(answer["data"]["tasks"]) == LISTED_MAX


async def test_what_is_refused_changes_nothing(tools: ToolRig) -> None:
    [task] = await created(tools, "Pay")
    with pytest.raises(InvalidInput, match="blocked_reason"):
        await tools.call(task_update, task_id=task, status="blocked")
    with pytest.raises(RowConflict, match="nested"):
        for _ in range(tasks.DEPTH_MAX):
            [task] = await created(tools, "Part", parent_task_id=task)
    assert len(await listed(tools)) == tasks.DEPTH_MAX


async def test_a_turn_stores_a_task_with_its_result_and_is_started_with_it_later() -> None:
    at, clock = unix_ms("2027-01-31T09:00:00Z"), StoppedClock()
    script = [calls("task_create", {"titles": ["Pay"], "scheduled_at": iso(at)}), says("Noted."), says("Paid.")]
    async with running(script, tools=[task_create], clock=clock) as one:
        ada = await one.agent()
        await one.say("Remind yourself to pay.")
        [(task_id, owner, author)] = await one.database.read(rows, "SELECT id, agent_id, changed_by FROM tasks")
        assert (owner, author) == (ada.id, f"agent:{ada.id}")
        [(result,)] = await one.database.read(rows, "SELECT content FROM messages WHERE role = 'tool'")
        assert json.loads(str(result))["data"] == {"ids": [task_id]}
        clock.advance(at - clock.now_ms())
        await one.constellation.timers.fire_due()
        await trio.testing.wait_all_tasks_blocked()
        newest = (await one.constellation.messages("ada", limit=2))[::-1]
        assert [str(message.content).partition("\n")[0] for message in newest] == [
            "It is time for your task: Pay",
            "Paid.",
        ]
