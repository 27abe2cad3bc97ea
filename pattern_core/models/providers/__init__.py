"""One file per vendor's format, and the table of the kinds that `[providers.<name>]` may name."""

from __future__ import annotations

from collections.abc import Callable

from pattern_core.models.embedded.provider import EmbeddedProvider
from pattern_core.models.errors import ModelNotConfigured
from pattern_core.models.model import Provider
from pattern_core.models.providers.anthropic import AnthropicProvider
from pattern_core.models.providers.google import GoogleProvider
from pattern_core.models.providers.openai import OpenAIProvider
from pattern_core.models.providers.settings import ProviderSettings


def _embedded(name: str, _: ProviderSettings) -> EmbeddedProvider:
    return EmbeddedProvider(name)  # it needs neither a key nor an address


PROVIDERS: dict[str, Callable[[str, ProviderSettings], Provider]] = {
    "anthropic": AnthropicProvider.from_settings,
    "embedded": _embedded,
    "google": GoogleProvider.from_settings,
    "openai": OpenAIProvider.from_settings,
}


def make_provider(name: str, settings: ProviderSettings) -> Provider:
    """The provider that `[providers.<name>]` describes; nothing is opened before the first question.

    Raises:
        ModelNotConfigured: the kind is not known, the key is missing or cannot be one. The message says what to set.
    """
    factory = PROVIDERS.get(settings.kind)
    if factory is None:
        raise ModelNotConfigured(
            f"The model provider {name!r} is of kind {settings.kind!r}, which this version does not know. "
            f"Kinds are: {', '.join(sorted(PROVIDERS))}.",
            provider=name,
        )
    key = settings.api_key.reveal() if settings.api_key else ""
    if not key.isascii() or any(char.isspace() or not char.isprintable() for char in key):
        raise ModelNotConfigured(
            f"The key of the model provider {name!r} holds characters that no key has, such as spaces or a line's end. "
            "Copy it again.",
            provider=name,
        )
    return factory(name, settings)
