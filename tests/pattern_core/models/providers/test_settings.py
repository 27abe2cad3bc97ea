from __future__ import annotations

import pytest

from pattern_core.models.providers.settings import ProviderSettings, Secret, not_configured


def test_a_secret_shows_itself_only_when_asked() -> None:
    secret = Secret("sk-very-secret")
    settings = ProviderSettings(kind="openai", api_key=secret)
    for shown in (repr(secret), str(secret), f"{secret}", f"{settings}", repr([secret])):
        assert "very" not in shown
        assert "***" in shown
    assert secret.reveal() == "sk-very-secret"
    assert secret == Secret("sk-very-secret")
    assert secret != Secret("other")
    assert len({secret, Secret("sk-very-secret")}) == 1
    assert not Secret("")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("openai", "Set OPENAI_API_KEY"),
        ("anthropic", "Set ANTHROPIC_API_KEY"),
        ("google", "Set GEMINI_API_KEY"),
        ("ollama", r"\[providers.ollama\]"),
    ],
)
def test_the_error_says_what_to_set(name: str, advice: str) -> None:
    with pytest.raises(Exception, match=advice) as caught:
        raise not_configured(name, ["embedded"])
    assert "Configured: embedded." in str(caught.value)
