"""An agent's description on the command line: settings as KEY=VALUE, rules, and words about its model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from pattern_server.cli.agent_fields import changed_config, model_lines, rules_of, settings_in, trouble

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
