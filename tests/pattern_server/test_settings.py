"""What the sections of the configuration mean: providers, embedders, budgets, MCP servers, the web."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pattern_core.budgets.budget import Budget, check, name_of
from pattern_core.embeddings.embedder import EmbedderInfo
from pattern_core.embeddings.providers.deterministic import DeterministicEmbedder
from pattern_core.embeddings.questions import FormerModelGone
from pattern_core.embeddings.settings import EmbedderSettings
from pattern_core.mcp_settings import McpSettings, Stdio, Streamable
from pattern_core.models.catalogue import UNKNOWN_WINDOW
from pattern_core.models.providers.settings import Secret
from pattern_core.models.throttle import ClientLimits
from pattern_core.web.policy import EngineSettings, WebSettings
from pattern_db.enums import EffectClass
from pattern_db.journal.budgets import BudgetScope, Period, Unit
from pattern_server.config import Config, ConfigError, load
from pattern_server.settings import (
    accounts_of,
    catalogue_of,
    configured_budgets,
    configured_mcp,
    default_model_of,
    embedder_settings,
    embedder_shelf,
    former_settings,
    provider_settings,
    shell_settings,
    source_settings,
    webhook_settings,
)

pytestmark = pytest.mark.usefixtures("alone")

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
tool_calls = "text"
[providers.llama]
kind = "openai"
base_url = "http://127.0.0.1:8080/v1"
"""


def loaded(text: str = "") -> Config:
    """What a file with this text configures."""
    Path("pattern.toml").write_text(text, encoding="utf-8")
    return load()


@pytest.fixture
def config() -> Config:
    return loaded(FILE)


def test_a_provider_has_its_key_its_address_and_a_default_model(config: Config) -> None:
    settings = provider_settings(config.providers["elsewhere"])
    assert (settings.kind, settings.base_url) == ("openai", "https://elsewhere.example/v1")
    assert settings.api_key == Secret("sk-1")
    assert provider_settings(config.providers["ollama"]).api_key is None
    assert default_model_of(config, config.default_provider) == config.default_model
    assert default_model_of(config, "anthropic")
    assert default_model_of(config, "ollama") == ""


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
    assert (model.window, model.input_price, model.is_known, model.tool_calls) == (40_960, 0, True, "text")
    assert catalogue.facts("llama", "qwen3:8b").window == UNKNOWN_WINDOW
    assert catalogue.facts("work", "gpt-5").window == 400_000
    assert not catalogue.facts("elsewhere", "gpt-5").is_known


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


def test_switched_off_no_provider_is_asked(alone: Path) -> None:
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


def test_every_amount_becomes_a_budget() -> None:
    text = "[budgets]\nturn = {tokens = 200_000}\nagent.day = {dollars = 0.1}\nagent.total = {tokens = 0}\n"
    text += "constellation.month = {tokens = 5, dollars = 12.345678}\nconstellation.total = {dollars = 100}\n"
    found = configured_budgets(loaded(text).budgets)
    assert found == (
        Budget(BudgetScope.TURN, "", Period.TOTAL, Unit.TOKENS, 200_000),
        Budget(BudgetScope.AGENT, "", Period.DAY, Unit.MICRODOLLARS, 100_000),
        Budget(BudgetScope.AGENT, "", Period.TOTAL, Unit.TOKENS, 0),
        Budget(BudgetScope.CONSTELLATION, "", Period.MONTH, Unit.TOKENS, 5),
        Budget(BudgetScope.CONSTELLATION, "", Period.MONTH, Unit.MICRODOLLARS, 12_345_678),
        Budget(BudgetScope.CONSTELLATION, "", Period.TOTAL, Unit.MICRODOLLARS, 100_000_000),
    )
    for budget in found:
        check(budget)


