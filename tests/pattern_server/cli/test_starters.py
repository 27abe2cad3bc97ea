"""Constellations from starters, by command."""

from __future__ import annotations

from pathlib import Path

from tests.pattern_server.cli.conftest import Pattern


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
