from __future__ import annotations

import subprocess
import sys

import pytest

from pattern_core.models.errors import ModelNotConfigured
from pattern_core.models.providers import PROVIDERS, make_provider, not_configured
from pattern_core.models.providers.settings import ProviderSettings, Secret


@pytest.mark.parametrize("kind", sorted(PROVIDERS))
async def test_every_kind_is_made_by_name_and_closes_unused(kind: str) -> None:
    provider = make_provider(
        "mine", ProviderSettings(kind=kind, api_key=Secret("sk-1"), base_url="http://127.0.0.1:9/v1")
    )
    assert provider.name == "mine"
    await provider.aclose()


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("openai", ProviderSettings(kind="openai"), "Set OPENAI_API_KEY"),
        ("anthropic", ProviderSettings(kind="anthropic", api_key=Secret("")), "Set ANTHROPIC_API_KEY"),
        ("other", ProviderSettings(kind="openai"), r"\[providers.other\]"),
        ("google", ProviderSettings(kind="google"), "Set GEMINI_API_KEY"),
        ("x", ProviderSettings(kind="x", api_key=Secret("k")), "Kinds are: anthropic, embedded, google, openai"),
        ("openai", ProviderSettings(kind="openai", api_key=Secret("sk-1\n")), "Copy it again"),
        ("openai", ProviderSettings(kind="openai", api_key=Secret("schlüssel")), "Copy it again"),
    ],
)
def test_what_is_missing_is_named(name: str, settings: ProviderSettings, words: str) -> None:
    with pytest.raises(ModelNotConfigured, match=words) as caught:
        make_provider(name, settings)
    assert "schlüssel" not in str(caught.value)


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


def test_another_server_may_need_no_key() -> None:
    assert make_provider("ollama", ProviderSettings(kind="openai", base_url="http://x/v1")).name == "ollama"


def test_the_http_client_is_not_loaded_before_it_is_used() -> None:
    code = "import pattern_core.models.providers.openai, sys; print({'httpx2'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


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
