"""Asking a provider by name, with its bounds: time, silence, attempts, and how many ask at once."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass

import trio

from pattern_core.ids import Randomness
from pattern_core.limits import TurnLimits
from pattern_core.models.catalogue import Catalogue, ModelFacts
from pattern_core.models.errors import ModelError, ModelOverloaded, ModelTimeout
from pattern_core.models.fallback import Chain, Link, OnMove, fall_back
from pattern_core.models.gate import ClientLimits, Gate, GateSnapshot, Outcome
from pattern_core.models.model import Delta, ModelReply, ModelRequest, OnDelta, Provider, Usage
from pattern_core.models.providers import not_configured
from pattern_core.models.retry import RetryPolicy
from pattern_core.models.tokens import request_tokens

__all__ = ["Account", "ClientLimits", "ModelClient", "OnRetry"]

FALLBACK_PATIENCE_S = 2.0  # where another model can be asked, nobody waits longer than this for a busy one

OUTPUT_HELD_MAX = 4_096  # tokens of an answer that are held at the gate before it comes

OnRetry = Callable[[int, ModelError, float], Awaitable[None]]
"""Told before each wait: the number of the attempt that failed (from 1), its error, and the wait in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Whose limits a provider's calls count against: providers of the same `key` share one gate.

    `key` is any text that is the same for the same vendor's key, such as a digest; never the key itself.
    """

    key: str
    limits: ClientLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asking:
    """How one question is put, beside what is asked."""

    on_delta: OnDelta
    deadline: float
    on_retry: OnRetry | None
    flow: str
    attempts_max: int


class ModelClient:
    """The one way to ask a model; providers stay the owner's to close.

    Shared by any number of tasks. `limits` gives the time of one attempt (`model_timeout_s`) and the longest silence
    within a stream (`model_idle_timeout_s`): the silence counts from the first sign of life, because a small machine
    may read a long prompt for minutes, and it does not count while `on_delta` runs. A provider without an entry in
    `accounts` has a gate of its own with `client_limits`.
    """

    def __init__(
        self,
        providers: Mapping[str, Provider],
        retry: RetryPolicy,
        limits: TurnLimits,
        randomness: Randomness,
        *,
        client_limits: ClientLimits | None = None,
        catalogue: Catalogue | None = None,
        accounts: Mapping[str, Account] | None = None,
    ) -> None:
        self._providers = dict(providers)
        self._retry = retry
        self._limits = limits
        self._randomness = randomness
        self._catalogue = catalogue or Catalogue.packaged()
        bounds = client_limits or ClientLimits()
        given = accounts or {}
        self._gates = _gates({name: given.get(name) or Account(key=name, limits=bounds) for name in self._providers})

    @property
    def names(self) -> list[str]:
        """The names of the configured providers, sorted."""
        return sorted(self._providers)

    @property
    def catalogue(self) -> Catalogue:
        """The facts and prices of models."""
        return self._catalogue

    def facts(self, provider_name: str, model: str) -> ModelFacts:
        """What is known of a model; never fails, see `Catalogue.facts`."""
        return self._catalogue.facts(provider_name, model)

    def cost(self, provider_name: str, model: str, usage: Usage) -> int | None:
        """What a call cost in micro-dollars; None where the price is not known."""
        return self._catalogue.cost(self.facts(provider_name, model), usage)

    def gates(self) -> list[GateSnapshot]:
        """Every gate as it is now, ordered by its providers' names."""
        return sorted((gate.snapshot() for gate in set(self._gates.values())), key=lambda one: one.providers)

    def gate_figures(self) -> dict[str, dict[str, object]]:
        """The same for meters: figures by name, per gate; providers that share one are named together, "a+b"."""
        return {"+".join(gate.providers): asdict(gate) | {"is_closed": gate.state != "closed"} for gate in self.gates()}

    async def ask(
        self,
        request: ModelRequest,
        provider_name: str,
        on_delta: OnDelta,
        deadline: float = math.inf,
        on_retry: OnRetry | None = None,
        on_move: OnMove | None = None,
        *,
        flow: str = "",
        chain: Chain | None = None,
    ) -> ModelReply:
        """Ask until there is an answer, an error that repetition does not mend, or no time.

        `deadline` is on trio's clock; no wait goes past it. Once a delta was passed on, nothing is asked again: the
        error says so (`was_shown`), and the caller decides whether another attempt supersedes what people saw.
        Empty deltas are signs of life from the provider and are not passed on.

        Where calls must wait, flows take turns: `flow` is the constellation's id. With a `chain`, its links say which
        models are asked, and `provider_name` and the request's model count no more.

        Raises:
            ModelNotConfigured: there is no provider of that name.
            ModelTimeout: an attempt was too slow or too silent, or the deadline is reached.
            ModelOverloaded: too many callers wait, or the provider said to come back after the deadline or absurdly
                late.
            ModelUnreachable: there was no connection, or the provider is left alone after failures.
            ModelError: what the provider raised last.
        """
        attempts_max = self._retry.attempts_max
        if chain is not None:
            attempts_max = min(attempts_max, chain.max_retries + 1)
        asking = _Asking(on_delta=on_delta, deadline=deadline, on_retry=on_retry, flow=flow, attempts_max=attempts_max)
        if chain is None:
            return await self._ask(request, provider_name, asking)

        async def ask_link(request: ModelRequest, link: Link, is_last: bool) -> ModelReply:
            patience_s = FALLBACK_PATIENCE_S if chain.on_rate_limit and not is_last else math.inf
            return await self._ask(request, link.provider, asking, patience_s=patience_s, is_last=is_last)

        return await fall_back(chain, request, ask_link, self.facts, on_move)

    async def _ask(
        self,
        request: ModelRequest,
        provider_name: str,
        asking: _Asking,
        *,
        patience_s: float = math.inf,
        is_last: bool = True,
    ) -> ModelReply:
        """Ask one model with all its retries. `is_last`: there is no other model to go to."""
        provider = self._providers.get(provider_name)
        if provider is None:
            raise not_configured(provider_name, self.names)
        gate = self._gates[provider_name]
        retry = self._retry
        attempt = 1
        while True:
            tokens = _held(request) if gate.counts_tokens else 0
            try:
                ticket = await gate.enter(
                    flow=asking.flow, tokens=tokens, deadline=asking.deadline, patience_s=patience_s
                )
            except ModelError as refusal:
                refusal.details["attempts"] = attempt - 1
                raise
            call = _Call(provider, request, asking.on_delta, self._limits)
            outcome: Outcome = None
            delay_s = 0.0
            try:
                outcome = await call.run(asking.deadline)
                return outcome
            except ModelError as error:
                outcome = error
                error.details["shown"] = call.shown
                error.details["attempts"] = attempt
                delay_s = retry.delay_s(attempt, error, draw=self._draw())
                _refuse_long_waits(error, retry, delay_s, deadline=asking.deadline, patience_s=patience_s)
                # A second time-out would take what another model still needs.
                is_over = isinstance(error, ModelTimeout) and not is_last
                is_over = is_over or trio.current_time() + delay_s >= asking.deadline
                if call.shown or is_over or attempt >= asking.attempts_max or not retry.again(attempt, error):
                    raise
                failure = error
            finally:
                gate.leave(ticket, outcome, pause_s=delay_s)  # others may ask while this one waits
            if asking.on_retry is not None:
                await asking.on_retry(attempt, failure, delay_s)
            await trio.sleep(delay_s)
            attempt += 1

    def _draw(self) -> float:
        return self._randomness.getrandbits(53) / (1 << 53)


