"""The groups of a constellation: creating, finding, changing and deleting them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

from pydantic import TypeAdapter

from pattern_core.agents import Roster
from pattern_core.errors import Conflict, InvalidInput, NotFound, instead_of
from pattern_core.groups.coordination import OBSERVER, Coordination, strangers
from pattern_core.groups.coordinations import COORDINATIONS
from pattern_core.unit_of_work import Storage, UnitOfWork, given_or_alone
from pattern_core.untrusted import check_plain
from pattern_core.validation import names_in, read, without_null
from pattern_db.columns import Json
from pattern_db.connection import Connection
from pattern_db.errors import RowConflict, RowNotFound
from pattern_db.journal import turns
from pattern_db.tables import groups
from pattern_db.tables.groups import GroupRow, Member

NAME_CHARS_MAX = 100
MEMBERS_MAX = 100
ROLES = ("regular", "supervisor", OBSERVER, "specialist")


_stored = attrgetter(*(one.name for one in fields(GroupRow)))


class MemberSpec(NamedTuple):
    """An agent (by id or name) to make a member."""

    agent_id: str
    role: str | None = None
    domain: str | None = None
    capabilities: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Group(GroupRow):
    """A group with its members, in order, as they are when it is read."""

    members: Sequence[Member] = ()

    @property
    def workers(self) -> list[Member]:
        """The members that can be asked: all but observers."""
        return [one for one in self.members if one.role != OBSERVER]


Follow: TypeAlias = Callable[[Group, dict[str, Json] | None, UnitOfWork], Awaitable[None]]
"""Adds to the transaction that stores a group the schedule by which it works by itself, or removes that (None)."""


class Groups:
    """The groups of one constellation."""

    def __init__(self, storage: Storage, roster: Roster, *, on_change: Callable[[], None]) -> None:
        """`on_change` is called when the members of a group may have changed: the blocks that they see change too."""
        self._storage = storage
        self._roster = roster
        self._on_change = on_change
        self.changes = 0  # how often a group was changed or deleted
        self.follow: Follow | None = None  # set by the schedules

    async def get(self, id_or_name: str) -> Group:
        """Return the group with this id or name.

        Raises:
            NotFound: there is none.
        """
        return await self._storage.database.read(read_group, id_or_name)

    async def all(self) -> list[Group]:
        """Return all groups, by name."""
        return await self._storage.database.read(_read_all)

    async def create(
        self,
        *,
        name: str,
        pattern_type: str,
        members: Sequence[MemberSpec],
        description: str | None = None,
        pattern_config: Mapping[str, Json] | None = None,
    ) -> Group:
        """Create a group.

        Raises:
            InvalidInput: a field is invalid, or the coordination cannot run with this config and these members.
            NotFound: an agent does not exist.
            Conflict: the name is taken.
        """
        now = self._storage.now()
        group = Group(
            id=self._storage.ids.new("group"),
            name=name.strip(),
            description=description,
            pattern_type=pattern_type,
            pattern_config=dict(pattern_config or {}),
            created_at=now,
            updated_at=now,
            members=await self._found(members),
        )
        return await self._store(group, groups.create, "group.created")

    async def update(
        self, id_or_name: str, changes: Mapping[str, Any], *, members: Sequence[MemberSpec] | None = None
    ) -> Group:
        """Change the given fields and, if given, the members. A running turn keeps the old ones.

        Raises:
            InvalidInput, NotFound, Conflict: as `create`.
        """
        group = await self.get(id_or_name)
        if "name" in changes:
            changes = {**changes, "name": str(changes["name"]).strip()}
        found = group.members if members is None else await self._found(members)
        group = replace(group, **changes, members=found, updated_at=self._storage.now())
        return await self._store(group, groups.update, "group.changed")

    async def delete(self, group: Group) -> None:
        """Delete a group with its conversation; what its members said stays in theirs.

        Raises:
            NotFound: it does not exist any longer.
            Conflict: a turn of it has not ended.
        """
        async with given_or_alone(None, self._storage.commit) as work:
            work.store(turns.require_rest, group.id)
            work.store(groups.delete, group.id)
            work.event("group.deleted", {"group_id": group.id, "name": group.name})
        self.changes += 1
        self._on_change()

    async def _found(self, members: Sequence[MemberSpec]) -> list[Member]:
        found: dict[str, Member] = {}
        for one in members:
            if one.role is not None and one.role not in ROLES:
                raise InvalidInput(f"a member's role is one of {', '.join(ROLES)}, not {one.role!r}")
            agent = await self._roster.get(one.agent_id)
            if agent.id in found:
                raise InvalidInput(f"{agent.name} is named twice; an agent is a member once")
            found[agent.id] = Member(agent.id, agent.name, one.role, one.domain, one.capabilities, agent.takes_part)
        return [*found.values()]

    async def _store(self, group: Group, store: Callable[[Connection, GroupRow], None], event: str) -> Group:
        if not 0 < len(check_plain(group.name, "a group's name")) <= NAME_CHARS_MAX:
            raise InvalidInput(f"a group's name has 1 to {NAME_CHARS_MAX} characters")
        if len(group.members) > MEMBERS_MAX:
            raise InvalidInput(f"a group has at most {MEMBERS_MAX} members, and these are {len(group.members)}")
        coordination = coordination_of(group.pattern_type, group.pattern_config, is_new=True)
        if trouble := [*strangers(coordination, group.workers), *coordination.trouble(group.workers)]:
            raise InvalidInput("; ".join(trouble))
        work = UnitOfWork()
        work.store(store, group)
        work.store(groups.replace_members, group.id, group.members, group.updated_at)
        work.event(event, {"group_id": group.id, "name": group.name})
        if self.follow is not None:
            await self.follow(group, coordination.own_plan(), work)
        taken = Conflict(f"the name {group.name!r} is taken by another group; choose another one")
        with instead_of(RowConflict, taken):
            await self._storage.commit(work)
        self.changes += 1
        self._on_change()
        return group


def coordination_of(pattern_type: str, pattern_config: Mapping[str, Json], *, is_new: bool = False) -> Coordination:
    """Return a configured coordination; fields that a newer version stored are ignored, unless it `is_new`.

    Raises:
        InvalidInput: there is no such coordination, or a value is invalid.
    """
    kind = COORDINATIONS.get(pattern_type)
    if kind is None:
        raise InvalidInput(f"there is no pattern {pattern_type!r}; there are {', '.join(COORDINATIONS)}")
    value, known = without_null(dict(pattern_config)), names_in(kind)
    return read(_adapter(kind), value, known, place="pattern_config", ignores_unknown=not is_new)


@cache
def _adapter(kind: type[Coordination]) -> TypeAdapter[Coordination]:
    return TypeAdapter(kind)


def read_group(connection: Connection, id_or_name: str) -> Group:
    """Return the group with this id or name.

    Raises:
        NotFound: there is none.
    """
    with instead_of(RowNotFound, NotFound(f"there is no group {id_or_name!r} in this constellation")):
        return _with_members(connection, groups.find(connection, id_or_name))


def _read_all(connection: Connection) -> list[Group]:
    return [_with_members(connection, row) for row in groups.list_all(connection)]


def _with_members(connection: Connection, row: GroupRow) -> Group:
    return Group(*_stored(row), members=groups.members(connection, row.id))
