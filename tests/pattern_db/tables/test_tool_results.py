from __future__ import annotations

import apsw
import pytest

from pattern_db.connection import Connection
from pattern_db.errors import NotFound
from pattern_db.tables import agents, tool_results
from pattern_db.tables.tool_results import ToolResultRow


def add(db: Connection, number: int, *, agent: str = "agt_ada", size: int = 10) -> ToolResultRow:
    row = ToolResultRow(
        id=f"res_{number}",
        agent_id=agent,
        tool="web",
        call_id="call_1",
        chars=1234,
        created_at="2026-11-21T22:24:40.123Z",
        data=b"z" * size,
    )
    tool_results.add(db, row, count_max=3, bytes_max=100)
    return row


def kept(db: Connection, agent: str = "agt_ada") -> list[str]:
    return [row[0] for row in db.execute("SELECT id FROM tool_results WHERE agent_id = ? ORDER BY row", (agent,))]


def test_a_result_is_found_by_its_agent_only(db: Connection) -> None:
    row = add(db, 1)
    assert tool_results.get(db, "agt_ada", "res_1") == row
    with pytest.raises(NotFound, match="call the tool again"):
        tool_results.get(db, "agt_bob", "res_1")


def test_the_oldest_beyond_the_count_go(db: Connection) -> None:
    add(db, 9, agent="agt_bob")
    for number in range(5):
        add(db, number)
    assert kept(db) == ["res_2", "res_3", "res_4"]
    assert kept(db, "agt_bob") == ["res_9"]


def test_the_oldest_beyond_the_bytes_go_and_the_newest_never(db: Connection) -> None:
    add(db, 1, size=60)
    add(db, 2, size=40)
    assert kept(db) == ["res_1", "res_2"]
    add(db, 3, size=61)
    assert kept(db) == ["res_3"]  # 2 and 3 are 101 bytes
    add(db, 4, size=1000)
    assert kept(db) == ["res_4"]


def test_they_go_with_their_agent(db: Connection) -> None:
    add(db, 1)
    agents.delete(db, "agt_ada")
    assert kept(db) == []
    with pytest.raises(apsw.ConstraintError):
        add(db, 1)
