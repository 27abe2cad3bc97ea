from __future__ import annotations

from pattern_db.connection import Connection
from pattern_db.tables import tasks

NOW = "2026-11-21T22:24:40.123Z"


def add(
    db: Connection, task_id: str, *, agent: str | None = "agt_ada", status: str = "pending", **columns: object
) -> None:
    values = {"priority": 1, "due_at": None, **columns}
    db.execute(
        "INSERT INTO tasks (id, agent_id, title, status, priority, due_at, created_at, updated_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (task_id, agent, f"title of {task_id}", status, values["priority"], values["due_at"], NOW, NOW),
    )


def test_open_tasks_are_the_agents_and_everybodys_the_most_urgent_first(db: Connection) -> None:
    add(db, "done", status="completed")
    add(db, "never", status="cancelled")
    add(db, "bobs", agent="agt_bob")
    add(db, "low", priority=0)
    add(db, "later", due_at="2027-01-02")
    add(db, "sooner", due_at="2027-01-01", status="in_progress")
    add(db, "undated")
    add(db, "urgent", priority=3, agent=None)
    found = tasks.open_of(db, "agt_ada", 10)
    assert [task.id for task in found] == ["urgent", "sooner", "later", "undated", "low"]
    assert (found[0].agent_id, found[1].status, found[1].due_at) == (None, "in_progress", "2027-01-01")
    assert [task.id for task in tasks.open_of(db, "agt_ada", 2)] == ["urgent", "sooner"]


def test_a_title_is_found_as_long_as_there_is_the_task(db: Connection) -> None:
    add(db, "one", status="completed")
    assert tasks.title_of(db, "one") == "title of one"
    assert tasks.title_of(db, "other") is None
