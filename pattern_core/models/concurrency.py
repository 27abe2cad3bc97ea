"""How many calls may run at once: halved when the vendor is overloaded, grown slowly while all goes well; pure."""

from __future__ import annotations

SUCCESSES_PER_STEP = 8  # answers in a row after which one more call may run at once


class Concurrency:
    """Additive increase, multiplicative decrease, between `least` and `most` calls at once.

    Calls that were sent before the last halving do not halve again: a burst refused at once is one refusal.
    """

    def __init__(self, most: int, *, least: int = 1, successes_per_step: int = SUCCESSES_PER_STEP) -> None:
        self.most = max(1, most)
        self.least = min(max(1, least), self.most)
        self.allowed = self.most
        self._successes_per_step = max(1, successes_per_step)
        self._successes = 0
        self._halved_after = -1

    def succeeded(self) -> None:
        """A call was answered."""
        self._successes += 1
        if self._successes >= self._successes_per_step:
            self._successes = 0
            self.allowed = min(self.allowed + 1, self.most)

    def overloaded(self, number: int, newest: int) -> bool:
        """Call number `number` was refused for overload; `newest` is the number of the call that was sent last.

        Returns whether this halved what is allowed.
        """
        self._successes = 0
        if number <= self._halved_after:
            return False
        self._halved_after = newest
        self.allowed = max(self.allowed // 2, self.least)
        return True
