"""Facts about models: windows, longest answers, capabilities and prices; from `data/models.toml` and the operator.

A name is looked up unchanged, then as its longest known prefix, if only a date or a version follows (`-20250929`,
`@001`, `:8b`). Nothing is guessed from a part of a name: an unlisted model has the window `UNKNOWN_WINDOW`, no prices,
and `ModelFacts.is_known` False.

Prices are whole micro-dollars per million tokens, so that a cost is exact: it is rounded once per call, upwards, to a
whole micro-dollar.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from pydantic import TypeAdapter

from pattern_core.errors import InvalidInput
from pattern_core.models.model import ModelFacts, WindowSource
from pattern_core.models.providers import PROVIDERS
from pattern_core.validation import read
from pattern_db.files import shipped

UNKNOWN_WINDOW = 8_192  # tokens: current models have at least this window
UNKNOWN_OUTPUT_SHARE = 4  # of an unknown model's window, one part in four is for the answer
FILE_NAME = "data/models.toml"

_VERSION = re.compile(r"[-@:](?:latest|\d{3,4}|\d{6}|\d{8}|\d{4}-\d{2}-\d{2}|\d{2}-\d{4}|\d{2}-\d{2})")
_TAG = re.compile(  # suffixes of names of open models: a tag, a size, tuning and packaging
    r"(?::[\w.-]+)?(?:-(?:\d+(?:\.\d+)?[bm]|a\d+b|it|instruct|chat|q\d\w*|f16|bf16|fp8|gguf))*(?:\.gguf)?"
)
_OPENAI_HOST = "api.openai.com"
_ROUTER_HOST = "openrouter.ai"  # charges the vendors' prices; its names are "vendor/model". Source: its FAQ
_OPEN = "open"
_PRICES = frozenset({"input_price", "output_price", "cache_read_price", "cache_write_price"})
_FACTS = TypeAdapter(ModelFacts)
_UNKNOWN = ModelFacts(
    provider="",
    model="",
    window=UNKNOWN_WINDOW,
    output_max=UNKNOWN_WINDOW // UNKNOWN_OUTPUT_SHARE,
    is_known=False,
    window_source="unasked",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderModels:
    """How the models of a configured provider are looked up: by its kind, its URL and the operator's figures.

    `overrides` are fields of `ModelFacts` by the model's name, such as `{"qwen3:8b": {"window": 32_000}}`.
    """

    kind: str
    base_url: str | None = None
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def table(self) -> str:
        """The part of the catalogue: a vendor's, "openrouter", or "open" for other servers of OpenAI's format."""
        host = urlsplit(self.base_url).hostname if self.base_url else None
        if host is not None and (host == _ROUTER_HOST or host.endswith("." + _ROUTER_HOST)):
            return "openrouter"
        if self.kind == "openai" and host not in (None, _OPENAI_HOST):
            return _OPEN
        return self.kind


class Catalogue:
    """The facts of all models, by part and name. Immutable; shared freely."""

    def __init__(
        self, tables: Mapping[str, Mapping[str, ModelFacts]], providers: Mapping[str, ProviderModels] | None = None
    ) -> None:
        self._tables = tables
        self._providers = providers or {}

    @classmethod
    @lru_cache(maxsize=1)
    def packaged(cls) -> Catalogue:
        """Return the catalogue that this release carries, read once.

        Raises:
            FileNotFoundError: it is missing; the installation is incomplete.
        """
        return cls.parse(shipped(FILE_NAME).read_text(encoding="utf-8"))

    @classmethod
    def parse(cls, text: str) -> Catalogue:
        """Return the catalogue in the form of `data/models.toml`, which describes itself.

        Raises:
            InvalidInput: it is not TOML, or an entry is invalid; the message names the entry.
        """
        try:
            data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise InvalidInput(f"the catalogue of models is not valid TOML: {error}") from error
        sources = data.pop("sources", {})
        return cls(
            {
                part: {name: _entry(part, name, entry, sources) for name, entry in models.items()}
                for part, models in data.items()
            }
        )

    def configured(self, providers: Mapping[str, ProviderModels]) -> Catalogue:
        """Return the catalogue for a server with these providers, by their names in `model_provider`."""
        return Catalogue(self._tables, providers)

    def facts(self, provider: str, model: str) -> ModelFacts:
        """Return the facts about `model` at a configured provider, or at a vendor by its name.

        Never fails: an unknown model gets `UNKNOWN_WINDOW`, no prices and `is_known` False.
        """
        place = self._providers.get(provider) or ProviderModels(kind=provider)
        kind = PROVIDERS.get(place.kind)
        facts = replace(
            self._found(place.table, model) or _UNKNOWN,
            provider=provider,
            model=model,
            is_language_model=kind is None or kind.is_language_model,
        )
        name = _best(model, place.overrides, place.table)
        return facts if name is None else corrected(facts, place.overrides[name], "pattern.toml")

    def _found(self, table: str, model: str) -> ModelFacts | None:
        if table == "openrouter":
            vendor, slash, name = model.partition("/")
            if not slash or vendor not in self._tables:
                return None
            # It writes Anthropic's versions with a dot: claude-sonnet-4.5.
            return self._found(vendor, name) or (self._found(vendor, name.replace(".", "-")) if "." in name else None)
        name = model.removeprefix("models/") if table == "google" else model
        if table == _OPEN:
            name = model.rpartition("/")[2].lower()
        models = self._tables.get(table, {})
        best = _best(name, models, table)
        return None if best is None else models[best]


def _best(model: str, names: Mapping[str, object], table: str) -> str | None:
    """Return the entry for `model`: its own, else its longest prefix, if only a version follows."""
    if model in names:
        return model
    version = _TAG if table == _OPEN else _VERSION
    fitting = [name for name in names if model.startswith(name) and version.fullmatch(model, len(name))]
    return max(fitting, key=len, default=None)


def corrected(facts: ModelFacts, said: Mapping[str, Any], by: WindowSource) -> ModelFacts:
    """Return the facts with the values of the operator or the server."""
    window = said.get("window", facts.window)
    # A window alone also sets the longest answer; a price does not make a model known.
    output_max = said.get("output_max", facts.output_max if facts.is_known else window // UNKNOWN_OUTPUT_SHARE)
    return replace(
        facts,
        **{
            **said,
            "output_max": min(output_max, window),
            "above": None if _PRICES & said.keys() else facts.above,
            "source": f"{by}, else {facts.source}",
            "window_source": by if "window" in said else facts.window_source,
            "is_known": facts.is_known or "window" in said,
        },
    )


def _entry(part: str, name: str, entry: Mapping[str, Any], sources: Mapping[str, Mapping[str, str]]) -> ModelFacts:
    place = f'[{part}."{name}"] in the catalogue of models'
    source = sources.get(str(entry.get("source")))
    if source is None:
        raise InvalidInput(f"{place} names a source that is not in [sources]")
    window = entry["window"] if "window" in entry else min(entry.get("trained_window", 0), UNKNOWN_WINDOW)
    output_max = min(entry.get("output_max", window // UNKNOWN_OUTPUT_SHARE), window)
    made = {
        "provider": part,
        "model": name,
        **entry,
        "window": window,
        "output_max": output_max,
        "window_source": "catalogue" if "window" in entry else "unasked",
        "source": source["url"],
        "as_of": source["as_of"],
    }
    return read(_FACTS, made, lambda _: (), place=place)
