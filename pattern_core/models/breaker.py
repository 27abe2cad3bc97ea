"""A circuit breaker: a vendor that fails again and again is left alone for a while, then asked by one call; pure."""

from __future__ import annotations

import math
from typing import Literal

FAILURES_MAX = 5  # in a row, after which nobody asks for a while
PAUSE_S = 5.0  # the first pause; each probe that fails doubles it …
PAUSE_S_MAX = 300.0  # … up to this

BreakerState = Literal["closed", "open", "half_open"]


class Breaker:
    """Closed while calls succeed; open after `FAILURES_MAX` failures in a row; half-open while one call probes.

    Only outages count as failures: no connection, no answer in time, a fault on the vendor's side. Refusals do not,
    since whoever refuses is there. Times are seconds on any clock that does not go back.
    """

    def __init__(self) -> None:
        self.failures = 0  # in a row
        self._open_until = -math.inf
        self._pause_s = PAUSE_S
        self._probe: int | None = None

    def state(self, now: float) -> BreakerState:
        """What the breaker is at this moment; half-open from the end of the pause until the probe's outcome."""
        if self.failures < FAILURES_MAX:
            return "closed"
        return "open" if now < self._open_until else "half_open"

    def ready_at(self, now: float) -> float:
        """When a call may go: minus infinity if now, infinity while another call probes."""
        state = self.state(now)
        if state == "open":
            return self._open_until
        return math.inf if state == "half_open" and self._probe is not None else -math.inf

    def sent(self, number: int, now: float) -> None:
        """Call number `number` goes, which `ready_at` allowed; in the half-open state it is the probe."""
        if self.state(now) == "half_open":
            self._probe = number

    def succeeded(self) -> None:
        """Some call was answered, be it by a refusal: the vendor is there."""
        self.failures = 0
        self._pause_s = PAUSE_S
        self._probe = None

    def failed(self, number: int, now: float) -> None:
        """Call number `number` met an outage."""
        was_probe = number == self._probe
        if was_probe:
            self._probe = None
        before = self.state(now)
        self.failures += 1
        if before == "closed" and self.failures >= FAILURES_MAX:
            self._open_until = now + self._pause_s
        elif was_probe:
            self._pause_s = min(self._pause_s * 2, PAUSE_S_MAX)
            self._open_until = now + self._pause_s

    def abandoned(self, number: int) -> None:
        """Call number `number` was given up before it told anything; another one may probe."""
        if number == self._probe:
            self._probe = None
