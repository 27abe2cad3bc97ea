"""The groups of a constellation: creating, finding, changing and deleting them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from pattern_core.agents import Agent, Roster
from pattern_core.errors import Conflict, InvalidInput, NotFound
from pattern_core.groups.coordination import OBSERVER, CommonConfig, Coordination, Member
from pattern_core.groups.coordinations import COORDINATIONS
from pattern_core.unit_of_work import Storage, UnitOfWork, given_or_alone
from pattern_core.untrusted import check_plain
from pattern_core.validation import read, without_null
from pattern_db.columns import Json
from pattern_db.connection import Connection
from pattern_db.enums import AgentStatus
from pattern_db.errors import RowConflict, RowNotFound
from pattern_db.tables import agents, groups

GroupRow = groups.GroupRow  # a group as it is stored
NAME_CHARS_MAX = 100
MEMBERS_MAX = 100
ROLES = ("regular", "supervisor", OBSERVER, "specialist")


class MemberSpec(NamedTuple):
    """An agent (by id or name) to make a member."""

    agent_id: str
    role: str | None = None
    domain: str | None = None
    capabilities: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group with its members, in order."""

    row: GroupRow
    members: Sequence[Member]

    @property
    def id(self) -> str:
        """The group's id."""
        return self.row.id

    @property
    def name(self) -> str:
        """The group's name."""
        return self.row.name


Follow: TypeAlias = Callable[[Group, dict[str, Json] | None, UnitOfWork], Awaitable[None]]
"""Adds to the transaction that stores a group the schedule by which it works by itself, or removes that (None)."""


class Groups:
    """The groups of one constellation."""

    def __init__(self, storage: Storage, roster: Roster, *, on_change: Callable[[], None]) -> None:
        """`on_change` is called when the members of a group may have changed: the blocks that they see change too."""
        self._storage = storage
        self._roster = roster
        self._on_change = on_change
        self.follow: Follow | None = None  # set by the schedules

    async def get(self, id_or_name: str) -> Group:
        """Return the group with this id or name.

        Raises:
            NotFound: there is none.
        """
        try:
            return await self._storage.database.read(_read, id_or_name)
        except RowNotFound:
            raise NotFound(f"there is no group {id_or_name!r} in this constellation") from None

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
        row = GroupRow(
            id=self._storage.ids.new("group"),
            name=name.strip(),
            description=description,
            pattern_type=pattern_type,
            pattern_config=dict(pattern_config or {}),
            created_at=now,
            updated_at=now,
        )
        return await self._store(row, await self._rows(row.id, members), groups.create, "group.created")

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
        row = replace(group.row, **changes, updated_at=self._storage.now())
        kept = await self._storage.database.read(groups.members, group.id)
        rows = kept if members is None else await self._rows(group.id, members, kept)
        return await self._store(row, rows, groups.update, "group.changed")

    async def delete(self, group: Group) -> None:
        """Delete a group with its conversation; what its members said stays in theirs.

        Raises:
            NotFound: it does not exist any longer.
        """
        async with given_or_alone(None, self._storage.commit) as work:
            work.store(groups.delete, group.id)
            work.event("group.deleted", {"group_id": group.id, "name": group.name})
        self._on_change()

    async def _rows(
        self, group_id: str, members: Sequence[MemberSpec], kept: Sequence[groups.MemberRow] = ()
    ) -> list[groups.MemberRow]:
        joined = {row.agent_id: row.joined_at for row in kept}
        found: list[groups.MemberRow] = []
        for ordinal, one in enumerate(members):
            if one.role is not None and one.role not in ROLES:
                raise InvalidInput(f"a member's role is one of {', '.join(ROLES)}, not {one.role!r}")
            agent = await self._roster.get(one.agent_id)
            if any(row.agent_id == agent.id for row in found):
                raise InvalidInput(f"{agent.name} is named twice; an agent is a member once")
            found.append(
                groups.MemberRow(
                    group_id=group_id,
                    agent_id=agent.id,
                    ordinal=ordinal,
                    role=one.role,
                    domain=one.domain,
                    capabilities=one.capabilities,
                    joined_at=joined.get(agent.id, self._storage.now()),
                )
            )
        return found

    async def _store(self, row: GroupRow, rows: Sequence[groups.MemberRow], store: Any, event: str) -> Group:
        if not 0 < len(check_plain(row.name, "a group's name")) <= NAME_CHARS_MAX:
            raise InvalidInput(f"a group's name has 1 to {NAME_CHARS_MAX} characters")
        if len(rows) > MEMBERS_MAX:
            raise InvalidInput(f"a group has at most {MEMBERS_MAX} members, and these are {len(rows)}")
        group = Group(row=row, members=members_of(rows, {one.id: one for one in await self._roster.all()}))
        coordination, config = coordination_of(row.pattern_type, row.pattern_config, is_new=True)
        if trouble := coordination.trouble(config, [one for one in group.members if one.role != OBSERVER]):
            raise InvalidInput("; ".join(trouble))
        work = UnitOfWork()
        work.store(store, row)
        work.store(groups.replace_members, row.id, rows)
        work.event(event, {"group_id": row.id, "name": row.name})
        if self.follow is not None:
            plan = None if coordination.schedule_of is None else coordination.schedule_of(config)
            await self.follow(group, plan, work)
        try:
            await self._storage.commit(work)
        except RowConflict:
            raise Conflict(f"the name {row.name!r} is taken by another group; choose another one") from None
        self._on_change()
        return group


def coordination_of(
    pattern_type: str, pattern_config: Mapping[str, Json], *, is_new: bool = False
) -> tuple[Coordination[Any], CommonConfig]:
    """Return a coordination with its config; fields that a newer version stored are ignored, unless it `is_new`.

    Raises:
        InvalidInput: there is no such coordination, or a value is invalid.
    """
    coordination = COORDINATIONS.get(pattern_type)
    if coordination is None:
        raise InvalidInput(f"there is no pattern {pattern_type!r}; there are {', '.join(COORDINATIONS)}")
    config = read(
        coordination.adapter,
        without_null(dict(pattern_config)),
        coordination.known,
        place="pattern_config",
        ignores_unknown=not is_new,
    )
    return coordination, config


def members_of(rows: Sequence[groups.MemberRow], agents: Mapping[str, Agent]) -> list[Member]:
    """Return the members, with the names and the status of their agents."""
    return [
        Member(
            id=row.agent_id,
            name=agents[row.agent_id].name,
            role=row.role,
            domain=row.domain,
            capabilities=tuple(row.capabilities),
            is_active=agents[row.agent_id].status is AgentStatus.ACTIVE,
        )
        for row in rows
        if row.agent_id in agents
    ]


def _read(connection: Connection, id_or_name: str) -> Group:
    row = groups.find(connection, id_or_name)
    return Group(
        row=row,
        members=members_of(groups.members(connection, row.id), {one.id: one for one in agents.list_all(connection)}),
    )


def _read_all(connection: Connection) -> list[Group]:
    known = {one.id: one for one in agents.list_all(connection)}
    rows = groups.members(connection)
    return [
        Group(row=row, members=members_of([one for one in rows if one.group_id == row.id], known))
        for row in groups.list_all(connection)
    ]
