"""Calls of a provider by name, with their bounds: time, silence, attempts, and concurrency."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import trio

from pattern_core.ids import Randomness
from pattern_core.limits import TurnLimits
from pattern_core.models.catalogue import Catalogue, corrected
from pattern_core.models.errors import ModelError, ModelLoading, ModelOverloaded, ModelTimeout, ToolsUnsupported
from pattern_core.models.model import Delta, ModelFacts, ModelReply, ModelRequest, OnDelta, Provider
from pattern_core.models.providers import not_configured
from pattern_core.models.routing import ModelChain, fitted, next_link
from pattern_core.models.throttle import ClientLimits, Gate, Outcome, RetryPolicy
from pattern_core.models.tokens import request_tokens

FALLBACK_PATIENCE_S = 2.0  # if there is a fallback, no call waits longer than this for a busy model
OUTPUT_HELD_MAX = 4_096  # tokens of an answer that are reserved at the gate before it arrives
FACTS_KEPT_MAX = 1_000  # pairs of provider and model
WINDOW_TIMEOUT_S = 3.0  # for a server to say how large a model's window is
LIST_TIMEOUT_S = 3.0  # for a server to list its models

OnRetry = Callable[[int, ModelError, float], Awaitable[None]]
"""Called before each wait with the number of the attempt that failed (from 1), its error, and the wait in seconds."""
OnMove = Callable[[int, ModelError], Awaitable[None]]
"""Called before another model is asked with its place in the chain, and the error of the model before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The account of a provider's calls: providers with the same `key` share one gate.

    `key` identifies the vendor's key, such as a digest; it is never the key itself.
    """

    key: str
    limits: ClientLimits = field(default_factory=ClientLimits)


@dataclass(slots=True)
class _Asking:
    """The parameters of a call besides the request, and the progress of its answer."""

    on_delta: OnDelta
    deadline: float
    on_retry: OnRetry | None
    flow: str
    attempts_max: int  # in addition to the policy's own bound
    patience_s: float = math.inf
    is_last: bool = True  # there is no fallback
    was_shown: bool = False  # a delta was passed on; no retries then
    loads_until: float = 0.0  # until when a server may load its model; 0: none does


class ModelClient:
    """The only way to call a model; the owner closes the providers.

    Shared by any number of tasks. `limits` gives the time until an answer begins (`model_timeout_s`) and the longest
    silence within it (`model_idle_timeout_s`), which does not count while `on_delta` runs. An arriving answer may last
    until the deadline. A provider without an entry in `accounts` has its own gate with the default limits.
    """

    def __init__(
        self,
        providers: Mapping[str, Provider],
        retry: RetryPolicy,
        limits: TurnLimits,
        randomness: Randomness,
        *,
        catalogue: Catalogue | None = None,
        accounts: Mapping[str, Account] | None = None,
    ) -> None:
        self._providers = dict(providers)
        self._retry = retry
        self._limits, self._local = limits, limits.local()
        self._randomness = randomness
        self._said: dict[tuple[str, str], dict[str, Any]] = {}  # facts by servers; a window of 0: they do not say it
        known = partial(_known, catalogue or Catalogue.packaged(), self._providers, self._said)
        self._facts = lru_cache(FACTS_KEPT_MAX)(known)
        self._accounts = {name: Account(key=name) for name in self._providers} | dict(accounts or {})
        self._gates = _gates(self._accounts)
        self._pinned: ModelClient | None = None

    def adopt(self, other: ModelClient) -> None:
        """Ask from now on as `other` does; questions in progress, and what is `pinned`, are not affected.

        A gate stays, with all that it knows of its vendor, where its providers and its account are the same.
        """
        kept = {
            name: gate
            for name, gate in self._gates.items()
            if name in other._gates
            and gate.names == other._gates[name].names
            and all(
                self._providers.get(each) is other._providers.get(each)
                and self._accounts[each] == other._accounts[each]
                for each in gate.names
            )
        }
        vars(self).update(vars(other) | {"_gates": other._gates | kept})

    def pinned(self) -> ModelClient:
        """Return a client for one turn: it asks as this one does now, whatever is adopted later. The same one until
        then.
        """
        if self._pinned is None:
            self._pinned = copy(self)
        return self._pinned

    async def models(self, provider_name: str) -> list[str]:
        """Return the names of the models that a provider's server lists, in its order; none where it lists none.

        Raises:
            ModelNotConfigured: there is no provider of that name.
            ModelError: the server does not answer, or refuses the key.
        """
        provider = self._providers.get(provider_name)
        if provider is None:
            raise not_configured(provider_name, sorted(self._providers))
        with trio.move_on_after(LIST_TIMEOUT_S):
            return await provider.models()
        raise ModelTimeout(f"{provider_name} has not answered within {LIST_TIMEOUT_S:g} s.", provider=provider_name)

    def facts(self, provider_name: str, model: str) -> ModelFacts:
        """Return the facts about a model; never fails, see `Catalogue.facts`."""
        return self._facts(provider_name, model)

    async def learn(self, provider_name: str, model: str) -> ModelFacts:
        """Return the facts about a model; an `unasked` window is requested from the provider's server.

        A server that answered is asked only once. An unreachable server, or one that is silent for `WINDOW_TIMEOUT_S`,
        is asked again.
        """
        provider = self._providers.get(provider_name)
        is_unasked = self._facts(provider_name, model).window_source == "unasked"
        if is_unasked and provider is not None and provider.window is not None:
            with trio.move_on_after(WINDOW_TIMEOUT_S), suppress(ModelError):
                self._heard(provider_name, model, window=await provider.window(model))
        return self._facts(provider_name, model)

    def _heard(self, provider_name: str, model: str, **facts: object) -> None:
        if (key := (provider_name, model)) in self._said or len(self._said) < FACTS_KEPT_MAX:
            self._said.setdefault(key, {}).update(facts)
            self._facts.cache_clear()

    def _corrects(self, error: ModelError, request: ModelRequest, provider_name: str) -> bool:
        """Learn from a refusal what the server or the model does not support; return whether a retry is useful."""
        window = error.details.get("window")
        if isinstance(window, int) and window < self.facts(provider_name, request.model).window:
            self._heard(provider_name, request.model, window=window)
        if not isinstance(error, ToolsUnsupported) or not request.tools or request.tool_calls == "text":
            return False
        as_text = error.details["as_text"] is True
        tool_calls = "text" if as_text else "none"
        self._heard(provider_name, request.model, tool_calls=tool_calls, tools=as_text)
        return self.facts(provider_name, request.model).tool_calls == tool_calls

    def limits(self, provider_name: str) -> TurnLimits:
        """Return the limits of turns with this provider: local servers have more time."""
        provider = self._providers.get(provider_name)
        return self._local if provider is not None and provider.is_local else self._limits

    def gate_figures(self) -> dict[str, dict[str, Any]]:
        """Return the state of each gate; providers that share one are named together, "a+b"."""
        return {"+".join(gate.names): gate.figures() for gate in self._gates.values()}

    async def ask(
        self,
        request: ModelRequest,
        chain: ModelChain,
        on_delta: OnDelta,
        deadline: float = math.inf,
        on_retry: OnRetry | None = None,
        on_move: OnMove | None = None,
        *,
        flow: str = "",
    ) -> ModelReply:
        """Call models until there is an answer, a permanent error, or no time left.

        The links of the chain are called in order until one answers; the request's own model is ignored, and
        `routing.next_link` says which errors lead to the next one. `deadline` is on trio's clock; no wait exceeds it.
        After a delta was passed on there are no retries: the error says so (`was_shown`), and the caller decides
        whether another attempt supersedes it. Empty deltas are not passed on: see `Provider.ask`. If calls must wait,
        flows are served in turn: `flow` is the constellation's id.

        Raises:
            ModelNotConfigured: there is no provider of that name.
            ModelTimeout: an attempt was too slow or too silent, or the deadline is reached.
            ModelOverloaded: too many callers wait, or the provider asked for a delay beyond the deadline or the cap.
            ModelUnreachable: there was no connection, or the circuit breaker is open after failures.
            ModelError: the provider's last error.
        """
        settings = chain.settings
        asking = _Asking(on_delta, deadline, on_retry, flow, attempts_max=settings.max_retries + 1)
        index = 0
        while True:
            link = chain.links[index]
            asking.is_last = index + 1 == len(chain.links)
            is_patient = asking.is_last or not settings.fallback_on_rate_limit
            asking.patience_s = math.inf if is_patient else FALLBACK_PATIENCE_S
            asked = fitted(request, link, self.facts(link.provider, link.model))
            try:
                return await self._ask(asked, link.provider, asking)
            except ModelError as error:
                error.details["link"] = index
                failure = error
            if self._corrects(failure, asked, link.provider):
                if on_retry is not None:
                    await on_retry(1, failure, 0.0)
                continue
            following = next_link(chain, index, failure, self.facts)
            if following is None:
                raise failure
            if on_move is not None:
                await on_move(following, failure)
            index = following

    async def _ask(self, request: ModelRequest, provider_name: str, asking: _Asking) -> ModelReply:
        """Call one model with all its retries."""
        provider = self._providers.get(provider_name)
        if provider is None:
            raise not_configured(provider_name, sorted(self._providers))
        gate = self._gates[provider_name]
        attempt = 1
        while True:
            tokens = 0
            if gate.tokens.limit is not None:  # most answers are far shorter than they may be
                tokens = request_tokens(request) + min(request.max_output_tokens, OUTPUT_HELD_MAX)
            try:
                deadline = asking.deadline
                if asking.patience_s < math.inf:
                    deadline = min(deadline, trio.current_time() + asking.patience_s)
                number = await gate.enter(flow=asking.flow, tokens=tokens, deadline=deadline)
            except ModelError as refusal:
                refusal.details["attempts"] = attempt - 1
                raise
            outcome: Outcome = None
            delay_s = 0.0
            try:
                outcome = await self._attempt(provider, request, asking, self.limits(provider_name))
                return outcome
            except ModelError as error:
                outcome = failure = error
                error.details |= {"shown": asking.was_shown, "attempts": attempt}
                delay_s = self._retry.delay_s(attempt, error, draw=self._randomness.getrandbits(53) / (1 << 53))
                if not self._may_repeat(error, attempt, delay_s, asking):
                    raise
            finally:
                gate.leave(number, outcome, pause_s=delay_s)  # other calls may pass while this one waits
            if asking.on_retry is not None:
                await asking.on_retry(attempt, failure, delay_s)
            await trio.sleep(delay_s)
            attempt += not isinstance(failure, ModelLoading)

    async def _attempt(
        self, provider: Provider, request: ModelRequest, asking: _Asking, limits: TurnLimits
    ) -> ModelReply:
        """Call once; the scope's deadline is the end of the allowed silence."""
        name, idle_s = provider.name, limits.model_idle_timeout_s
        key = "local_model" if limits is self._local else "model"
        silent = f"has not begun to answer within {limits.model_timeout_s:g} s (limits.turn.{key}_timeout_s)"

        async def pass_on(delta: Delta) -> None:
            nonlocal silent
            silent = f"fell silent for {idle_s:g} s in the middle of its answer (limits.turn.{key}_idle_timeout_s)"
            if delta.text:
                asking.was_shown = True
                scope.deadline = asking.deadline  # the time in `on_delta` is ours, not the provider's
                await asking.on_delta(delta)
            scope.deadline = min(asking.deadline, trio.current_time() + idle_s)

        with trio.CancelScope(deadline=min(asking.deadline, trio.current_time() + limits.model_timeout_s)) as scope:
            return await provider.ask(request, pass_on)
        if scope.deadline < asking.deadline:
            raise ModelTimeout(f"{name} {silent}. For a slow model raise this limit.", provider=name)
        late = ModelTimeout(f"{name} had not answered when the turn's time limit was reached.", provider=name)
        late.details["deadline"] = True  # the turn's deadline, which is not a failure of the vendor
        raise late

    def _may_repeat(self, error: ModelError, attempt: int, delay_s: float, asking: _Asking) -> bool:
        """Return whether a call is retried after attempt number `attempt` failed with `error`.

        Raises:
            ModelOverloaded: the vendor asks for a delay beyond the deadline, the cap, or the patience for this model.
        """
        retry, asked_s = self._retry, error.retry_after_s
        is_too_late = trio.current_time() + delay_s >= asking.deadline
        if isinstance(error, ModelOverloaded) and asked_s is not None:
            reasons = {
                f"and the longest delay is {retry.retry_after_cap_s:g} s": retry.is_absurd(error),
                "and the turn's time limit ends before that": is_too_late,
                "and another model can be called now": delay_s > asking.patience_s,
            }
            if why := next((why for why, holds in reasons.items() if holds), None):
                words = f"{error.message} It asks for a delay of {asked_s:.0f} s, {why}."
                late = ModelOverloaded(words, provider=error.provider, status=error.status, retry_after_s=asked_s)
                late.details |= error.details
                raise late from error
        if isinstance(error, ModelLoading):
            now = trio.current_time()
            asking.loads_until = asking.loads_until or now + retry.loading_max_s
            return not is_too_late and now < asking.loads_until and delay_s <= asking.patience_s
        if asking.was_shown or is_too_late or attempt >= asking.attempts_max:
            return False
        # A second time-out would use up the time that another model still needs.
        return retry.again(attempt, error) and (asking.is_last or not isinstance(error, ModelTimeout))


def _known(
    catalogue: Catalogue,
    providers: Mapping[str, Provider],
    heard: Mapping[tuple[str, str], Mapping[str, Any]],
    provider_name: str,
    model: str,
) -> ModelFacts:
    facts, said = catalogue.facts(provider_name, model), heard.get((provider_name, model), {})
    provider = providers.get(provider_name)
    is_silent = said.get("window") == 0 or provider is None or provider.window is None
    if known := {name: value for name, value in said.items() if value or name != "window"}:
        facts = corrected(facts, known, "server")
    return replace(facts, window_source="assumed") if facts.window_source == "unasked" and is_silent else facts


def _gates(accounts: Mapping[str, Account]) -> dict[str, Gate]:
    """Return a gate per account, by the names of the providers that share it."""
    sharing: dict[str, list[str]] = {}
    for name, account in sorted(accounts.items()):
        sharing.setdefault(account.key, []).append(name)
    made = {key: Gate(tuple(names), accounts[names[0]].limits) for key, names in sharing.items()}
    return {name: made[account.key] for name, account in accounts.items()}
