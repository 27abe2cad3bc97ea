from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import trio
from trio.testing import MockClock

from pattern_core.ids import seeded_randomness
from pattern_core.limits import TurnLimits
from pattern_core.messages import Message, Reasoning, Text, ToolCall, user
from pattern_core.models.catalogue import Catalogue
from pattern_core.models.client import ModelClient
from pattern_core.models.errors import (
    ModelError,
    ModelGarbage,
    ModelNotConfigured,
    ModelOverloaded,
    ModelRefused,
    ModelRejected,
    ModelServerError,
    ModelTimeout,
    ModelUnreachable,
    WindowExceeded,
)
from pattern_core.models.model import Delta, ModelFacts, ModelReply, ModelRequest
from pattern_core.models.routing import Link, ModelChain, Move, fitted, next_link, portable
from pattern_core.models.throttle import RetryPolicy
from pattern_core.testing import Paced, ScriptedProvider, says
from pattern_core.testing.model import Answer

WINDOWS = {"a": 100, "b": 100, "c": 1_000}
THOUGHT = Message(
    role="assistant",
    parts=(
        Reasoning(text="hm", signature="proof"),
        Text(text="yes"),
        ToolCall(call_id="1", tool="t", signature="proof"),
    ),
)
REQUEST = ModelRequest(
    model="own",
    system=("s",),
    messages=[user("hello"), THOUGHT],
    extra={"x": 1},
    max_output_tokens=500,
    temperature=1.0,
)


def facts_of(provider: str, model: str) -> ModelFacts:
    return ModelFacts(provider=provider, model=model, window=WINDOWS[provider], output_max=50)


@dataclass
class Links:
    """A client of one provider for each outcome, asked as a chain in this order; it records the moves."""

    outcomes: dict[str, Answer]
    moves: list[Move] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.providers = {name: ScriptedProvider(name=name, otherwise=each) for name, each in self.outcomes.items()}
        tables = {name: {f"{name}-model": facts_of(name, f"{name}-model")} for name in self.outcomes}
        self.client = ModelClient(
            self.providers, RetryPolicy(jitter=0), TurnLimits(), seeded_randomness(1), catalogue=Catalogue(tables)
        )

    @property
    def asked(self) -> list[str]:
        return [request.model for provider in self.providers.values() for request in provider.requests]

    async def on_move(self, move: Move) -> None:
        self.moves.append(move)

    async def run(self, *, max_retries: int = 0, **flags: bool) -> ModelReply:
        links = tuple(Link(provider=name, model=f"{name}-model", reason="test") for name in self.outcomes)
        chain = ModelChain(links=links, max_retries=max_retries, **flags)
        return await self.client.ask(REQUEST, "ignored", ignore, on_move=self.on_move, chain=chain)


async def ignore(delta: Delta) -> None:
    """Show nothing."""


def error(kind: type[ModelError]) -> ModelError:
    return kind("no", provider="any")


async def test_the_first_that_can_answers() -> None:
    links = Links({"a": says("yes"), "b": says("never")})
    assert await links.run() == says("yes")
    assert (links.asked, links.moves) == (["a-model"], [])


@pytest.mark.parametrize(
    ("kind", "moves"),
    [
        (ModelOverloaded, True),
        (ModelUnreachable, True),
        (ModelTimeout, True),
        (ModelServerError, True),
        (ModelGarbage, True),
        (ModelRefused, True),
        (ModelNotConfigured, True),
        (ModelRejected, False),
    ],
)
async def test_what_another_model_mends(kind: type[ModelError], moves: bool) -> None:
    links = Links({"a": error(kind), "b": says("yes")})
    if moves:
        assert await links.run() == says("yes")
        assert links.asked == ["a-model", "b-model"]
    else:
        with pytest.raises(kind):
            await links.run()


