"""An agent's `compaction` settings: defaults, what is taken, and errors that say what is allowed."""

from __future__ import annotations

import pytest

from pattern_core.compaction.settings import CompactionSettings
from pattern_core.errors import InvalidInput


def test_nothing_means_the_defaults() -> None:
    assert CompactionSettings.of(None) == CompactionSettings.of({}) == CompactionSettings()
    assert CompactionSettings().type == "sliding_window"
    assert CompactionSettings().summarises
    assert not CompactionSettings(type="truncate").summarises


def test_what_is_given_is_taken() -> None:
    given = {"type": "truncate", "keep_recent": 5, "percentage": 0.5, "threshold": 1, "summarization_model": "a/b/c"}
    settings = CompactionSettings.of(given)
    assert (settings.type, settings.keep_recent, settings.percentage, settings.threshold) == ("truncate", 5, 0.5, 1.0)
    assert settings.model("scripted", "script-1") == ("a", "b/c")
    assert CompactionSettings.of({"summarization_model": None}).model("scripted", "s") == ("scripted", "s")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "is an object"),
        ({"kind": "truncate"}, "no key 'kind'"),
        ({"type": "forget"}, "one of truncate, importance_based"),
        ({"keep_recent": 0}, "whole number from 1 to 10000"),
        ({"keep_recent": True}, "whole number"),
        ({"keep_recent": 2.5}, "whole number"),
        ({"percentage": 2}, "a number from 0.1 to 0.9"),
        ({"threshold": "0.9"}, "a number from 0.5 to 1"),
        ({"summarization_model": "claude"}, "provider/model"),
        ({"summarization_prompt": " "}, "text of 1 to"),
        ({"summarization_prompt": 5}, "text of 1 to"),
    ],
)
def test_what_does_not_fit_is_named(value: object, message: str) -> None:
    with pytest.raises(InvalidInput, match="compaction") as raised:
        CompactionSettings.of(value)
    assert message in raised.value.message
