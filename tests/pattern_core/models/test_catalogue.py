from __future__ import annotations

import tomllib
from dataclasses import replace
from datetime import date

import pytest

from pattern_core.errors import InvalidInput
from pattern_core.models.catalogue import FILE_NAME, UNKNOWN_WINDOW, Catalogue, ProviderModels
from pattern_core.models.model import LongPrices, ModelFacts, Usage
from pattern_db.files import shipped
from pattern_server.config import load
from pattern_server.settings import default_model_of

SMALL = """
[sources]
page = { url = "https://example.org/prices", as_of = "2026-01-02" }
[openai."m-1"]
source = "page"
window = 1000
output_max = 100
input_price = 2_000_000
output_price = 10_000_000
cache_read_price = 200_000
[openai."m-1-mini"]
source = "page"
window = 500
[open."llama9"]
source = "page"
trained_window = 131_072
tools = false
"""


def small(**providers: ProviderModels) -> Catalogue:
    return Catalogue.parse(SMALL).configured(providers)


def test_the_packaged_catalogue_names_a_source_and_a_day_for_every_model() -> None:
    parts = tomllib.loads(shipped(FILE_NAME).read_text(encoding="utf-8"))
    del parts["sources"]
    known = [Catalogue.packaged().facts(part, name) for part, names in parts.items() for name in names]
    assert len(known) > 80
    for facts in known:
        assert facts.source.startswith("https://") or facts.provider == "embedded", facts
        assert date(2026, 1, 1) <= date.fromisoformat(facts.as_of)
        assert 0 < facts.output_max <= facts.window
        assert facts.is_known
        if facts.provider in ("anthropic", "openai", "google"):
            assert facts.window >= 100_000
            assert facts.input_price and facts.output_price and facts.input_price < facts.output_price
            # A slip of a power of ten would show here: no vendor asks more than $1,000 or less than 1 cent.
            assert 10_000 <= facts.input_price <= 1_000_000_000
        if facts.above:
            assert facts.input_price and facts.above.input_price > facts.input_price
            assert facts.above.tokens < facts.window


def test_the_default_models_of_the_server_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.setenv(variable, "sk-none")
    config = load()
    for provider in ("anthropic", "openai", "google", "embedded"):
        assert Catalogue.packaged().facts(provider, default_model_of(config, provider)).is_known


@pytest.mark.parametrize(
    "version", ["", "-20260102", "-2026-01-02", "-latest", "@20260102", "-001", "-mini", "-mini-20260102"]
)
def test_names_are_known_with_a_version_at_the_end(version: str) -> None:
    facts = small().facts("openai", f"m-1{version}")
    assert (facts.is_known, facts.model, facts.provider) == (True, f"m-1{version}", "openai")
    assert facts.window == (500 if "mini" in version else 1000)


