"""Rate limiting of a vendor's key: concurrency, rate, order, and a circuit breaker.

All calls of a key pass one `Gate`. A call waits for its flow's turn (`FairQueue`), until the vendor's health allows
another call (`Health`), its rate limits have room (`Bucket`), and its requested delay is over. A gate has no task: a
call that ends wakes the first in the queue, which watches the clock for all and wakes the next. Without limits, calls
pass immediately and are only counted.

All but the gate is pure. Times are seconds on any clock that does not go back; the gate's is trio's.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar

import trio
from pydantic import Field

from pattern_core.models import errors
from pattern_core.models.model import Allowance, ModelReply, RateStatus

PERIOD_S = 60.0  # vendors state their limits per minute
UNIT_SHARE_MIN = 0.001  # less of a unit is a rounding error, not a reason to wait
REFILL_SLOWEST = 1_440
REFILL_S_MAX = 3_600.0  # a later reset is a quota, for which no call waits

FAILURES_MAX = 5  # consecutive failures that open the circuit breaker
PAUSE_S = 5.0  # the first pause; each failed probe doubles it …
PAUSE_S_MAX = 300.0  # … up to this
BREAKER_PATIENCE_S = 30.0  # calls do not wait for a breaker that is open for longer

SUCCESSES_PER_STEP = 8  # consecutive answers that allow one more concurrent call

BreakerState = Literal["closed", "open", "half_open"]

Outcome = ModelReply | errors.ModelError | None
"""How a call ended; None if it was cancelled before any result."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """Bounds per key, for all agents that share it. Limits per minute are the operator's own."""

    # calls at once; halved when the vendor is overloaded, then raised again step by step
    calls_max: Annotated[int, Field(ge=1, le=1_000)] = 16
    waiting_max: Annotated[int, Field(ge=0, le=100_000)] = 1_000  # calls that wait for their turn; more are refused
    # your own limit; the vendor's limits are learned from its answers
    requests_per_minute: Annotated[int, Field(ge=1)] | None = None
    tokens_per_minute: Annotated[int, Field(ge=1)] | None = None  # your own limit, input and output together


class Bucket:
    """The rate limit of requests or tokens of one key, from a vendor's answers. No call waits until a limit is known.

    Vendors refill their buckets steadily: `limit` units within some time, at most `limit` in it. What an answer says
    is true for the moment when the vendor admitted that call, so calls that were sent later are subtracted again.
    Calls are numbered in the order in which they are sent. `stated` is a limit per minute that the operator set;
    answers count in addition only where they state a lower one.
    """

    def __init__(self, stated: int | None = None) -> None:
        self.limit = stated  # None while none is known
        self._stated = stated
        self._level = float(stated or 0)
        self._per_s = (stated or 0) / PERIOD_S
        self._seen_at = -math.inf
        self._counted_to = -1  # the newest call that the vendor's count includes

    def level(self, now: float) -> int | None:
        """Return the available units: below 0 if more was used than reserved, None while unknown."""
        self._refill(now)
        return None if self.limit is None else math.floor(self._level)

    def wait_s(self, units: int, now: float) -> float:
        """Return the seconds until `units` are available. A call larger than the bucket waits until it is full."""
        if self.limit is None:
            return 0.0
        self._refill(now)
        missing = min(units, self.limit) - self._level
        if missing <= UNIT_SHARE_MIN:
            return 0.0
        return missing / self._per_s if self._per_s > 0 else math.inf

    def take(self, units: int, now: float) -> None:
        """Reserve `units` for a call that is sent now; ask `wait_s` first, and call `settle` when the call is over."""
        self._refill(now)
        self._level -= units

    def learn(self, number: int, seen: Allowance, at: float, *, later: int) -> None:
        """Learn from the answer to call `number`, which counts it and all calls sent before it, `at` that moment.

        `later` is the units of running calls that were sent after it. An answer that was overtaken by a later call's is
        ignored.
        """
        limit = seen.limit
        if number < self._counted_to or (self._stated is not None and limit >= self._stated):
            return
        self._counted_to = number
        self.limit = limit
        remaining = min(seen.remaining, limit)
        self._level = float(remaining - later)
        usual_per_s = limit / PERIOD_S
        self._per_s = self._per_s or usual_per_s
        if seen.reset_s is not None and 0 < seen.reset_s <= REFILL_S_MAX and remaining < limit:
            # Limits per day refill 1,440 times slower than those per minute; slower ones are errors.
            self._per_s = max((limit - remaining) / seen.reset_s, usual_per_s / REFILL_SLOWEST)
        self._seen_at = at

    def settle(self, number: int, held: int, used: int, now: float) -> None:
        """Release what was reserved but not used for call `number`, or subtract what it used in addition.

        If the vendor counted the call, its count is kept.
        """
        if number > self._counted_to and self.limit is not None:
            self._refill(now)
            self._level = min(self._level + held - used, float(self.limit))

    def _refill(self, now: float) -> None:
        if self.limit is not None and now > self._seen_at:
            self._level = min(self._level + (now - self._seen_at) * self._per_s, float(self.limit))
            self._seen_at = now


