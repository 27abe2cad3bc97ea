"""`pattern service`: the files are what systemd and launchd accept, and the server talks to systemd."""

from __future__ import annotations

import configparser
import os
import plistlib
import shlex
import shutil
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import httpx2
import pytest
import trio

from pattern_server.cli import run
from pattern_server.cli import service as services
from pattern_server.config import load, service_manager
from pattern_server.serve import notify, serve
from tests.pattern_server.place import config_for

HARDENED = ("NoNewPrivileges", "DynamicUser", "ProtectSystem", "PrivateTmp", "ProtectHome", "CapabilityBoundingSet")


def options(text: str) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[method-assign,assignment]  # the documented way to keep the case
    parser.read_string(text)
    return parser["Service"]


@pytest.mark.parametrize("is_system", [False, True])
def test_a_unit_is_one_that_systemd_accepts(tmp_path: Path, is_system: bool) -> None:
    config = load(data_dir=tmp_path / 'da $ta "%"')
    text = services.unit_of(config, is_system=is_system)
    found = options(text)
    assert (found["Type"], found["Restart"]) == ("notify", "on-failure")
    assert float(found["TimeoutStopSec"]) > config.supervisor.drain_s
    command = [part.replace("%%", "%").replace("$$", "$") for part in shlex.split(found["ExecStart"])]
    data_dir = "/var/lib/pattern" if is_system else str(tmp_path / 'da $ta "%"')
    assert command == [sys.executable, "-m", "pattern_server", "serve", "--data-dir", data_dir]
    assert {name in found for name in HARDENED[1:]} == {is_system}
    assert found["NoNewPrivileges"] == "yes"
    if shutil.which("systemd-analyze"):
        unit = tmp_path / "pattern.service"
        unit.write_text(text)
        checked = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
        assert "pattern.service" not in checked.stderr, checked.stderr


def test_a_property_list_for_launchd(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("port = 8499")
    config = load(tmp_path / "mine.toml", data_dir=tmp_path / "data")
    content = plistlib.loads(services.launch_agent(config).encode())
    assert content["ProgramArguments"][-4:] == [
        "--data-dir",
        str(tmp_path / "data"),
        "--config",
        str(tmp_path / "mine.toml"),
    ]
    assert content["KeepAlive"] == {"SuccessfulExit": False}


def test_installing_and_uninstalling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a program in the place of systemctl, which notes what it is asked."""
    program, asked = tmp_path / "bin" / "systemctl", tmp_path / "asked"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {asked}\n')
    program.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(sys, "platform", "linux")
    file = tmp_path / ".config/systemd/user/pattern.service"
    ours = ["--data-dir", str(tmp_path / "data")]
    assert run(["service", "status", *ours]) == 1
    assert "pattern service install" in capsys.readouterr().err
    assert run(["service", "install", "--print", *ours]) == 0
    assert "Type=notify" in capsys.readouterr().out
    assert not file.exists()
    assert run(["service", "install", *ours]) == 0
    assert "Type=notify" in file.read_text()
    assert run(["service", "status", *ours]) == 0
    assert run(["service", "uninstall", *ours]) == 0
    assert not file.exists()
    words = [
        "daemon-reload",
        "enable --now pattern.service",
        "is-active pattern.service",
        "disable --now pattern.service",
    ]
    assert asked.read_text().splitlines() == [f"--user {line}" for line in words]
    program.write_text("#!/bin/sh\necho 'no bus' >&2\nexit 1\n")
    capsys.readouterr()
    assert run(["service", "install", *ours]) == 1
    assert "daemon-reload` failed: no bus" in capsys.readouterr().err


async def test_a_server_reports_to_systemd(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once that it is ready, again and again that it is alive, and that it stops."""
    assert service_manager()[0] == ""
    notify("READY=1")  # nobody listens
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(alone / "notify"))
        listener.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(alone / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "100000")
        assert service_manager() == (str(alone / "notify"), 0.1)
        stop = trio.Event()
        heard: list[str] = []
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                ready = await nursery.start(partial(serve, config_for(alone), shutdown=stop))
                async with httpx2.AsyncClient(trust_env=False) as client:
                    while (await client.get(f"{ready.url}/readyz")).status_code == 503:
                        await trio.sleep(0.01)
                while heard.count("WATCHDOG=1") < 3:
                    await trio.lowlevel.wait_readable(listener)
                    heard.append(listener.recv(100).decode())
                stop.set()
        while heard[-1] != "STOPPING=1":
            heard.append(listener.recv(100).decode())
    assert heard[0] == "READY=1"
    assert {*heard} == {"READY=1", "WATCHDOG=1", "STOPPING=1"}
