"""What a constellation counts for its operator: told at the moments of a turn, kept by the listener.

The core knows no format of metrics; the server's `pattern_server.metrics` keeps the counts and shows them. Every method
returns at once and never raises.
"""

from __future__ import annotations

from typing import Protocol

from pattern_core.models.model import Usage


class Meters(Protocol):
    """Somebody who counts. Names of tools and models are the agents' own; who counts sees to it that they are few."""

    def agents_working(self, change: int) -> None:
        """One agent more (+1) or less (-1) has work. Told in pairs, also when the constellation is stopped."""
        ...

    def turn_ended(self, status: str, seconds: float) -> None:
        """A turn ended with a terminal `TurnStatus` value, `seconds` after it was started."""
        ...

    def step_done(self, provider: str, model: str, seconds: float) -> None:
        """A model's decision is stored, `seconds` after it was asked."""
        ...

    def tokens(self, provider: str, model: str, usage: Usage, microdollars: int | None) -> None:
        """What one model call took; money is None where the price is not known."""
        ...

    def call_ended(self, tool: str, status: str, seconds: float) -> None:
        """A tool call ended with a terminal `EffectStatus` value."""
        ...

    def committed(self) -> None:
        """A transaction of the journal is on disk."""
        ...


class Unmetered:
    """Counts nothing."""

    def agents_working(self, change: int) -> None:
        """Nothing is kept."""

    def turn_ended(self, status: str, seconds: float) -> None:
        """Nothing is kept."""

    def step_done(self, provider: str, model: str, seconds: float) -> None:
        """Nothing is kept."""

    def tokens(self, provider: str, model: str, usage: Usage, microdollars: int | None) -> None:
        """Nothing is kept."""

    def call_ended(self, tool: str, status: str, seconds: float) -> None:
        """Nothing is kept."""

    def committed(self) -> None:
        """Nothing is kept."""
