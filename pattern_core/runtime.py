"""The services of a constellation besides its file, all injected: clock, randomness, embeddings and limits; and the
operator's metrics.

Tests pass a stopped clock, seeded randomness and deterministic vectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pattern_core.budgets.budget import Budget
from pattern_core.embeddings.embedder import AbsentEmbedder
from pattern_core.embeddings.questions import EmbedderShelf
from pattern_core.ids import Clock, Randomness, SystemClock, system_randomness
from pattern_core.limits import Limits
from pattern_core.mcp_settings import McpSettings
from pattern_core.models.model import Usage
from pattern_core.tools.tool import ToolSettings
from pattern_core.web.policy import SourceSettings, WebhookSettings


class Meters:
    """Counters for an operator: here only `commits`, committed journal transactions, and `working`, the agents that are
    working now. `pattern_server.metrics` counts the rest.

    Every method returns at once and never raises. Agents choose names of tools and models: bound how many are kept.
    """

    def __init__(self) -> None:
        self.commits = 0
        self.working = 0

    def turn_ended(self, status: str, seconds: float, queue_s: float) -> None:
        """Count a turn that ended with a terminal `TurnStatus` value, `seconds` after it was started; before that it
        waited for `queue_s`.
        """

    def step_done(self, provider: str, model: str, seconds: float, prompt_s: float) -> None:
        """Count a recorded model decision, `seconds` after the model was called; its prompt was ready, and
        stored, after `prompt_s`.
        """

    def tokens(self, provider: str, model: str, usage: Usage, microdollars: int | None) -> None:
        """Count the tokens of a model call, including summaries; None if the price is unknown."""

    def call_ended(self, tool: str, status: str, seconds: float) -> None:
        """Count a tool call that ended with a terminal `EffectStatus` value."""

    def schedule_due(self, late_s: float) -> None:
        """Count a schedule that was decided about, `late_s` after it was due."""

    def occurred(self, status: str, count: int) -> None:
        """Count occurrences of schedules by their `OccurrenceStatus` value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """The clock and randomness, which are fixed in tests; the embedders.

    `limits` and `budgets` are the operator's, `meters` counts for the operator, `tools` is what tools may reach, and
    `mcp` maps names to MCP servers. Without `has_timers` nothing that is due fires.
    """

    clock: Clock = field(default_factory=SystemClock)
    randomness: Randomness = field(default_factory=system_randomness)
    embedders: EmbedderShelf = field(default_factory=lambda: EmbedderShelf(AbsentEmbedder()))
    limits: Limits = field(default_factory=Limits)
    budgets: Sequence[Budget] = ()
    meters: Meters = field(default_factory=Meters)
    tools: ToolSettings = field(default_factory=ToolSettings)
    mcp: Mapping[str, McpSettings] = field(default_factory=dict)
    webhooks: WebhookSettings = field(default_factory=WebhookSettings)
    sources: SourceSettings = field(default_factory=SourceSettings)
    has_timers: bool = True
