"""Open tasks as parts of a prompt, one line each."""

from __future__ import annotations

from collections.abc import Sequence

from pattern_core.prompts.parts import Kind, Part
from pattern_core.untrusted import escaped
from pattern_db.tables.tasks import OpenTask

TASKS_MAX = 20
_PRIORITIES = ("low", "medium", "high", "urgent")


def task_parts(tasks: Sequence[OpenTask], now: str) -> list[Part]:
    """The tasks as lines, the most urgent first as they come; `now` is a stored time."""
    return [
        Part(kind=Kind.TASKS, text=line(one, now), reason=_reason(one, now), ref=one.id, name=one.title)
        for one in tasks[:TASKS_MAX]
    ]


def line(task: OpenTask, now: str) -> str:
    """One task: `- Pay the rent (high, due 2026-02-01, overdue)`."""
    about = [_PRIORITIES[task.priority]]
    if task.status == "in_progress":
        about.append("begun")
    if task.due_at is not None:
        about.append(f"due {task.due_at[:16].replace('T', ' ').removesuffix(' 00:00')}")
    if _is_late(task, now):
        about.append("overdue")
    if task.agent_id is None:
        about.append("everybody's")
    return f"- {escaped(' '.join(task.title.split()))} ({', '.join(about)})"


def _is_late(task: OpenTask, now: str) -> bool:
    return task.due_at is not None and task.due_at < now


def _reason(task: OpenTask, now: str) -> str:
    return "an open task, overdue" if _is_late(task, now) else "an open task"
