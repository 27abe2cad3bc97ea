"""How far the estimate of tokens is from what a vendor counts, learnt from an agent's last calls.

The estimate knows no vendor's tokenizer. Whoever compares a prompt with a window multiplies it by this ratio.
"""

from __future__ import annotations

import math
from collections import OrderedDict

RATIOS_MAX = 1_024  # pairs of agent and model that are remembered, in memory only
WEIGHT = 0.3  # of the newest call; the ones before fade
LEAST, MOST = 0.5, 3.0  # a ratio beyond is a vendor that counts something else
TOKENS_MIN = 200  # shorter prompts say little about the ratio


class Calibration:
    """The ratio of counted to estimated tokens, by agent and model; 1.0 until something was counted."""

    def __init__(self) -> None:
        self._ratios: OrderedDict[tuple[str, str], float] = OrderedDict()

    def ratio(self, agent_id: str, model: str) -> float:
        """What to multiply an estimate by."""
        return self._ratios.get((agent_id, model), 1.0)

    def learn(self, agent_id: str, model: str, *, estimated: int, counted: int) -> None:
        """Note that a prompt estimated at `estimated` tokens was counted as `counted`."""
        if estimated < TOKENS_MIN or counted <= 0:
            return
        key = (agent_id, model)
        seen = min(max(counted / estimated, LEAST), MOST)
        known = self._ratios.pop(key, None)
        self._ratios[key] = seen if known is None else (1 - WEIGHT) * known + WEIGHT * seen
        while len(self._ratios) > RATIOS_MAX:
            self._ratios.popitem(last=False)


def scaled(tokens: int, ratio: float) -> int:
    """An estimate by the ratio, rounded up."""
    return math.ceil(tokens * ratio)
