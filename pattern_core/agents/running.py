"""The turns under way, and what others may want of them: that they stop, now or at their next step border, or more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import trio

from pattern_core.agents.active import ActiveTurn, Wishes


@dataclass(slots=True, kw_only=True)
class RunningTurn:
    """A turn under way: the scope in which it runs, and why it was stopped, if it was: the first reason stays, as in
    its row.
    """

    agent_id: str
    scope: trio.CancelScope
    wishes: Wishes
    reason: str | None = None

    def stop(self, reason: str) -> None:
        """Cancel it."""
        if self.reason is None:
            self.reason = self.wishes.stop or reason
        self.scope.cancel()


class RunningTurns:
    """The turns under way of one constellation, by their ids."""

    def __init__(self) -> None:
        self._turns: dict[str, RunningTurn] = {}

    def has(self, turn_id: str) -> bool:
        """Whether the turn is under way."""
        return turn_id in self._turns

    @contextmanager
    def listed(self, turn: ActiveTurn) -> Iterator[RunningTurn]:
        """Keep the turn among those under way within the block, until its deadline."""
        scope = trio.CancelScope(deadline=turn.deadline)
        running = self._turns[turn.id] = RunningTurn(agent_id=turn.agent.id, scope=scope, wishes=turn.wishes)
        try:
            yield running
        finally:
            del self._turns[turn.id]

    def cancel(self, turn_id: str, reason: str) -> bool:
        """Stop a turn; False if it is not under way."""
        running = self._turns.get(turn_id)
        if running is None:
            return False
        running.stop(reason)
        return True

    def cancel_all(self, reason: str, *, agent_id: str | None = None) -> None:
        """Stop every turn, or those of one agent."""
        for running in self._turns.values():
            if agent_id in (None, running.agent_id):
                running.stop(reason)

    def stop_at_border(self, turn_id: str, reason: str) -> None:
        """Have a turn end at its next step border, if it is under way."""
        if turn_id in self._turns and self._turns[turn_id].wishes.stop is None:
            self._turns[turn_id].wishes.stop = reason

    def steer(self, agent_id: str) -> None:
        """Have messages that wait for that join the agent's turn at its next step border, if one is under way."""
        for running in self._turns.values():
            if running.agent_id == agent_id:
                running.wishes.joins = True
