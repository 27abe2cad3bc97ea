"""Agents: their configuration and status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pattern_db.columns import Json, from_json
from pattern_db.connection import Connection, Table
from pattern_db.enums import AgentStatus
from pattern_db.tables import embeddings

HIBERNATION = "hibernation"  # kind of timers


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

    @property
    def takes_part(self) -> bool:
        """Whether groups ask it: it is active, or hibernates by itself, as the condition `TAKES_PART`."""
        by_itself = self.config.get("hibernate_after_s") is not None
        return self.status is AgentStatus.ACTIVE or (by_itself and self.status is AgentStatus.HIBERNATED)


_IDLE_S = "agents.config ->> '$.hibernate_after_s'"
TAKES_PART = f"agents.status = 'active' OR (agents.status = 'hibernated' AND {_IDLE_S} IS NOT NULL)"
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


def expect_rest(connection: Connection, agent_id: str | None = None) -> None:
    """Set the timer of an active agent (None: of all) that hibernates by itself: it finds out when that is."""
    connection.execute(
        "INSERT INTO timer (kind, ref, due_at) SELECT ?1, id, updated_at FROM agents WHERE status = 'active'"
        f" AND {_IDLE_S} IS NOT NULL AND (?2 IS NULL OR id = ?2) ON CONFLICT DO UPDATE SET due_at = excluded.due_at",
        (HIBERNATION, agent_id),
    )


def rests_at(connection: Connection, agent_id: str, now: str) -> str | None:
    """Return when an active agent that gets nothing to do will have been idle for so long that it hibernates; None if
    it does not. A turn that waits for a person does not count as work.
    """
    found: str | None = connection.execute(
        "SELECT strftime('%Y-%m-%dT%H:%M:%fZ', max(updated_at, coalesce((SELECT created_at FROM messages"
        " WHERE agent_id = ?1 ORDER BY position DESC LIMIT 1), ''), iif(EXISTS (SELECT 1 FROM turn"
        f" WHERE agent_id = ?1 AND ended_at IS NULL AND status <> 'waiting'), ?2, '')), ({_IDLE_S}) || ' seconds')"
        f" FROM agents WHERE id = ?1 AND status = 'active' AND {_IDLE_S} IS NOT NULL",
        (agent_id, now),
    ).get
    return found


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
