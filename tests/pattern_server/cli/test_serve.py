"""`pattern serve`, as a process: what it prints, and how it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from pattern_server.cli.client import running_server
from pattern_server.cli.output import Output
from pattern_server.cli.serve import welcome
from pattern_server.serve import Ready
from tests.pattern_server.cli.conftest import serving


@pytest.mark.slow
def test_the_first_start_prints_a_token_that_works_and_the_second_none(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with serving(data_dir, tmp_path) as process:
        server = running_server(data_dir)
        assert server is not None
        assert (data_dir / "server.json").stat().st_mode & 0o777 == 0o600
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert server.url in out
    (token,) = [line.strip() for line in out.splitlines() if line.startswith("  ")]
    with serving(data_dir, tmp_path) as process:
        server = running_server(data_dir)
        assert server is not None
        me = httpx2.get(f"{server.url}/api/v1/me", headers={"Authorization": f"Bearer {token}"}, timeout=60)
        assert me.json()["username"] == "admin"
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert token not in out


@pytest.mark.slow
def test_a_second_server_is_refused_and_names_the_first(tmp_path: Path) -> None:
    with serving(tmp_path / "data", tmp_path) as first, serving(tmp_path / "data", tmp_path) as second:
        _, err = second.communicate(timeout=60)
        assert second.returncode == 1
        assert str(first.pid) in err
        assert "Traceback" not in err


@pytest.mark.slow
def test_a_command_that_came_first_does_not_cost_the_token(tmp_path: Path) -> None:
    """Somebody may make a constellation before there ever was a server; the server still shows its token."""
    made = [sys.executable, "-m", "pattern_server", "constellation", "create", "home", "--data-dir", "data"]
    subprocess.run(made, cwd=tmp_path, check=True, capture_output=True)
    with serving(tmp_path / "data", tmp_path) as process:
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    assert "Your API token" in out


def test_the_welcome(capsys: pytest.CaptureFixture[str]) -> None:
    welcome(Output(), Ready(url="http://127.0.0.1:8470", data_dir=Path("data"), token=None))
    assert "token" not in capsys.readouterr().out
    welcome(Output(), Ready(url="http://127.0.0.1:8470", data_dir=Path("data"), token="pat_1"))
    assert "pat_1" in capsys.readouterr().out
