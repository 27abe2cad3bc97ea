from __future__ import annotations

from pattern_core.models.embedded import phrases


def test_what_it_says_of_itself_is_honest_and_helpful() -> None:
    assert "not a language model" in phrases.WHAT_I_AM
    for words in (
        "no language model",
        "ANTHROPIC_API_KEY",
        "OPENAI_API_KEY",
        "pattern.toml",
        "base_url",
        "model_provider",
    ):
        assert words in phrases.NO_MODEL
        assert words in phrases.SMALL_TALK["help"]
    assert set(phrases.SMALL_TALK) == {"hello", "help", "thanks", "bye", "how_are_you", "never_mind"}
