"""The same commands while a server runs: they go through it, answers stream, and what it holds is left alone."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from pattern_server.cli.client import running_server
from tests.pattern_server.cli.conftest import Pattern, serving


@pytest.mark.slow
def test_commands_go_through_a_running_server(home: Pattern, data_dir: Path, tmp_path: Path) -> None:
    with serving(data_dir, tmp_path) as process:
        assert running_server(data_dir) is not None

        told = home("chat", "-c", "home", "Remember that Ruth lives in Lisbon.")
        assert told.code == 0, told.err
        assert "Lisbon" in told.out
        assert "block_edit" in told.err, "tools are told as they are used: the answer was streamed"
        assert home("chat", "-c", "home", "--json", "What do you know about Ruth?").json["status"] == "completed"
        assert home("memory", "append", "human", "Ruth likes figs.", "-c", "home", "-a", "ada").code == 0
        assert "figs" in home("search", "-c", "home", "figs").out

        assert home("backup", "-c", "home", "-o", str(tmp_path / "home.db")).code == 0
        assert home("restore", str(tmp_path / "home.db"), "--as", "copy").code == 0
        assert "figs" in home("memory", "show", "human", "-c", "copy", "-a", "ada").out

        assert home("db", "status").code == 0
        assert home("db", "check").code == 0
        assert home("db", "vacuum").code == 3
        refused = home("db", "vacuum", "-c", "home")
        assert refused.code == 1
        assert str(process.pid) in refused.err
        examined = home("doctor")
        assert examined.code == 0, examined.out
        assert "answers at" in examined.out

        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert "Lisbon" in home("memory", "show", "human", "-c", "home", "-a", "ada").out, "and without it as well"


@pytest.mark.slow
def test_a_killed_server_leaves_everything_usable(home: Pattern, data_dir: Path, tmp_path: Path) -> None:
    with serving(data_dir, tmp_path) as process:
        assert home("chat", "-c", "home", "Remember that Ruth lives in Lisbon.").code == 0
        process.kill()
        process.wait()
        assert (data_dir / "server.json").exists()
        assert "Lisbon" in home("chat", "-c", "home", "What do you know about Ruth?").out
