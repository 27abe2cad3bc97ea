from __future__ import annotations

from pattern_db.columns import to_json
from pattern_db.connection import Connection
from pattern_db.enums import Role
from pattern_db.journal import turns
from pattern_db.journal.turns import NewTurn, Started
from pattern_db.tables import activity, messages
from pattern_db.tables.activity import TURNS_REACH, WORDS_CHARS
from pattern_db.tables.messages import MessageRow

EARLY, NOW, LATER = "2026-11-20T00:00:00.000Z", "2026-11-21T22:24:40.123Z", "2026-11-21T23:00:00.000Z"


def turn(
    db: Connection, turn_id: str, *, agent: str = "agt_ada", started_at: str | None = NOW, words: str = ""
) -> None:
    key = turns.insert(db, NewTurn(id=turn_id, agent_id=agent, sender="user:usr_1", seed=1, created_at=NOW))
    if started_at is None:
        return
    position = f"{key:019d}"
    turns.start(db, key, Started(batch_id=position, epoch=1, started_at=started_at, deadline_at=None))
    if words:
        row = MessageRow(
            id=f"msg_{key}", agent_id=agent, position=position, role=Role.USER, created_at=NOW, content=words
        )
        messages.append(db, [row])


def note(db: Connection, event_id: str, timestamp: str, agent: str | None = None) -> None:
    db.execute(
        "INSERT INTO activity_events (id, timestamp, agent_id, event_type, details) VALUES (?, ?, ?, 'system', ?)",
        (event_id, timestamp, agent, to_json({"summary": "x"})),
    )


def test_turns_come_with_the_beginning_of_what_they_answered(db: Connection) -> None:
    turn(db, "one", words="a" * (WORDS_CHARS + 5))
    turn(db, "queued", started_at=None)
    turn(db, "two", agent="agt_bob")
    one, two = activity.newest_turns(db, 10)
    assert (one.id, one.agent_name, one.words) == ("one", "ada", "a" * WORDS_CHARS)
    assert (two.id, two.agent_name, two.words, two.sender) == ("two", "bob", "", "user:usr_1")
    assert activity.newest_turns(db, 1) == [two]


def test_only_the_newest_turns_are_looked_at(db: Connection) -> None:
    turn(db, "first")
    for number in range(TURNS_REACH):
        turn(db, f"turn_{number}", started_at=None)
    assert activity.newest_turns(db, 10) == []


def test_one_turn_is_found_by_its_id(db: Connection) -> None:
    turn(db, "one", words="hello")
    turn(db, "queued", started_at=None)
    found = activity.turn(db, "one")
    assert found is not None
    assert found.words == "hello"
    assert activity.turn(db, "queued") is None
    assert activity.turn(db, "none") is None


def test_noted_events_come_newest_first(db: Connection) -> None:
    note(db, "old", EARLY)
    note(db, "one", NOW, "agt_bob")
    note(db, "two", LATER)
    found = activity.noted_since(db, NOW, limit=10)
    assert [(one.id, one.agent_name, one.details) for one in found] == [
        ("two", None, {"summary": "x"}),
        ("one", "bob", {"summary": "x"}),
    ]
    assert len(activity.noted_since(db, NOW, limit=1)) == 1
    assert activity.noted(db, "one") == found[1]
    assert activity.noted(db, "none") is None


DUE_NOW = "2026-11-21T22:24:40.123Z"


def add(
    db: Connection, task_id: str, *, agent: str | None = "agt_ada", status: str = "pending", **columns: object
) -> None:
    values = {"priority": 1, "due_at": None, **columns}
    db.execute(
        "INSERT INTO tasks (id, agent_id, title, status, priority, due_at, created_at, updated_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (task_id, agent, f"title of {task_id}", status, values["priority"], values["due_at"], DUE_NOW, DUE_NOW),
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
    found = activity.open_tasks(db, "agt_ada", 10)
    assert [task.id for task in found] == ["urgent", "sooner", "later", "undated", "low"]
    assert (found[0].agent_id, found[1].status, found[1].due_at) == (None, "in_progress", "2027-01-01")
    assert [task.id for task in activity.open_tasks(db, "agt_ada", 2)] == ["urgent", "sooner"]
    assert [activity.title_of_task(db, task) for task in ("done", "other")] == ["title of done", None]
