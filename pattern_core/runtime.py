"""What a constellation takes from the world besides its file: the time, chance and vectors, all injected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pattern_core.budgets.budget import Budget
from pattern_core.embeddings.embedder import AbsentEmbedder
from pattern_core.embeddings.questions import EmbedderShelf
from pattern_core.ids import Clock, Randomness, SystemClock, system_randomness
from pattern_core.mcp_servers.settings import McpSettings
from pattern_core.meters import Meters, Unmetered
from pattern_core.tools.tool import ToolSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """A clock and a source of randomness, of which tests pass ones that stand still and repeat; the embedders.

    `budgets` are those that the operator configured, `meters` keeps the operator's counts, `tools` is what tools may
    reach, and `mcp` maps names to the servers of further tools.
    """

    clock: Clock = field(default_factory=SystemClock)
    randomness: Randomness = field(default_factory=system_randomness)
    embedders: EmbedderShelf = field(default_factory=lambda: EmbedderShelf(AbsentEmbedder()))
    budgets: Sequence[Budget] = ()
    meters: Meters = field(default_factory=Unmetered)
    tools: ToolSettings = field(default_factory=ToolSettings)
    mcp: Mapping[str, McpSettings] = field(default_factory=dict)
