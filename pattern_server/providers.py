"""What `[providers]` says about models and limits, as the model client takes it."""

from __future__ import annotations

from hashlib import blake2b
from urllib.parse import urlsplit

from pattern_core.models.catalogue import Catalogue, ModelOverride, ProviderModels
from pattern_core.models.client import Account, ClientLimits
from pattern_server.config import Config, ProviderConfig


def catalogue_of(config: Config) -> Catalogue:
    """The packaged catalogue with the operator's figures, for the configured providers.

    Raises:
        FileNotFoundError: the catalogue is missing; the installation is incomplete.
    """
    return Catalogue.packaged().configured(
        {
            name: ProviderModels(
                kind=entry.kind,
                base_url=entry.base_url,
                overrides={model: ModelOverride(**figures.model_dump()) for model, figures in entry.models.items()},
            )
            for name, entry in config.providers.items()
        }
    )


def accounts_of(config: Config) -> dict[str, Account]:
    """Whose limits each provider's calls count against; sections with the same key at the same vendor share one.

    Where sections share an account, the limits of the first of their names, in alphabetical order, hold.
    """
    return {
        name: Account(key=_key(name, entry), limits=ClientLimits(**entry.limits.model_dump()))
        for name, entry in config.providers.items()
    }


def _key(name: str, entry: ProviderConfig) -> str:
    """A digest, so that the secret goes nowhere; without one, each section is an account of its own."""
    secret = "" if entry.api_key is None else entry.api_key.get_secret_value()
    if not secret:
        return name
    host = urlsplit(entry.base_url).netloc.rpartition("@")[2] if entry.base_url else ""
    return blake2b("\n".join((entry.kind, host, secret)).encode(), digest_size=16).hexdigest()
