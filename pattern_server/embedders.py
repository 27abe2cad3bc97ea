"""The server's embedders: the configured one, and how to make one again that was configured before.

An index tells who made it: provider, model, length and fingerprint. Files of constellations come from anywhere, so what
they tell is never followed: no address, no folder and no download. It is only looked for among what this server's own
configuration names, and the fingerprint decides. Keys go nowhere but to the address that they are configured with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePath

from pattern_core.embeddings.embedder import Embedder, EmbedderInfo
from pattern_core.embeddings.providers import make_embedder
from pattern_core.embeddings.questions import EmbedderShelf
from pattern_core.embeddings.settings import EmbedderSettings
from pattern_core.models.providers.settings import Secret
from pattern_server.config import Config, embedder_settings

NAME_CHARS_MAX = 200
_KINDS = {"openai": "openai", "compatible": "openai", "google": "google", "ollama": "ollama"}  # whose format it is


def embedder_shelf(config: Config) -> EmbedderShelf:
    """The configured embedder, and what can be made again of others. Nothing is loaded or opened yet."""

    def remake(wanted: EmbedderInfo) -> Iterator[Embedder]:
        for settings in former_settings(config, wanted):
            yield make_embedder(settings)

    return EmbedderShelf(make_embedder(embedder_settings(config)), remake)


def former_settings(config: Config, wanted: EmbedderInfo) -> list[EmbedderSettings]:
    """What may lead to the model that an index was made by, the likeliest first.

    With embeddings switched off nothing does: then no text leaves this machine, questions neither.
    """
    configured = embedder_settings(config)
    if configured.provider == "none":
        return []
    named = [] if config.embeddings.former is None else [embedder_settings(config, config.embeddings.former)]
    guessed: list[EmbedderSettings] = []
    if _is_name(wanted.model):
        if wanted.provider == "local":
            guessed = _local(configured, wanted)
        elif wanted.provider == "deterministic":
            guessed = [EmbedderSettings(provider="deterministic", dimensions=wanted.dimension)]
        elif wanted.provider in _KINDS:
            guessed = _services(config, configured, _KINDS[wanted.provider], wanted)
    found: list[EmbedderSettings] = []
    for settings in (*named, *guessed):
        if settings != configured and settings not in found:
            found.append(settings)
    return found


def _local(configured: EmbedderSettings, wanted: EmbedderInfo) -> list[EmbedderSettings]:
    """What was there before is still there, or is gone: nothing is fetched for it.

    Both ways to run a model, since their vectors differ; with the model's own prefixes or those that are configured.
    """
    base = EmbedderSettings(
        provider="local", model=wanted.model, idle_unload_s=configured.idle_unload_s, threads=configured.threads
    )
    found = [replace(base, runtime="sentence-transformers"), replace(base, runtime="onnx")]
    if configured.provider == "local":
        if PurePath(configured.model).name == wanted.model:  # a folder: an index knows only its name
            found = [replace(settings, model=configured.model) for settings in found]
        found += [
            replace(settings, query_prefix=configured.query_prefix, passage_prefix=configured.passage_prefix)
            for settings in found
        ]
    return found


def _services(config: Config, configured: EmbedderSettings, kind: str, wanted: EmbedderInfo) -> list[EmbedderSettings]:
    """Every address of this kind that is configured, each with its own key."""
    places: list[tuple[str | None, Secret | None]] = []
    for entry in config.providers.values():
        if entry.kind == kind:
            key = None if entry.api_key is None else Secret(entry.api_key.get_secret_value())
            places.append((entry.base_url, key))
    if _KINDS.get(configured.provider) == kind:
        places.append((configured.base_url, configured.api_key))
    if kind == "ollama":
        places.append((None, None))  # on this machine
    return [
        EmbedderSettings(
            provider=kind,
            model=wanted.model,
            base_url=base_url,
            api_key=key,
            account=configured.account,
            # First as long as the model makes them; then shortened, which not every service can be told.
            dimensions=dimensions,
            timeout_s=configured.timeout_s,
        )
        for base_url, key in places
        for dimensions in (None, wanted.dimension)
    ]


def _is_name(model: str) -> bool:
    """Whether it is the name of a model rather than a place in the file system, or rubbish."""
    return 0 < len(model) <= NAME_CHARS_MAX and model.isprintable() and model[0] not in "/.~" and ".." not in model
