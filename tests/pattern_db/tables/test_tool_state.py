from __future__ import annotations

import apsw
import pytest

from pattern_db.connection import Connection
from pattern_db.errors import Conflict
from pattern_db.tables import agents, tool_state


def put(db: Connection, name: str, value: object, *, agent: str = "agt_ada", tool: str = "calculator") -> None:
    tool_state.put(db, agent, tool, name, value, now="2026-11-21T22:24:40.123Z", names_max=2)


def test_values_belong_to_one_agent_and_tool(db: Connection) -> None:
    put(db, "x", [5, "m"])
    put(db, "x", {"other": True}, agent="agt_bob")
    put(db, "x", None, tool="web")
    assert tool_state.read(db, "agt_ada", "calculator") == {"x": [5, "m"]}
    assert tool_state.read(db, "agt_bob", "calculator") == {"x": {"other": True}}
    assert tool_state.read(db, "agt_ada", "web") == {"x": None}


def test_a_value_is_replaced_and_all_are_cleared(db: Connection) -> None:
    put(db, "x", 1)
    put(db, "x", 2)
    put(db, "y", 3)
    assert tool_state.read(db, "agt_ada", "calculator") == {"x": 2, "y": 3}
    tool_state.clear(db, "agt_ada", "web")
    tool_state.clear(db, "agt_bob", "calculator")
    assert len(tool_state.read(db, "agt_ada", "calculator")) == 2
    tool_state.clear(db, "agt_ada", "calculator")
    assert tool_state.read(db, "agt_ada", "calculator") == {}


def test_names_are_bounded(db: Connection) -> None:
    put(db, "x", 1)
    put(db, "y", 1)
    with pytest.raises(Conflict, match="at most 2 names"), db:
        put(db, "z", 1)
    put(db, "y", 2)
    assert tool_state.read(db, "agt_ada", "calculator") == {"x": 1, "y": 2}


def test_they_go_with_their_agent(db: Connection) -> None:
    put(db, "x", 1)
    agents.delete(db, "agt_ada")
    assert tool_state.read(db, "agt_ada", "calculator") == {}
    with pytest.raises(apsw.ConstraintError):
        put(db, "x", 1)
