"""Asking a provider by name, with its bounds: time, silence, attempts, and how many ask at once."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import trio

from pattern_core.ids import Randomness
from pattern_core.limits import TurnLimits
from pattern_core.models.errors import ModelError, ModelOverloaded, ModelTimeout
from pattern_core.models.model import Delta, ModelReply, ModelRequest, OnDelta, Provider
from pattern_core.models.providers.settings import not_configured
from pattern_core.models.retry import RetryPolicy

OnRetry = Callable[[int, ModelError, float], Awaitable[None]]
"""Told before each wait: the number of the attempt that failed (from 1), its error, and the wait in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """Bounds per provider, for all agents that share one `ModelClient`."""

    calls_max: int = 16  # at once
    waiting_max: int = 1_000  # further ones that wait their turn


@dataclass(slots=True)
class _Gate:
    """What all calls of one provider share."""

    slots: trio.Semaphore
    closed_until: float = -math.inf  # on trio's clock; a 429 holds the other agents back too


class ModelClient:
    """The one way to ask a model; providers stay the owner's to close.

    Shared by any number of tasks. `limits` gives the time of one attempt (`model_timeout_s`) and the longest silence
    within a stream (`model_idle_timeout_s`): the silence counts from the first sign of life, because a small machine
    may read a long prompt for minutes, and it does not count while `on_delta` runs.
    """

    def __init__(
        self,
        providers: Mapping[str, Provider],
        retry: RetryPolicy,
        limits: TurnLimits,
        randomness: Randomness,
        *,
        client_limits: ClientLimits | None = None,
    ) -> None:
        self._providers = dict(providers)
        self._retry = retry
        self._limits = limits
        self._randomness = randomness
        self._bounds = client_limits or ClientLimits()
        calls_max = self._bounds.calls_max
        self._gates = {name: _Gate(trio.Semaphore(calls_max, max_value=calls_max)) for name in self._providers}

    @property
    def names(self) -> list[str]:
        """The names of the configured providers, sorted."""
        return sorted(self._providers)

    async def ask(
        self,
        request: ModelRequest,
        provider_name: str,
        on_delta: OnDelta,
        deadline: float = math.inf,
        on_retry: OnRetry | None = None,
    ) -> ModelReply:
        """Ask until there is an answer, an error that repetition does not mend, or no time.

        `deadline` is on trio's clock; no wait goes past it. Once a delta was passed on, nothing is asked again: the
        error says so (`was_shown`), and the caller decides whether another attempt supersedes what people saw.
        Empty deltas are signs of life from the provider and are not passed on.

        Raises:
            ModelNotConfigured: there is no provider of that name.
            ModelTimeout: an attempt was too slow or too silent, or the deadline is reached.
            ModelOverloaded: too many callers wait, or the provider said to come back after the deadline.
            ModelError: what the provider raised last.
        """
        provider = self._providers.get(provider_name)
        if provider is None:
            raise not_configured(provider_name, self.names)
        gate = self._gates[provider_name]
        attempt = 1
        while True:
            await self._enter(gate, provider_name, deadline)
            call = _Call(provider, request, on_delta, self._limits)
            try:
                return await call.run(deadline)
            except ModelError as error:
                error.details["shown"] = call.shown
                error.details["attempts"] = attempt
                delay_s = self._retry.delay_s(attempt, error, draw=self._draw())
                if isinstance(error, ModelOverloaded):
                    gate.closed_until = max(gate.closed_until, trio.current_time() + min(delay_s, self._retry.cap_s))
                if call.shown or not self._retry.again(attempt, error) or trio.current_time() + delay_s >= deadline:
                    raise
                failure = error
            finally:
                gate.slots.release()  # others may ask while this one waits
            if on_retry is not None:
                await on_retry(attempt, failure, delay_s)
            await trio.sleep(delay_s)
            attempt += 1

    async def _enter(self, gate: _Gate, name: str, deadline: float) -> None:
        """Take a slot of the provider, not before the time that it asked everybody to wait for."""
        if gate.slots.value > 0 and gate.closed_until <= trio.current_time():
            gate.slots.acquire_nowait()
            return
        waiting = gate.slots.statistics().tasks_waiting if gate.slots.value == 0 else 0
        if waiting >= self._bounds.waiting_max:
            raise _busy(name, f"{waiting} calls are waiting for it already")
        if gate.closed_until >= deadline:
            raise _busy(name, "it asked to be left alone for longer than there is time")
        with trio.CancelScope(deadline=deadline) as scope:
            await gate.slots.acquire()
            try:
                if gate.closed_until > trio.current_time():
                    await trio.sleep_until(gate.closed_until)
            except trio.Cancelled:
                gate.slots.release()
                raise
        if scope.cancelled_caught:
            raise _busy(name, f"no turn came within the time allowed; {self._bounds.calls_max} calls run at once")

    def _draw(self) -> float:
        return self._randomness.getrandbits(53) / (1 << 53)


def was_shown(error: ModelError) -> bool:
    """True if part of the answer was passed on before `error`: whoever saw it must be told what supersedes it."""
    return error.details.get("shown") is True


def _busy(name: str, why: str) -> ModelOverloaded:
    return ModelOverloaded(f"{name} is busy: {why}. Ask again later.", provider=name)


class _Call:
    """One attempt: two nested time limits around the provider's answer."""

    def __init__(self, provider: Provider, request: ModelRequest, on_delta: OnDelta, limits: TurnLimits) -> None:
        self.shown = False
        self._provider = provider
        self._request = request
        self._on_delta = on_delta
        self._limits = limits
        self._silence = trio.CancelScope()

    async def run(self, deadline: float) -> ModelReply:
        limits, name = self._limits, self._provider.name
        ends_at = trio.current_time() + limits.model_timeout_s
        with trio.CancelScope(deadline=min(ends_at, deadline)) as whole, self._silence:
            return await self._provider.ask(self._request, self._pass_on)
        if self._silence.cancelled_caught:
            raise ModelTimeout(
                f"{name} fell silent for {limits.model_idle_timeout_s:g} s in the middle of its answer.", provider=name
            )
        assert whole.cancelled_caught
        if deadline < ends_at:
            raise ModelTimeout(f"{name} had not answered when the time of the turn was up.", provider=name)
        raise ModelTimeout(
            f"{name} did not finish its answer within {limits.model_timeout_s:g} s. "
            "A slow model needs a longer model_timeout_s.",
            provider=name,
        )

    async def _pass_on(self, delta: Delta) -> None:
        if delta.text:
            self.shown = True
            self._silence.deadline = math.inf  # the time that showing takes is ours, not the provider's
            await self._on_delta(delta)
        self._silence.deadline = trio.current_time() + self._limits.model_idle_timeout_s
