from __future__ import annotations

import pytest

from pattern_core.errors import InvalidInput
from pattern_core.prompts.parts import Kind
from pattern_core.prompts.settings import SHARES, ContextSettings, Sampling, window_of


def test_nothing_said_is_all_defaults() -> None:
    assert ContextSettings.of(None) == ContextSettings() == ContextSettings.of({})
    assert sum(SHARES.values()) == 100
    assert ContextSettings().extra_tokens == 1_200


def test_what_is_said_is_taken() -> None:
    value = {"extra_tokens": 600, "shares": {"pinned": 10}, "show": {"activity": False, "tasks": True}, "recall_max": 2}
    found = ContextSettings.of(value)
    assert (found.extra_tokens, found.recall_max, found.hidden) == (600, 2, frozenset({Kind.ACTIVITY}))
    assert found.shares[Kind.PINNED] == 10
    assert found.shares[Kind.RECALLED] == SHARES[Kind.RECALLED]
    assert list(found.shares) == list(SHARES)  # the order is what flows down


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "context is an object"),
        ({"extra": 1}, "no key 'extra'; there are extra_tokens"),
        ({"extra_tokens": -1}, "context.extra_tokens is a whole number from 0"),
        ({"extra_tokens": True}, "whole number"),
        ({"recall_timeout_ms": 1.5}, "whole number"),
        ({"activity_hours": 0}, "from 1"),
        ({"shares": 3}, "context.shares is an object"),
        ({"shares": {"core": 3}}, "no key 'core'"),
        ({"shares": {"pinned": 101}}, "from 0 to 100"),
        ({"shares": {"pinned": 60}}, "add up to 120"),
        ({"show": {"core": False}}, "no key 'core'"),
        ({"show": {"time": 1}}, "true or false"),
    ],
)
def test_what_will_not_do_is_named(value: object, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        ContextSettings.of(value)


def test_nothing_said_of_answers_leaves_it_to_the_vendor() -> None:
    assert Sampling.of({}) == Sampling()
    assert Sampling.of({"message_policy": "steer"}) == Sampling()


def test_what_is_said_of_answers_is_taken() -> None:
    config: dict[str, object] = {
        "max_output_tokens": 5,
        "temperature": 1,
        "top_p": 0.9,
        "stop": ["END"],
        "reasoning_effort": "low",
        "response_schema": {"type": "object"},
    }
    assert Sampling.of(config) == Sampling(
        max_output_tokens=5,
        temperature=1.0,
        top_p=0.9,
        stop=("END",),
        reasoning_effort="low",
        response_schema={"type": "object"},
    )


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"max_output_tokens": 0}, "config.max_output_tokens is a whole number from 1"),
        ({"max_output_tokens": "5"}, "whole number"),
        ({"max_output_tokens": True}, "whole number"),
        ({"temperature": "hot"}, "config.temperature is a number from 0 to 2"),
        ({"temperature": True}, "number"),
        ({"top_p": 1.1}, "config.top_p is a number from 0 to 1"),
        ({"stop": "END"}, "config.stop is a list"),
        ({"stop": [""]}, "none of them empty"),
        ({"stop": ["x"] * 17}, "at most 16"),
        ({"reasoning_effort": "much"}, "one of none, low, medium, high"),
        ({"response_schema": "object"}, "JSON Schema"),
    ],
)
def test_what_will_not_do_for_an_answer_is_named(config: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        Sampling.of(config)


def test_an_agent_may_keep_to_a_smaller_window_and_never_to_a_larger_one() -> None:
    assert window_of({}, 8_192) == 8_192
    assert window_of({"context_window": 4_000}, 8_192) == 4_000
    assert window_of({"context_window": 200_000}, 8_192) == 8_192
    with pytest.raises(InvalidInput, match="from 1000"):
        window_of({"context_window": 10}, 8_192)
