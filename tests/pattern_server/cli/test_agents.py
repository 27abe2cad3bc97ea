"""Agents on the command line, their config as KEY=VALUE, and their models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from pattern_server.cli.agents import changed_config, model_lines, rules_of, settings_in, trouble
from tests.pattern_server.cli.conftest import Pattern


def test_an_agents_life(home: Pattern, tmp_path: Path) -> None:
    (tmp_path / "instructions.md").write_text("You keep the garden's diary.")
    options = ("--instructions-file", str(tmp_path / "instructions.md"), "--description", "A gardener.")
    made = home("agent", "create", "flora", "-c", "home", "--provider", "embedded", *options, "--memory", "beds=Four.")
    assert made.code == 0, made.err
    assert "pattern chat" in made.out
    shown = home("agent", "show", "flora", "-c", "home", "--json").json
    assert shown["system_prompt"] == "You keep the garden's diary."
    assert shown["description"] == "A gardener."
    assert home("memory", "show", "beds", "-c", "home", "-a", "flora").out == "Four.\n"
    assert {row["name"] for row in home("agent", "list", "-c", "home", "--json").json} == {"ada", "flora"}
    assert home("agent", "edit", "flora", "-c", "home", "--name", "rosa", "--instructions", "Water.").code == 0
    changed = home("agent", "show", "rosa", "-c", "home", "--json").json
    assert (changed["id"], changed["system_prompt"]) == (shown["id"], "Water.")
    assert home("agent", "archive", "rosa", "-c", "home").code == 0
    assert home("agent", "show", "rosa", "-c", "home", "--json").json["status"] == "archived"
    assert home("agent", "delete", "rosa", "-c", "home", "--yes").code == 0
    assert home("agent", "show", "rosa", "-c", "home").code == 1


def test_settings_and_rules(home: Pattern) -> None:
    rules = '[{"tool": "calculator", "type": "max_calls", "count": 2}, {"tool": "web", "type": "exit_loop"}]'
    given = ("--config", "limits.steps=9", "--config", "context_window=4000", "--rules", rules)
    made = home("agent", "create", "flora", "-c", "home", "--provider", "openai", "--model", "x-1", *given)
    assert made.code == 0, made.err
    assert "`web`" in made.err
    assert "8,192 tokens are assumed" in made.err
    assert "OPENAI" in made.err or "is not configured" in made.err
    shown = home("agent", "show", "flora", "-c", "home").out
    assert "limits.steps=9" in shown
    assert "of which this agent uses 4,000" in shown
    assert "2; pattern rule list" in shown
    changed = home("agent", "edit", "flora", "-c", "home", "--config", "limits.steps=", "--rules", "[]")
    assert (changed.code, "`web`" in changed.err) == (0, False)
    told = home("agent", "show", "flora", "-c", "home", "--json").json
    assert (told["config"], told["tool_rules"]) == ({"context_window": 4000}, None)
    assert told["model"]["prompt_window"] == 4_000
    wrong = home("agent", "edit", "flora", "-c", "home", "--config", "limits.nosuch=1")
    assert (wrong.code, "limits.nosuch" in wrong.err) == (1, True)


def test_tools_come_and_go_one_by_one(home: Pattern) -> None:
    def enabled() -> list[str]:
        tools: list[str] = home("agent", "show", "ada", "-c", "home", "--json").json["enabled_tools"]
        return tools

    before = enabled()
    edit = ("agent", "edit", "ada", "-c", "home")
    assert home(*edit, "--add-tool", "emergency_halt", "--add-tool", "recall", "--drop-tool", "file").code == 0
    assert enabled() == [name for name in (*before, "emergency_halt") if name != "file"]
    wrong = home(*edit, "--drop-tool", "file")
    assert (wrong.code, "it has no file; it has block" in wrong.err) == (2, True)
    wrong = home(*edit, "--add-tool", "file", "--tool", "recall")
    assert (wrong.code, "one or the other" in wrong.err) == (2, True)
    assert home(*edit, "--tool", "recall").code == 0
    assert enabled() == ["recall"]


def test_refusals(home: Pattern) -> None:
    assert home("agent", "edit", "ada", "-c", "home").code == 2
    assert home("agent", "create", "x", "-c", "home", "--memory", "no sign").code == 2
    both = ("--instructions", "a", "--instructions-file", __file__)
    assert home("agent", "create", "x", "-c", "home", *both).code == 2
    taken = home("agent", "create", "ada", "-c", "home")
    assert taken.code == 1
    assert "ada" in taken.err
    assert home("agent", "list", "-c", "nowhere").code == 1
    assert home("agent", "delete", "ada", "-c", "home").code == 2
    assert home("agent", "create", "x", "-c", "home", "--tool", "no_such_tool").code == 1


FACTS: dict[str, Any] = {
    "provider": "own", "model": "m", "window": 32_000, "prompt_window": 32_000, "trained_window": None,
    "output_max": 8_000, "input_price": None, "output_price": None, "cache_read_price": None, "cache_write_price": None,
    "images": False, "tools": False, "reasoning": False, "source": "", "as_of": "", "is_known": True,
    "is_configured": True,
}  # fmt: skip


def test_settings_go_where_their_dots_say() -> None:
    config = {"limits": {"steps": 5, "tokens": 9}, "temperature": 0.5}
    changed = changed_config(config, ("limits.steps=20", "message_policy=steer", 'stop=["END"]', "temperature="))
    assert changed == {"limits": {"steps": 20, "tokens": 9}, "message_policy": "steer", "stop": ["END"]}
    assert config["temperature"] == 0.5
    assert changed_config(changed, ("limits.steps=", "limits.tokens=", "stop=", "compaction.type=")) == {
        "message_policy": "steer"
    }


@pytest.mark.parametrize("setting", ["limits.steps", "=3", "limits..steps=3", "nosuch=1", "temperature.high=1"])
def test_what_is_no_setting_is_refused(setting: str) -> None:
    with pytest.raises(click.UsageError, match="--config"):
        changed_config({"temperature": 0.5}, (setting,))


def test_settings_are_shown_as_they_are_written() -> None:
    written = ("limits.steps=20", "message_policy=steer", 'stop=["END"]', 'response_schema={"type": "object"}')
    config = changed_config({}, written)
    assert tuple(settings_in(config)) == written


def test_rules_come_from_a_text_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "rules.json"
    file.write_text('[{"tool": "web", "type": "max_calls", "count": 2}]')
    assert rules_of(str(file)) == rules_of(file.read_text())
    for wrong in ("[{", str(tmp_path / "none.json")):
        with pytest.raises(click.UsageError, match="--rules"):
            rules_of(wrong)


def test_what_is_known_of_a_model_is_said() -> None:
    assert list(model_lines(FACTS)) == [
        "window 32,000 tokens; answers up to 8,000",
        "price not known; calls are counted in tokens only",
        "can only answer in words",
    ]
    rich = {
        **FACTS, "prompt_window": 4_000, "input_price": 3_000_000, "cache_read_price": 300_000,
        "output_price": 15_000_000, "as_of": "2026-11-01", "tools": True, "images": True,
    }  # fmt: skip
    assert list(model_lines(rich)) == [
        "window 32,000 tokens, of which this agent uses 4,000; answers up to 8,000",
        "price $3.00 in ($0.30 cached), $15.00 out per million tokens, as of 2026-11-01",
        "can tools, images",
    ]


def test_what_is_missing_is_said_with_what_to_do() -> None:
    assert list(trouble(FACTS)) == []
    (unknown,) = trouble({**FACTS, "window": 8_192, "is_known": False})
    assert "8,192 tokens are assumed" in unknown
    assert '[providers.own.models."m"]' in unknown
    (open_model,) = trouble({**FACTS, "window": 8_192, "trained_window": 40_960})
    assert "40,960" in open_model
    (keyless,) = trouble({**FACTS, "is_configured": False})
    assert "[providers.own]" in keyless
