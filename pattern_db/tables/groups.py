"""Groups of agents, and their members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pattern_db.columns import Json, from_json, to_json
from pattern_db.connection import Connection, Table
from pattern_db.tables.agents import TAKES_PART


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group. `pattern_type` names the coordination, `pattern_config` configures it; `state` is what the coordination
    keeps from one turn to the next.
    """

    id: str
    name: str
    pattern_type: str
    created_at: str
    updated_at: str
    description: str | None = None
    pattern_config: Mapping[str, Json] = field(default_factory=dict)
    state: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group: the id and name of an agent, whether it takes part (`is_active`), and its place in the
    group. `role` is `regular`, `supervisor`, `observer`, `specialist`, or None: regular.
    """

    id: str
    name: str
    role: str | None = None
    domain: str | None = None
    capabilities: tuple[str, ...] = ()
    is_active: bool = True


_GROUPS = Table("agent_groups", GroupRow, "group {}", order="name", json=("pattern_config", "state"))
create, find, list_all = _GROUPS.create, _GROUPS.find, _GROUPS.list_all
_MEMBERS = Table(
    "group_members",
    Member,
    source="group_members JOIN agents ON agents.id = agent_id",
    columns={"id": "agents.id", "is_active": TAKES_PART},
    types={"capabilities": lambda text: tuple(from_json(text)), "is_active": bool},
)


def update(connection: Connection, row: GroupRow) -> None:
    """Replace everything but the id, `created_at` and the state.

    Raises:
        RowNotFound: there is no such group.
        apsw.ConstraintError: the name is taken (a `RowConflict` once translated).
    """
    changes = {
        "name": row.name,
        "description": row.description,
        "pattern_type": row.pattern_type,
        "pattern_config": to_json(dict(row.pattern_config)),
        "updated_at": row.updated_at,
    }
    _GROUPS.change(connection, row.id, changes)


def set_state(connection: Connection, group_id: str, state: Mapping[str, Json]) -> None:
    """Store what the coordination keeps.

    Raises:
        RowNotFound: there is no such group.
    """
    _GROUPS.change(connection, group_id, {"state": to_json(dict(state))})


def delete(connection: Connection, group_id: str) -> None:
    """Delete the group, its memberships and its turns. The turns of its members stay.

    Raises:
        RowNotFound: there is no such group.
    """
    connection.execute(
        "UPDATE event SET turn = NULL WHERE turn IN (SELECT key FROM turn WHERE group_id = ?)", (group_id,)
    )
    _GROUPS.delete(connection, group_id)
    connection.execute("DELETE FROM memory_blocks WHERE agent_id = ?", (group_id,))


def members(connection: Connection, group_id: str) -> list[Member]:
    """Return the members of a group in the order in which they are asked."""
    return _MEMBERS.select(connection, "WHERE group_id = ? ORDER BY ordinal, joined_at, agent_id", (group_id,))


def replace_members(connection: Connection, group_id: str, members: Sequence[Member], now: str) -> None:
    """Replace the members of a group. Those that stay keep the time at which they joined.

    Raises:
        apsw.ConstraintError: an agent is missing (a `RowConflict` once translated).
    """
    connection.execute(
        "DELETE FROM group_members WHERE group_id = ? AND agent_id NOT IN (SELECT value FROM json_each(?))",
        (group_id, to_json([one.id for one in members])),
    )
    connection.executemany(
        "INSERT INTO group_members (group_id, agent_id, joined_at, ordinal, role, domain, capabilities)"
        " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET ordinal = excluded.ordinal, role = excluded.role,"
        " domain = excluded.domain, capabilities = excluded.capabilities",
        [
            (group_id, one.id, now, ordinal, one.role, one.domain, to_json(one.capabilities))
            for ordinal, one in enumerate(members)
        ],
    )
