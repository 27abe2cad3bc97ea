"""Constellations from starters, by command: six agents answer in a group, by rules or with a server on loopback."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio

from pattern_core.testing.model import says
from pattern_core.testing.wire_openai import serve_openai
from tests.pattern_server.cli.conftest import Pattern, Ran

SIX = ("compass", "pebble", "tempo", "ember", "harbor", "lantern")


@pytest.mark.parametrize("kind", ["embedded", "openai"])
async def test_a_group_of_six_answers(pattern: Pattern, data_dir: Path, kind: str) -> None:
    async def ran(*arguments: str) -> Ran:
        found = await trio.to_thread.run_sync(partial(pattern, *arguments))
        assert found.code == 0, found.err
        return found

    async with serve_openai(otherwise=says("Let us look at it together.")) as wire:
        if kind == "openai":
            data_dir.mkdir()
            server = f'kind = "openai"\nbase_url = "{wire.url}/v1"\napi_key = "k"\n'
            chosen = f'default_provider = "local"\ndefault_model = "m"\n[providers.local]\n{server}'
            (data_dir / "pattern.toml").write_text(chosen)
        made = await ran("constellation", "create", "home", "--from", "support")
        assert "Next: pattern agent list -c home" in made.out
        said = await ran("chat", "-c", "home", "--group", "table", "@all Hello!")
        assert all(name in said.out for name in SIX), said.out
        asked = [request for request in wire.requests if request.path == "/v1/chat/completions"]
        assert len(asked) == (0 if kind == "embedded" else len(SIX))


def test_a_starter_in_a_file_of_ones_own(pattern: Pattern, tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('[[agents]]\nname = "bea"\nsystem_prompt = "You are brief."\n')
    assert pattern("constellation", "create", "mine", "--from", str(mine)).code == 0
    assert [one["name"] for one in pattern("agent", "list", "-c", "mine", "--json").json] == ["bea"]
    mine.write_text("[[agents]]\nnaem = 1\n")
    refused = pattern("constellation", "create", "other", "--from", str(mine))
    assert (refused.code, "naem" in refused.err) == (2, True), refused.err
    mine.write_text("agents = [")
    refused = pattern("constellation", "create", "other", "--from", str(mine))
    assert (refused.code, "is not valid TOML" in refused.err) == (2, True), refused.err
