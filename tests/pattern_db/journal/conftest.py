"""Rows of the journal, and how SQLite means to find them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pattern_db.connection import Connection, fetch_all
from pattern_db.journal import turns
from pattern_db.journal.turns import NewTurn

NOW = "2026-11-21T22:24:40.123Z"
LATER = "2026-11-21T22:24:50.000Z"

MakeTurn = Callable[..., int]
PlanOf = Callable[[Callable[[], object]], list[str]]


@pytest.fixture
def make_turn(db: Connection) -> MakeTurn:
    """Store a queued turn and return its key: make_turn("turn_1", agent="ada", parent_turn=…)."""

    def make(turn_id: str = "turn_1", *, agent: str = "ada", **columns: object) -> int:
        values: dict[str, object] = {"sender": "user:usr_root", "seed": 7, "created_at": NOW, **columns}
        return turns.insert(db, NewTurn(id=turn_id, agent_id=f"agt_{agent}", **values))  # type: ignore[arg-type]  # columns as the test names them

    return make


@pytest.fixture
def plan_of(db: Connection) -> PlanOf:
    """The query plan of the one statement that a call runs, line by line."""

    def plan(call: Callable[[], object]) -> list[str]:
        seen: list[tuple[str, object]] = []

        def note(_cursor: object, sql: str, values: object) -> bool:
            seen.append((sql, values))
            return True

        db.exec_trace = note
        call()
        db.exec_trace = None
        [(sql, values)] = seen
        return [str(row[3]) for row in fetch_all(db, f"EXPLAIN QUERY PLAN {sql}", values)]  # type: ignore[arg-type]  # as apsw gave them

    return plan