def test_each_move_is_told_before_the_next_model_is_asked() -> None:
    async def test() -> None:
        links = Links({"a": error(ModelOverloaded), "b": error(ModelUnreachable), "c": says("yes")})
        await links.run(max_retries=2)
        first, second = links.moves
        assert (first.index, first.attempts, first.why) == (1, 3, "model_overloaded")
        assert (first.failed.provider, first.following.provider) == ("a", "b")
        assert (second.index, second.attempts, second.why, second.message) == (2, 3, "model_unreachable", "no")

    trio.run(test, clock=MockClock(autojump_threshold=0))


async def test_the_last_error_comes_out_with_its_link() -> None:
    links = Links({"a": error(ModelServerError), "b": error(ModelUnreachable)})
    with pytest.raises(ModelUnreachable) as caught:
        await links.run()
    assert caught.value.details["link"] == 1


async def test_nothing_moves_once_words_were_shown() -> None:
    broken = Paced(answer=says("half"), breaks=error(ModelUnreachable), shown=1)
    links = Links({"a": broken, "b": says("never")})
    with pytest.raises(ModelUnreachable):
        await links.run()
    assert links.asked == ["a-model"]


async def test_too_long_a_prompt_goes_to_a_larger_window_only() -> None:
    links = Links({"a": error(WindowExceeded), "b": says("never"), "c": says("yes")})
    assert await links.run() == says("yes")
    assert [move.index for move in links.moves] == [2]
    small = Links({"a": error(WindowExceeded), "b": says("never")})
    with pytest.raises(WindowExceeded):
        await small.run()


@pytest.mark.parametrize(
    ("kind", "flag"), [(ModelOverloaded, "on_rate_limit"), (WindowExceeded, "on_context_overflow")]
)
async def test_the_agent_may_forbid_it(kind: type[ModelError], flag: str) -> None:
    links = Links({"a": error(kind), "c": says("never")})
    with pytest.raises(kind):
        await links.run(**{flag: False})


def test_the_request_is_fitted_to_the_link() -> None:
    chain = ModelChain(
        links=(
            Link(provider="a", model="m1", reason=""),
            Link(provider="a", model="m2", reason="", temperature=0.0, max_output_tokens=20),
            Link(provider="b", model="m3", reason=""),
        )
    )
    own = fitted(REQUEST, chain, 0, facts_of("a", "m1"))
    assert (own.model, own.temperature, own.max_output_tokens, own.extra) == ("m1", 1.0, 50, {"x": 1})
    assert own.messages is REQUEST.messages
    same = fitted(REQUEST, chain, 1, facts_of("a", "m2"))
    assert (same.model, same.temperature, same.max_output_tokens) == ("m2", 0.0, 20)
    assert same.messages is REQUEST.messages
    foreign = fitted(REQUEST, chain, 2, facts_of("b", "m3"))
    assert (foreign.model, foreign.extra) == ("m3", {})
    assert foreign.messages == portable(REQUEST.messages)


def test_a_request_that_fits_stays_as_it_is() -> None:
    chain = ModelChain(links=(Link(provider="a", model="own", reason=""),))
    request = replace(REQUEST, max_output_tokens=50)
    assert fitted(request, chain, 0, facts_of("a", "own")) is request


def test_an_unknown_models_answers_are_not_cut() -> None:
    unknown = replace(facts_of("a", "m"), is_known=False)
    chain = ModelChain(links=(Link(provider="a", model="m", reason=""),))
    assert fitted(REQUEST, chain, 0, unknown).max_output_tokens == 500


def test_the_time_of_the_turn_ends_the_chain() -> None:
    late = error(ModelTimeout)
    chain = ModelChain(links=tuple(Link(provider=name, model="m", reason="") for name in "ab"))
    assert next_link(chain, 0, late, facts_of) == 1
    late.details["deadline"] = True
    assert next_link(chain, 0, late, facts_of) is None


def test_portable_drops_proofs_and_nothing_else() -> None:
    plain = user("hello")
    first, second = portable([plain, THOUGHT])
    assert first is plain
    assert [getattr(part, "signature", None) for part in second.parts] == [None, None, None]
    assert second.text == "yes" and len(second.parts) == 3
    assert THOUGHT.parts[0] == Reasoning(text="hm", signature="proof")
