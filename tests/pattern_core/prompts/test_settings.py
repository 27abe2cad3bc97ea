from __future__ import annotations

import pytest

from pattern_core.errors import InvalidInput
from pattern_core.prompts.parts import Kind
from pattern_core.prompts.settings import SHARES, ContextSettings


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


def test_they_can_be_written_and_read_again() -> None:
    found = ContextSettings.of({"shares": {"tasks": 5}, "show": {"time": False}, "activity_hours": 48})
    assert ContextSettings.of(found.to_json()) == found


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
