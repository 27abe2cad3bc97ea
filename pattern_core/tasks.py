"""Tasks: created, changed and finished by people and agents; what is due starts its agent (`schedule/starts.py`).

A change is checked and stored in one transaction, an agent's in that of its tool call, so no order of writers puts a
task below itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pattern_core.errors import InvalidInput, VersionMismatch
from pattern_core.timers import Timers
from pattern_core.unit_of_work import Storage, UnitOfWork, given_or_alone
from pattern_core.untrusted import check_plain
from pattern_core.validation import column_time
from pattern_db.columns import to_json
from pattern_db.connection import Connection
from pattern_db.enums import TaskStatus
from pattern_db.tables import tasks
from pattern_db.tables.tasks import TaskRow

TITLE_CHARS_MAX = 200
TEXT_CHARS_MAX = 10_000  # of a description, of notes, of the reason why a task is blocked
TAGS_MAX, TAG_CHARS_MAX = 32, 100
MINUTES_MAX = 1_000_000
CREATED_MAX = 50  # tasks that one call creates
CHANGED = "task.changed"

Task = TaskRow


def version_of(task: Task) -> str:
    """Return a digest, in hex, of everything in a task."""
    return hashlib.blake2b(to_json(asdict(task)).encode(), digest_size=12).hexdigest()


def event_data(task: Task) -> dict[str, object]:
    """Return what an event about a task says."""
    return {"task_id": task.id, "title": task.title, "agent_id": task.agent_id}


@dataclass(frozen=True, slots=True)
class Tasks:
    """The tasks of one constellation. What changes them is committed with `work`, if it is given."""

    _storage: Storage
    _timers: Timers

    async def get(self, task_id: str) -> Task:
        """Return the task with this id.

        Raises:
            RowNotFound: there is none.
        """
        return await self._storage.database.read(tasks.get, task_id)

    async def page(self, limit: int, *, due_before: str | None = None, **filters: Any) -> list[Task]:
        """Return the first tasks that match the filters of `tasks.page`, the most urgent first.

        Raises:
            InvalidInput: `due_before` is not a time.
            RowNotFound: the last task of the page before was deleted.
        """
        due_before = column_time(due_before, "due_before")
        return await self._storage.database.read(tasks.page, limit, due_before=due_before, **filters)

    async def create(
        self, titles: Sequence[str], given: Mapping[str, Any], *, author: str, work: UnitOfWork | None = None
    ) -> list[Task]:
        """Create a task for each title, all with the given fields; below a task they have by default its agent and
        workspace.

        Raises:
            InvalidInput: a field is invalid.
            RowNotFound, NotFound: there is no task or agent of that id.
            Conflict: there are too many tasks, or they would be nested too deeply.
        """
        if not 1 <= len(titles) <= CREATED_MAX:
            raise InvalidInput(f"one call creates 1 to {CREATED_MAX} tasks; give as many titles")
        now, fields = self._storage.now(), dict(given)
        if (parent_id := fields.get("parent_task_id")) is not None:
            parent = await self.get(parent_id)
            fields = {"agent_id": parent.agent_id, "workspace": parent.workspace, **fields}
        made = []
        for title in titles:
            task = Task(self._storage.ids.new("task"), title, created_at=now, updated_at=now)
            made.append(replace(task, **_checked(task, {"title": title, **fields}, now), changed_by=author))
        async with given_or_alone(work, self._storage.commit) as unit:
            unit.store(tasks.create, made)
            for task in made:
                unit.event("task.created", event_data(task))
            unit.when_settled(lambda _committed: self._timers.changed())
        return made

    async def update(
        self,
        task_id: str,
        given: Mapping[str, Any],
        *,
        author: str,
        version: str | None = None,
        work: UnitOfWork | None = None,
    ) -> Task:
        """Change the given fields; return the task as it is then. With a `version` only if it is still at it.

        Raises:
            InvalidInput: a field is invalid.
            RowNotFound, NotFound: there is no such task, parent or agent.
            Conflict: it would be below itself, or nested too deeply.
            VersionMismatch: it is at another version.
        """
        now, before = self._storage.now(), await self.get(task_id)
        changes = {**_checked(before, given, now), "updated_at": now, "changed_by": author}
        async with given_or_alone(work, self._storage.commit) as unit:
            unit.store(_update, task_id, changes, version)
            unit.event(CHANGED, event_data(before))
            unit.when_settled(lambda _committed: self._timers.changed())
        return replace(before, **changes)

    async def delete(self, task_id: str) -> None:
        """Delete a task with those below it.

        Raises:
            RowNotFound: there is no such task.
        """
        task = await self.get(task_id)
        async with given_or_alone(None, self._storage.commit) as work:
            work.store(tasks.delete, task_id)
            work.event("task.deleted", event_data(task))


def _update(connection: Connection, task_id: str, changes: Mapping[str, Any], version: str | None) -> None:
    if version not in (None, version_of(tasks.get(connection, task_id))):
        raise VersionMismatch(f"the task {task_id} was changed by another request; read it again")
    tasks.update(connection, task_id, changes)


def _checked(task: Task, given: Mapping[str, Any], now: str) -> dict[str, Any]:
    """Return the columns that change with the given fields.

    Raises:
        InvalidInput: a field is invalid.
    """
    changes = dict(given)
    for name in ("due_at", "scheduled_at"):
        if name in changes:
            changes[name] = column_time(changes[name], name)
    if "title" in changes:
        changes["title"] = " ".join(changes["title"].split())
    changed = replace(task, **changes)
    _check(changed)
    if changes.get("scheduled_at") and changed.agent_id is None:
        raise InvalidInput("a task without an agent starts no one at `scheduled_at`; give it an agent, or use `due_at`")
    if changed.scheduled_at != task.scheduled_at:
        changes["started_at"] = None
    if changed.status is not task.status:
        changes["completed_at"] = now if changed.status is TaskStatus.COMPLETED else None
    if changed.status is not TaskStatus.BLOCKED:
        changes["blocked_reason"] = None
    elif not changed.blocked_reason:
        raise InvalidInput("a blocked task needs a `blocked_reason`; say what it waits for")
    return changes


def _check(task: Task) -> None:
    if not 0 < len(check_plain(task.title, "a task's title")) <= TITLE_CHARS_MAX:
        raise InvalidInput(f"a task's title has 1 to {TITLE_CHARS_MAX} characters")
    for name in ("description", "notes", "blocked_reason"):
        if len(getattr(task, name) or "") > TEXT_CHARS_MAX:
            raise InvalidInput(f"`{name}` has at most {TEXT_CHARS_MAX} characters; shorten it")
    for name in ("estimated_minutes", "actual_minutes"):
        if not 0 <= (getattr(task, name) or 0) <= MINUTES_MAX:
            raise InvalidInput(f"`{name}` is between 0 and {MINUTES_MAX}")
    tags = task.tags or ()
    if len(tags) > TAGS_MAX or not all(0 < len(tag) <= TAG_CHARS_MAX for tag in tags):
        raise InvalidInput(f"a task has at most {TAGS_MAX} tags of 1 to {TAG_CHARS_MAX} characters")
