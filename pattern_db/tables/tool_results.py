"""Results of tools that were too long to show whole. The newest of each agent are kept."""

from __future__ import annotations

from dataclasses import dataclass

from pattern_db.connection import Connection
from pattern_db.errors import NotFound


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResultRow:
    """One result; `chars` are the code points of its text, `data` is the text as UTF-8 in one zstd frame."""

    id: str
    agent_id: str
    tool: str
    call_id: str
    chars: int
    created_at: str
    data: bytes


def add(connection: Connection, row: ToolResultRow, *, count_max: int, bytes_max: int) -> None:
    """Store a result and remove the agent's oldest ones beyond `count_max` or `bytes_max` of compressed bytes.

    The new one stays, whatever its size.

    Raises:
        apsw.ConstraintError: the id is taken or the agent is missing (a `Conflict` once translated).
    """
    connection.execute(
        "INSERT INTO tool_results (id, agent_id, tool, call_id, chars, created_at, data) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (row.id, row.agent_id, row.tool, row.call_id, row.chars, row.created_at, row.data),
    )
    connection.execute(
        "DELETE FROM tool_results WHERE row IN (SELECT row FROM (SELECT row,"
        " row_number() OVER newest AS place, sum(length(data)) OVER newest AS total FROM tool_results"
        " WHERE agent_id = ?1 WINDOW newest AS (ORDER BY row DESC)) WHERE place > 1 AND (place > ?2 OR total > ?3))",
        (row.agent_id, count_max, bytes_max),
    )


def get(connection: Connection, agent_id: str, result_id: str) -> ToolResultRow:
    """The agent's result with this id.

    Raises:
        NotFound: the agent has none, or has it no more.
    """
    row = connection.execute(
        "SELECT id, agent_id, tool, call_id, chars, created_at, data FROM tool_results WHERE id = ? AND agent_id = ?",
        (result_id, agent_id),
    ).fetchone()
    if row is None:
        raise NotFound(
            f"there is no stored result {result_id}: only the newest are kept; call the tool again if it is gone"
        )
    return ToolResultRow(
        id=row[0],
        agent_id=row[1],
        tool=row[2],
        call_id=row[3],
        chars=row[4],
        created_at=row[5],
        data=row[6],
    )