def _gates(accounts: Mapping[str, Account]) -> dict[str, Gate]:
    """A gate per account, by the names of the providers that share it."""
    sharing: dict[str, list[str]] = {}
    for name, account in sorted(accounts.items()):
        sharing.setdefault(account.key, []).append(name)
    made = {key: Gate(tuple(names), accounts[names[0]].limits) for key, names in sharing.items()}
    return {name: made[account.key] for name, account in accounts.items()}


def _held(request: ModelRequest) -> int:
    """Tokens to hold for a call until its usage is known; most answers are far shorter than they may be."""
    return request_tokens(request) + min(request.max_output_tokens, OUTPUT_HELD_MAX)


def _refuse_long_waits(
    error: ModelError, retry: RetryPolicy, delay_s: float, *, deadline: float, patience_s: float
) -> None:
    """Say it plainly where a vendor's own wish is why nobody asks it again.

    Raises:
        ModelOverloaded: it asks to come back after the deadline, absurdly late, or later than there is patience for.
    """
    wish_s = error.retry_after_s
    if not isinstance(error, ModelOverloaded) or wish_s is None:
        return
    if retry.is_absurd(error):
        why = f"and nobody waits longer than {retry.retry_after_cap_s:g} s"
    elif trio.current_time() + delay_s >= deadline:
        why = "and the time of the turn ends before that"
    elif delay_s > patience_s:
        why = "and another model can be asked now"
    else:
        return
    told = ModelOverloaded(
        f"{error.message} It asks to come back in {wish_s:.0f} s, {why}.",
        provider=error.provider,
        status=error.status,
        retry_after_s=wish_s,
    )
    told.details |= error.details
    raise told from error


class _Call:
    """One attempt, bounded in whole and in silence: whichever ends first is the deadline of its scope."""

    def __init__(self, provider: Provider, request: ModelRequest, on_delta: OnDelta, limits: TurnLimits) -> None:
        self.shown = False
        self._provider = provider
        self._request = request
        self._on_delta = on_delta
        self._limits = limits
        self._ends_at = math.inf
        self._scope: trio.CancelScope

    async def run(self, deadline: float) -> ModelReply:
        limits, name = self._limits, self._provider.name
        own_end = trio.current_time() + limits.model_timeout_s
        self._ends_at = min(own_end, deadline)
        self._scope = trio.CancelScope(deadline=self._ends_at)
        with self._scope:
            return await self._provider.ask(self._request, self._pass_on)
        if self._scope.deadline < self._ends_at:
            raise ModelTimeout(
                f"{name} fell silent for {limits.model_idle_timeout_s:g} s in the middle of its answer.", provider=name
            )
        if deadline < own_end:
            late = ModelTimeout(f"{name} had not answered when the time of the turn was up.", provider=name)
            late.details["deadline"] = True  # the turn's, which says nothing of the vendor
            raise late
        raise ModelTimeout(
            f"{name} did not finish its answer within {limits.model_timeout_s:g} s. "
            "A slow model needs a longer model_timeout_s.",
            provider=name,
        )

    async def _pass_on(self, delta: Delta) -> None:
        if delta.text:
            self.shown = True
            self._scope.deadline = self._ends_at  # the time that showing takes is ours, not the provider's
            await self._on_delta(delta)
        self._scope.deadline = min(self._ends_at, trio.current_time() + self._limits.model_idle_timeout_s)
