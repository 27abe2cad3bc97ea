"""A chain of models, each asked if those before it could not answer, and only while nothing was shown."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from pattern_core.messages import Message, Part, Reasoning, ToolCall
from pattern_core.models.catalogue import ModelFacts
from pattern_core.models.errors import (
    ModelError,
    ModelGarbage,
    ModelNotConfigured,
    ModelOverloaded,
    ModelRefused,
    ModelServerError,
    ModelTimeout,
    ModelUnreachable,
    WindowExceeded,
    was_shown,
)
from pattern_core.models.model import ModelReply, ModelRequest

LINKS_MAX = 8

# A refused key and a provider that is not there are the operator's to mend, but no reason for an agent to be silent;
# each move is told, so that they do not go unnoticed.
_OUTAGES = (ModelUnreachable, ModelTimeout, ModelServerError, ModelGarbage, ModelRefused, ModelNotConfigured)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One model of a chain. What is None is as the request says. `reason` tells people why it is in the chain."""

    provider: str
    model: str
    reason: str
    temperature: float | None = None
    max_output_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A step along the chain. `index` is that of `following`; `attempts` were made at `failed`, none if it was busy.

    `why` is the error's code, such as "model_overloaded"; `message` its words.
    """

    index: int
    attempts: int
    failed: Link
    following: Link
    why: str
    message: str


OnMove = Callable[[Move], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Models in the order in which they are asked, 1 to `LINKS_MAX`.

    `max_retries` is how often each is asked again before the next one.
    """

    links: tuple[Link, ...]
    on_rate_limit: bool = True
    on_context_overflow: bool = True
    max_retries: int = 2


AskLink = Callable[[ModelRequest, Link, bool], Awaitable[ModelReply]]
"""Asks one link, with all its retries; the flag tells that there is no other link to go to."""

FactsOf = Callable[[str, str], ModelFacts]
"""What is known of a model, by the provider's name and the model's."""


async def fall_back(
    chain: Chain, request: ModelRequest, ask: AskLink, facts_of: FactsOf, on_move: OnMove | None = None
) -> ModelReply:
    """Ask the links of a chain in turn until one answers; `on_move` is called before the next one is asked.

    The next one is asked after a rate limit or an overload (if `on_rate_limit`), after a prompt too long for the model
    (if `on_context_overflow`, and only one with a larger window) and after an outage; never once words were shown.

    Raises:
        ModelError: the error of the link that was asked last.
    """
    index = 0
    while True:
        link = chain.links[index]
        following = index + 1
        try:
            return await ask(fitted(request, chain, index, facts_of), link, following == len(chain.links))
        except ModelError as error:
            error.details["link"] = index
            found = None if was_shown(error) else _following(chain, index, error, facts_of)
            if found is None:
                raise
            failure = error
        if on_move is not None:
            attempts = failure.details.get("attempts")
            await on_move(
                Move(
                    index=found,
                    attempts=attempts if isinstance(attempts, int) else 0,
                    failed=link,
                    following=chain.links[found],
                    why=failure.code,
                    message=failure.message,
                )
            )
        index = found


def fitted(request: ModelRequest, chain: Chain, index: int, facts_of: FactsOf) -> ModelRequest:
    """The request as a link is asked it: its model and settings, no longer an answer than the model can give.

    What only the first provider understands, its proofs and its extra fields, is not sent to another one.
    """
    link = chain.links[index]
    facts = facts_of(link.provider, link.model)
    wanted = request.max_output_tokens if link.max_output_tokens is None else link.max_output_tokens
    is_foreign = link.provider != chain.links[0].provider
    most = min(wanted, facts.output_max) if facts.is_known else wanted
    as_it_is = (request.model, request.max_output_tokens)
    if (link.model, most) == as_it_is and link.temperature is None and not is_foreign:
        return request
    return replace(
        request,
        model=link.model,
        temperature=request.temperature if link.temperature is None else link.temperature,
        max_output_tokens=most,
        messages=portable(request.messages) if is_foreign else request.messages,
        extra={} if is_foreign else request.extra,
    )


def portable(messages: Sequence[Message]) -> list[Message]:
    """The conversation without the proofs that only their vendor accepts; messages without any are kept as they are."""
    return [
        replace(message, parts=tuple(map(_without_proof, message.parts)))
        if any(_has_proof(part) for part in message.parts)
        else message
        for message in messages
    ]


def _has_proof(part: Part) -> bool:
    return isinstance(part, Reasoning | ToolCall) and part.signature is not None


def _without_proof(part: Part) -> Part:
    return replace(part, signature=None) if isinstance(part, Reasoning | ToolCall) else part


def _following(chain: Chain, index: int, error: ModelError, facts_of: FactsOf) -> int | None:
    """The link to go to after `error`, None if it is one that another model does not mend."""
    if error.details.get("deadline") is True:
        return None  # the turn's time is up
    rest = range(index + 1, len(chain.links))
    if isinstance(error, WindowExceeded):
        if not chain.on_context_overflow:
            return None
        window = _facts(chain, index, facts_of).window
        return next((one for one in rest if _facts(chain, one, facts_of).window > window), None)
    may_move = chain.on_rate_limit if isinstance(error, ModelOverloaded) else isinstance(error, _OUTAGES)
    return next(iter(rest), None) if may_move else None


def _facts(chain: Chain, index: int, facts_of: FactsOf) -> ModelFacts:
    return facts_of(chain.links[index].provider, chain.links[index].model)
