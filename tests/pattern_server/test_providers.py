from __future__ import annotations

from pathlib import Path

import pytest

from pattern_core.models.catalogue import UNKNOWN_WINDOW
from pattern_core.models.client import ClientLimits
from pattern_server.config import Config, ConfigError, load
from pattern_server.providers import accounts_of, catalogue_of

FILE = """
[providers.work]
kind = "openai"
api_key = "sk-1"
[providers.work.limits]
calls_max = 3
tokens_per_minute = 90_000
[providers.home]
kind = "openai"
api_key = "sk-1"
[providers.other]
kind = "openai"
api_key = "sk-2"
[providers.elsewhere]
kind = "openai"
api_key = "sk-1"
base_url = "https://elsewhere.example/v1"
[providers.ollama]
kind = "openai"
base_url = "http://127.0.0.1:11434/v1"
[providers.ollama.models."qwen3:8b"]
window = 40_960
input_price = 0
output_price = 0
[providers.llama]
kind = "openai"
base_url = "http://127.0.0.1:8080/v1"
"""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    path = tmp_path / "pattern.toml"
    path.write_text(FILE)
    return load(path)


def test_sections_of_one_key_share_an_account(config: Config) -> None:
    accounts = accounts_of(config)
    assert accounts["work"].key == accounts["home"].key
    assert len({accounts[name].key for name in ("work", "other", "elsewhere", "ollama", "llama")}) == 5
    assert not any("sk-1" in account.key for account in accounts.values())
    assert accounts["work"].limits == ClientLimits(calls_max=3, tokens_per_minute=90_000)
    assert accounts["ollama"].limits == ClientLimits()


def test_the_operators_figures_count(config: Config) -> None:
    catalogue = catalogue_of(config)
    model = catalogue.facts("ollama", "qwen3:8b")
    assert (model.window, model.input_price, model.is_known) == (40_960, 0, True)
    assert catalogue.facts("llama", "qwen3:8b").window == UNKNOWN_WINDOW
    assert catalogue.facts("work", "gpt-5").window == 400_000
    assert not catalogue.facts("elsewhere", "gpt-5").is_known


@pytest.mark.parametrize("section", ['[providers.x.models."m"]\nwindows = 5', "[providers.x.limits]\ncalls_max = 0"])
def test_typing_errors_are_found_at_the_start(tmp_path: Path, section: str) -> None:
    path = tmp_path / "pattern.toml"
    path.write_text(f'[providers.x]\nkind = "openai"\n{section}\n')
    with pytest.raises(ConfigError, match=r"providers\.x"):
        load(path)
