"""A turn under way: what its rows say, and what only the running process knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pattern_core.agents.history import History
from pattern_core.agents.roster import Agent
from pattern_core.agents.settings import AgentSettings
from pattern_core.budgets.amounts import WorstCase
from pattern_core.messages import ToolResult
from pattern_core.models.fallback import Chain, Link
from pattern_core.models.model import Usage
from pattern_core.rules.ruleset import RuleSet
from pattern_core.rules.state import Call
from pattern_db.journal.effects import EffectRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a turn ends: a terminal `TurnStatus` value and, unless it completed, `{"code", "message"}`.

    `discards`: its messages leave the conversation.
    """

    status: str
    error: Mapping[str, object] | None = None
    discards: bool = False


COMPLETED = Ending(status="completed")


@dataclass(slots=True, kw_only=True)
class Wishes:
    """What others want of a turn under way at its next step border: that it stops, with the reason, or that messages
    join it.
    """

    stop: str | None = None
    joins: bool = False


@dataclass(slots=True, kw_only=True)
class Asking:
    """Of whom a step asks, in this order, and the most that it may cost; `tokens` is the prompt's estimate.

    `index` is the link that was asked last. `price` tells what tokens of a model cost in micro-dollars, if known.
    """

    chain: Chain
    worst: WorstCase
    tokens: int
    price: Callable[[Link, Usage], int | None]
    index: int = 0

    @property
    def first(self) -> Link:
        """The model that is asked unless it fails."""
        return self.chain.links[0]

    @property
    def answered(self) -> Link:
        """The model that was asked last."""
        return self.chain.links[self.index]

    def cost(self, usage: Usage) -> int | None:
        """What the answer cost in micro-dollars; None if the price is not known."""
        return self.price(self.answered, usage)


@dataclass(slots=True, kw_only=True)
class ActiveTurn:
    """A turn that its agent works on.

    `deadline` is on trio's clock, `deadline_at` its wall time as stored. `step` and `attempt` count from 1 and name
    the step that is open or was last; `asking` is of whom that step asks, and what that may cost at most. `in_doubt`
    holds the argument digests of unsafe calls whose outcome nobody knows. `tools` are the names of those it may call,
    `log` its calls in order, `said` the steps whose decision said something, `compactions` the steps that room was made
    for, `notes` what the next prompt says at its end. `is_addressed` says that somebody
    joined it since the newest decision, so that it cannot end with that; `may_hold` that something of a budget may be
    held for its calls; `is_blind` that its model refused its images and is shown none. `source` is where the message
    came from: `user`, `agent`, or what its sender named.
    """

    key: int
    id: str
    agent: Agent
    seed: int
    sender: str
    depth: int
    batch_id: str
    deadline: float
    deadline_at: str
    history: History
    step: int = 1
    attempt: int = 1
    sequence: int = 0
    is_streamed: bool = False
    is_waiting: bool = False
    has_waited: bool = False
    is_addressed: bool = False
    may_hold: bool = True
    is_blind: bool = False
    in_doubt: set[bytes] = field(default_factory=set)
    settings: AgentSettings = field(default_factory=AgentSettings)
    tools: Sequence[str] = ()
    rules: RuleSet = field(default_factory=RuleSet)
    last_ms: Mapping[str, int] = field(default_factory=dict)
    log: list[Call] = field(default_factory=list)
    said: set[int] = field(default_factory=set)
    squeezed: list[int] = field(default_factory=list)  # steps whose prompt a vendor found too long, once each time
    compactions: list[int] = field(default_factory=list)
    notes: Sequence[str] = ()
    asking: Asking | None = None
    source: str = "user"
    children: int = 0
    output_chars: int = 0
    step_began_ms: int = 0
    began_ms: int = 0
    wishes: Wishes = field(default_factory=Wishes)

    def next_sequence(self) -> int:
        """The place of the next message within the turn's batch, from 0."""
        self.sequence += 1
        return self.sequence - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What a tool call came to: a terminal `EffectStatus` value and the text for the model."""

    row: EffectRow
    status: str
    content: str

    @property
    def result(self) -> ToolResult:
        """The result as the model is shown it; whatever is not done reads as a failure."""
        return ToolResult(
            call_id=self.row.call_id, tool=self.row.tool, content=self.content, is_error=self.status != "done"
        )
