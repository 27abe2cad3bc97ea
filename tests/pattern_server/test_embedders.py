from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pattern_core.embeddings.embedder import EmbedderInfo
from pattern_core.embeddings.providers.deterministic import DeterministicEmbedder
from pattern_core.embeddings.questions import FormerModelGone
from pattern_core.embeddings.settings import EmbedderSettings
from pattern_core.models.providers.settings import Secret
from pattern_server.config import Config, load
from pattern_server.embedders import embedder_shelf, former_settings


def configured(folder: Path, **embeddings: Any) -> Config:
    providers = {
        "mine": {"kind": "openai", "base_url": "http://mine/v1", "api_key": "k1"},
        "openai": {"kind": "openai", "api_key": "k2"},
    }
    return load(data_dir=folder, providers=providers, embeddings=embeddings)


def of(provider: str, model: str = "m", dimension: int = 8) -> EmbedderInfo:
    return EmbedderInfo(provider=provider, model=model, dimension=dimension, fingerprint="f")


async def test_an_embedder_of_another_length_is_made_again(alone: Path) -> None:
    shelf = embedder_shelf(configured(alone, provider="deterministic", dimensions=16))
    before = await DeterministicEmbedder(EmbedderSettings(dimensions=8)).info()
    found = await shelf.of(before)
    assert (await found.info()) == before
    assert found is not shelf.configured
    assert await shelf.of(await shelf.configured.info()) is shelf.configured
    await shelf.aclose()


def test_both_ways_to_run_a_local_model(alone: Path) -> None:
    found = former_settings(configured(alone, provider="openai"), of("local", "BAAI/bge-m3"))
    assert [(one.model, one.runtime, one.allow_download) for one in found] == [
        ("BAAI/bge-m3", "sentence-transformers", False),
        ("BAAI/bge-m3", "onnx", False),
    ]
    # Nothing is fetched for an index, whatever the configured model may fetch; its own folder is where it was.
    config = configured(alone, model="/models/mine", query_prefix="q: ", allow_download=True)
    found = former_settings(config, of("local", "mine"))
    assert {one.model for one in found} == {"/models/mine"}
    assert {one.query_prefix for one in found} == {None, "q: "}
    assert not any(one.allow_download for one in found)


def test_keys_go_to_the_address_that_they_are_configured_with(alone: Path) -> None:
    found = former_settings(configured(alone), of("openai", "text-embedding-3-small", 512))
    places = [(one.base_url, one.api_key, one.dimensions) for one in found]
    assert places == [
        ("http://mine/v1", Secret("k1"), None),
        ("http://mine/v1", Secret("k1"), 512),
        (None, Secret("k2"), None),
        (None, Secret("k2"), 512),
    ]
    config = configured(alone, provider="compatible", model="new", base_url="http://third")
    assert ("http://third", None) in {(one.base_url, one.api_key) for one in former_settings(config, of("compatible"))}
    assert former_settings(config, of("google")) == []  # none is configured
    found = former_settings(config, of("ollama", "nomic-embed-text"))
    assert [(one.base_url, one.dimensions) for one in found] == [(None, None), (None, 8)]


def test_what_is_configured_as_the_model_before_comes_first(alone: Path) -> None:
    config = configured(alone, former={"provider": "local", "model": "/models/old"})
    assert former_settings(config, of("local", "old"))[0] == EmbedderSettings(model="/models/old")
    assert former_settings(config, of("unknown"))[0] == EmbedderSettings(model="/models/old")


def test_switched_off_nobody_is_asked(alone: Path) -> None:
    assert former_settings(configured(alone, provider="none"), of("local")) == []
    assert former_settings(configured(alone, provider="none", former={"provider": "local"}), of("local")) == []


@pytest.mark.parametrize("model", ["/etc", "../secrets", "~/x", "./x", "", "m" * 201, "a\nb"])
@pytest.mark.parametrize("provider", ["local", "openai"])
def test_what_a_file_tells_is_no_place_to_look_at(alone: Path, provider: str, model: str) -> None:
    assert former_settings(configured(alone), of(provider, model)) == []


async def test_an_unknown_provider_leads_nowhere(alone: Path) -> None:
    shelf = embedder_shelf(configured(alone, provider="deterministic"))
    with pytest.raises(FormerModelGone):
        await shelf.of(of("unknown"))
    await shelf.aclose()
