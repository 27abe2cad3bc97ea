"""Tasks of agents and of the whole constellation."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Response

from pattern_core.tasks import Task, version_of
from pattern_db.enums import Priority, TaskStatus
from pattern_server.http.bodies import (
    BY_VALUE,
    IfMatch,
    Paged,
    RequestModel,
    answer_of,
    page_of,
    require_values,
    tagged,
)
from pattern_server.http.routing import AwakeAccess, Router, ToRead, ToWrite, owner_of

router = Router(prefix="/constellations/{c}/tasks", tags=["tasks"])

TASK = answer_of(
    Task,
    "id agent_id parent_task_id title description status blocked_reason priority due_at scheduled_at started_at"
    " completed_at tags workspace estimated_minutes actual_minutes notes changed_by created_at updated_at",
)


class TaskFields(RequestModel):
    """What a task has besides its title."""

    agent: str | None = None
    parent_task_id: str | None = None
    description: str | None = None
    status: Annotated[TaskStatus | None, BY_VALUE] = None
    blocked_reason: str | None = None
    priority: Annotated[Priority | None, BY_VALUE] = None
    due_at: str | None = None
    scheduled_at: str | None = None
    tags: list[str] | None = None
    workspace: str | None = None
    estimated_minutes: int | None = None
    actual_minutes: int | None = None
    notes: str | None = None


class TaskCreateRequest(TaskFields):
    """The task to create. Without an agent it is the parent's agent's, or the whole constellation's."""

    title: str


class TaskUpdateRequest(TaskFields):
    """The fields of a task to change; null removes a value."""

    title: str | None = None


async def _given(home: AwakeAccess, body: TaskFields) -> dict[str, Any]:
    given = body.model_dump(exclude_unset=True)
    require_values(given, "title", "status", "priority")
    if "agent" in given:
        agent = given.pop("agent")
        given["agent_id"] = None if agent is None else (await home.constellation.roster.get(agent)).id
    if "workspace" in given:
        given["workspace"] = await home.find_workspace(body.workspace, is_written=True)
    return given


@router.get("", response_model=page_of(TASK))
async def list_all(
    home: ToRead,
    paging: Paged,
    agent: Annotated[
        str | None, Query(description="Only tasks of this agent, by id or name; `_constellation_`: of no agent.")
    ] = None,
    status: Annotated[list[TaskStatus] | None, Query(description="Only tasks with this status; repeatable.")] = None,
    parent: Annotated[str | None, Query(description="Only tasks directly below this one.")] = None,
    due_before: Annotated[str | None, Query(description="Only tasks that are due before this time.")] = None,
    workspace: Annotated[str | None, Query(description="Only tasks of this workspace: id, name or a folder.")] = None,
) -> object:
    """List tasks, the most urgent first; then by due time, then in the order in which they were created."""
    found = await home.constellation.tasks.page(
        paging.one_more,
        owners=None if agent is None else [await owner_of(home.constellation, agent)],
        statuses=status,
        parent_id=parent,
        due_before=due_before,
        workspace=await home.find_workspace(workspace),
        after=paging.after,
    )
    return paging.cut(found, lambda task: task.id)


@router.post("", status_code=201, response_model=TASK)
async def create(body: TaskCreateRequest, home: ToWrite, response: Response) -> Task:
    """Create a task; at `scheduled_at` its agent is started with it."""
    given = await _given(home, body)
    [task] = await home.constellation.tasks.create([given.pop("title")], given, author=home.caller.author)
    home.locate(response, "tasks", task.id)
    return tagged(response, version_of(task), task)


@router.get("/{task_id}", response_model=TASK)
async def get(task_id: str, home: ToRead, response: Response) -> Task:
    """Show a task; its `ETag`, sent as `If-Match` with an update, keeps the changes of others."""
    task = await home.constellation.tasks.get(task_id)
    return tagged(response, version_of(task), task)


@router.patch("/{task_id}", response_model=TASK)
async def update(task_id: str, body: TaskUpdateRequest, home: ToWrite, response: Response, if_match: IfMatch) -> Task:
    """Update a task; a new `scheduled_at` starts its agent again, unless it has ended or is blocked."""
    task = await home.constellation.tasks.update(
        task_id, await _given(home, body), author=home.caller.author, version=if_match
    )
    return tagged(response, version_of(task), task)


@router.delete("/{task_id}", status_code=204)
async def delete(task_id: str, home: ToWrite) -> None:
    """Delete a task with the tasks below it."""
    await home.constellation.tasks.delete(task_id)
