"""Agents: their configuration and status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pattern_db.columns import Json, from_json
from pattern_db.connection import Connection, Table
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


_AGENTS = Table(
    "agents",
    AgentRow,
    "agent {}",
    order="name",
    json=("config", "enabled_tools", "tool_rules"),
    types={"enabled_tools": lambda text: tuple(from_json(text)), "status": AgentStatus},
)
create, get, find, update = _AGENTS.create, _AGENTS.get, _AGENTS.find, _AGENTS.update
list_all, count = _AGENTS.list_all, _AGENTS.count


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
    _AGENTS.delete(connection, agent_id)
    connection.execute("DELETE FROM memory_blocks WHERE agent_id = ?", (agent_id,))
    connection.execute("DELETE FROM archival_entries WHERE agent_id = ?", (agent_id,))
    embeddings.delete_scope(connection, agent_id)
