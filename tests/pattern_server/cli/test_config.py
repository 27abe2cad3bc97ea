"""`pattern config`: what is wrong with a configuration, and what is set by what."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pattern_server.cli import run

FILE = """\
port = 8499

[providers.mine]
kind = "openai"
api_key_env = "MY_KEY"
models."m.1" = {window = 3000}

[limits.turn]
steps_max = 30
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "PATTERN_DATA_DIR", "PATTERN_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    Path("pattern.toml").write_text(FILE)
    return tmp_path


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run([*arguments, "--data-dir", "data"])
    found = capsys.readouterr()
    return code, found.out, found.err


def test_a_valid_configuration(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = asked(capsys, "config", "check")
    assert (code, out) == (0, f"{here / 'pattern.toml'}: valid.\n")
    Path("pattern.toml").unlink()
    assert asked(capsys, "config", "check")[:2] == (0, "No file, so the defaults: valid.\n")
    assert not Path("data").exists()


def test_mistakes_end_with_1(here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATTERN_PROT", "3")
    code, _, err = asked(capsys, "config", "check")
    assert code == 1
    assert "PATTERN_PROT has no effect: did you mean PATTERN_PORT?" in err
    Path("pattern.toml").write_text('host = "0.0.0.0"')
    code, _, err = asked(capsys, "config", "check")
    assert code == 1
    assert "would not be encrypted" in err
    Path("pattern.toml").write_text("\nhots = 1")
    code, _, err = asked(capsys, "config", "check")
    assert code == 1
    assert "hots: is not a known setting, did you mean host? (line 2)" in err


def test_each_setting_names_what_set_it_and_no_secret(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("MY_KEY", "sesame"), ("OPENAI_API_KEY", "sesame"), ("PATTERN_SUPERVISOR__DRAIN_S", "4")):
        monkeypatch.setenv(name, value)
    code, out, _ = asked(capsys, "config", "show", "--json")
    assert code == 0
    assert "sesame" not in out
    found = {row["setting"]: (row["value"], row["set_by"]) for row in json.loads(out)}
    assert found == {
        "data_dir": (str(here / "data"), "--data-dir"),
        "port": (8499, "pattern.toml, line 1"),
        "providers.mine.kind": ("openai", "pattern.toml, line 4"),
        "providers.mine.api_key": ("**********", "pattern.toml, line 3"),
        "providers.mine.models.m.1.window": (3000, "pattern.toml, line 6"),
        "providers.openai.api_key": ("**********", "OPENAI_API_KEY"),
        "limits.turn.steps_max": (30, "pattern.toml, line 9"),
        "supervisor.drain_s": (4.0, "PATTERN_SUPERVISOR__DRAIN_S"),
    }
    everything = json.loads(asked(capsys, "config", "show", "--all", "--json")[1])
    assert {"setting": "host", "value": "127.0.0.1", "set_by": "the default"} in everything
