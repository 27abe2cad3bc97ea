"""What a constellation gets from the world besides its file: the time, chance, vectors and bounds, all injected; and
what it counts for its operator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pattern_core.budgets.budget import Budget
from pattern_core.embeddings.embedder import AbsentEmbedder
from pattern_core.embeddings.questions import EmbedderShelf
from pattern_core.ids import Clock, Randomness, SystemClock, system_randomness
from pattern_core.limits import Limits
from pattern_core.mcp_servers.settings import McpSettings
from pattern_core.models.model import Usage
from pattern_core.tools.tool import ToolSettings


class Meters:
    """What is counted for an operator: here only `commits`, transactions of journals that are on disk, and `working`,
    the agents that have work now. `pattern_server.metrics` counts the rest.

    Every method returns at once and never raises. Names of tools and models are the agents' own: bound how many of them
    are kept.
    """

    def __init__(self) -> None:
        self.commits = 0
        self.working = 0

    def turn_ended(self, status: str, seconds: float) -> None:
        """Count a turn that ended with a terminal `TurnStatus` value, `seconds` after it was started."""

    def step_done(self, provider: str, model: str, seconds: float) -> None:
        """Count a model's decision that is recorded, `seconds` after it was asked."""

    def tokens(self, provider: str, model: str, usage: Usage, microdollars: int | None) -> None:
        """Count the tokens of a model call, also of one for a summary; None where the price is not known."""

    def call_ended(self, tool: str, status: str, seconds: float) -> None:
        """Count a tool call that ended with a terminal `EffectStatus` value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """A clock and a source of randomness, where tests pass ones that are fixed and repeat; the embedders.

    `limits` and `budgets` are those that the operator configured, `meters` keeps the operator's counts, `tools` is what
    tools may reach, and `mcp` maps names to the servers of further tools. Without `has_timers` nothing fires by itself.
    """

    clock: Clock = field(default_factory=SystemClock)
    randomness: Randomness = field(default_factory=system_randomness)
    embedders: EmbedderShelf = field(default_factory=lambda: EmbedderShelf(AbsentEmbedder()))
    limits: Limits = field(default_factory=Limits)
    budgets: Sequence[Budget] = ()
    meters: Meters = field(default_factory=Meters)
    tools: ToolSettings = field(default_factory=ToolSettings)
    mcp: Mapping[str, McpSettings] = field(default_factory=dict)
    has_timers: bool = True
