from __future__ import annotations

import pytest

from pattern_core.errors import InvalidInput
from pattern_core.prompts.sampling import Sampling, window_of


def test_nothing_said_leaves_it_to_the_vendor() -> None:
    assert Sampling.of({}, output_tokens_max=100) == Sampling(max_output_tokens=100)
    assert Sampling.of({"message_policy": "steer"}, output_tokens_max=100) == Sampling(max_output_tokens=100)


def test_what_is_said_is_taken() -> None:
    config: dict[str, object] = {
        "max_output_tokens": 5,
        "temperature": 1,
        "top_p": 0.9,
        "stop": ["END"],
        "reasoning_effort": "low",
        "response_schema": {"type": "object"},
    }
    assert Sampling.of(config, output_tokens_max=100) == Sampling(
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
def test_what_will_not_do_is_named(config: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        Sampling.of(config, output_tokens_max=100)


def test_an_agent_may_keep_to_a_smaller_window_and_never_to_a_larger_one() -> None:
    assert window_of({}, 8_192) == 8_192
    assert window_of({"context_window": 4_000}, 8_192) == 4_000
    assert window_of({"context_window": 200_000}, 8_192) == 8_192
    with pytest.raises(InvalidInput, match="from 1000"):
        window_of({"context_window": 10}, 8_192)
