"""Named values that a tool keeps for one agent, such as the variables of the calculator."""

from __future__ import annotations

from pattern_db.columns import Json, from_json, to_json
from pattern_db.connection import Connection, fetch_all
from pattern_db.errors import Conflict


def read(connection: Connection, agent_id: str, tool: str) -> dict[str, Json]:
    """What the tool keeps for the agent, by name."""
    rows = connection.execute(
        "SELECT name, value FROM tool_state WHERE agent_id = ? AND tool = ? ORDER BY name", (agent_id, tool)
    )
    return {name: from_json(value) for name, value in rows}


def put(connection: Connection, agent_id: str, tool: str, name: str, value: Json, *, now: str, names_max: int) -> None:
    """Keep a value under a name, in the place of what was there.

    Raises:
        Conflict: the agent keeps `names_max` other names for this tool already.
        apsw.ConstraintError: there is no such agent (a `Conflict` once translated).
    """
    connection.execute(
        "INSERT INTO tool_state (agent_id, tool, name, value, updated_at) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (agent_id, tool, name) DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at",
        (agent_id, tool, name, to_json(value), now),
    )
    [(count,)] = fetch_all(
        connection, "SELECT count(*) FROM tool_state WHERE agent_id = ? AND tool = ?", (agent_id, tool)
    )
    if count > names_max:
        raise Conflict(f"{tool} keeps at most {names_max} names; reset it, or use a name again")


def clear(connection: Connection, agent_id: str, tool: str) -> None:
    """Forget all that the tool keeps for the agent."""
    connection.execute("DELETE FROM tool_state WHERE agent_id = ? AND tool = ?", (agent_id, tool))
