"""A server in a process of its own: what it prints, how it ends, and the same commands while it runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from pattern_core.errors import Unavailable
from pattern_server.cli import run
from pattern_server.cli.child import ServerProcess
from pattern_server.cli.client import ServerUnreachable, running_server
from pattern_server.cli.output import Output
from pattern_server.cli.serve import welcome
from pattern_server.serve import Ready
from tests.pattern_server.cli.conftest import Pattern, serving


def test_no_thread_keeps_the_interpreter_for_long() -> None:
    code = "import sys; sys.argv = ['pattern', '--version']; from pattern_server.cli import main; main()"
    code = f"import atexit, sys; atexit.register(lambda: print(sys.getswitchinterval())); {code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout.splitlines()[-1]) <= 0.001


@pytest.mark.slow
def test_the_first_start_makes_a_token_that_works_and_the_second_none(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with serving(data_dir, tmp_path) as process:
        server = running_server(data_dir)
        assert server is not None
        assert (data_dir / "server.json").stat().st_mode & 0o777 == 0o600
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert server.url in out
    kept = data_dir / "admin.token"
    assert kept.stat().st_mode & 0o777 == 0o600
    token = kept.read_text().strip()
    assert str(kept) in out
    assert token not in out + err, "a pipe may lead to a journal"
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
def test_a_command_that_came_first_does_not_cost_the_token(tmp_path: Path) -> None:
    """Somebody may make a constellation before there ever was a server; the server still shows its token."""
    made = [sys.executable, "-m", "pattern_server", "constellation", "create", "home", "--data-dir", "data"]
    subprocess.run(made, cwd=tmp_path, check=True, capture_output=True)
    with serving(tmp_path / "data", tmp_path) as process:
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    assert "Your API token" in out


def test_files_of_an_earlier_version_are_named_and_left_alone(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data_dir.mkdir()
    (data_dir / "global.db").write_bytes(b"precious")
    assert run(["serve", "--port", "0"]) == 1
    assert f"{data_dir} is one of an earlier version" in capsys.readouterr().err
    assert [path.name for path in data_dir.parent.rglob("*")] == ["data", "global.db"]


def test_the_welcome(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    welcome(Output(), Ready(url="http://127.0.0.1:8470", data_dir=Path("data"), token=None))
    assert "token" not in capsys.readouterr().out
    first = Ready(url="http://127.0.0.1:8470", data_dir=Path("data"), token="pat_1")
    welcome(Output(), first)
    shown = capsys.readouterr().out
    assert "data/admin.token" in shown
    assert "pat_1" not in shown
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    welcome(Output(), first)
    assert "pat_1" in capsys.readouterr().out


@pytest.mark.slow
async def test_a_childs_life(tmp_path: Path) -> None:
    child = ServerProcess(tmp_path / "data")
    try:
        server, took_s = await child.start()
        assert 0 < took_s < 30
        async with child.api() as api:
            await api.call("POST", "constellations", body={"name": "home"})
        await child.kill()
        assert running_server(tmp_path / "data") is None
        with pytest.raises(ServerUnreachable):
            async with child.api():
                pass
        again, _ = await child.start()
        assert again.url == server.url
        assert again.pid != server.pid
        async with child.api() as api:
            assert [row["name"] for row in await api.pages("constellations")] == ["home"]
        assert await child.stop() == 0
        assert not (tmp_path / "data" / "server.json").exists()
        assert await child.stop() == 0
    finally:
        await child.kill()


@pytest.mark.slow
async def test_a_server_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    child, other = ServerProcess(tmp_path / "data"), ServerProcess(tmp_path / "data")
    try:
        server, _ = await child.start()
        with pytest.raises(Unavailable, match=str(server.pid)):
            await other.start()
        os.kill(server.pid, signal.SIGSTOP)  # it hangs, and does not hear that it should end
        os.kill(server.pid, signal.SIGCONT)
    finally:
        await other.kill()
        await child.kill()


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
        made = home("db", "vacuum")
        assert (made.code, made.out.count("freed")) == (0, 3), made.err
        assert home("db", "vacuum", "-c", "home").code == 0
        examined = home("doctor")
        assert examined.code == 0, examined.out
        assert "answers at" in examined.out

        made = home("token", "create", "--scope", "read,chat", "--days", "3", "--name", "phone")
        url = running_server(data_dir).url  # type: ignore[union-attr]  # as above
        header = {"Authorization": f"Bearer {made.out.strip()}"}
        assert httpx2.get(f"{url}/api/v1/me", headers=header, timeout=60).json()["scopes"] == ["read", "chat"]
        (found,) = [row for row in home("token", "list", "--json").json if row["name"] == "phone"]
        assert home("token", "revoke", found["id"]).code == 0
        assert httpx2.get(f"{url}/api/v1/me", headers=header, timeout=60).status_code == 401

        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert "Lisbon" in home("memory", "show", "human", "-c", "home", "-a", "ada").out, "and without it as well"


def test_other_machines_are_not_served_in_clear_text_by_accident(pattern: Pattern, data_dir: Path) -> None:
    refused = pattern("serve", "--host", "0.0.0.0", "--port", "0")
    assert refused.code == 1
    assert "--exposed" in refused.err
    assert not (data_dir / "global.db").exists()
