"""`pattern memory sync`, for real: the command, its folder, and a server that is killed meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pattern_server.cli.memory import sync
from pattern_server.cli.mirror.plan import Do
from pattern_server.cli.mirror.report import Event
from tests.pattern_server.cli.conftest import READY_S, Pattern, serving

AT = ("-c", "home", "-a", "ada")


def test_once(home: Pattern, tmp_path: Path) -> None:
    home("memory", "append", "human", "Likes tea.", *AT)
    mirror = tmp_path / "m"
    once = ("memory", "sync", str(mirror), "-c", "home", "--once")
    planned = home("memory", "sync", str(mirror), "-c", "home", "--dry-run")
    assert planned.code == 0, planned.err
    assert "ada/human.md" in planned.out
    assert not mirror.exists()
    done = home(*once)
    assert done.code == 0, done.err
    human = mirror / "ada" / "human.md"
    assert human.read_text() == "Likes tea.\n"
    assert "Nothing to do" in home(*once).out

    human.write_text("Likes tea.\nLikes figs.\n")
    (mirror / "ada" / "garden.md").write_text("Four beds.\n")
    home("memory", "append", "human", "Sails.", *AT)
    assert home(*once).code == 0
    assert sorted(home("memory", "show", "human", *AT).out.split("\n")) == ["", "Likes figs.", "Likes tea.", "Sails."]
    assert human.read_text() == home("memory", "show", "human", *AT).out
    assert home("memory", "show", "garden", *AT).out == "Four beds.\n"

    human.write_text("x" * 6000)
    refused = home(*once)
    assert refused.code == 3
    assert "ada/human.md !" in refused.err
    assert (mirror / "ada" / "human.md.error.txt").exists()
    told = json.loads(home(*once, "--json").out)
    assert told["skipped"] == ["ada/human.md"]
    assert told["events"][0]["did"] == "refuse"


def test_refusals(home: Pattern, tmp_path: Path) -> None:
    assert home("memory", "sync", str(tmp_path / "m"), "-c", "nowhere", "--once").code == 1
    assert home("memory", "sync", str(tmp_path / "m"), *AT[:2], "-a", "nobody", "--once").code == 1
    unasked = home("memory", "sync", str(tmp_path / "m"), "-c", "home", "--once", "--delete")
    assert unasked.code == 2
    assert "--yes" in unasked.err
    watching = home("memory", "sync", str(tmp_path / "m"), "-c", "home")
    assert watching.code == 1
    assert "add --once" in watching.err
    assert home("memory", "sync", str(tmp_path / "m"), *AT, "--everyone", "--once").code == 0


def test_events_as_data() -> None:
    event = Event(path="ada/human.md", did=Do.PUSH, note="merged", version=4)
    wanted = {"path": "ada/human.md", "did": "push", "note": "merged", "version": 4, "skipped": False}
    assert sync.as_data(event) == wanted


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + READY_S
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.05)


@pytest.mark.slow
def test_watching_both_sides_across_a_servers_death(home: Pattern, data_dir: Path, tmp_path: Path) -> None:
    home("memory", "append", "human", "Likes tea.", *AT)
    human = tmp_path / "m" / "ada" / "human.md"
    command = [sys.executable, "-m", "pattern_server", "memory", "sync", str(tmp_path / "m"), "-c", "home"]
    with serving(data_dir, tmp_path) as server:
        started = [*command, "--data-dir", str(data_dir)]
        pipe = subprocess.PIPE
        with subprocess.Popen(started, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True) as syncing:
            try:
                until(human.exists)
                human.write_text("Likes tea.\nLikes figs.\n")
                until(lambda: "figs" in home("memory", "show", "human", *AT).out)
                home("memory", "append", "human", "Sails.", *AT)
                until(lambda: "Sails" in human.read_text())
                second = home("memory", "sync", str(tmp_path / "m"), "-c", "home", "--once")
                assert "another `pattern memory sync`" in second.err
                os.kill(server.pid, signal.SIGKILL)
                server.wait()
                human.write_text(human.read_text() + "Written without a server.\n")
                with serving(data_dir, tmp_path):
                    until(lambda: "without a server" in home("memory", "show", "human", *AT).out)
                    home("memory", "append", "human", "And after.", *AT)
                    until(lambda: "And after" in human.read_text())
                    syncing.send_signal(signal.SIGTERM)
                    out, err = syncing.communicate(timeout=READY_S)
            finally:
                syncing.kill()
        assert syncing.returncode == 0, err
        assert "ada/human.md →" in out
        assert "Waiting: " in err
        assert "Stopped" in err
