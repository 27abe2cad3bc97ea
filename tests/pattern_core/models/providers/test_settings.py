from __future__ import annotations

from pattern_core.models.providers.settings import ProviderSettings, Secret


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
