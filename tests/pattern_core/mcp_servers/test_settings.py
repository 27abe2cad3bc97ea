"""What the operator decided counts before what a server says."""

from __future__ import annotations

import pytest

from pattern_core.mcp_servers.settings import McpSettings, Stdio, Streamable, is_server_name
from pattern_db.enums import EffectClass

SAFE, UNSAFE = EffectClass.IDEMPOTENT, EffectClass.UNSAFE


@pytest.mark.parametrize(
    ("configured", "trust_hints", "says_repeatable", "effect"),
    [
        ({}, False, True, UNSAFE),
        ({}, True, True, SAFE),
        ({}, True, False, UNSAFE),
        ({"t": UNSAFE}, True, True, UNSAFE),
        ({"t": SAFE}, False, False, SAFE),
        ({"other": SAFE}, False, True, UNSAFE),
    ],
)
def test_effects(
    configured: dict[str, EffectClass], trust_hints: bool, says_repeatable: bool, effect: EffectClass
) -> None:
    settings = McpSettings(reach=Stdio(command="x"), effects=configured, trust_hints=trust_hints)
    assert settings.effect_of("t", says_repeatable=says_repeatable) is effect


def test_a_place_tells_no_secret() -> None:
    for url in ("https://a.example:8443/s/key/mcp?key=s#x", "https://me:p@ss@a.example:8443/mcp"):
        assert McpSettings(reach=Streamable(url=url)).place == "https://a.example:8443"
    assert McpSettings(reach=Stdio(command="npx", args=("--token", "s"))).place == "npx"


@pytest.mark.parametrize("name", ["github", "a", "my_notes", "x-1", "a" * 24])
def test_names_of_servers(name: str) -> None:
    assert is_server_name(name)


@pytest.mark.parametrize("name", ["", "1a", "A", "a__b", "a_", "_a", "a b", "a" * 25, "ä"])
def test_names_that_no_server_may_have(name: str) -> None:
    assert not is_server_name(name)
