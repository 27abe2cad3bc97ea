"""The settings of a provider, and what each kind of provider declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import SecretStr

OpenAIFormat = Literal["chat", "responses"]
Secret = SecretStr  # a key, here and in the rooms that do not know the library


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSettings:
    """One configured provider. `base_url` None is the vendor's own address.

    `omit` names fields of the request's body that a compatible server does not accept, such as `seed`. `api` says
    which of OpenAI's formats is spoken, where the kind is "openai": chat completions, which every compatible server
    knows, or responses, which keep the reasoning of OpenAI's own models from step to step. `account` are headers that
    identify the account, sent to OpenAI and to no other server.
    """

    kind: str
    base_url: str | None = None
    api_key: Secret | None = None
    omit: Sequence[str] = ()
    api: OpenAIFormat = "chat"
    account: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderKind:
    """What the rest of the program must know about a kind of provider.

    `maker` names the provider's class (`module:name`), which is imported on first use and made of a provider's name and
    settings. `variables` begins the names of the vendor's environment variables (`OPENAI`: `OPENAI_API_KEY`,
    `OPENAI_BASE_URL`); None: it needs neither key nor address, and every server has it. `default_model` is used by
    agents that name none. What is not a language model writes no summaries, and is used for new agents only if nothing
    else is configured.
    """

    maker: str
    default_model: str
    variables: str | None = None
    is_language_model: bool = True
