"""Agents: their configuration and life."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pattern_db.columns import Json, from_json, to_json
from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import AgentStatus
from pattern_db.errors import NotFound
from pattern_db.tables import embeddings


@dataclass(frozen=True, slots=True, kw_only=True)
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


def create(connection: Connection, row: AgentRow) -> None:
    """Add an agent.

    Raises:
        apsw.ConstraintError: the id or name is taken (a `Conflict` once translated).
    """
    connection.execute(
        "INSERT INTO agents (id, name, description, model_provider, model_name, system_prompt, config,"
        " enabled_tools, tool_rules, status, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            row.id,
            row.name,
            row.description,
            row.model_provider,
            row.model_name,
            row.system_prompt,
            to_json(dict(row.config)),
            to_json(list(row.enabled_tools)),
            None if row.tool_rules is None else to_json(row.tool_rules),
            row.status,
            row.created_at,
            row.updated_at,
        ),
    )


def get(connection: Connection, agent_id: str) -> AgentRow:
    """The agent with this id.

    Raises:
        NotFound: there is none.
    """
    found = _select(connection, "WHERE id = ?", (agent_id,))
    if not found:
        raise NotFound(f"there is no agent {agent_id}")
    return found[0]


def find(connection: Connection, id_or_name: str) -> AgentRow:
    """The agent with this id, else the one with this name.

    Raises:
        NotFound: there is none.
    """
    found = _select(connection, "WHERE id = ?1 OR name = ?1 ORDER BY id = ?1 DESC LIMIT 1", (id_or_name,))
    if not found:
        raise NotFound(f"there is no agent {id_or_name}")
    return found[0]


def list_all(connection: Connection, *, status: AgentStatus | None = None) -> list[AgentRow]:
    """All agents (of one status), by name."""
    return _select(connection, "WHERE ?1 IS NULL OR status = ?1 ORDER BY name", (status,))


def count(connection: Connection) -> int:
    """How many agents there are, of whatever status; reads an index and no agent."""
    return int(fetch_all(connection, "SELECT count(*) FROM agents")[0][0])


def update(connection: Connection, row: AgentRow) -> None:
    """Replace everything but the id and `created_at`.

    Raises:
        NotFound: there is no such agent.
        apsw.ConstraintError: the name is taken (a `Conflict` once translated).
    """
    connection.execute(
        "UPDATE agents SET name = ?, description = ?, model_provider = ?, model_name = ?, system_prompt = ?,"
        " config = ?, enabled_tools = ?, tool_rules = ?, status = ?, updated_at = ? WHERE id = ?",
        (
            row.name,
            row.description,
            row.model_provider,
            row.model_name,
            row.system_prompt,
            to_json(dict(row.config)),
            to_json(list(row.enabled_tools)),
            None if row.tool_rules is None else to_json(row.tool_rules),
            row.status,
            row.updated_at,
            row.id,
        ),
    )
    if connection.changes() == 0:
        raise NotFound(f"there is no agent {row.id}")


def delete(connection: Connection, agent_id: str) -> None:
    """Remove the agent with its messages, turns, blocks, archive and vectors.

    Blocks and archive entries carry no foreign key, because groups and the constellation own some too, so they are
    removed here. Tasks, events and activity stay and lose their agent.

    Raises:
        NotFound: there is no such agent.
    """
    connection.execute(
        "UPDATE event SET turn = NULL WHERE turn IN (SELECT key FROM turn WHERE agent_id = ?)", (agent_id,)
    )
    connection.execute("DELETE FROM agents WHERE id = ?", (agent_id,))
    if connection.changes() == 0:
        raise NotFound(f"there is no agent {agent_id}")
    connection.execute("DELETE FROM memory_blocks WHERE agent_id = ?", (agent_id,))
    connection.execute("DELETE FROM archival_entries WHERE agent_id = ?", (agent_id,))
    embeddings.delete_scope(connection, agent_id)


def _select(connection: Connection, where: str, values: tuple[str | None, ...]) -> list[AgentRow]:
    rows = connection.execute(
        "SELECT id, name, description, model_provider, model_name, system_prompt, config, enabled_tools, tool_rules,"
        f" status, created_at, updated_at FROM agents {where}",
        values,
    )
    return [
        AgentRow(
            id=row[0],
            name=row[1],
            description=row[2],
            model_provider=row[3],
            model_name=row[4],
            system_prompt=row[5],
            config=from_json(row[6]),
            enabled_tools=tuple(from_json(row[7])),
            tool_rules=from_json(row[8]),
            status=AgentStatus(row[9]),
            created_at=row[10],
            updated_at=row[11],
        )
        for row in rows
    ]
