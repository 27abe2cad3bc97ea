from __future__ import annotations

from pathlib import Path

import pytest

from pattern_core.models.providers.settings import Secret
from pattern_core.web.engines import EngineSettings
from pattern_core.web.policy import WebPolicy, WebSettings
from pattern_server.config import Config, ConfigError, load
from pattern_server.web_config import web_settings


def loaded(tmp_path: Path, text: str) -> Config:
    file = tmp_path / "pattern.toml"
    file.write_text(text, encoding="utf-8")
    return load(file)


def test_without_a_section_there_is_no_web(tmp_path: Path) -> None:
    assert web_settings(loaded(tmp_path, "").web) is None
    assert web_settings(loaded(tmp_path, "[web]").web) == WebSettings()


def test_everything_that_can_be_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert web_settings(loaded(tmp_path, text).web) == WebSettings(
        policy=WebPolicy(
            ports=(80, 8080),
            allow_hosts=("example.org",),
            deny_hosts=("secret.example.org",),
            allow_private=True,
        ),
        search=EngineSettings(kind="brave", api_key=Secret("k")),
        timeout_s=5.0,
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[web]\nprots = [80]", "web.prots"),
        ("[web]\nports = [0]", "web.ports"),
        ('[web.search]\nkind = "searxng"', "needs base_url"),
        ('[web.search]\nkind = "brave"', "needs api_key"),
        ('[web.search]\nkind = "bing"', "web.search.kind"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        loaded(tmp_path, text)
