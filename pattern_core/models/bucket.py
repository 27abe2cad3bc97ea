"""A vendor's token bucket as far as its answers let us know it; pure.

Vendors refill their buckets steadily: `limit` units within some time, at most `limit` in it. What an answer tells is
true for the moment when the vendor admitted that call, so calls that were sent later are subtracted again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

PERIOD_S = 60.0  # vendors state their limits per minute
UNIT_SHARE_MIN = 0.001  # less than this of a unit is rounding, and no reason to wait
REFILL_SLOWEST = 1_440
REFILL_S_MAX = 3_600.0  # a reset beyond this is a quota, which waiting does not mend


@dataclass(slots=True, eq=False)
class Hold:
    """Units taken by one call. `counted` once the vendor's own count includes the call."""

    number: int
    units: int
    counted: bool = False


class Bucket:
    """Requests or tokens of one key. Knows nothing, and holds nobody back, until an answer told a limit.

    `stated` is a limit per minute that the operator set; answers count beside it only where they tell a lower one.
    Times are seconds on any clock that does not go back.
    """

    def __init__(self, stated: int | None = None) -> None:
        self.limit = stated
        self._stated = stated
        self._level = float(stated or 0)
        self._per_s = (stated or 0) / PERIOD_S
        self._seen_at = -math.inf
        self._last_learned = -1
        self._next_number = 0
        self._out: dict[int, Hold] = {}

    @property
    def is_known(self) -> bool:
        """True once a limit was told."""
        return self.limit is not None

    def level(self, now: float) -> float | None:
        """Units that may be taken now; below 0 where more was used than was held; None while nothing is known."""
        if self.limit is None:
            return None
        self._refill(now)
        return self._level

    def wait_s(self, units: int, now: float) -> float:
        """Seconds until `units` may be taken. A call that is larger than the whole bucket waits until it is full."""
        if self.limit is None:
            return 0.0
        self._refill(now)
        missing = min(units, self.limit) - self._level
        if missing <= UNIT_SHARE_MIN:
            return 0.0
        return missing / self._per_s if self._per_s > 0 else math.inf

    def take(self, units: int, now: float) -> Hold:
        """Take `units` before a call is sent; ask `wait_s` first. Give the hold back by `settle`."""
        hold = Hold(self._next_number, units)
        self._next_number += 1
        self._out[hold.number] = hold
        if self.limit is not None:
            self._refill(now)
            self._level -= units
        return hold

    def learn(self, hold: Hold, limit: int | None, remaining: int | None, reset_s: float | None, now: float) -> None:
        """Take what the answer to the call of `hold` told: of it and of all calls sent before it.

        Answers that were overtaken by a later call's tell nothing new. `reset_s` is when the bucket will be full.
        """
        if limit is None or remaining is None or limit <= 0 or hold.number < self._last_learned:
            return
        if self._stated is not None and limit >= self._stated:
            return
        self._last_learned = hold.number
        for other in self._out.values():
            other.counted = other.counted or other.number <= hold.number
        uncounted = sum(other.units for other in self._out.values() if not other.counted)
        self.limit = limit
        remaining = min(remaining, limit)
        self._level = float(remaining - uncounted)
        usual_per_s = limit / PERIOD_S
        self._per_s = self._per_s or usual_per_s
        if reset_s is not None and 0 < reset_s <= REFILL_S_MAX and remaining < limit:
            # Limits per day refill 1,440 times slower than those per minute; nothing sane is slower.
            self._per_s = max((limit - remaining) / reset_s, usual_per_s / REFILL_SLOWEST)
        self._seen_at = now

    def settle(self, hold: Hold, used: int | None, now: float) -> None:
        """The call of `hold` is over and used that many units (None: unknown, as held): what was too much comes back.

        Where the vendor counted the call itself, its count stands.
        """
        if self._out.pop(hold.number, None) is None or hold.counted or used is None or self.limit is None:
            return
        self._refill(now)
        self._level = min(self._level + hold.units - used, float(self.limit))

    def _refill(self, now: float) -> None:
        assert self.limit is not None
        if now > self._seen_at:
            self._level = min(self._level + (now - self._seen_at) * self._per_s, float(self.limit))
            self._seen_at = now
