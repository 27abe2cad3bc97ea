"""Agents: their configuration and status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pattern_db.columns import Json, from_json
from pattern_db.connection import Connection, NamedTable, fetch_all
from pattern_db.enums import AgentStatus
from pattern_db.tables import embeddings


@dataclass(frozen=True, slots=True)
class AgentRow:
    """One agent. `config` is a JSON object, `tool_rules` any JSON value; times are column texts."""

    id: str
    name: str
    model_provider: str
    model_name: str
    system_prompt: str
    created_at: str
    updated_at: str
    description: str | None = None
    config: Mapping[str, Json] = field(default_factory=dict)
    enabled_tools: Sequence[str] = ()
    tool_rules: Json = None
    status: AgentStatus = AgentStatus.ACTIVE


_AGENTS = NamedTable(
    "agents",
    AgentRow,
    "agent {}",
    json=("config", "enabled_tools", "tool_rules"),
    types={"enabled_tools": lambda text: tuple(from_json(text)), "status": AgentStatus},
)
create, get, find = _AGENTS.create, _AGENTS.get, _AGENTS.find


def list_all(connection: Connection) -> list[AgentRow]:
    """Return all agents, by name."""
    return _AGENTS.select(connection, "ORDER BY name")


def count(connection: Connection) -> int:
    """Return the number of agents of any status; reads only an index."""
    return int(fetch_all(connection, "SELECT count(*) FROM agents")[0][0])


def update(connection: Connection, row: AgentRow) -> None:
    """Replace everything but the id and `created_at`.

    Raises:
        RowNotFound: there is no such agent.
        apsw.ConstraintError: the name is in use (translated to `RowConflict`).
    """
    _AGENTS.update(connection, row, f"agent {row.id}")


def delete(connection: Connection, agent_id: str) -> None:
    """Delete the agent with its messages, turns, blocks, archive and vectors.

    Blocks and archive entries carry no foreign key, because groups and the constellation own some too, so they are
    removed here. Tasks, events and activity stay, without an agent.

    Raises:
        RowNotFound: there is no such agent.
    """
    connection.execute(
        "UPDATE event SET turn = NULL WHERE turn IN (SELECT key FROM turn WHERE agent_id = ?)", (agent_id,)
    )
    _AGENTS.delete(connection, "WHERE id = ?", (agent_id,), f"agent {agent_id}")
    connection.execute("DELETE FROM memory_blocks WHERE agent_id = ?", (agent_id,))
    connection.execute("DELETE FROM archival_entries WHERE agent_id = ?", (agent_id,))
    embeddings.delete_scope(connection, agent_id)
