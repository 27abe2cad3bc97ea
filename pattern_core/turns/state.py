"""What a turn works with, what others may ask of it, and how it ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from pattern_core.agents import Agent
from pattern_core.budgets.amounts import WorstCase, dearest, worst_case
from pattern_core.compaction.compaction import Compaction
from pattern_core.errors import PatternError
from pattern_core.ids import Clock, Ids
from pattern_core.journal import Journal
from pattern_core.limits import Limits
from pattern_core.mcp_servers.servers import McpServers
from pattern_core.memory.revisions import Revisions
from pattern_core.memory.sharing import Sharing
from pattern_core.memory.store import MemoryStore
from pattern_core.messages import ToolResult
from pattern_core.models.client import ModelClient
from pattern_core.models.routing import FactsOf, ModelChain
from pattern_core.prompts.build import Prompt
from pattern_core.prompts.collect import Prompts
from pattern_core.search import SearchRequest, SearchResult
from pattern_core.tools.registry import ToolRegistry
from pattern_core.tools.tool import Toolbox
from pattern_core.turns.admission import ROLLED_BACK
from pattern_core.turns.consent import ToolConsent
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.database import Database
from pattern_db.enums import EffectStatus
from pattern_db.journal.steps import EffectRow


class TurnStopped(PatternError):
    """The turn ends at this step border, because it was asked to stop."""

    code = "stopped"

    def __init__(self, reason: str) -> None:
        super().__init__(f"stopped: {reason}", reason=reason)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a turn ends: a terminal `TurnStatus` value and, unless it completed, `{"code", "message"}`.

    `discards`: its messages leave the conversation.
    """

    status: str
    error: Mapping[str, object] | None = None
    discards: bool = False


COMPLETED = Ending(status="completed")


def cancelled(reason: str) -> Ending:
    """Return the ending of a turn that was asked to stop."""
    error = {"code": "cancelled", "message": f"cancelled: {reason}"}
    return Ending(status="cancelled", error=error, discards=reason == ROLLED_BACK)


@dataclass(slots=True, kw_only=True)
class Requests:
    """What others ask of a running turn at its next step border: to stop, for a reason, or to let messages join."""

    stop: str | None = None
    joins: bool = False


@dataclass(slots=True, kw_only=True)
class Asking:
    """The models that a step asks, in order, and for what. `index` is the link that was asked last.

    `facts` gives what is known of a provider's model, its prices among it.
    """

    chain: ModelChain
    prompt: Prompt
    facts: FactsOf
    index: int = 0

    def worst(self) -> WorstCase:
        """Return the most that any of the models may cost."""
        output_max = self.prompt.request.max_output_tokens
        return dearest(
            worst_case(
                self.facts(link.provider, link.model).cost,
                prompt_tokens=self.prompt.tokens,
                output_tokens=link.max_output_tokens or output_max,
            )
            for link in self.chain.links
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedCall:
    """The outcome of a tool call: a terminal `EffectStatus` value and the text for the model."""

    row: EffectRow
    status: str
    content: str

    @property
    def result(self) -> ToolResult:
        """The result as the model is shown it; whatever is not done reads as a failure."""
        is_error = self.status != EffectStatus.DONE
        return ToolResult(call_id=self.row.call_id, tool=self.row.tool, content=self.content, is_error=is_error)


@dataclass(slots=True, kw_only=True)
class Sender:
    """The turn of which tools send messages to agents. `children` counts them; `children_max` bounds them, if set."""

    agent: Agent
    turn_id: str
    turn_key: int = 0
    depth: int = 0
    children: int = 0
    children_max: int | None = None


class Unflushed(Protocol):
    """What was recorded of a turn, and may not be on disk yet."""

    @property
    def is_flushed(self) -> bool:
        """Whether everything that was recorded is on disk."""
        ...

    async def flush(self) -> None:
        """Commit it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnServices:
    """The services of one constellation. `is_draining` says that turns should rest at their next step border.

    `flush_late` has a turn's record flushed soon, if the turn does not do so itself.
    """

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
    search: Callable[[SearchRequest], Awaitable[SearchResult]]
    clock: Clock
    ids: Ids
    limits: Limits
    deliver: Callable[[Sender, UnitOfWork, str, str], Awaitable[str]]
    is_draining: Callable[[], bool]
    flush_late: Callable[[Unflushed], None]
