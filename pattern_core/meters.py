"""What a constellation counts for its operator: told at the moments of a turn, kept by the listener.

The core knows no format of metrics; the server's `pattern_server.metrics` keeps the counts and shows them. Every method
returns at once and never raises.
"""

from __future__ import annotations

from typing import Protocol

from pattern_core.models.model import Usage


class Meters(Protocol):
    """Counts for an operator. Names of tools and models are the agents' own: bound how many of them are kept."""

    commits: int
    """Transactions of journals that are on disk."""

    working: int
    """Agents that have work now. It is raised and lowered in pairs, also when the constellation is stopped."""

    def turn_ended(self, status: str, seconds: float) -> None:
        """A turn ended with a terminal `TurnStatus` value, `seconds` after it was started."""
        ...

    def step_done(self, provider: str, model: str, seconds: float) -> None:
        """A model's decision is stored, `seconds` after it was asked."""
        ...

    def tokens(self, provider: str, model: str, usage: Usage, microdollars: int | None) -> None:
        """What one model call took, that of a summary as well.

        `microdollars` are millionths of a dollar, None where the price is not known.
        """
        ...

    def call_ended(self, tool: str, status: str, seconds: float) -> None:
        """A tool call ended with a terminal `EffectStatus` value."""
        ...


class Unmetered:
    """Counts commits and agents at work, and nothing else."""

    def __init__(self) -> None:
        self.commits = 0
        self.working = 0

    def turn_ended(self, status: str, seconds: float) -> None:
        """Nothing is kept."""

    def step_done(self, provider: str, model: str, seconds: float) -> None:
        """Nothing is kept."""

    def tokens(self, provider: str, model: str, usage: Usage, microdollars: int | None) -> None:
        """Nothing is kept."""

    def call_ended(self, tool: str, status: str, seconds: float) -> None:
        """Nothing is kept."""