def test_a_variable_sets_one(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATTERN_BUDGETS__CONSTELLATION__DAY__DOLLARS", "2.5")
    [found] = configured_budgets(load(data_dir=alone).budgets)
    assert (name_of(found), found.amount) == ("constellation.day.microdollars", 2_500_000)


ENVIRONMENT = {"PATH": "/bin", "TOKEN": "sesame", "SECRET": "not handed on", "LANG": "C"}


def servers(text: str) -> dict[str, McpSettings]:
    return configured_mcp(loaded(text), ENVIRONMENT.get)


def test_a_program() -> None:
    text = """
    [mcp.github]
    command = "npx"
    args = ["-y", "server"]
    env = { LANG = "de", MODE = "quiet" }
    env_from = ["TOKEN", "OTHER"]
    cwd = "/srv"
    tools = ["get"]
    effects = { get = "idempotent" }
    lazy = false
    start_timeout_s = 5
    """
    environment = {"PATH": "/bin", "TOKEN": "sesame", "LANG": "de", "MODE": "quiet"}
    assert servers(text)["github"] == McpSettings(
        reach=Stdio(
            command="npx",
            args=("-y", "server"),
            environment={name: Secret(value) for name, value in environment.items()},
            cwd=Path("/srv"),
        ),
        missing=("OTHER",),
        tools=("get",),
        effects={"get": EffectClass.IDEMPOTENT},
        lazy=False,
        start_timeout_s=5,
    )


def test_an_address() -> None:
    text = """
    [mcp.notes]
    url = "https://notes.example/mcp"
    headers = { X-A = "a" }
    headers_env = { X-B = "TOKEN", X-C = "NONE" }
    token_env = "TOKEN"
    effect = "idempotent"
    trust_hints = true
    protocol = "legacy"
    """
    headers = {"X-A": "a", "X-B": "sesame", "X-C": "", "Authorization": "Bearer sesame"}
    assert servers(text)["notes"] == McpSettings(
        reach=Streamable(
            url="https://notes.example/mcp", headers={name: Secret(value) for name, value in headers.items()}
        ),
        missing=("NONE",),
        effect=EffectClass.IDEMPOTENT,
        trust_hints=True,
        protocol="legacy",
    )


def test_no_secret_is_shown() -> None:
    settings = servers('[mcp.x]\ncommand = "a"\nenv = { KEY = "sesame" }')
    assert "sesame" not in repr(settings)


def test_without_a_section_there_is_no_web() -> None:
    assert loaded("").web is None
    assert loaded("[web]").web == WebSettings()


def test_everything_that_can_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARCH_KEY", "k")
    text = """
    [web]
    ports = [80, 8080]
    allow_hosts = ["example.org"]
    deny_hosts = ["secret.example.org"]
    allow_private = true
    timeout_s = 5
    [web.search]
    kind = "brave"
    api_key_env = "SEARCH_KEY"
    """
    assert loaded(text).web == WebSettings(
        ports=(80, 8080),
        allow_hosts=("example.org",),
        deny_hosts=("secret.example.org",),
        allow_private=True,
        search=EngineSettings(kind="brave", api_key=Secret("k")),
        timeout_s=5.0,
    )


def test_embeddings_are_local_unless_configured() -> None:
    assert embedder_settings(load()) == EmbedderSettings()
    text = '[embeddings]\nmodel = "BAAI/bge-m3"\nruntime = "sentence-transformers"\nallow_download = true\n'
    settings = embedder_settings(loaded(f'{text}query_prefix = ""'))
    assert (settings.model, settings.runtime, settings.allow_download) == ("BAAI/bge-m3", "sentence-transformers", True)
    assert (settings.query_prefix, settings.passage_prefix) == ("", None)


def test_embeddings_take_key_and_address_of_the_provider_that_they_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "k1")
    monkeypatch.setenv("OPENAI_API_KEY", "k2")
    text = '[providers.mine]\nkind = "openai"\nbase_url = "http://mine/v1"\napi_key_env = "MY_KEY"\n'
    settings = embedder_settings(loaded(f'{text}[embeddings]\nprovider = "mine"\nmodel = "m"\n'))
    assert (settings.provider, settings.base_url, settings.model) == ("openai", "http://mine/v1", "m")
    assert settings.api_key is not None and settings.api_key.get_secret_value() == "k1"
    assert embedder_settings(loaded('[embeddings]\nprovider = "openai"')).api_key == Secret("k2")
    config = loaded('[embeddings]\nprovider = "openai"\napi_key_env = "MY_KEY"\nbase_url = "http://other"')
    settings = embedder_settings(config)
    assert (settings.api_key, settings.base_url) == (Secret("k1"), "http://other")
    assert "k1" not in repr(config)


def test_the_model_before_can_be_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "k1")
    text = '[embeddings.former]\nprovider = "compatible"\nmodel = "m"\nbase_url = "http://old"\napi_key_env = "MY_KEY"'
    config = loaded(text)
    settings = embedder_settings(config, config.embeddings.former)
    assert (settings.provider, settings.model, settings.base_url) == ("compatible", "m", "http://old")
    assert settings.api_key == Secret("k1")
    assert embedder_settings(config) == EmbedderSettings()


def test_the_shell_runs_nothing_until_it_has_a_directory(tmp_path: Path) -> None:
    assert shell_settings(load()) is None
    config = load(data_dir=tmp_path / "data", shell={"roots": [tmp_path], "allow": ["make"], "memory_mb": 100})
    settings = shell_settings(config)
    assert settings is not None
    assert (settings.roots, settings.kept_out) == ([tmp_path], (tmp_path / "data",))
    assert (settings.allow, settings.memory_mb) == (["make"], 100)
    assert (settings.network, settings.require_sandbox) == (False, True)
    with pytest.raises(ConfigError, match="absolute path"):
        load(shell={"roots": ["work"]})


def test_secrets_of_webhooks_come_from_the_environment_or_a_file(alone: Path) -> None:
    (alone / "pattern.toml").write_text(
        '[webhooks]\nallow_private = true\nsecrets = {a = {env = "A_KEY"}, b = {env = "NONE"}, c = {file = "/c"}}\n'
    )
    found = webhook_settings(load(), {"A_KEY": "words"}.get)
    assert found.allow_private
    assert found.secrets["a"].value == Secret("words")
    assert found.secrets["b"].value == Secret("")
    assert (found.secrets["c"].value, found.secrets["c"].file) == (None, Path("/c"))
    assert "words" not in repr(found)


def test_sources_have_secrets_and_never_the_servers_own_data(tmp_path: Path) -> None:
    given = {"roots": [tmp_path], "secrets": {"bot": {"env": "A_TOKEN"}}}
    found = source_settings(load(data_dir=tmp_path / "data", sources=given), {"A_TOKEN": "words"}.get)
    assert (found.secrets["bot"].value, found.kept_out) == (Secret("words"), (tmp_path / "data",))
    with pytest.raises(ConfigError, match="absolute path"):
        load(sources={"roots": ["notes"]})
    with pytest.raises(ConfigError, match="needs one of env"):
        load(sources={"secrets": {"bot": {}}})
