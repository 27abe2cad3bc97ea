"""The clock, and identifiers and positions made from it and from an injected source of randomness.

An id is a prefix that says what it names and a ULID in lower case (48 bits of unix milliseconds, 80 random bits):
new rows are neighbours in their index. A position is a Snowflake as fixed-width decimal text, so that the
order of the text is the order of the messages.

Sources: ULID specification 1.0 (github.com/ulid/spec); Snowflake epoch 1288834974657 as in the database design.
"""

from __future__ import annotations

import random
import secrets
import time
from typing import Protocol, TypeAlias

from pattern_db.columns import iso

SNOWFLAKE_EPOCH_MS = 1_288_834_974_657
SEQUENCE_BITS = 16
POSITION_DIGITS = 19
_CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz"


class Clock(Protocol):
    """Tells the wall time; tests use `pattern_core.testing.StoppedClock`."""

    def now_ms(self) -> int:
        """Unix time in milliseconds."""
        ...


class SystemClock:
    """The machine's wall clock."""

    def now_ms(self) -> int:
        """Unix time in milliseconds."""
        return time.time_ns() // 1_000_000


def now_text(clock: Clock) -> str:
    """Return the clock's time as stored: `YYYY-MM-DDTHH:MM:SS.mmmZ`."""
    return iso(clock.now_ms())


def new_secret() -> str:
    """Return 256 bits from the operating system, as 64 hex digits, for a token. Not from a `Randomness`: ids reveal
    enough of its bits to predict the next ones.
    """
    return secrets.token_hex(32)


Randomness: TypeAlias = random.Random
"""Where random bits come from: `system_randomness()` in the server, `seeded_randomness(seed)` in tests."""


def system_randomness() -> Randomness:
    """Bits for ids and jitter, seeded once by the operating system: a system call per id would cost 14 us.

    Not for secrets: those come from the module `secrets`.
    """
    return random.Random(random.SystemRandom().getrandbits(256))


def seeded_randomness(seed: int) -> Randomness:
    """Bits that are the same for the same seed; for tests, and for values that a turn must repeat after a crash."""
    return random.Random(seed)


# 10 bits at a time: five times faster than one digit
_PAIRS = [high + low for high in _CROCKFORD for low in _CROCKFORD]


def ulid(now_ms: int, entropy: int) -> str:
    """26 characters of Crockford base 32, lower case: 48 bits of time, then 80 bits of `entropy`."""
    value = (now_ms << 80) | entropy
    return "".join([_PAIRS[(value >> shift) & 1023] for shift in range(120, -1, -10)])


def earliest_position(now_ms: int) -> str:
    """Return the first position of that millisecond; later messages have greater ones."""
    return f"{max(now_ms - SNOWFLAKE_EPOCH_MS, 0) << SEQUENCE_BITS:0{POSITION_DIGITS}d}"


def time_of(position: str) -> int:
    """Return the unix milliseconds of a position; 0 for none."""
    return (int(position) >> SEQUENCE_BITS) + SNOWFLAKE_EPOCH_MS if position else 0


class Ids:
    """Makes ids and positions for one constellation.

    Positions rise strictly, even if the clock stops or goes back: `last` is the newest one in use.
    """

    def __init__(self, clock: Clock, randomness: Randomness, *, last: str | None = None) -> None:
        self._clock = clock
        self._randomness = randomness
        self._last = int(last) if last else 0

    def new(self, prefix: str) -> str:
        """Return a fresh id such as `turn_01j…`."""
        return f"{prefix}_{ulid(self._clock.now_ms(), self._randomness.getrandbits(80))}"

    def position(self, now_ms: int | None = None) -> str:
        """Return the next position: 19 decimal digits, greater than all before. `now_ms` saves a read of the clock."""
        candidate = ((self._clock.now_ms() if now_ms is None else now_ms) - SNOWFLAKE_EPOCH_MS) << SEQUENCE_BITS
        self._last = candidate if candidate > self._last else self._last + 1
        return f"{self._last:0{POSITION_DIGITS}d}"

    def pass_by(self, position: int) -> int:
        """Make every later position greater than `position`, which was assigned elsewhere.

        Return the last position before.
        """
        before = self._last
        self._last = max(before, position)
        return before

    def seed(self) -> int:
        """Return a 63-bit seed that a turn stores, so that it draws the same numbers after a crash."""
        return self._randomness.getrandbits(63)


def message_id(position: str) -> str:
    """Return the id of the message at `position`."""
    return f"msg_{position}"
