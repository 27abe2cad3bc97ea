"""What a turn works with: the constellation's services, handed down as one value."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pattern_core.agents.active import ActiveTurn
from pattern_core.agents.consent import ToolConsent
from pattern_core.agents.journal import Journal
from pattern_core.clock import Clock
from pattern_core.compaction.compaction import Compaction
from pattern_core.ids import Ids
from pattern_core.limits import Limits
from pattern_core.mcp_servers.servers import McpServers
from pattern_core.memory.past.revising import Revisions
from pattern_core.memory.sharing import Sharing
from pattern_core.memory.store import MemoryStore
from pattern_core.models.client import ModelClient
from pattern_core.prompts.making import Prompts
from pattern_core.search import SearchRequest, SearchResult
from pattern_core.tools.registry import ToolRegistry
from pattern_core.tools.toolbox import Toolbox
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.database import Database

Searching = Callable[[SearchRequest], Awaitable[SearchResult]]
DeliverFrom = Callable[[ActiveTurn, UnitOfWork, str, str], Awaitable[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnServices:
    """The services of one constellation. `is_draining` tells that turns should rest at their next step border."""

    constellation_id: str
    database: Database
    journal: Journal
    models: ModelClient
    tools: ToolRegistry
    toolbox: Toolbox
    mcp: McpServers
    consent: ToolConsent
    prompts: Prompts
    compaction: Compaction
    memory: MemoryStore
    sharing: Sharing
    revisions: Revisions
    search: Searching
    clock: Clock
    ids: Ids
    limits: Limits
    deliver: DeliverFrom
    is_draining: Callable[[], bool]
