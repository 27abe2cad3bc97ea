"""Tables of groups, tasks, time and what agents share: each column is written and read by what people ask for.

The recorded conversations with a server are played, and SQLite reports what their statements touch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from importlib import import_module
from pathlib import Path

import apsw
import pytest
from trio.testing import MockClock

from pattern_core.testing.model import says
from pattern_db import enums
from pattern_db.enums import NotableKind
from pattern_db.migrate import migrations_of
from pattern_db.template import in_memory
from tests.pattern_core.test_overview import DAY_S, Passing, garden, talk
from tests.recorded.__main__ import HERE, answers
from tests.recorded.player import patient_clock
from tests.recorded.script import read
from tests.support import USER, running

SCRIPTS = (
    *("groups", "overview", "calendars", "schedules", "tasks"),
    *("shared_state", "handoffs", "assignments", "operations"),
)
TABLES = (
    "agent_groups",
    "group_members",
    "group_run",
    "group_ask",
    "tasks",
    "events",
    "event_occurrences",
    "activity_events",
    "coordination_state",
    "coordination_tasks",
    "handoff_notes",
    "schedule",
    "timer",
    "outbox",
)
OVERVIEW = ("agent_summaries", "constellation_summaries", "notable_events")
_INSERT = re.compile(r"\s*INSERT\b[A-Z ]*?\bINTO (\w+) \(([^)]*)\)")

Columns = set[tuple[str, str]]
WRITTEN_BY_SQLITE: Columns = {("tasks", "row")}  # the table's own row number


@pytest.fixture
def clock() -> MockClock:
    """The clock of these tests, which pytest-trio finds by its type."""
    return patient_clock()


@contextmanager
def watching(written: Columns, seen: Columns) -> Iterator[None]:
    """Note the columns that the statements of every new connection write and read."""

    def allow(action: int, table: str | None, column: str | None, _database: str | None, _by: str | None) -> int:
        touched = {apsw.SQLITE_UPDATE: written, apsw.SQLITE_READ: seen}.get(action)
        if touched is not None and table and column:
            touched.add((table, column))
        return apsw.SQLITE_OK

    def trace(_cursor: object, sql: str, _values: object) -> bool:
        if match := _INSERT.match(sql):
            written.update((match[1], name.strip()) for name in match[2].split(","))
        return True

    def hook(connection: apsw.Connection) -> None:
        connection.authorizer = allow
        connection.exec_trace = trace

    apsw.connection_hooks.append(hook)
    try:
        yield
    finally:
        apsw.connection_hooks.remove(hook)


async def test_every_column_is_written_and_read() -> None:
    written, seen = set(WRITTEN_BY_SQLITE), Columns()
    with watching(written, seen):
        for name in SCRIPTS:
            await answers(read((HERE / "http" / f"{name}.txt").read_text(encoding="utf-8")))
        async with running(otherwise=says("Fine.")) as world:
            await world.agent("ada")
            await world.constellation.state.set("job", "free", expected=0, author=USER)
            await world.say("Anything new?", "ada")
    check(TABLES, written, seen)


async def test_every_column_of_the_overview_is_written_and_read(autojump_clock: MockClock) -> None:
    written, seen, clock = Columns(), Columns(), Passing()
    with watching(written, seen):
        async with garden(clock) as world:
            for _ in range(2):
                await talk(world)
                await clock.sleep(8 * DAY_S)
            overview = world.constellation.overview
            assert await overview.summaries(9)
            assert await overview.periods(9)
            await overview.record(NotableKind.MILESTONE, "The roses are planted.", author=USER)
            assert await overview.notable(9)
    check(OVERVIEW, written, seen)


def check(tables: Sequence[str], written: Columns, seen: Columns) -> None:
    """Every column of the tables was written, and read."""
    connection = in_memory(migrations_of("constellation"), now="2026-01-01T00:00:00.000Z")
    there = {
        (table, str(column))
        for table in tables
        for (column,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))
    }
    assert sorted(there - written) == [], "no statement writes these columns: delete them, or write them"
    assert sorted(there - seen) == [], "no statement reads these columns: delete them, or show them"


def test_every_vocabulary_is_used() -> None:
    packages = [import_module(name).__path__[0] for name in ("pattern_db", "pattern_core", "pattern_server")]
    texts = [path.read_text(encoding="utf-8") for folder in packages for path in Path(folder).rglob("*.py")]
    for kind in vars(enums).values():
        if isinstance(kind, type) and issubclass(kind, StrEnum) and kind is not StrEnum:
            users = [text for text in texts if re.search(rf"\b{kind.__name__}\b", text)]
            assert len(users) > 1, f"only `enums.py` names {kind.__name__}; delete it, or use it"
