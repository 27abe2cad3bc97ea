"""The toolset of Delta, for programs that know its sixteen tools. It is served alone, with texts as results. The
address names the workspace, by id, name or folder: `/mcp/home?toolset=delta&workspace=/srv/shop`.

Source: names, parameters and defaults of Delta v1 (see `pattern_core/delta.py`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import trio
from pydantic import WithJsonSchema

from pattern_core import delta
from pattern_core.delta import ANY, LIST_LIMIT, RECALL_LIMIT, Delta
from pattern_core.errors import InvalidInput
from pattern_core.tools.tool import tool
from pattern_core.workspaces import locate
from pattern_server.http.toolsets.toolset import ServedCall, Toolset

Status = Literal["todo", "in_progress", "blocked", "done", "cancelled"]
Priority = Literal["low", "medium", "high", "critical"]
Scope = Literal["session", "project"]
Category = Literal["issue", "convention", "workflow", "reminder", "general"]
Importance = Literal["low", "normal", "high", "critical"]
# Null says something here, so it stays in the schema.
Parent = Annotated[int | None, WithJsonSchema({"type": ["integer", "null"]}), "Number of a task; null: none."]
Statuses = Annotated[
    Status | list[Status] | None,
    WithJsonSchema({"type": ["string", "array"], "items": {"type": "string", "enum": [*delta.STATUSES]}}),
    f"One of {', '.join(delta.STATUSES)}, or a list of them.",
]
Since = Annotated[
    int | str | None,
    WithJsonSchema({"type": ["integer", "string"]}),
    "Only from this time: milliseconds since 1970, or as 2026-01-31T12:00:00Z.",
]


async def opened(call: ServedCall, *, is_written: bool = False) -> Delta:
    """Return the memory of the call's workspace, which is made for what `is_written` to it.

    Raises:
        InvalidInput: the address names no workspace.
    """
    if not call.workspace:
        raise InvalidInput("the address names no workspace; add &workspace= with a folder, an id or a name to it")
    find = call.find_workspace(call.workspace, is_written=True) if is_written else call.known_workspace(call.workspace)
    workspace = await find
    is_folder = call.workspace.startswith("/")
    branch = (await trio.to_thread.run_sync(locate, call.workspace)).branch if is_folder else None
    return Delta(
        constellation=call.constellation,
        workspace=workspace or "",
        author=call.caller.author,
        session=call.session,
        branch=branch,
    )


def _given(**fields: Any) -> dict[str, Any]:
    """Return the fields that a caller gave."""
    return {name: value for name, value in fields.items() if value not in (None, ANY) or value is False}


@tool()
async def delta_get(call: ServedCall, key: str) -> object:
    """Get the value of a key."""
    return await (await opened(call)).get(key)


@tool()
async def delta_set(call: ServedCall, key: str, value: str) -> object:
    """Store a value under a key, in place of an earlier one."""
    return await (await opened(call, is_written=True)).set(key, value)


@tool()
async def delta_delete(call: ServedCall, key: str) -> object:
    """Delete a key."""
    return await (await opened(call)).delete(key)


@tool()
async def delta_log(
    call: ServedCall,
    content: str,
    context: Annotated[str | None, "Where: a file, a task."] = None,
    tags: list[str] | None = None,
) -> object:
    """Log what happened, such as a decision or the cause of a bug."""
    return await (await opened(call, is_written=True)).log(content, context, tags)


@tool()
async def delta_recall(
    call: ServedCall,
    query: Annotated[str | None, "Words in the content."] = None,
    tags: Annotated[list[str] | None, "At least one of these tags."] = None,
    limit: int = RECALL_LIMIT,
    sessionOnly: Annotated[bool, "Only what this session logged."] = False,  # noqa: N803 - the parameter's name
    since: Since = None,
) -> object:
    """Recall what was logged, the newest first."""
    memory = await opened(call)
    return await memory.recall(query, tags, limit, session_only=sessionOnly, since=since)


@tool()
async def delta_task_create(
    call: ServedCall,
    title: str,
    description: str | None = None,
    status: Status | None = None,
    priority: Priority | None = None,
    scope: Scope | None = None,
    tags: list[str] | None = None,
    parent_id: Annotated[int | None, "Number of the task that it is a part of."] = None,
) -> object:
    """Create a task."""
    given = _given(
        description=description, status=status, priority=priority, scope=scope, tags=tags, parent_id=parent_id
    )
    return await (await opened(call, is_written=True)).task_create(title, given)


@tool()
async def delta_task_list(
    call: ServedCall,
    status: Statuses = None,
    scope: Scope | None = None,
    priority: Priority | None = None,
    tags: Annotated[list[str] | None, "At least one of these tags."] = None,
    parent_id: Parent = ANY,
    sessionOnly: Annotated[bool, "Only tasks of this session."] = False,  # noqa: N803 - the parameter's name
    limit: int = LIST_LIMIT,
) -> object:
    """List tasks, the most urgent first."""
    statuses = [status] if isinstance(status, str) else status
    given = _given(scope=scope, priority=priority, tags=tags)
    memory = await opened(call)
    return await memory.task_list(statuses, given, parent=parent_id, session_only=sessionOnly, limit=limit)


@tool()
async def delta_task_update(
    call: ServedCall,
    id: int,  # noqa: A002 - the parameter's name
    title: str | None = None,
    description: str | None = None,
    status: Status | None = None,
    priority: Priority | None = None,
    tags: list[str] | None = None,
    parent_id: Parent = ANY,
) -> object:
    """Change a task: only the fields that are given."""
    given = _given(title=title, description=description, status=status, priority=priority, tags=tags)
    given |= {} if parent_id == ANY else {"parent_id": parent_id}
    return await (await opened(call)).task_update(id, given)


@tool()
async def delta_task_delete(call: ServedCall, id: int) -> object:  # noqa: A002 - the parameter's name
    """Delete a task with those below it."""
    return await (await opened(call)).task_delete(id)


@tool()
async def delta_task_get(call: ServedCall, id: int) -> object:  # noqa: A002 - the parameter's name
    """Show a task."""
    return await (await opened(call)).task_get(id)


@tool()
async def delta_note_create(
    call: ServedCall,
    title: str,
    content: Annotated[str, "Markdown."],
    category: Category = "general",
    importance: Importance = "normal",
    active: Annotated[bool, "Whether prompts show it."] = True,
) -> object:
    """Create a note on the project: what should always be known."""
    memory = await opened(call, is_written=True)
    return await memory.note_create(title, content, category, importance, active=active)


@tool()
async def delta_note_list(
    call: ServedCall,
    category: Category | None = None,
    importance: Importance | None = None,
    activeOnly: bool = False,  # noqa: N803 - the parameter's name
    limit: int = LIST_LIMIT,
) -> object:
    """List notes, the most important first."""
    return await (await opened(call)).note_list(category, importance, active_only=activeOnly, limit=limit)


@tool()
async def delta_note_update(
    call: ServedCall,
    id: int,  # noqa: A002 - the parameter's name
    title: str | None = None,
    content: str | None = None,
    category: Category | None = None,
    importance: Importance | None = None,
    active: bool | None = None,
) -> object:
    """Change a note: only the fields that are given."""
    given = _given(title=title, content=content, category=category, importance=importance, active=active)
    return await (await opened(call)).note_update(id, given)


@tool()
async def delta_note_delete(call: ServedCall, id: int) -> object:  # noqa: A002 - the parameter's name
    """Delete a note."""
    return await (await opened(call)).note_delete(id)


@tool()
async def delta_note_get(call: ServedCall, id: int) -> object:  # noqa: A002 - the parameter's name
    """Show a whole note."""
    return await (await opened(call)).note_get(id)


@tool()
async def delta_info(call: ServedCall) -> object:
    """Say where this memory is."""
    memory = await opened(call)
    name = "no workspace yet" if not memory.workspace else f"the workspace {memory.workspace}"
    return f"Database location: {name} of the constellation {call.constellation.id}"


TOOLS: Toolset = {
    "read": (delta_get, delta_recall, delta_task_list, delta_task_get, delta_note_list, delta_note_get, delta_info),
    "write": (
        *(delta_set, delta_delete, delta_log),
        *(delta_task_create, delta_task_update, delta_task_delete),
        *(delta_note_create, delta_note_update, delta_note_delete),
    ),
}
