from __future__ import annotations

from dataclasses import replace

import apsw
import pytest

from pattern_db.connection import Connection
from pattern_db.enums import AgentStatus, SearchKind
from pattern_db.errors import RowNotFound
from pattern_db.journal import turns
from pattern_db.journal.turns import NewTurn
from pattern_db.tables import agents, archival, timers
from pattern_db.tables.agents import AgentRow
from pattern_db.tables.archival import ArchivalRow
from pattern_db.tables.timers import TimerRow
from tests.pattern_db import vector_rows
from tests.pattern_db.conftest import NOW, MakeBlock, Say, make_task
from tests.pattern_db.vector_rows import VectorRow

ROW = AgentRow(
    id="agt_eve",
    name="eve",
    description="Grüße",
    model_provider="anthropic",
    model_name="big",
    system_prompt="",
    config={"temperature": 0.5},
    enabled_tools=("block", "recall"),
    tool_rules=[{"tool": "block", "max": 3}],
    status=AgentStatus.HIBERNATED,
    created_at="2026-11-21T22:24:40.123Z",
    updated_at="2026-11-21T22:24:40.123Z",
)


def test_an_agent_comes_back_as_it_was_stored(db: Connection) -> None:
    agents.create(db, ROW)
    assert [row.name for row in agents.list_all(db)] == ["ada", "bob", "eve"]
    assert agents.count(db) == 3
    assert agents.get(db, "agt_eve") == ROW
    assert agents.find(db, "agt_eve") == agents.find(db, "eve") == ROW
    with pytest.raises(apsw.ConstraintError):
        agents.create(db, replace(ROW, id="agt_other"))
    changed = replace(ROW, name="agt_ada", description=None, tool_rules=None, updated_at="2027-01-01T00:00:00.000Z")
    agents.update(db, changed)
    assert agents.get(db, ROW.id) == changed
    assert agents.find(db, "agt_ada").name == "ada", "an id goes before a name"


def test_who_hibernates_by_itself_has_a_timer_and_rests_after_its_last_message(db: Connection, say: Say) -> None:
    for name, idle_s in (("eve", 90.5), ("fay", None)):
        row = replace(ROW, id=f"agt_{name}", name=name, config={"hibernate_after_s": idle_s})
        agents.create(db, replace(row, status=AgentStatus.ACTIVE))
    agents.expect_rest(db)
    assert timers.due(db, "~", 9) == [TimerRow(agents.HIBERNATION, "agt_eve", ROW.updated_at)]
    assert agents.rests_at(db, "agt_eve", NOW) == "2026-11-21T22:26:10.623Z"
    say(1, "hello", agent="eve", created_at="2026-11-22T00:00:00.000Z")
    assert agents.rests_at(db, "agt_eve", NOW) == "2026-11-22T00:01:30.500Z"
    turns.insert(db, NewTurn("agt_eve", "turn_1", "user:ann", 1, NOW))
    assert agents.rests_at(db, "agt_eve", "2026-11-23T00:00:00.000Z") == "2026-11-23T00:01:30.500Z"
    assert agents.rests_at(db, "agt_fay", NOW) is None
    agents.update(db, replace(agents.get(db, "agt_eve"), status=AgentStatus.HIBERNATED))
    assert agents.rests_at(db, "agt_eve", NOW) is None
    for agent in agents.list_all(db):
        found = db.execute(f"SELECT {agents.TAKES_PART} FROM agents WHERE id = ?", (agent.id,)).get
        assert agent.takes_part == bool(found), agent.name
    assert agents.get(db, "agt_eve").takes_part and not replace(ROW, config={}).takes_part


def test_what_is_not_there(db: Connection) -> None:
    for act in (
        lambda: agents.get(db, "agt_eve"),
        lambda: agents.find(db, "eve"),
        lambda: agents.update(db, ROW),
        lambda: agents.delete(db, "agt_eve"),
    ):
        with pytest.raises(RowNotFound, match=r"there is no agent (agt_)?eve"):
            act()


def test_deleting_takes_everything_that_is_the_agents_and_nothing_else(
    db: Connection, say: Say, make_block: MakeBlock
) -> None:
    for agent, number in (("ada", 1), ("bob", 2)):
        message = say(number, "words", agent=agent)
        block = make_block("notes", owner=f"agt_{agent}", content_preview="words")
        archival.insert(db, ArchivalRow(id=f"arc_{agent}", agent_id=f"agt_{agent}", content="words", created_at=NOW))
        for kind, ref in ((SearchKind.MESSAGE, message.id), (SearchKind.BLOCK, block.id)):
            vector_rows.insert(db, VectorRow(kind=kind, ref=ref, scope=f"agt_{agent}"))
    make_task(db, "task_1", "agt_ada")
    agents.delete(db, "agt_ada")
    for table in ("agents", "messages", "memory_blocks", "archival_entries", "message_embeddings", "memory_embeddings"):
        assert db.execute(f"SELECT count(*) FROM {table}").fetchall() == [(1,)], table
    assert db.execute("SELECT agent_id FROM tasks").fetchall() == [(None,)]
    for index in ("message_fts", "memory_fts", "archival_fts"):
        db.execute(f"INSERT INTO {index}({index}, rank) VALUES ('integrity-check', 1)")
