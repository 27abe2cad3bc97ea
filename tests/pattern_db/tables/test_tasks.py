"""Tasks as rows: their places in the forest, their order, their timers, and how they are found."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_db import template
from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import CONSTELLATION_OWNER, Priority, SearchKind, TaskStatus
from pattern_db.errors import RowConflict, RowNotFound
from pattern_db.migrate import migrations_of
from pattern_db.tables import agents, embedding_sources, tasks, timers
from pattern_db.tables.tasks import DEPTH_MAX, PACE_OF, TIMER, TaskRow
from pattern_db.tables.timers import TimerRow
from tests.pattern_db.conftest import LATER, NOW, hits, make_task


def new(name: str, **fields: object) -> TaskRow:
    return TaskRow(name, f"title of {name}", NOW, NOW, **fields)  # type: ignore[arg-type]  # the tests know the fields


def ids(db: Connection, **filters: object) -> list[str]:
    return [row.id for row in tasks.page(db, 1_000, **filters)]  # type: ignore[arg-type]  # as above


def test_everything_about_a_task_is_stored_and_read(db: Connection) -> None:
    whole = new(
        "whole",
        agent_id="agt_ada",
        description="words",
        status=TaskStatus.BLOCKED,
        blocked_reason="rain",
        priority=Priority.URGENT,
        due_at=LATER,
        scheduled_at=NOW,
        started_at=LATER,
        completed_at=LATER,
        tags=["a", "b"],
        estimated_minutes=5,
        actual_minutes=8,
        notes="more",
        changed_by="user:u",
    )
    tasks.create(db, [whole, new("part", parent_task_id="whole")])
    assert tasks.get(db, "whole") == whole
    tasks.update(
        db, "whole", {"status": TaskStatus.DEFERRED, "blocked_reason": None, "priority": Priority.LOW, "tags": None}
    )
    changed = tasks.get(db, "whole")
    assert (changed.status, changed.priority, changed.tags) == (TaskStatus.DEFERRED, Priority.LOW, None)
    assert [tasks.title_of(db, name) for name in ("part", "none")] == ["title of part", None]
    tasks.delete(db, "whole")
    assert ids(db) == [], "the part went with it"
    for absent in (lambda: tasks.get(db, "part"), lambda: tasks.delete(db, "part")):
        with pytest.raises(RowNotFound, match="task part"):
            absent()


def test_pressing_are_the_open_tasks_of_the_agent_and_of_all_with_the_most_urgent_first(db: Connection) -> None:
    for name, status in (("done", "completed"), ("never", "cancelled"), ("once", "backlog"), ("put_off", "deferred")):
        make_task(db, name, "agt_ada", status)
    make_task(db, "bobs", "agt_bob")
    make_task(db, "low", "agt_ada", priority=0)
    make_task(db, "later", "agt_ada", due_at="2027-01-02")
    make_task(db, "sooner", "agt_ada", "in_progress", due_at="2027-01-01")
    make_task(db, "undated", "agt_ada")
    make_task(db, "urgent", None, priority=3)
    assert [row.id for row in tasks.pressing(db, "agt_ada", 9)] == ["urgent", "sooner", "later", "undated", "low"]
    assert [row.id for row in tasks.pressing(db, "agt_ada", 2)] == ["urgent", "sooner"]


def test_a_list_is_filtered_and_continued(db: Connection) -> None:
    tasks.create(db, [new("high", priority=Priority.HIGH), new("dated", due_at=LATER, agent_id="agt_ada")])
    tasks.create(db, [new("part", parent_task_id="dated", agent_id="agt_bob", status=TaskStatus.IN_PROGRESS)])
    assert ids(db) == ["high", "dated", "part"]
    assert ids(db, owners=["agt_ada", CONSTELLATION_OWNER]) == ["high", "dated"]
    assert (
        ids(db, statuses=[TaskStatus.IN_PROGRESS]) == ids(db, parent_id="dated") == ids(db, after="dated") == ["part"]
    )
    assert (ids(db, due_before=LATER), ids(db, due_before="2999")) == ([], ["dated"])
    assert [row.id for row in tasks.page(db, 1, after="high")] == ["dated"]
    with pytest.raises(RowNotFound):
        ids(db, after="gone")


class Model(NamedTuple):
    """A naive forest: parents by task, and what it is ordered by."""

    parents: dict[str, str | None]
    ranks: dict[str, tuple[int, str, int]]

    def above(self, name: str | None) -> list[str]:
        return [] if name is None else [name, *self.above(self.parents[name])]

    def below(self, name: str) -> list[str]:
        return [name, *(one for child, up in self.parents.items() if up == name for one in self.below(child))]

    def fits(self, name: str, parent: str | None) -> bool:
        height = max(len(self.above(one)) for one in self.below(name)) - len(self.above(name)) + 1
        return parent is None or (name not in self.above(parent) and len(self.above(parent)) + height <= DEPTH_MAX)


NUMBERS = st.integers(0, 5)
STEPS = st.one_of(
    st.tuples(st.just("add"), NUMBERS, st.sampled_from([*Priority]), st.sampled_from([None, LATER, NOW])),
    st.tuples(st.just("move"), NUMBERS, NUMBERS),
    st.tuples(st.just("delete"), NUMBERS),
)


@given(st.lists(STEPS, min_size=10, max_size=40))
def test_the_forest_is_that_of_a_naive_model(steps: list[tuple[object, ...]]) -> None:
    db, model = template.in_memory(migrations_of("constellation"), now=NOW), Model({}, {})
    for number, step in enumerate(steps):
        named = [*reversed(model.parents), None]  # small numbers mean new tasks: deep trees
        chosen = [named[at % len(named)] for at in step[1:3] if isinstance(at, int)]
        match step[0], chosen:
            case "add", [parent]:
                name, priority, due = f"t{number}", Priority(str(step[2])), step[3]
                if parent is not None and len(model.above(parent)) == DEPTH_MAX:
                    continue
                tasks.create(db, [new(name, parent_task_id=parent, priority=priority, due_at=due)])
                model.parents[name] = parent
                model.ranks[name] = (-[*Priority].index(priority), str(due or "~"), number)
            case "move", [str(name), parent]:
                if model.fits(name, parent):
                    tasks.update(db, name, {"parent_task_id": parent})
                    model.parents[name] = parent
                else:
                    with pytest.raises(RowConflict, match=r"below itself|nested"):
                        tasks.update(db, name, {"parent_task_id": parent})
            case "delete", [str(name)]:
                tasks.delete(db, name)
                for gone in model.below(name):
                    del model.parents[gone]
    assert {row.id: row.parent_task_id for row in tasks.page(db, 99)} == model.parents
    assert ids(db) == sorted(model.parents, key=lambda name: model.ranks[name])
    for parent in model.parents:
        children = [name for name, up in model.parents.items() if up == parent]
        assert ids(db, parent_id=parent) == sorted(children, key=lambda name: model.ranks[name])


def test_tasks_are_not_nested_without_end(db: Connection) -> None:
    for number in range(DEPTH_MAX):
        tasks.create(db, [new(f"t{number}", parent_task_id=f"t{number - 1}" if number else None)])
    with pytest.raises(RowConflict, match="nested"):
        tasks.create(db, [new("too_deep", parent_task_id=f"t{DEPTH_MAX - 1}")])
    tasks.create(db, [new("top")])
    with pytest.raises(RowConflict, match="nested"):
        tasks.update(db, "t0", {"parent_task_id": "top"})
    with pytest.raises(RowNotFound, match="nowhere"):
        tasks.create(db, [new("lost", parent_task_id="nowhere")])


def test_there_are_not_more_than_fit(db: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "TASKS_MAX", 2)
    tasks.create(db, [new("one"), new("two")])
    with pytest.raises(RowConflict, match="at most 2"):
        tasks.create(db, [new("three")])


def test_the_timer_follows_the_task(db: Connection) -> None:
    def timer() -> list[TimerRow]:
        return timers.due(db, "9999", 9)

    tasks.create(db, [new("one", agent_id="agt_ada", scheduled_at=LATER), new("all", scheduled_at=LATER)])
    due = [TimerRow(TIMER, "one", LATER)]
    assert timer() == due
    for stops, again in (
        ({"status": TaskStatus.COMPLETED}, {"status": TaskStatus.IN_PROGRESS}),
        ({"status": TaskStatus.BLOCKED, "blocked_reason": "x"}, {"status": TaskStatus.BACKLOG, "blocked_reason": None}),
        ({"started_at": NOW}, {"started_at": None}),
        ({"agent_id": None}, {"agent_id": "agt_ada"}),
        ({"scheduled_at": None}, {"scheduled_at": LATER}),
    ):
        tasks.update(db, "one", stops)
        assert timer() == [], stops
        tasks.update(db, "one", again)
        assert timer() == due, again
    tasks.update(db, "one", {"scheduled_at": NOW})
    assert timer() == [TimerRow(TIMER, "one", NOW)]
    timers.put(db, TimerRow("schedule", "sch_1", LATER))
    tasks.block_starts(db, "a copy")
    assert (timer(), tasks.get(db, "one").blocked_reason) == ([TimerRow("schedule", "sch_1", LATER)], "a copy")
    tasks.update(db, "one", {"status": TaskStatus.PENDING, "blocked_reason": None, "parent_task_id": "all"})
    assert len(timer()) == 2
    tasks.delete(db, "all")
    assert timer() == [TimerRow("schedule", "sch_1", LATER)], "of a part of what was deleted, too"


def test_the_pace_is_that_of_the_newest_tasks_with_both_numbers(db: Connection) -> None:
    assert tasks.pace(db, "agt_ada") is None
    done = {"agent_id": "agt_ada", "status": TaskStatus.COMPLETED, "completed_at": LATER, "estimated_minutes": 10}
    tasks.create(db, [new("old", **{**done, "completed_at": NOW}, actual_minutes=1_000)])
    assert tasks.pace(db, "agt_ada") == 100
    tasks.create(db, [new(f"t{number}", **done, actual_minutes=5 + 10 * (number % 2)) for number in range(PACE_OF)])
    tasks.create(db, [new("bobs", **{**done, "agent_id": "agt_bob"}, actual_minutes=90), new("unknown", **done)])
    assert tasks.pace(db, "agt_ada") == 1.0


def test_tasks_are_found_by_words_owner_time_and_tag(db: Connection) -> None:
    tasks.create(
        db, [new("one", agent_id="agt_ada", description="Green teas", tags=["x"]), new("all", notes="茶と猫, tea")]
    )

    def found(query: str, **filters: object) -> list[str]:
        return [row.id for row in hits(db, SearchKind.TASK, query, **filters)]

    assert found("tea") == ["one", "all"]
    assert found("猫") == ["all"]
    assert found("tea", agents=["agt_ada"]) == found("tea", tags=["x"]) == ["one"]
    assert found("tea", agents=[CONSTELLATION_OWNER]) == ["all"]
    assert found("tea", since=NOW) == ["one", "all"]
    assert found("tea", until=NOW) == found("tea", since=LATER) == found("tea", sessions=["s"]) == []
    (row,) = hits(db, SearchKind.TASK, "green")
    assert row.content == "title of one\nGreen teas"
    tasks.update(db, "one", {"description": "Coffee"})
    tasks.delete(db, "all")
    assert (found("tea"), found("coffee")) == ([], ["one"])
    db.execute("INSERT INTO task_fts(task_fts) VALUES ('integrity-check')")


def test_the_task_of_a_deleted_agent_is_everyones(db: Connection) -> None:
    tasks.create(db, [new("one", agent_id="agt_ada", scheduled_at=LATER)])
    source = embedding_sources.get(db, SearchKind.TASK, "one")
    assert source is not None
    assert (source.scope, source.text) == ("agt_ada", "title of one")
    agents.delete(db, "agt_ada")
    source = embedding_sources.get(db, SearchKind.TASK, "one")
    assert source is not None
    assert source.scope == CONSTELLATION_OWNER


def test_an_agents_tasks_are_found_by_an_index(db: Connection) -> None:
    plans = fetch_all(
        db,
        "EXPLAIN QUERY PLAN SELECT 1 FROM tasks WHERE status IN ('pending') AND (agent_id = 'x' OR agent_id IS NULL)",
    )
    assert sum("tasks_agent" in str(step[3]) for step in plans) == 2
    [step] = fetch_all(db, "EXPLAIN QUERY PLAN SELECT 1 FROM tasks WHERE parent_task_id = 'x'")
    assert "tasks_parent" in str(step[3])
