"""The kinds of providers that `[providers.<name>]` may name: one file and one entry of `PROVIDERS` each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pkgutil import resolve_name
from types import MappingProxyType

from pattern_core.models.errors import ModelNotConfigured
from pattern_core.models.model import Provider
from pattern_core.models.providers.settings import ProviderKind, ProviderSettings

# A provider's module is imported with the first of its kind.
PROVIDERS: Mapping[str, ProviderKind] = MappingProxyType(
    {
        "anthropic": ProviderKind(
            maker="pattern_core.models.providers.anthropic:AnthropicProvider",
            variables="ANTHROPIC",
            default_model="claude-sonnet-5-5",  # source: the model list of the vendor's client, anthropic 2.12
        ),
        "openai": ProviderKind(
            maker="pattern_core.models.providers.openai:OpenAIProvider",
            variables="OPENAI",
            default_model="gpt-5.4-mini",  # source: the model list of the vendor's client, openai 3.54
        ),
        "google": ProviderKind(
            maker="pattern_core.models.providers.google:GoogleProvider",
            variables="GEMINI",
            default_model="gemini-3.8-flash",  # source: the examples of google-genai 3.4
        ),
        "embedded": ProviderKind(
            maker="pattern_core.models.providers.embedded:EmbeddedProvider",
            default_model="rules-1",
            is_language_model=False,
        ),
    }
)


def make_provider(name: str, settings: ProviderSettings) -> Provider:
    """Return the provider that `[providers.<name>]` describes; nothing is opened before the first question.

    Raises:
        ModelNotConfigured: the kind is not known, the key is missing or cannot be one. The message says what to set.
    """
    kind = PROVIDERS.get(settings.kind)
    if kind is None:
        raise ModelNotConfigured(
            f"The model provider {name!r} is of kind {settings.kind!r}, which this version does not know. "
            f"Kinds are: {', '.join(sorted(PROVIDERS))}.",
            provider=name,
        )
    key = settings.api_key.get_secret_value() if settings.api_key else ""
    if not key.isascii() or any(char.isspace() or not char.isprintable() for char in key):
        raise ModelNotConfigured(
            f"The key of the model provider {name!r} holds characters that no key has, such as spaces or a line's end. "
            "Copy it again.",
            provider=name,
        )
    if kind.variables is not None and not key and settings.base_url is None:  # the vendor's own URL needs a key
        raise not_configured(name)
    provider: Provider = resolve_name(kind.maker)(name, settings)
    return provider


def not_configured(name: str, known: Sequence[str] = ()) -> ModelNotConfigured:
    """Return the error for a provider that is missing: how to configure it, and which ones are configured."""
    kind, section = PROVIDERS.get(name), f"[providers.{name}] in pattern.toml"
    if kind is None:
        advice = f"Describe it under {section}, with its kind, and the base_url and api_key that it needs."
    elif kind.variables is None:
        advice = f'Write kind = "{name}" under {section}, and run `pattern up`.'
    else:
        advice = (
            f"Set {kind.variables}_API_KEY and restart the server, or api_key under {section} and run `pattern up`."
        )
    names = f" Configured: {', '.join(known)}." if known else ""
    return ModelNotConfigured(f"The model provider {name!r} is not configured. {advice}{names}", provider=name)
