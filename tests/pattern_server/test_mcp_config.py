"""`[mcp.<name>]`: what it may say, and what comes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pattern_core.mcp_servers.settings import McpSettings, Stdio, Streamable
from pattern_core.models.providers.settings import Secret
from pattern_db.enums import EffectClass
from pattern_server.config import ConfigError, load
from pattern_server.mcp_config import mcp_settings

ENVIRONMENT = {"PATH": "/bin", "TOKEN": "sesame", "SECRET": "not handed on", "LANG": "C"}


def loaded(tmp_path: Path, text: str) -> dict[str, McpSettings]:
    file = tmp_path / "pattern.toml"
    file.write_text(text, encoding="utf-8")
    return mcp_settings(load(file).mcp, ENVIRONMENT)


def test_a_program(tmp_path: Path) -> None:
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
    assert loaded(tmp_path, text)["github"] == McpSettings(
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


def test_an_address(tmp_path: Path) -> None:
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
    assert loaded(tmp_path, text)["notes"] == McpSettings(
        reach=Streamable(
            url="https://notes.example/mcp", headers={name: Secret(value) for name, value in headers.items()}
        ),
        missing=("NONE",),
        effect=EffectClass.IDEMPOTENT,
        trust_hints=True,
        protocol="legacy",
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[mcp.x]", "needs either command or url"),
        ('[mcp.x]\ncommand = "a"\nurl = "http://b"', "needs either command or url"),
        ('[mcp.x]\nurl = "ftp://b"', "must begin with http:// or https://"),
        ('[mcp.x]\nurl = "http://b"\nargs = ["a"]', "args means nothing beside url"),
        ('[mcp.x]\ncommand = "a"\ntoken_env = "T"\nheaders = {}', "headers, token_env mean nothing beside command"),
        ('[mcp.a__b]\ncommand = "a"', "cannot be an MCP server's name"),
        ('[mcp.x]\ncommand = "a"\neffect = "pure"', "mcp.x.effect"),
        ('[mcp.x]\ncommand = "a"\nidle = 3', "mcp.x.idle: is not a known setting"),
        ('[mcp.x]\ncommand = "a"\ncalls_max = 0', "mcp.x.calls_max"),
    ],
)
def test_what_does_not_fit_is_said(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, text)
    assert words in refused.value.message


def test_no_secret_is_shown(tmp_path: Path) -> None:
    settings = loaded(tmp_path, '[mcp.x]\ncommand = "a"\nenv = { KEY = "sesame" }')
    assert "sesame" not in repr(settings)
