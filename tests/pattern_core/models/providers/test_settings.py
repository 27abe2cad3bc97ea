from __future__ import annotations

import pytest

from pattern_core.models.errors import ModelNotConfigured
from pattern_core.models.providers.settings import ProviderSettings, Secret, key_for, not_configured


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


def test_a_key_is_needed_where_the_vendor_itself_is_asked() -> None:
    key = Secret("k")
    assert key_for("openai", ProviderSettings(kind="openai", api_key=key)) == key
    assert key_for("ollama", ProviderSettings(kind="openai", base_url="http://x")) is None
    for empty in (None, Secret("")):
        with pytest.raises(ModelNotConfigured, match="OPENAI_API_KEY"):
            key_for("openai", ProviderSettings(kind="openai", api_key=empty))


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
