from __future__ import annotations

from pattern_core.embeddings.settings import EmbedderSettings
from pattern_core.models.providers.settings import Secret


def test_the_default_is_the_local_model_and_keys_are_not_shown() -> None:
    assert EmbedderSettings() == EmbedderSettings(provider="local", model="", dimensions=None, allow_download=False)
    assert "sk-1" not in repr(EmbedderSettings(api_key=Secret("sk-1")))
