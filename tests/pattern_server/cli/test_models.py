"""`pattern model …`, without a server; with one see `test_up`."""

from __future__ import annotations

from pathlib import Path

from pattern_server.cli.models import findings, notes, speed
from tests.pattern_server.cli.conftest import Pattern

FACTS = {
    "provider": "mine",
    "model": "m",
    "window": 4_096,
    "window_source": "server",
    "output_max": 1_024,
    "is_known": True,
    "is_configured": True,
    "trained_window": None,
}
TRIAL = {
    "facts": FACTS,
    "answer": "A tower.",
    "finish_reason": "length",
    "output_tokens": 30,
    "first_word_s": 1.0,
    "total_s": 4.0,
    "thought_chars": 3,
    "tool_calls": "none",
    "tool_answer": "Sunny.",
}


def test_what_a_trial_found() -> None:
    assert list(findings(TRIAL)) == [
        ("window", "ok", "4,096 tokens (server), answers up to 1,024"),
        ("window", "note", next(notes(FACTS))),
        ("answer", "ok", "A tower."),
        ("speed", "ok", "first word after 1.0 s, all after 4.0 s (tokens: 30, 10 a second)"),
        ("answer", "note", "it does not end: it was cut (tokens: 30)"),
        ("thoughts", "note", "it thinks first, here 3 characters, which are output"),
        ("tools", "note", "it called no tool when asked to, and said: Sunny."),
    ]
    silent = {(check, state) for check, state, _ in findings({**TRIAL, "answer": ""})}
    assert ("answer", "problem") in silent
    assert "a second" not in speed(3, 0.0, 0.001)


def test_the_models_and_who_uses_them(home: Pattern) -> None:
    rows = [line.split() for line in home("model", "list").out.splitlines()]
    assert ["embedded/rules-1", "32,000", "$0.00", "in,", "$0.00", "out", "yes", "default,", "home/ada"] in rows
    assert home("model", "list", "--json").json["used_by"] == {"embedded/rules-1": ["home/ada"]}


def test_a_model_is_tested(home: Pattern) -> None:
    assert home("model", "test", "embedded/rules-1").code == 0
    for wrong, words in (("m", "PROVIDER/MODEL"), ("absent/m", "not configured")):
        refused = home("model", "test", wrong)
        assert refused.code and words in refused.err


def test_the_model_of_an_agent_and_the_default(home: Pattern, data_dir: Path) -> None:
    (data_dir / "pattern.toml").write_text('[providers.mine]\nkind = "openai"\nbase_url = "http://127.0.0.1:9/v1"\n')
    assert home("model", "set", "mine/m", "-c", "home", "-a", "ada").code == 0
    found = home("agent", "show", "ada", "-c", "home", "--json").json
    assert (found["model_provider"], found["model_name"]) == ("mine", "m")
    changed = home("model", "set", "mine/n")
    assert changed.code == 0, changed.err
    assert 'default_model = "n"' in (data_dir / "pattern.toml").read_text()
    listed = home("model", "list")
    assert "mine/n" in listed.out and "default" in listed.out
    assert [line.split() for line in listed.out.splitlines() if line.startswith("mine/m ")] == [
        ["mine/m", "-", "-", "-", "home/ada"]
    ]
    assert "mine: " in listed.err, "why it does not answer"
    assert home("model", "set", "mine/n", "-a", "ada").code == 0, "the only constellation is meant"
    assert home("model", "set", "absent/n").code
