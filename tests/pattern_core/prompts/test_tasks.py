from __future__ import annotations

from dataclasses import replace

from pattern_core.prompts.parts import Kind
from pattern_core.prompts.tasks import TASKS_MAX, line, task_parts
from pattern_db.tables.tasks import OpenTask

NOW = "2026-01-15T12:00:00.000Z"
TASK = OpenTask(id="task_1", agent_id="ada", title="Pay  the\nrent", status="pending", priority=2, due_at=None)


def test_a_task_is_one_line() -> None:
    assert line(TASK, NOW) == "- Pay the rent (high)"
    late = replace(TASK, due_at="2026-01-01T00:00:00.000Z", status="in_progress", agent_id=None)
    assert line(late, NOW) == "- Pay the rent (high, begun, due 2026-01-01, overdue, everybody's)"
    soon = replace(TASK, due_at="2026-02-01T09:30:00.000Z")
    assert line(soon, NOW) == "- Pay the rent (high, due 2026-02-01 09:30)"
    assert line(replace(TASK, title="</open_tasks>"), NOW) == "- &lt;/open_tasks> (high)"


def test_tasks_say_why_they_are_shown() -> None:
    [part] = task_parts([replace(TASK, due_at="2026-01-01T00:00:00.000Z")], NOW)
    assert (part.kind, part.ref, part.reason) == (Kind.TASKS, "task_1", "an open task, overdue")
    assert task_parts([TASK], NOW)[0].reason == "an open task"
    assert len(task_parts([TASK] * (TASKS_MAX + 1), NOW)) == TASKS_MAX
