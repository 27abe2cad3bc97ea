"""State of tools for one agent: named values, such as the calculator's variables, and results too long to show
completely.

Of the results the newest are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from pattern_db.columns import Json, from_json, to_json
from pattern_db.connection import Connection, Table, fetch_all
from pattern_db.errors import RowConflict


def read(connection: Connection, agent_id: str, tool: str) -> dict[str, Json]:
    """Return the tool's values for the agent, by name."""
    rows = connection.execute(
        "SELECT name, value FROM tool_state WHERE agent_id = ? AND tool = ? ORDER BY name", (agent_id, tool)
    )
    return {name: from_json(value) for name, value in rows}


def put(connection: Connection, agent_id: str, tool: str, name: str, value: Json, *, now: str, names_max: int) -> None:
    """Store a value under a name, replacing an existing one.

    Raises:
        RowConflict: the agent already has `names_max` other names for this tool.
        apsw.ConstraintError: there is no such agent (translated to `RowConflict`).
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
        raise RowConflict(f"{tool} keeps at most {names_max} names; reset it, or use a name again")


def clear(connection: Connection, agent_id: str, tool: str) -> None:
    """Delete all values of the tool for the agent."""
    connection.execute("DELETE FROM tool_state WHERE agent_id = ? AND tool = ?", (agent_id, tool))


@dataclass(frozen=True, slots=True)
class ToolResultRow:
    """One result; `chars` are the code points of its text, `data` is the text as UTF-8 in one zstd frame."""

    id: str
    agent_id: str
    tool: str
    call_id: str
    chars: int
    created_at: str
    data: bytes


_RESULTS = Table("tool_results", ToolResultRow)


def add_result(connection: Connection, row: ToolResultRow, *, count_max: int, bytes_max: int) -> None:
    """Store a result and remove the agent's oldest ones beyond `count_max` or `bytes_max` of compressed bytes.

    The new one stays, whatever its size.

    Raises:
        apsw.ConstraintError: the id is in use or the agent is missing (translated to `RowConflict`).
    """
    _RESULTS.insert(connection, [row])
    connection.execute(
        "DELETE FROM tool_results WHERE row IN (SELECT row FROM (SELECT row,"
        " row_number() OVER newest AS place, sum(length(data)) OVER newest AS total FROM tool_results"
        " WHERE agent_id = ?1 WINDOW newest AS (ORDER BY row DESC)) WHERE place > 1 AND (place > ?2 OR total > ?3))",
        (row.agent_id, count_max, bytes_max),
    )


def get_result(connection: Connection, agent_id: str, result_id: str) -> ToolResultRow:
    """Return the agent's result with this id.

    Raises:
        RowNotFound: the agent has none, or it was removed for newer ones.
    """
    return _RESULTS.one(
        connection,
        "WHERE id = ? AND agent_id = ?",
        (result_id, agent_id),
        f"stored result {result_id}: only the newest are kept; call the tool again if it is gone",
    )