class Health:
    """How many calls may run concurrently, from the vendor's answers.

    After an overload half as many as before, after eight consecutive answers one more, from 1 to `most`. After
    `FAILURES_MAX` consecutive outages the circuit breaker opens, and later allows one probe: it is open, half-open
    until the probe's outcome, else closed. An outage is a failed connection, a timeout or a fault of the vendor; a
    refusal is not an outage.

    Calls are numbered in the order in which they are sent. Calls that were sent before the last reaction have no
    further effect: a refused burst is one refusal, and only a probe prolongs the pause.
    """

    def __init__(self, most: int) -> None:
        self.most = self.allowed = most
        self.newest = 0  # number of the call that was sent last
        self.failures = 0  # in a row
        self._successes = 0  # in a row, since `allowed` changed
        self._halved_after = 0  # the newest call then
        self._opened_after = 0  # the newest call then; any later one is a probe
        self._open_until = -math.inf
        self._pause_s = PAUSE_S

    def state(self, now: float) -> BreakerState:
        """Return the breaker's state."""
        if self.failures < FAILURES_MAX:
            return "closed"
        return "open" if now < self._open_until else "half_open"

    def ready_at(self, now: float, running: int) -> float:
        """Return when the breaker allows a call: minus infinity if now, infinity while another call probes.

        `running` is the newest running call, 0 if there is none.
        """
        state = self.state(now)
        if state == "open":
            return self._open_until
        return math.inf if state == "half_open" and running > self._opened_after else -math.inf

    def answered(self, *, is_refusal: bool = False) -> None:
        """Note that the vendor responded: with a complete answer, or a refusal."""
        self.failures = 0
        self._pause_s = PAUSE_S
        if self.allowed < self.most and not is_refusal:
            self._successes += 1
            if self._successes >= SUCCESSES_PER_STEP:
                self._successes = 0
                self.allowed += 1

    def overloaded(self, number: int) -> None:
        """Note that call `number` was refused for overload."""
        self._successes = 0
        if number > self._halved_after:
            self._halved_after = self.newest
            self.allowed = max(self.allowed // 2, 1)

    def failed(self, number: int, now: float) -> None:
        """Note that call `number` met an outage."""
        is_probe = self.state(now) != "closed" and number > self._opened_after
        self.failures += 1
        if is_probe:
            self._pause_s = min(self._pause_s * 2, PAUSE_S_MAX)
        if is_probe or self.failures == FAILURES_MAX:
            self._open_until = now + self._pause_s
            self._opened_after = self.newest


class FairQueue(Generic[T]):
    """First in, first out within a flow; flows are served in turn. Its owner bounds its length.

    So one constellation's hundred calls do not delay another's single call.
    """

    def __init__(self) -> None:
        self.flows: dict[str, deque[T]] = {}

    def __iter__(self) -> Iterator[T]:
        return (item for items in self.flows.values() for item in items)

    def __len__(self) -> int:
        return sum(map(len, self.flows.values()))

    def push(self, flow: str, item: T) -> None:
        """Add an item at the end of its flow; a new flow comes after all that are waiting."""
        self.flows.setdefault(flow, deque()).append(item)

    def peek(self) -> T | None:
        """Return the next item; None if there is none."""
        return next(iter(self), None)

    def remove(self, flow: str, item: T, *, is_served: bool) -> None:
        """Remove an item that is there; after one that is served its flow goes to the end of the row."""
        items = self.flows[flow]
        items.remove(item)
        if not items:
            del self.flows[flow]
        elif is_served:
            self.flows[flow] = self.flows.pop(flow)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The retries of a failed call: with exponential back-off and jitter, or the provider's delay if longer.

    Attempts count from 1. The n-th failure is followed by `base_s * factor ** (n - 1)` seconds, at most `cap_s`, or by
    what the provider asked for, at most `retry_after_cap_s`; plus up to `jitter` of that wait, so that agents that were
    refused together do not retry together. Answers that break the vendor's format get `garbage_attempts_max`. A server
    that loads its model is called every `loading_s`, for `loading_max_s`; these calls do not count as attempts.
    """

    attempts_max: int = 4
    garbage_attempts_max: int = 2
    base_s: float = 1.0
    factor: float = 2.0
    cap_s: float = 30.0
    jitter: float = 0.25
    retry_after_cap_s: float = 300.0
    loading_s: float = 3.0
    loading_max_s: float = 300.0

    def again(self, attempt: int, error: errors.ModelError) -> bool:
        """Return whether attempt number `attempt`, which failed with `error`, may be followed by another."""
        attempts_max = self.attempts_max
        if isinstance(error, errors.ModelGarbage):
            attempts_max = min(attempts_max, self.garbage_attempts_max)
        return error.retryable and attempt < attempts_max and not self.is_absurd(error)

    def is_absurd(self, error: errors.ModelError) -> bool:
        """Return whether the provider asks for a longer delay than any call waits: such a call fails immediately."""
        return error.retry_after_s is not None and error.retry_after_s > self.retry_after_cap_s

    def delay_s(self, attempt: int, error: errors.ModelError, *, draw: float = 0.0) -> float:
        """Return the seconds to wait after attempt number `attempt` failed; `draw` is random in [0, 1)."""
        # Beyond 60 doublings the cap has long decided; the bound keeps the power a finite float.
        wait_s = min(self.cap_s, self.base_s * self.factor ** min(attempt - 1, 60))
        if isinstance(error, errors.ModelLoading):
            wait_s = self.loading_s
        if error.retry_after_s is not None:
            wait_s = max(wait_s, min(error.retry_after_s, self.retry_after_cap_s))
        return wait_s * (1 + self.jitter * draw)


class Gate:
    """See the module. `names` are the providers that share it; `tokens` is the bucket of their tokens."""

    def __init__(self, names: tuple[str, ...], limits: ClientLimits) -> None:
        self.tokens = Bucket(limits.tokens_per_minute)
        self._requests = Bucket(limits.requests_per_minute)
        # Without limits a turn does not pay for a bucket (see tests/pattern_core/test_cost.py).
        self._is_metered = self.tokens.limit is not None or self._requests.limit is not None
        self.names = names
        self._waiting_max = limits.waiting_max
        self._health = Health(limits.calls_max)
        self._queue: FairQueue[trio.lowlevel.ParkingLot] = FairQueue()
        self._running: dict[int, int] = {}  # the reserved tokens of each running call, by its number
        self._paused_until = -math.inf
        self._failures = self._overloads = self._refused = 0

    async def enter(self, *, flow: str, tokens: int, deadline: float) -> int:
        """Wait until a call of `tokens` (input and output) may be sent, until `deadline` (trio's clock).

        Return the call's number, which must be passed to `leave`, once. `tokens` count only if `self.tokens` has a
        limit. If the wait would exceed the deadline, the call is refused immediately.

        Raises:
            ModelOverloaded: too many wait, the wait is too long, or no turn came in time. It says which.
            ModelUnreachable: the circuit breaker is open after failures.
        """
        now = trio.current_time()
        if not self._queue.flows and self._ready_at(tokens, now) <= now:
            return self._admit(tokens, now)
        self._refuse_the_hopeless(tokens, now, deadline)
        if len(self._queue) >= self._waiting_max:
            raise self._busy(f"{len(self._queue)} calls are already waiting for it")
        place, is_served = trio.lowlevel.ParkingLot(), False
        self._queue.push(flow, place)
        try:
            with trio.CancelScope(deadline=deadline):
                while (until := self._ready_at(tokens, now) if self._queue.peek() is place else math.inf) > now:
                    with trio.move_on_at(until):
                        await place.park()
                    now = trio.current_time()
                    # New information during the wait may exceed its patience.
                    self._refuse_the_hopeless(tokens, now, deadline)
                is_served = True
                return self._admit(tokens, now)
            raise self._busy(f"it could not be sent in the allowed time; {self._health.allowed} calls run concurrently")
        finally:
            self._queue.remove(flow, place, is_served=is_served)
            self._wake_first()

    def leave(self, number: int, outcome: Outcome, *, pause_s: float = 0.0) -> None:
        """End a call: learn from its outcome, and admit the next ones.

        `pause_s` is how long all calls wait if the vendor was overloaded.
        """
        now = trio.current_time()
        held = self._running.pop(number)
        if outcome is not None and outcome.rate is not None:
            self._learn(number, outcome.rate, now)
        match outcome:
            case ModelReply():
                if self._is_metered and not outcome.usage.is_estimate:
                    self.tokens.settle(number, held, outcome.usage.input_tokens + outcome.usage.output_tokens, now)
                self._health.answered()
            case errors.ModelError():
                self._failed(number, outcome, now, pause_s)
        if self._queue.flows:
            self._wake_first()

    def _failed(self, number: int, error: errors.ModelError, now: float, pause_s: float) -> None:
        is_outage = isinstance(error, errors.ModelUnreachable | errors.ModelTimeout | errors.ModelServerError)
        if isinstance(error, errors.ModelOverloaded) and not isinstance(error, errors.ModelLoading):
            self._overloads += 1
            self._health.overloaded(number)
            self._paused_until = max(self._paused_until, now + pause_s)
            is_outage = error.status == 503  # what proxies say for a server that is down
        if not is_outage:
            self._health.answered(is_refusal=True)
        elif error.details.get("deadline") is not True:  # the turn's own deadline is not a failure of the vendor
            self._failures += 1
            self._health.failed(number, now)
        for place in self._queue:
            place.unpark()  # to check whether it can still wait

    def figures(self) -> dict[str, Any]:
        """Return the state of the gate, for people and metrics, by name.

        Levels are units that may be used now, None while no limit is known. `closed_for_s` is seconds until calls may
        go again, after failures or as the vendor asked. `failures` are those in a row; `overloads_total` counts 429,
        503 and 529, `refused_total` the calls that the gate refused without asking the vendor.
        """
        now = trio.current_time()
        closed_until = max(self._paused_until, self._probed_at(now))
        state = self._health.state(now)
        return {
            "state": state,
            "is_closed": state != "closed",
            "failures": self._health.failures,
            "closed_for_s": max(0.0, closed_until - now) if math.isfinite(closed_until) else 0.0,
            "running": len(self._running),
            "waiting": len(self._queue),
            "flows_waiting": len(self._queue.flows),
            "concurrency": self._health.allowed,
            "concurrency_max": self._health.most,
            "requests_limit": self._requests.limit,
            "requests_level": self._requests.level(now),
            "tokens_limit": self.tokens.limit,
            "tokens_level": self.tokens.level(now),
            "calls_total": self._health.newest,
            "failures_total": self._failures,
            "overloads_total": self._overloads,
            "refused_total": self._refused,
        }

    def _wake_first(self) -> None:
        if (first := self._queue.peek()) is not None:
            first.unpark()

    def _ready_at(self, tokens: int, now: float) -> float:
        """Return when a call of this many tokens may be sent; infinite if that depends on another call's end."""
        if len(self._running) >= self._health.allowed:
            return math.inf
        if not (self._health.failures or self._is_metered):
            return self._paused_until
        return max(self._paused_until, self._probed_at(now), self._room_at(tokens, now))

    def _probed_at(self, now: float) -> float:
        return self._health.ready_at(now, next(reversed(self._running), 0))

    def _room_at(self, tokens: int, now: float) -> float:
        return now + max(self._requests.wait_s(1, now), self.tokens.wait_s(tokens, now))

    def _admit(self, tokens: int, now: float) -> int:
        """Assign a number to a call that `_ready_at` allowed, and reserve its tokens."""
        self._health.newest += 1
        self._running[self._health.newest] = tokens
        if self._is_metered:
            self._requests.take(1, now)
            self.tokens.take(tokens, now)
        return self._health.newest

    def _refuse_the_hopeless(self, tokens: int, now: float, deadline: float) -> None:
        open_until = self._probed_at(now)
        wait_s = open_until - now
        if 0 < wait_s < math.inf and (wait_s > BREAKER_PATIENCE_S or open_until >= deadline):
            self._refused += 1
            raise errors.ModelUnreachable(
                f"{self.names[0]} failed {self._health.failures} times in a row and is not called for another "
                f"{wait_s:.0f} s. Try again then, or configure a fallback model for the agent.",
                provider=self.names[0],
                retry_after_s=wait_s,
            )
        for until, why in (
            (self._paused_until, "it asked for a delay"),
            (self._room_at(tokens, now), "its rate limit of requests or tokens is reached"),
        ):
            if until > now and until >= deadline:
                raise self._busy(f"{why}, for longer than the available time", until - now)

    def _learn(self, number: int, rate: RateStatus, now: float) -> None:
        at = now if rate.at is None else min(rate.at, now)
        later = [tokens for other, tokens in self._running.items() if other > number]
        if rate.requests is not None:
            self._requests.learn(number, rate.requests, at, later=len(later))
        if rate.tokens is not None:
            self.tokens.learn(number, rate.tokens, at, later=sum(later))
        self._is_metered = True

    def _busy(self, why: str, wait_s: float = math.inf) -> errors.ModelOverloaded:
        self._refused += 1
        name, known = self.names[0], wait_s if math.isfinite(wait_s) else None
        return errors.ModelOverloaded(f"{name} is busy: {why}. Try again later.", provider=name, retry_after_s=known)
