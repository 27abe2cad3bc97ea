from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from pattern_core.messages import Message, Reasoning, Text, ToolCall, user
from pattern_core.models.catalogue import ModelFacts
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
from pattern_core.models.fallback import Chain, Link, Move, fall_back, fitted, portable
from pattern_core.models.model import ModelReply, ModelRequest
from pattern_core.testing import says

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
    """Plays an outcome per provider and records what was asked."""

    outcomes: dict[str, ModelError | ModelReply]
    asked: list[tuple[str, bool]] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)

    async def ask(self, request: ModelRequest, link: Link, is_last: bool) -> ModelReply:
        self.asked.append((request.model, is_last))
        outcome = self.outcomes[link.provider]
        if isinstance(outcome, ModelError):
            raise outcome
        return outcome

    async def on_move(self, move: Move) -> None:
        self.moves.append(move)

    def chain(self, **flags: bool) -> Chain:
        links = tuple(Link(provider=name, model=f"{name}-model", reason="test") for name in self.outcomes)
        return replace(Chain(links=links), **flags)  # type: ignore[arg-type]  # all are flags

    async def run(self, **flags: bool) -> ModelReply:
        return await fall_back(self.chain(**flags), REQUEST, self.ask, facts_of, self.on_move)


def error(kind: type[ModelError]) -> ModelError:
    return kind("no", provider="any")


async def test_the_first_that_can_answers() -> None:
    links = Links({"a": says("yes"), "b": says("never")})
    assert await links.run() == says("yes")
    assert (links.asked, links.moves) == ([("a-model", False)], [])


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
        assert links.asked == [("a-model", False), ("b-model", True)]
    else:
        with pytest.raises(kind):
            await links.run()


async def test_each_move_is_told_before_the_next_model_is_asked() -> None:
    failed = error(ModelOverloaded)
    failed.details["attempts"] = 3
    links = Links({"a": failed, "b": error(ModelUnreachable), "c": says("yes")})
    await links.run()
    first, second = links.moves
    assert (first.index, first.attempts, first.why) == (1, 3, "model_overloaded")
    assert (first.failed.provider, first.following.provider) == ("a", "b")
    assert (second.index, second.attempts, second.why, second.message) == (2, 0, "model_unreachable", "no")


async def test_the_last_error_comes_out_with_its_link() -> None:
    links = Links({"a": error(ModelServerError), "b": error(ModelUnreachable)})
    with pytest.raises(ModelUnreachable) as caught:
        await links.run()
    assert caught.value.details["link"] == 1


async def test_nothing_moves_once_words_were_shown() -> None:
    failed = error(ModelUnreachable)
    failed.details["shown"] = True
    links = Links({"a": failed, "b": says("never")})
    with pytest.raises(ModelUnreachable):
        await links.run()
    assert links.asked == [("a-model", False)]


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
    chain = Chain(
        links=(
            Link(provider="a", model="m1", reason=""),
            Link(provider="a", model="m2", reason="", temperature=0.0, max_output_tokens=20),
            Link(provider="b", model="m3", reason=""),
        )
    )
    own = fitted(REQUEST, chain, 0, facts_of)
    assert (own.model, own.temperature, own.max_output_tokens, own.extra) == ("m1", 1.0, 50, {"x": 1})
    assert own.messages is REQUEST.messages
    same = fitted(REQUEST, chain, 1, facts_of)
    assert (same.model, same.temperature, same.max_output_tokens) == ("m2", 0.0, 20)
    assert same.messages is REQUEST.messages
    foreign = fitted(REQUEST, chain, 2, facts_of)
    assert (foreign.model, foreign.extra) == ("m3", {})
    assert foreign.messages == portable(REQUEST.messages)


def test_an_unknown_models_answers_are_not_cut() -> None:
    def unknown(provider: str, model: str) -> ModelFacts:
        return replace(facts_of(provider, model), is_known=False)

    chain = Chain(links=(Link(provider="a", model="m", reason=""),))
    assert fitted(REQUEST, chain, 0, unknown).max_output_tokens == 500


def test_portable_drops_proofs_and_nothing_else() -> None:
    plain = user("hello")
    first, second = portable([plain, THOUGHT])
    assert first is plain
    assert [getattr(part, "signature", None) for part in second.parts] == [None, None, None]
    assert second.text == "yes" and len(second.parts) == 3
    assert THOUGHT.parts[0] == Reasoning(text="hm", signature="proof")
