"""The one gate that all calls of a vendor's key pass: how many at once, how fast, in what order, and when not at all.

A call waits its flow's turn (`fair`), until a slot is free (`concurrency`), the vendor's limits leave room (`bucket`),
the vendor is not left alone after failures (`breaker`), and the pause that it asked for is over. There is no task
behind a gate: whoever leaves lets the next ones in, and whoever is first in the row watches the clock for all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import trio

from pattern_core.models.breaker import Breaker, BreakerState
from pattern_core.models.bucket import Bucket, Hold
from pattern_core.models.concurrency import Concurrency
from pattern_core.models.errors import (
    ModelError,
    ModelOverloaded,
    ModelServerError,
    ModelTimeout,
    ModelUnreachable,
)
from pattern_core.models.fair import FairQueue
from pattern_core.models.model import ModelReply
from pattern_core.models.rate import RateStatus

BREAKER_PATIENCE_S = 30.0  # a vendor that is left alone for longer is not waited for

Outcome = ModelReply | ModelError | None
"""How a call ended; None if it was given up before it told anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """Bounds per key, for all agents that share it. Limits per minute are the operator's own, beside the vendor's."""

    calls_max: int = 16  # at once
    waiting_max: int = 1_000  # further ones that wait their turn
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


@dataclass(slots=True, eq=False)
class Ticket:
    """Leave to send one call. Give it back by `Gate.leave`, once."""

    number: int
    requests: Hold
    tokens: Hold


@dataclass(slots=True, eq=False)
class _Waiter:
    flow: str
    tokens: int
    event: trio.Event = field(default_factory=trio.Event)  # let in, or first in the row
    ticket: Ticket | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSnapshot:
    """A gate at one moment. Levels are units that may be used now, None while no limit is known; `…_s` seconds."""

    providers: tuple[str, ...]
    state: BreakerState
    failures: int  # in a row
    closed_for_s: float  # until calls may go again: after failures, or as the vendor asked
    running: int
    waiting: int
    flows_waiting: int
    concurrency: int
    concurrency_max: int
    requests_limit: int | None
    requests_level: int | None
    tokens_limit: int | None
    tokens_level: int | None
    calls_total: int
    failures_total: int  # outages
    overloads_total: int  # 429, 503, 529
    refused_total: int  # by this gate, without asking the vendor


