"""A turn under way: what its rows say, and what only the running process knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pattern_core.agents.history import History
from pattern_core.agents.roster import Agent
from pattern_core.messages import ToolResult
from pattern_db.journal.effects import EffectRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a turn ends: a terminal `TurnStatus` value and, unless it completed, `{"code", "message"}`."""

    status: str
    error: Mapping[str, object] | None = None


COMPLETED = Ending(status="completed")


@dataclass(slots=True, kw_only=True)
class ActiveTurn:
    """A turn that its agent works on.

    `deadline` is on trio's clock, `deadline_at` its wall time as stored. `step` and `attempt` count from 1 and name
    the step that is open or was last. `in_doubt` holds the argument digests of unsafe calls whose outcome nobody
    knows.
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
    calls: int = 0
    is_streamed: bool = False
    in_doubt: set[bytes] = field(default_factory=set)

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
