"""The agents of a constellation: create, find, update and delete them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace

import trio

from pattern_core.agent_settings import settings_of
from pattern_core.errors import Conflict, InvalidInput, NotFound, PatternError, VersionMismatch, instead_of
from pattern_core.limits import Limits
from pattern_core.memory.block import Attribution, NewBlock
from pattern_core.memory.store import MemoryStore
from pattern_core.rules.ruleset import RuleSet
from pattern_core.timers import Timers
from pattern_core.tools.registry import AUTO, PROFILES, ToolRegistry
from pattern_core.unit_of_work import Storage, UnitOfWork
from pattern_core.untrusted import check_plain
from pattern_db.columns import Json
from pattern_db.connection import Connection
from pattern_db.enums import AgentStatus
from pattern_db.errors import RowNotFound
from pattern_db.journal import turns
from pattern_db.tables import agents, timers
from pattern_db.tables.agents import HIBERNATION, AgentRow
from pattern_db.tables.timers import TimerRow

NAME_CHARS_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec:
    """An agent to create. `enabled_tools` None: the profile for its model; `memory` None: the two default blocks."""

    name: str
    model_provider: str
    model_name: str
    description: str | None = None
    system_prompt: str = ""
    config: Mapping[str, Json] = field(default_factory=dict)
    enabled_tools: Sequence[str] | None = None
    tool_rules: Json = None
    memory: Sequence[NewBlock] | None = None


CHANGEABLE = {one.name for one in fields(AgentSpec)} - {"memory"} | {"status"}
DEFAULT_MEMORY = (
    NewBlock(label="persona", description="Who you are and how you work."),
    NewBlock(label="human", description="What you know about the person."),
)

Agent = AgentRow


def version_of(agent: Agent) -> str:
    """Return a digest, in hex, of everything that can be changed in an agent."""
    values = [getattr(agent, name) for name in sorted(CHANGEABLE - {"enabled_tools"})]
    text = json.dumps([values, list(agent.enabled_tools)], sort_keys=True, default=dict)
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=12).hexdigest()


class Roster:
    """Finds agents, from memory after the first look; every change is made here."""

    def __init__(
        self,
        storage: Storage,
        memory: MemoryStore,
        tools: ToolRegistry,
        limits: Limits,
        timers: Timers,
        *,
        on_rename: Callable[[str, str | None], None],
    ) -> None:
        """`on_rename` is called with an agent's id and new name, None if it was deleted."""
        self._storage = storage
        self._memory = memory
        self._tools = tools
        self._limits = limits
        self._timers = timers
        timers.on_due(HIBERNATION, self._look)
        self._on_rename = on_rename
        self._known: dict[str, Agent] = {}
        self._ids_by_name: dict[str, str] = {}  # of agents that were looked up by name
        self.changes = 0  # how often an agent was changed or deleted
        self.on_hibernation: Callable[[str], None] = lambda _agent_id: None
        self._changing = trio.Lock()  # a change starts from the result of the previous one

    async def get(self, id_or_name: str) -> Agent:
        """Return the agent with this id or name.

        Raises:
            NotFound: there is none.
        """
        known = self._known.get(id_or_name) or self._known.get(self._ids_by_name.get(id_or_name, ""))
        if known is not None:
            return known
        changes = self.changes
        with instead_of(RowNotFound, NotFound(f"there is no agent {id_or_name!r} in this constellation")):
            agent = await self._storage.database.read(agents.find, id_or_name)
        if self.changes != changes:
            return agent  # it may have been changed or deleted: not cached
        agent = self._known.setdefault(agent.id, agent)  # it may have been changed while it was read
        self._ids_by_name[agent.name] = agent.id
        return agent

    async def awake(self, agent_id: str) -> Agent:
        """Return an agent that begins to work: one that is hibernated becomes active.

        Raises:
            NotFound: there is none.
        """
        agent = await self.get(agent_id)
        if agent.status is AgentStatus.HIBERNATED:
            agent = await self.update(agent.id, {"status": AgentStatus.ACTIVE})
        return agent

    async def all(self) -> list[Agent]:
        """Return all agents, by name."""
        return await self._storage.database.read(agents.list_all)

    async def create(self, spec: AgentSpec, *, author: str) -> Agent:
        """Create an agent with its memory blocks, in one transaction.

        Raises:
            InvalidInput: a field is invalid, a tool does not exist or is missing for a rule, or there are too many
            agents.
            Conflict: the name is taken.
        """
        now = self._storage.now()
        tools = (AUTO,) if spec.enabled_tools is None else tuple(spec.enabled_tools)
        agent = Agent(
            id=self._storage.ids.new("agent"),
            name=spec.name.strip(),
            description=spec.description,
            model_provider=spec.model_provider,
            model_name=spec.model_name,
            system_prompt=spec.system_prompt,
            config=spec.config,
            enabled_tools=tools,
            tool_rules=RuleSet.of(spec.tool_rules).to_json() or None,
            created_at=now,
            updated_at=now,
        )
        self._check(agent, CHANGEABLE)
        work = UnitOfWork()
        work.store(_store, agent, agents_max=self._limits.agents_max)
        work.event("agent.created", {"agent_id": agent.id, "name": agent.name})
        for block in DEFAULT_MEMORY if spec.memory is None else spec.memory:
            await self._memory.create(agent.id, block, by=Attribution(author=author), work=work)
        work.when_settled(lambda _committed: self._timers.changed())
        await self._storage.commit(work)
        return agent

    async def update(self, id_or_name: str, changes: Mapping[str, object], *, version: str | None = None) -> Agent:
        """Update the given fields. A running turn keeps the old values; the next turn uses the new ones.

        With a `version` (`version_of`) only if the agent is still at it.

        Raises:
            NotFound: there is no such agent.
            InvalidInput: a field is invalid or cannot be changed.
            Conflict: the new name is taken.
            VersionMismatch: it is at another version.
        """
        unknown = sorted(set(changes) - CHANGEABLE)
        if unknown:
            raise InvalidInput(f"an agent has no changeable field {', '.join(unknown)}; check the name")
        if "name" in changes:
            changes = {**changes, "name": str(changes["name"]).strip()}
        if "tool_rules" in changes:
            changes = {**changes, "tool_rules": RuleSet.of(changes["tool_rules"]).to_json() or None}
        async with self._changing:
            agent = await self.get(id_or_name)
            if version not in (None, version_of(agent)):
                raise VersionMismatch(f"the agent {agent.name!r} was changed by another request; read it again")
            changed = replace(agent, **changes, updated_at=self._storage.now())  # type: ignore[arg-type]  # checked by name above, by type at the border
            self._check(changed, changes)
            changed = replace(changed, status=AgentStatus(changed.status))
            work = UnitOfWork()
            work.store(_store, changed)
            work.event("agent.changed", {"agent_id": agent.id, "fields": sorted(changes)})
            work.when_settled(lambda _committed: self._timers.changed())
            await self._storage.commit(work)
            self.changes += 1
            self._known[agent.id] = changed
            self._ids_by_name.pop(agent.name, None)
        if changed.name != agent.name:
            self._on_rename(agent.id, changed.name)
        if changed.status is AgentStatus.HIBERNATED is not agent.status:
            self.on_hibernation(agent.id)
        return changed

    async def delete(self, id_or_name: str) -> Agent:
        """Delete an agent with its messages, memory and turns; only a backup can restore them.

        Raises:
            NotFound: there is no such agent.
            RowConflict: a turn of it has not ended.
        """
        async with self._changing:
            agent = await self.get(id_or_name)
            work = UnitOfWork()
            work.store(turns.require_rest, agent.id)
            work.store(agents.delete, agent.id)
            work.event("agent.deleted", {"agent_id": agent.id, "name": agent.name})
            await self._storage.commit(work)
            self.changes += 1
            self._known.pop(agent.id, None)
            self._ids_by_name.pop(agent.name, None)
        self._on_rename(agent.id, None)
        return agent

    async def _look(self, timer: TimerRow, work: UnitOfWork) -> None:
        """Hibernate an agent that has been idle for as long as its config says, or look again when it may have been."""
        now = self._storage.now()
        rests_at = await self._storage.database.read(agents.rests_at, timer.ref, now)
        if rests_at is not None and rests_at > now:
            work.store(timers.put, TimerRow(HIBERNATION, timer.ref, rests_at))
        elif rests_at is not None:
            with suppress(PatternError):  # deleted in this moment, or nothing that could be stored again
                await self.update(timer.ref, {"status": AgentStatus.HIBERNATED})

    def _check(self, agent: Agent, changed: Collection[str]) -> None:
        """Refuse an agent with invalid fields; unchanged ones may hold values that are no longer known."""
        if not agent.name or len(agent.name) > NAME_CHARS_MAX or not agent.name.isprintable() or "/" in agent.name:
            raise InvalidInput(f"an agent's name must have 1 to {NAME_CHARS_MAX} printable characters and no slash")
        check_plain(agent.description or "", "the agent's description")
        check_plain(agent.system_prompt, "the agent's system_prompt")
        check_plain(f"{agent.model_provider}{agent.model_name}", "the model's name")
        if not agent.model_provider or not agent.model_name:
            raise InvalidInput("an agent needs a model_provider and a model_name")
        missing = [name for name in agent.enabled_tools if not self._tools.accepts(name)]
        if missing and "enabled_tools" in changed:
            off = "".join(f" ({self._tools.off[name]})" for name in missing if name in self._tools.off)
            there = ", ".join((*self._tools.names, AUTO, *PROFILES))
            raise InvalidInput(f"there is no tool {', '.join(missing)}{off}; there are {there}")
        if agent.status not in set(AgentStatus):
            raise InvalidInput(f"an agent's status is one of {', '.join(AgentStatus)}")
        if "config" in changed:
            settings_of(agent.config, is_new=True)
        if "tool_rules" in changed or "enabled_tools" in changed:
            RuleSet.of(agent.tool_rules).check_enabled(self._tools.named(agent.enabled_tools))


def _store(connection: Connection, agent: Agent, *, agents_max: int | None = None) -> None:
    """Store a changed agent, or with `agents_max`, their maximum number, a new one."""
    with suppress(RowNotFound):
        if agents.find(connection, agent.name).id != agent.id:
            raise Conflict(f"an agent named {agent.name!r} already exists; choose another name")
    if agents_max is None:
        agents.update(connection, agent)
    elif agents.count(connection) < agents_max:
        agents.create(connection, agent)
    else:
        raise InvalidInput(
            f"a constellation has at most {agents_max} agents; delete one, or create another constellation"
        )
    agents.expect_rest(connection, agent.id)
