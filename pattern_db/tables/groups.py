"""Groups of agents, and their members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pattern_db.columns import Json, to_json
from pattern_db.connection import Connection, Table


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
class MemberRow:
    """An agent's place in a group. `role` is `regular`, `supervisor`, `observer`, `specialist`, or None: regular."""

    group_id: str
    agent_id: str
    joined_at: str
    ordinal: int = 0
    role: str | None = None
    domain: str | None = None
    capabilities: Sequence[str] = ()


_GROUPS = Table("agent_groups", GroupRow, json=("pattern_config", "state"))
_MEMBERS = Table("group_members", MemberRow, json=("capabilities",))


def create(connection: Connection, row: GroupRow) -> None:
    """Add a group.

    Raises:
        apsw.ConstraintError: the name is taken (a `RowConflict` once translated).
    """
    _GROUPS.insert(connection, [row])


def find(connection: Connection, id_or_name: str) -> GroupRow:
    """Return the group with this id or, if there is none, this name.

    Raises:
        RowNotFound: there is none.
    """
    where = "WHERE id = ?1 OR name = ?1 ORDER BY id = ?1 DESC LIMIT 1"
    return _GROUPS.one(connection, where, (id_or_name,), f"group {id_or_name}")


def list_all(connection: Connection) -> list[GroupRow]:
    """Return all groups, by name."""
    return _GROUPS.select(connection, "ORDER BY name")


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
    _GROUPS.change(connection, row.id, changes, f"group {row.id}")


def set_state(connection: Connection, group_id: str, state: Mapping[str, Json]) -> None:
    """Store what the coordination keeps.

    Raises:
        RowNotFound: there is no such group.
    """
    _GROUPS.change(connection, group_id, {"state": to_json(dict(state))}, f"group {group_id}")


def delete(connection: Connection, group_id: str) -> None:
    """Delete the group, its memberships and its turns. The turns of its members stay.

    Raises:
        RowNotFound: there is no such group.
    """
    connection.execute(
        "UPDATE event SET turn = NULL WHERE turn IN (SELECT key FROM turn WHERE group_id = ?)", (group_id,)
    )
    _GROUPS.delete(connection, "WHERE id = ?", (group_id,), f"group {group_id}")
    connection.execute("DELETE FROM memory_blocks WHERE agent_id = ?", (group_id,))


def members(connection: Connection, group_id: str | None = None) -> list[MemberRow]:
    """Return the members of a group, or of all groups, in the order in which they are asked."""
    return _MEMBERS.select(
        connection, "WHERE ?1 IS NULL OR group_id = ?1 ORDER BY group_id, ordinal, joined_at, agent_id", (group_id,)
    )


def replace_members(connection: Connection, group_id: str, rows: Sequence[MemberRow]) -> None:
    """Replace the members of a group.

    Raises:
        apsw.ConstraintError: an agent is missing, or named twice (a `RowConflict` once translated).
    """
    connection.execute("DELETE FROM group_members WHERE group_id = ?", (group_id,))
    _MEMBERS.insert(connection, rows)
