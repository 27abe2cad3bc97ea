"""`pattern agent …`."""

from __future__ import annotations

from pathlib import Path

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
