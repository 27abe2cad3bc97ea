"""What a provider is made from, and what to say where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pattern_core.models.errors import ModelNotConfigured

KEY_VARIABLES = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY", "google": "GEMINI_API_KEY"}

OpenAIFormat = Literal["chat", "responses"]


class Secret:
    """A key that neither repr, str, format nor a traceback's locals show; equal secrets compare equal."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The key itself, for the request that needs it."""
        return self._value

    def __repr__(self) -> str:
        return "***"

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSettings:
    """One configured provider. `base_url` None is the vendor's own address.

    `omit` names fields of the request's body that a compatible server does not accept, such as `seed`. `api` tells
    which of OpenAI's formats is spoken, where the kind is "openai": chat completions, which every compatible server
    knows, or responses, which keep the reasoning of OpenAI's own models from step to step.
    """

    kind: str
    base_url: str | None = None
    api_key: Secret | None = None
    omit: Sequence[str] = ()
    api: OpenAIFormat = "chat"


def key_for(name: str, settings: ProviderSettings) -> Secret | None:
    """The key to ask with, None where there is none and another server than the vendor's own may want none.

    Raises:
        ModelNotConfigured: there is neither a key nor another server's address.
    """
    if not settings.api_key and settings.base_url is None:
        raise not_configured(name)
    return settings.api_key


def not_configured(name: str, known: Sequence[str] = ()) -> ModelNotConfigured:
    """The error for a provider that is not there: how to configure it, and which ones are."""
    variable = KEY_VARIABLES.get(name)
    if variable:
        advice = f"Set {variable}, or api_key under [providers.{name}] in pattern.toml, and start the server again."
    else:
        advice = f"Describe it under [providers.{name}] in pattern.toml, with its kind, base_url and api_key."
    names = f" Configured: {', '.join(known)}." if known else ""
    return ModelNotConfigured(f"The model provider {name!r} is not configured. {advice}{names}", provider=name)
