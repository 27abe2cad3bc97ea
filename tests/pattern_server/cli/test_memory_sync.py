"""`pattern memory sync`, for real: the command, its folder, what rings, and a server that is killed meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
import trio
import trio.testing

from pattern_server.cli import memory_sync
from pattern_server.cli.command import Home
from pattern_server.cli.memory_files import OWN
from pattern_server.cli.memory_sync import Bell, listen, watch_files
from tests.pattern_server.cli.conftest import READY_S, Answer, Pattern, api_of, as_json, serving

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
    assert "5000 characters" in refused.err or "longer" in refused.err
    told = json.loads(home(*once, "--json").out)
    assert told["skipped"] == ["ada/human.md"]
    assert told["events"][0]["did"] == "refuse"


def test_refusals(home: Pattern, tmp_path: Path) -> None:
    assert home("memory", "sync", str(tmp_path / "m"), "-c", "nowhere", "--once").code == 1
    assert home("memory", "sync", str(tmp_path / "m"), *AT[:2], "-a", "nobody", "--once").code == 1
    watching = home("memory", "sync", str(tmp_path / "m"), "-c", "home")
    assert watching.code == 1
    assert "add --once" in watching.err
    assert home("memory", "sync", str(tmp_path / "m"), *AT, "--everyone", "--once").code == 0


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
                assert "nother `pattern memory sync`" in second.err
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


PATIENCE_S = 60.0


async def test_saving_a_file_rings_and_the_mirrors_notes_do_not(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    (tmp_path / OWN).mkdir()
    (tmp_path / "ada").mkdir()
    bell = Bell()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_files, tmp_path, bell)
        await trio.sleep(1)
        (tmp_path / OWN / "state").write_text("x")
        began = trio.current_time()
        await bell.wait(60)
        assert trio.current_time() - began == 60
        (tmp_path / "ada/human.md").write_text("x")
        await bell.wait(60)
        assert trio.current_time() - began < 120
        (tmp_path / "ada/human.md").unlink()
        began = trio.current_time()
        await bell.wait(60)
        assert trio.current_time() - began < 60
        nursery.cancel_scope.cancel()


def stream(*names: str, first: int = 1) -> bytes:
    """Events as the server writes them."""
    events = [f"id: {first + n}\nevent: {name}\ndata: {json.dumps({})}\n\n" for n, name in enumerate(names)]
    return "".join(events).encode()


async def test_events_are_followed_from_the_newest_through_refusals_and_a_restored_backup() -> None:
    asked: list[int] = []
    answers = [(9, ()), (9, ("turn.queued", "memory.changed")), None, (3, ()), (3, ("memory.changed",))]

    def answer(request: httpx2.Request) -> Answer:
        asked.append(int(request.headers["last-event-id"]))
        if len(asked) > len(answers):
            raise httpx2.ReadError("gone")
        if (told := answers[len(asked) - 1]) is None:
            return as_json({"detail": "no", "code": "forbidden"}, 403)
        newest, names = told
        if not names:
            return as_json({"detail": "there is no such event", "code": "invalid_input", "newest": newest}, 422)
        return 200, {"content-type": "text/event-stream"}, stream(*names, first=newest + 1)

    bell = Bell()
    with trio.fail_after(PATIENCE_S):
        await listen(Home(api_of(answer), "home"), bell)
        await bell.wait(PATIENCE_S)
    assert asked == [memory_sync.EVENT_NUMBER_MAX, 9, 11, 11, 3, 4]