class Gate:
    """See the module. `names` are the providers that share it."""

    def __init__(self, names: tuple[str, ...], limits: ClientLimits) -> None:
        self._names = names
        self._limits = limits
        self._concurrency = Concurrency(limits.calls_max)
        self._requests = Bucket(limits.requests_per_minute)
        self._tokens = Bucket(limits.tokens_per_minute)
        self._breaker = Breaker()
        self._queue: FairQueue[_Waiter] = FairQueue()
        self._running = 0
        self._paused_until = -math.inf
        self._calls = self._failures = self._overloads = self._refused = 0

    @property
    def counts_tokens(self) -> bool:
        """True if the tokens of a call matter: only then need they be estimated."""
        return self._tokens.is_known

    async def enter(self, *, flow: str, tokens: int, deadline: float, patience_s: float = math.inf) -> Ticket:
        """Wait for leave to send a call of `tokens` (input and output), until `deadline` (trio's clock).

        Nobody waits longer than `patience_s`. Where it is known that the wait is longer or goes past the deadline, the
        call is refused at once.

        Raises:
            ModelOverloaded: too many wait, the wait is too long, or no turn came in time. It says which.
            ModelUnreachable: the vendor is left alone after failures.
        """
        now = trio.current_time()
        if not self._queue and self._ready_at(tokens, now) <= now:
            return self._admitted(tokens, now)
        self._refuse_the_hopeless(tokens, now, deadline, patience_s)
        if len(self._queue) >= self._limits.waiting_max:
            raise self._busy(f"{len(self._queue)} calls are waiting for it already")
        waiter = _Waiter(flow, tokens)
        self._queue.push(flow, waiter)
        try:
            await self._wait(waiter, min(deadline, now + patience_s), patience_s)
        finally:
            if waiter.ticket is None:
                self._queue.remove(flow, waiter)
            self._let_in()
        if waiter.ticket is None:
            raise self._busy(f"no turn came within the time allowed; {self._concurrency.allowed} calls run at once")
        return waiter.ticket

    def leave(self, ticket: Ticket, outcome: Outcome, *, pause_s: float = 0.0) -> None:
        """The call is over: learn from how it ended, and let the next ones in.

        `pause_s` is how long everybody keeps away if the vendor was overloaded.
        """
        now = trio.current_time()
        self._running -= 1
        rate = None if outcome is None else outcome.rate
        if rate is not None:
            self._learn(ticket, rate, now)
        used = None
        if isinstance(outcome, ModelReply) and not outcome.usage.is_estimate:
            used = outcome.usage.input_tokens + outcome.usage.output_tokens
        self._requests.settle(ticket.requests, None, now)
        self._tokens.settle(ticket.tokens, used, now)
        if isinstance(outcome, ModelOverloaded):
            self._overloads += 1
            self._concurrency.overloaded(ticket.number, self._calls)
            self._paused_until = max(self._paused_until, now + pause_s)
        if _is_outage(outcome):
            self._failures += 1
            self._breaker.failed(ticket.number, now)
        elif outcome is None or _is_ours(outcome):
            self._breaker.abandoned(ticket.number)
        else:
            self._breaker.succeeded()
        if isinstance(outcome, ModelReply):
            self._concurrency.succeeded()
        elif isinstance(outcome, ModelError):
            for waiter in self._queue:
                waiter.event.set()  # to look whether it still has the patience
        self._let_in()

    def snapshot(self) -> GateSnapshot:
        """What the gate is doing, for people and meters."""
        now = trio.current_time()
        closed_until = max(self._paused_until, self._breaker.ready_at(now))
        closed_for_s = closed_until - now if math.isfinite(closed_until) else 0.0
        return GateSnapshot(
            providers=self._names,
            state=self._breaker.state(now),
            failures=self._breaker.failures,
            closed_for_s=max(0.0, closed_for_s),
            running=self._running,
            waiting=len(self._queue),
            flows_waiting=self._queue.flows,
            concurrency=self._concurrency.allowed,
            concurrency_max=self._concurrency.most,
            requests_limit=self._requests.limit,
            requests_level=_whole(self._requests.level(now)),
            tokens_limit=self._tokens.limit,
            tokens_level=_whole(self._tokens.level(now)),
            calls_total=self._calls,
            failures_total=self._failures,
            overloads_total=self._overloads,
            refused_total=self._refused,
        )

    async def _wait(self, waiter: _Waiter, deadline: float, patience_s: float) -> None:
        """Until the waiter has its ticket, or the deadline is reached."""
        with trio.CancelScope(deadline=deadline):
            while waiter.ticket is None:
                now = trio.current_time()
                # What became known while it waited may be more than it has patience for.
                self._refuse_the_hopeless(waiter.tokens, now, deadline, patience_s)
                until = self._ready_at(waiter.tokens, now) if self._queue.peek() is waiter else math.inf
                with trio.move_on_at(until):
                    await waiter.event.wait()
                if waiter.ticket is None:
                    waiter.event = trio.Event()
                    self._let_in(by=waiter)

    def _let_in(self, by: _Waiter | None = None) -> None:
        """Give tickets to all who may go now, and wake the first of the others (unless it asks) to watch the clock."""
        if not self._queue:
            return
        now = trio.current_time()
        while (first := self._queue.peek()) is not None:
            if not self._ready_at(first.tokens, now) <= now:
                break
            self._queue.pop()
            first.ticket = self._admitted(first.tokens, now)
            first.event.set()
        if first is not None and first is not by:
            first.event.set()

    @property
    def _has_slot(self) -> bool:
        return self._running < self._concurrency.allowed

    def _ready_at(self, tokens: int, now: float) -> float:
        """When a call of so many tokens may go; infinite if that depends on another call's end."""
        if not self._has_slot:
            return math.inf
        return max(self._paused_until, self._breaker.ready_at(now), self._room_at(tokens, now))

    def _room_at(self, tokens: int, now: float) -> float:
        wait_s = max(self._requests.wait_s(1, now), self._tokens.wait_s(tokens, now))
        return now + wait_s if wait_s > 0 else -math.inf

    def _admitted(self, tokens: int, now: float) -> Ticket:
        self._running += 1
        self._calls += 1
        self._breaker.sent(self._calls, now)
        return Ticket(self._calls, self._requests.take(1, now), self._tokens.take(tokens, now))

    def _refuse_the_hopeless(self, tokens: int, now: float, deadline: float, patience_s: float) -> None:
        open_until = self._breaker.ready_at(now)
        if math.isfinite(open_until) and open_until > now:
            wait_s = open_until - now
            if wait_s > min(patience_s, BREAKER_PATIENCE_S) or open_until >= deadline:
                self._refused += 1
                raise ModelUnreachable(
                    f"{self._names[0]} failed {self._breaker.failures} times in a row and is left alone for "
                    f"{wait_s:.0f} s more. Ask again then, or give the agent a model to fall back to.",
                    provider=self._names[0],
                    retry_after_s=wait_s,
                )
        known = (
            (self._paused_until, "it asked to be left alone"),
            (self._room_at(tokens, now), "its limits of requests and tokens leave no room"),
        )
        for until, why in known:
            if until > now and (until >= deadline or until - now > patience_s):
                raise self._busy(f"{why} for longer than there is time", until - now)

    def _learn(self, ticket: Ticket, rate: RateStatus, now: float) -> None:
        at = now if rate.at is None else min(rate.at, now)
        self._requests.learn(ticket.requests, rate.requests_limit, rate.requests_remaining, rate.requests_reset_s, at)
        self._tokens.learn(ticket.tokens, rate.tokens_limit, rate.tokens_remaining, rate.tokens_reset_s, at)

    def _busy(self, why: str, wait_s: float | None = None) -> ModelOverloaded:
        self._refused += 1
        name = self._names[0]
        finite = wait_s if wait_s is not None and math.isfinite(wait_s) else None
        return ModelOverloaded(f"{name} is busy: {why}. Ask again later.", provider=name, retry_after_s=finite)


def _is_outage(outcome: Outcome) -> bool:
    if isinstance(outcome, ModelOverloaded):
        return outcome.status == 503  # what proxies say for a server that is down, too
    return isinstance(outcome, ModelUnreachable | ModelTimeout | ModelServerError) and not _is_ours(outcome)


def _is_ours(outcome: ModelReply | ModelError) -> bool:
    """True if our own deadline ended the call: that says nothing of the vendor."""
    return isinstance(outcome, ModelTimeout) and outcome.details.get("deadline") is True


def _whole(level: float | None) -> int | None:
    return None if level is None else math.floor(level)
