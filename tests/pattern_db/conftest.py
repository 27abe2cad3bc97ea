"""A constellation's database in memory, a global one, rows to put into them, and how SQLite plans to find them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from pattern_db import search, template
from pattern_db.connection import Connection, fetch_all
from pattern_db.database import Database, DatabaseThreads
from pattern_db.enums import BlockType, IndexState, Role, SearchKind
from pattern_db.journal import turns
from pattern_db.journal.turns import NewTurn
from pattern_db.migrate import migrations_of
from pattern_db.search import Filters, Row
from pattern_db.search_terms import parse
from pattern_db.tables import agents, constellations, embedding_indexes, memory_blocks, messages, users
from pattern_db.tables.agents import AgentRow
from pattern_db.tables.constellations import ConstellationRow
from pattern_db.tables.embedding_indexes import EmbedderInfo, IndexRow
from pattern_db.tables.memory_blocks import BlockRow
from pattern_db.tables.messages import MessageRow
from pattern_db.tables.users import UserRow
from tests.pattern_db import word_files

NOW, LATER = "2026-11-21T22:24:40.123Z", "2026-11-21T23:00:00.000Z"

Say = Callable[..., MessageRow]
MakeBlock = Callable[..., BlockRow]
MakeTurn = Callable[..., int]
PlanOf = Callable[[Callable[[], object]], list[str]]


@pytest.fixture
def db() -> Iterator[Connection]:
    """A constellation with the agents ada and bob (ids agt_ada, agt_bob) and an index of vectors of 4 numbers."""
    connection = template.in_memory(migrations_of("constellation"), now=NOW)
    for name in ("ada", "bob"):
        agents.create(connection, make_agent(name))
    make_index(connection)
    yield connection
    connection.close()


@pytest.fixture
def global_db() -> Iterator[Connection]:
    """A global database with the users root and eve (usr_root, usr_eve) and root's constellation home (cst_home)."""
    connection = template.in_memory(migrations_of("global"), now=NOW)
    for name in ("root", "eve"):
        users.create(connection, UserRow(id=f"usr_{name}", username=name, created_at=NOW, updated_at=NOW))
    constellations.create(
        connection,
        ConstellationRow(
            id="cst_home",
            owner_id="usr_root",
            name="home",
            db_path="constellations/cst_home/pattern.db",
            created_at=NOW,
            last_accessed_at=NOW,
        ),
    )
    yield connection
    connection.close()


@pytest.fixture
async def threads() -> AsyncIterator[DatabaseThreads]:
    """The threads that open files share."""
    with DatabaseThreads() as threads:
        yield threads


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    """A file with a table of words."""
    async with word_files.on_file(tmp_path) as database:
        yield database


