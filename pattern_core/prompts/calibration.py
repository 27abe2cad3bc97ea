"""How far the estimate of tokens is from what a vendor counts, learnt from an agent's last calls.

The estimate knows no vendor's tokenizer. Whoever compares a prompt with a window multiplies it by this ratio. It is
kept in memory only; a new process learns it once more from the agent's last calls, as their rows tell them.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from pattern_core.prompts.log import read_log
from pattern_db.connection import Connection
from pattern_db.tables import prompts
from pattern_db.tables.prompts import CountedRow

RATIOS_MAX = 1_024  # pairs of agent and model that are remembered, in memory only
WEIGHT = 0.3  # of the newest call; the ones before fade
LEAST, MOST = 0.5, 3.0  # a ratio beyond is a vendor that counts something else
TOKENS_MIN = 200  # shorter prompts say little about the ratio
RESTORED_CALLS = 8  # of the agent, from which a new process learns; older ones have faded to a twentieth …
RESTORED_AMONG = 500  # … as far as they are among so many last calls of all agents


@dataclass(frozen=True, slots=True)
class Counted:
    """What a prompt was estimated at and what its vendor counted, in tokens."""

    estimated: int
    counted: int


class Calibration:
    """The ratio of counted to estimated tokens, by agent and model; 1.0 until something was counted."""

    def __init__(self) -> None:
        self._ratios: OrderedDict[tuple[str, str], float | None] = OrderedDict()

    def ratio(self, agent_id: str, model: str) -> float:
        """What to multiply an estimate by."""
        return self._ratios.get((agent_id, model)) or 1.0

    def is_known(self, agent_id: str, model: str) -> bool:
        """Whether this process has learnt it, or has looked and found nothing to learn from."""
        return (agent_id, model) in self._ratios

    def restore(self, agent_id: str, model: str, calls: Sequence[Counted]) -> None:
        """Learn from calls of processes before, oldest first; what this one has learnt itself is not overwritten."""
        if self.is_known(agent_id, model):
            return
        self._keep((agent_id, model), None)
        for call in calls:
            self.learn(agent_id, model, estimated=call.estimated, counted=call.counted)

    def learn(self, agent_id: str, model: str, *, estimated: int, counted: int) -> None:
        """Note that a prompt estimated at `estimated` tokens was counted as `counted`."""
        if estimated < TOKENS_MIN or counted <= 0:
            return
        key = (agent_id, model)
        seen = min(max(counted / estimated, LEAST), MOST)
        known = self._ratios.pop(key, None)
        self._keep(key, seen if known is None else (1 - WEIGHT) * known + WEIGHT * seen)

    def _keep(self, key: tuple[str, str], ratio: float | None) -> None:
        self._ratios[key] = ratio
        while len(self._ratios) > RATIOS_MAX:
            self._ratios.popitem(last=False)


def last_calls(connection: Connection, agent_id: str, model: str) -> list[Counted]:
    """The agent's last calls of a model, oldest first, for `Calibration.restore`.

    Only the estimate times its ratio is stored whole, so it is added up again from what was noted of the prompt's
    parts. That leaves out the tags between them, about one part in a hundred.
    """
    rows = prompts.counted(connection, agent_id, model, RESTORED_CALLS, among=RESTORED_AMONG)
    return [Counted(_estimated(row), row.counted) for row in rows]


def _estimated(row: CountedRow) -> int:
    logs = read_log(row.stable), read_log(row.volatile)
    return row.history_tokens + sum(log.tool_tokens + sum(part.tokens for part in log.parts) for log in logs)


def scaled(tokens: int, ratio: float) -> int:
    """An estimate by the ratio, rounded up."""
    return math.ceil(tokens * ratio)
