"""The configured providers of models behind one client, and their replacement while the server runs.

A reload reads the configuration's file again and replaces providers, catalogue and accounts for all turns that begin
afterwards. A turn that runs keeps those that it began with. Of the file only `RELOADED` counts then; other settings
need a restart.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from pattern_core.errors import InvalidInput
from pattern_core.ids import Randomness, system_randomness
from pattern_core.models.client import ModelClient
from pattern_core.models.errors import ModelError, ModelNotConfigured
from pattern_core.models.model import ModelFacts, Provider
from pattern_core.models.providers import PROVIDERS, make_provider, not_configured
from pattern_core.models.providers.settings import ProviderSettings
from pattern_core.models.throttle import RetryPolicy
from pattern_server.config import Config, reloaded, write_default
from pattern_server.settings import accounts_of, catalogue_of, default_model_of, provider_settings

RELOADED = ("providers", "default_provider", "default_model")
LISTED_MAX = 50  # models of a provider
EMBEDDERS = ("embed", "bge-", "minilm")  # in the names of models that make vectors and answer nothing

_log = logging.getLogger("pattern.models")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredProvider:
    """A provider and the models that are known of it. `trouble` says why it does not answer, null if it does."""

    name: str
    kind: str
    is_default: bool
    trouble: str | None
    models: Sequence[ModelFacts]


class ModelSetup:
    """The providers that `config` names, and `extra` ones, behind one `client`. `unusable` says of those that cannot be
    made what they lack.
    """

    def __init__(self, config: Config, randomness: Randomness, extra: Mapping[str, Provider]) -> None:
        self._randomness = randomness
        self._extra = extra
        self._made: dict[str, tuple[ProviderSettings, Provider]] = {}
        self._reloading = trio.Lock()
        self.client = self._configure(config)

    def _configure(self, config: Config) -> ModelClient:
        """Make the providers, or take those that are as they were; return a client of them."""
        made: dict[str, tuple[ProviderSettings, Provider]] = {}
        unusable: dict[str, str] = {}
        for name, entry in config.providers.items():
            settings = provider_settings(entry)
            former = self._made.get(name)
            try:
                same = former is not None and former[0] == settings
                made[name] = former if former and same else (settings, make_provider(name, settings))
            except ModelNotConfigured as error:
                unusable[name] = error.message
        client = ModelClient(
            {name: provider for name, (_settings, provider) in made.items()} | dict(self._extra),
            RetryPolicy(),
            config.limits.turn,
            self._randomness,
            catalogue=catalogue_of(config),
            accounts=accounts_of(config),
        )
        self.config, self.unusable, self._made = config, unusable, made
        return client

    async def reload(self) -> None:
        """Read the configuration's file again, and ask its providers from the next turn on.

        Raises:
            ConfigError: the file does not fit; everything stays as it was.
        """
        async with self._reloading:
            read = await trio.to_thread.run_sync(reloaded, self.config)
            before = self._made
            new = self._configure(self.config.model_copy(update={name: getattr(read, name) for name in RELOADED}))
            self.client.adopt(new)
            for name, one in before.items():
                if self._made.get(name) is not one:
                    await one[1].aclose()
        self.log_unusable()
        _log.info("models reloaded", {"providers": sorted(self._made), "default": self.config.default_provider})

    async def set_default(self, provider: str, model: str) -> None:
        """Make a model that of agents that name none, in the configuration's file, and reload it.

        Raises:
            InvalidInput: the provider is not configured.
            ConfigError: as `write_default`; or something else in the file does not fit.
        """
        self.require(provider)
        await trio.to_thread.run_sync(write_default, self.config, provider, model)
        await self.reload()

    def require(self, provider: str) -> None:
        """Refuse a provider that is not configured.

        Raises:
            InvalidInput: it is not; the message says how to configure it.
        """
        if provider not in self.config.providers:
            raise InvalidInput(not_configured(provider, sorted(self.config.providers)).message)

    def log_unusable(self) -> None:
        """Warn of the providers that cannot be made."""
        for name, reason in self.unusable.items():
            _log.warning("provider left out", {"provider": name, "reason": reason})

    async def providers(self) -> list[ConfiguredProvider]:
        """Return the providers, asked at once which models they have, each for a few seconds; language models first.
        A reload at the same time changes nothing in the list.
        """
        found: list[ConfiguredProvider] = []
        config, client, unusable = self.config, self.client.pinned(), self.unusable

        async def look(name: str) -> None:
            entry, default, trouble = config.providers[name], default_model_of(config, name), None
            named = [default, *entry.models] if default else [*entry.models]
            listed: list[str] = []
            try:
                listed = [model for model in await client.models(name) if _answers_in_words(model)]
            except ModelError as error:
                trouble = unusable.get(name, error.message)
            if name in PROVIDERS:  # a vendor lists a hundred; those that nothing is known of are old or special
                listed = [model for model in listed if client.facts(name, model).is_known]
            models: dict[str, ModelFacts] = {}

            async def learn(model: str) -> None:
                models[model] = await client.learn(name, model)

            names = list(dict.fromkeys([*named, *listed]))[:LISTED_MAX]
            async with trio.open_nursery() as nursery:
                for model in names:
                    nursery.start_soon(learn, model)
            is_default, facts = name == config.default_provider, [models[model] for model in names]
            found.append(
                ConfiguredProvider(name=name, kind=entry.kind, is_default=is_default, trouble=trouble, models=facts)
            )

        async with trio.open_nursery() as nursery:
            for name in config.providers:
                nursery.start_soon(look, name)
        return sorted(found, key=lambda one: (not PROVIDERS[one.kind].is_language_model, one.name))

    async def aclose(self) -> None:
        """Close the connections of all configured providers."""
        for _settings, provider in self._made.values():
            await provider.aclose()


def _answers_in_words(model: str) -> bool:
    """Return whether a model's name is not one of those that make vectors."""
    return not any(word in model.lower() for word in EMBEDDERS)


@asynccontextmanager
async def open_models(
    config: Config, randomness: Randomness | None = None, extra: Mapping[str, Provider] | None = None
) -> AsyncIterator[ModelSetup]:
    """Yield the models that `config` names; their connections close with the block."""
    setup = ModelSetup(config, randomness or system_randomness(), extra or {})
    try:
        yield setup
    finally:
        with trio.CancelScope(shield=True):
            await setup.aclose()