@pytest.mark.parametrize("model", ["m-1-ultra", "m-1-2", "m-1x", "my-m-1", "M-1", "m", ""])
def test_other_names_are_unknown(model: str) -> None:
    facts = small().facts("openai", model)
    assert (facts.is_known, facts.model, facts.provider) == (False, model, "openai")
    assert (facts.window, facts.output_max, facts.input_price) == (UNKNOWN_WINDOW, UNKNOWN_WINDOW // 4, None)


@pytest.mark.parametrize(
    "model", ["llama9", "llama9:8b-instruct-q4_K_M", "meta/Llama9-8B-Instruct", "llama9-70b-q8_0.gguf"]
)
def test_open_models_are_known_but_their_servers_window_is_not(model: str) -> None:
    facts = small(home=ProviderModels(kind="openai", base_url="http://127.0.0.1:11434/v1")).facts("home", model)
    assert (facts.is_known, facts.window, facts.trained_window) == (True, UNKNOWN_WINDOW, 131_072)
    assert (facts.tools, facts.input_price) == (False, None)


def test_another_servers_models_do_not_get_the_vendors_prices() -> None:
    home = ProviderModels(kind="openai", base_url="http://127.0.0.1:8080/v1")
    own = ProviderModels(kind="openai", base_url="https://api.openai.com/v1")
    assert not small(home=home).facts("home", "m-1").is_known
    assert small(mine=own).facts("mine", "m-1").window == 1000


def test_openrouter_passes_the_vendors_models_on() -> None:
    there = Catalogue.packaged().configured(
        {"router": ProviderModels(kind="openai", base_url="https://openrouter.ai/api/v1")}
    )
    assert there.facts("router", "openai/gpt-5").window == 400_000
    assert there.facts("router", "anthropic/claude-sonnet-4.5").input_price == 3_000_000
    assert not there.facts("router", "gpt-5").is_known
    assert not there.facts("router", "else/gpt-5").is_known


def test_the_operator_has_the_last_word() -> None:
    place = ProviderModels(
        kind="openai",
        overrides={
            "m-1": {"window": 2000, "output_price": 1},
            "new": {"window": 40_000},
            "priced": {"input_price": 1, "output_price": 2},
        },
    )
    catalogue = small(openai=place)
    known = catalogue.facts("openai", "m-1-20260102")
    assert (known.window, known.output_max, known.input_price, known.output_price) == (2000, 100, 2_000_000, 1)
    assert known.source == "pattern.toml, else https://example.org/prices"
    new = catalogue.facts("openai", "new")
    assert (new.window, new.output_max, new.is_known) == (40_000, 10_000, True)
    priced = catalogue.facts("openai", "priced")
    assert (priced.window, priced.is_known, priced.output_price) == (UNKNOWN_WINDOW, False, 2)


FACTS = ModelFacts(
    provider="p",
    model="m",
    window=1_000_000,
    output_max=10_000,
    input_price=3_000_000,
    output_price=15_000_000,
    cache_read_price=300_000,
    cache_write_price=3_750_000,
)


def test_costs_by_hand() -> None:
    assert FACTS.cost(Usage(input_tokens=1_000_000, output_tokens=0)) == 3_000_000
    assert FACTS.cost(Usage(input_tokens=1, output_tokens=0)) == 3
    assert FACTS.cost(Usage(input_tokens=1, output_tokens=0, cached_tokens=1)) == 1, "0.3, rounded up"
    assert FACTS.cost(Usage(input_tokens=0, output_tokens=0)) == 0
    assert FACTS.cost(Usage(input_tokens=1_000, output_tokens=100, cached_tokens=600, cache_write_tokens=300)) == (
        300 + 180 + 1_125 + 1_500
    )
    cached = Usage(input_tokens=10, output_tokens=0, cached_tokens=5, cache_write_tokens=5)
    assert replace(FACTS, cache_read_price=None, cache_write_price=None).cost(cached) == 30, "as any other input"
    assert replace(FACTS, cache_read_price=0, cache_write_price=0).cost(cached) == 0
    assert replace(FACTS, output_price=None).cost(Usage(input_tokens=1, output_tokens=1)) is None


def test_long_prompts_cost_more_as_a_whole() -> None:
    dear = LongPrices(tokens=1_000, input_price=6_000_000, output_price=20_000_000, cache_read_price=1_000_000)
    facts = replace(FACTS, above=dear)
    assert facts.cost(Usage(input_tokens=1_000, output_tokens=1)) == 3_015
    assert facts.cost(Usage(input_tokens=1_001, output_tokens=1)) == 6_026
    assert facts.cost(Usage(input_tokens=1_001, output_tokens=0, cached_tokens=1_000)) == 1_006


def test_counts_that_contradict_each_other_never_cost_less_than_nothing() -> None:
    usage = Usage(input_tokens=10, output_tokens=0, cached_tokens=50, cache_write_tokens=50)
    assert FACTS.cost(usage) == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("window = 1000", "window = -1"), "m-1.\\] in the catalogue of models.window` must be more than 0"),
        (("window = 1000", "window = 1000\nwindows = 1"), "windows` is not known"),
        (("input_price = 2_000_000", "input_price = 2.5"), "input_price` must be a whole number"),
        (("window = 500", ""), "window` must be more than 0"),
        (('source = "page"', 'source = "none"'), "names a source"),
        (("window = 500", "window = 500\nabove = { tokens = 5 }"), "above.input_price` is missing"),
        (("[sources]", "[sources"), "not valid TOML"),
    ],
)
def test_a_catalogue_that_makes_no_sense_is_refused_by_name(change: tuple[str, str], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        Catalogue.parse(SMALL.replace(*change))