@pytest.fixture(params=["file", "memory"])
async def either(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    """The same, also in memory."""
    async with word_files.on_file(tmp_path) if request.param == "file" else word_files.inline() as database:
        yield database


def make_index(
    connection: Connection, *, dimension: int = 4, fingerprint: str = "f", state: IndexState = IndexState.ACTIVE
) -> IndexRow:
    """Make an index of vectors."""
    info = EmbedderInfo(fingerprint=fingerprint, provider="test", model="m", dimension=dimension)
    return embedding_indexes.begin(connection, info, state, NOW)


def make_agent(name: str) -> AgentRow:
    return AgentRow(
        id=f"agt_{name}",
        name=name,
        model_provider="embedded",
        model_name="small",
        system_prompt=f"You are {name}.",
        created_at=NOW,
        updated_at=NOW,
    )


def make_message(number: int, content: str | None = None, *, agent: str = "ada", **columns: object) -> MessageRow:
    """Return a message; the number becomes its position."""
    position = f"{number:019d}"
    values: dict[str, object] = {"role": Role.USER, "created_at": NOW, **columns}
    return MessageRow(id=f"msg_{position}", agent_id=f"agt_{agent}", position=position, content=content, **values)  # type: ignore[arg-type]  # columns as the test names them


@pytest.fixture
def say(db: Connection) -> Say:
    """Store a message: say(7, "words", agent="ada", role=Role.USER, …), as `make_message`."""

    def store(number: int, content: str | None = None, **columns: object) -> MessageRow:
        row = make_message(number, content, **columns)  # type: ignore[arg-type]  # columns as the test names them
        messages.append(db, [row])
        return row

    return store


@pytest.fixture
def make_block(db: Connection) -> MakeBlock:
    """Store a block: make_block("label", owner="agt_ada", snapshot=b"", …); its id is blk_<owner>_<label>."""

    def store(label: str, *, owner: str = "agt_ada", snapshot: bytes = b"", **columns: object) -> BlockRow:
        values: dict[str, object] = {
            "id": f"blk_{owner}_{label}",
            "description": "",
            "block_type": BlockType.CORE,
            "created_at": NOW,
            "updated_at": NOW,
            **columns,
        }
        row = BlockRow(agent_id=owner, label=label, **values)  # type: ignore[arg-type]  # columns as the test names them
        memory_blocks.create(db, row, snapshot)
        return row

    return store


def hits(connection: Connection, kind: SearchKind, query: str, **filters: object) -> list[Row]:
    """Return what holds one of the words, by row."""
    chosen = Filters(**filters)  # type: ignore[arg-type]  # as the test names them
    numbers = {
        row for term in parse(query).terms for row in search.rows_of(connection, kind, term, 500, filters=chosen)
    }
    return list(search.rows(connection, kind, sorted(numbers), chosen).values())


def make_task(
    connection: Connection, task_id: str, agent_id: str | None, status: str = "pending", **columns: object
) -> None:
    values = {"priority": 1, "due_at": None, **columns, "id": task_id, "agent": agent_id, "status": status, "now": NOW}
    connection.execute(
        "INSERT INTO tasks (id, agent_id, title, status, priority, due_at, created_at, updated_at)"
        " VALUES (:id, :agent, 'title of ' || :id, :status, :priority, :due_at, :now, :now)",
        values,
    )


def make_passage(connection: Connection, name: str, content: str, heading: str = "") -> None:
    """Store the passage psg_<name> of the file notes.md (file_<name>) in a folder of its own (fld_<name>)."""
    connection.execute(
        "INSERT INTO folders (id, name, path_type, embedding_model, created_at)"
        " VALUES ('fld_' || :name, :name, 'virtual', 'm', :now);"
        "INSERT INTO folder_files (id, folder_id, name, uploaded_at)"
        " VALUES ('file_' || :name, 'fld_' || :name, 'notes.md', :now);"
        "INSERT INTO file_passages (id, file_id, content, heading, created_at)"
        " VALUES ('psg_' || :name, 'file_' || :name, :content, :heading, :now)",
        {"name": name, "content": content, "heading": heading, "now": NOW},
    )


@pytest.fixture
def make_turn(db: Connection) -> MakeTurn:
    """Store a queued turn and return its key: make_turn("turn_1", agent="ada", parent_turn=…)."""

    def make(turn_id: str = "turn_1", *, agent: str = "ada", **columns: object) -> int:
        values: dict[str, object] = {"sender": "user:usr_root", "seed": 7, "created_at": NOW, **columns}
        return turns.insert(db, NewTurn(id=turn_id, agent_id=f"agt_{agent}", **values))  # type: ignore[arg-type]  # columns as the test names them

    return make


@pytest.fixture
def plan_of(db: Connection) -> PlanOf:
    """The plans of the queries and updates that a call runs, line by line."""

    def plan(call: Callable[[], object]) -> list[str]:
        seen: list[tuple[str, object]] = []

        def note(_cursor: object, sql: str, values: object) -> bool:
            seen.append((sql, values))
            return True

        db.exec_trace = note
        call()
        db.exec_trace = None
        lines = [
            str(row[3])
            for sql, values in seen
            if sql.lstrip(" (\n").startswith(("SELECT", "UPDATE", "WITH"))
            for row in fetch_all(db, f"EXPLAIN QUERY PLAN {sql}", values)  # type: ignore[arg-type]  # as apsw gave them
        ]
        assert lines
        return lines

    return plan
