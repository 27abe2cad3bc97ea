"""The tools `task_create`, `task_update` and `task_list`: the agent's tasks, and those of the whole constellation."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from pattern_core.tasks import Task
from pattern_core.tools.tool import ToolContext, done, tool
from pattern_db.enums import CONSTELLATION_OWNER, EffectClass, Priority, TaskStatus
from pattern_db.errors import RowNotFound
from pattern_db.tables import tasks
from pattern_db.tables.tasks import ENDED

LISTED_MAX = 50
SHOWN_CHARS_MAX = 300  # of a text in a list
_UNTOLD = ("agent_id", "created_at", "updated_at", "changed_by")


@tool(effect=EffectClass.LOCAL, returns_untrusted_text=False)
async def task_create(
    context: ToolContext,
    titles: Annotated[list[str], "One per task, in order."],
    parent_task_id: str | None = None,
    description: str | None = None,
    priority: Annotated[Priority | None, "How urgent it is."] = None,
    due_at: Annotated[str | None, "As 2026-01-31T09:00:00Z."] = None,
    scheduled_at: Annotated[str | None, "When you are to be started with it."] = None,
    estimated_minutes: int | None = None,
) -> dict[str, object]:
    """Note tasks of yours. To break a task down, give its id as `parent_task_id`, and a title for each small step."""
    given = _given(
        parent_task_id=parent_task_id,
        description=description,
        priority=priority,
        due_at=due_at,
        scheduled_at=scheduled_at,
        estimated_minutes=estimated_minutes,
    )
    if parent_task_id is None:
        given["agent_id"] = context.agent_id
    else:
        await _check_own(context, parent_task_id)
    made = await context.toolbox.tasks.create(titles, given, author=context.by.author, work=context.work)
    return done(f"Created tasks: {len(made)}", ids=[task.id for task in made])


@tool(effect=EffectClass.LOCAL, returns_untrusted_text=False)
async def task_update(
    context: ToolContext,
    task_id: str,
    status: Annotated[TaskStatus | None, "`blocked` needs a `blocked_reason`."] = None,
    blocked_reason: str | None = None,
    title: str | None = None,
    notes: str | None = None,
    priority: Annotated[Priority | None, "How urgent it is."] = None,
    due_at: str | None = None,
    scheduled_at: str | None = None,
    estimated_minutes: int | None = None,
    actual_minutes: Annotated[int | None, "How long it lasted."] = None,
) -> dict[str, object]:
    """Change a task; what you leave out stays."""
    given = _given(
        status=status,
        blocked_reason=blocked_reason,
        title=title,
        notes=notes,
        priority=priority,
        due_at=due_at,
        scheduled_at=scheduled_at,
        estimated_minutes=estimated_minutes,
        actual_minutes=actual_minutes,
    )
    await _check_own(context, task_id)
    task = await context.toolbox.tasks.update(task_id, given, author=context.by.author, work=context.work)
    is_timed = task.actual_minutes is not None and task.estimated_minutes is not None
    lasted = f"; it lasted {task.actual_minutes} minutes, {task.estimated_minutes} were estimated" if is_timed else ""
    return done(f"The task is {task.status.replace('_', ' ')}{lasted}")


@tool(effect=EffectClass.PURE)
async def task_list(
    context: ToolContext,
    status: Annotated[TaskStatus | None, "All that are open, if you leave it out."] = None,
    parent_task_id: str | None = None,
    due_before: Annotated[str | None, "As 2026-01-31."] = None,
) -> dict[str, object]:
    """List your tasks and those of all agents, the most urgent first."""
    found = await context.toolbox.tasks.page(
        LISTED_MAX + 1,
        owners=[context.agent_id, CONSTELLATION_OWNER],
        statuses=[one for one in TaskStatus if one not in ENDED] if status is None else [status],
        parent_id=parent_task_id,
        due_before=due_before,
    )
    pace = await context.storage.database.read(tasks.pace, context.agent_id)
    more = "; there are more, ask for those of one status or parent" if len(found) > LISTED_MAX else ""
    words = "" if pace is None else f"; yours last {pace:.1f} times as long as estimated"
    return done(f"Tasks: {len(found[:LISTED_MAX])}{more}{words}", tasks=[_shown(task) for task in found[:LISTED_MAX]])


def _given(**arguments: object) -> dict[str, object]:
    return {name: value for name, value in arguments.items() if value is not None}


async def _check_own(context: ToolContext, task_id: str) -> None:
    task = await context.toolbox.tasks.get(task_id)
    if task.agent_id not in (None, context.agent_id):
        raise RowNotFound(f"you have no task {task_id}; task_list shows those that you have")


def _shown(task: Task) -> dict[str, object]:
    texts = {"description": task.description, "notes": task.notes}
    shown = {name: (text or "")[:SHOWN_CHARS_MAX] for name, text in texts.items()}
    known: dict[str, object] = {**asdict(task), **shown, "for_all": task.agent_id is None}
    return {name: value for name, value in known.items() if value and name not in _UNTOLD}
