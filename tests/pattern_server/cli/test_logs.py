"""`pattern logs`: both formats, levels, and following a log that is rotated or emptied at the same time."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from pattern_server.cli.logs import BLOCK_BYTES, followed, parsed
from tests.pattern_server.cli.conftest import Pattern
from tests.pattern_server.cli.terminal import CTRL_C, terminal

TIME = "2026-01-02T03:04:05.000006Z"
READY = f"{TIME} [info    ] ready url='http://t' number=3"


def as_json(event: str, level: str = "info", **fields: object) -> str:
    return json.dumps({**fields, "event": event, "level": level, "time": TIME})


def test_both_formats_are_read_alike(pattern: Pattern, data_dir: Path) -> None:
    data_dir.mkdir()
    missing = pattern("logs")
    assert (missing.code, "pattern up" in missing.err) == (1, True)
    crash = 'Traceback (most recent call last):\n  File "x.py", line 1'
    broken = as_json("broken", "error", exception=crash)
    (data_dir / "server.log").write_text("\n".join([as_json("ready", url="http://t", number=3), READY, broken, crash]))
    shown = pattern("logs")
    lines = crash.splitlines()
    assert shown.out.splitlines() == [READY, READY, f"{TIME} [error   ] broken", *lines, *lines]
    assert pattern("logs", "-n", "2").out.splitlines() == lines
    assert pattern("logs", "--level", "warning").out.splitlines() == shown.out.splitlines()[2:]
    assert pattern("logs", "--level", "warning", "-n", "0").out == ""
    found = pattern("logs", "--json", "--level", "error", "-n", "3").json
    assert [one["event"] for one in found] == ["broken", *lines]
    assert found[0] == {"time": TIME, "level": "error", "event": "broken", "exception": crash}
    assert parsed(b'{"event": "no time"}')["level"] == "error"


@pytest.mark.parametrize("size", [10, BLOCK_BYTES - 1, BLOCK_BYTES, 3 * BLOCK_BYTES])
def test_the_last_lines_of_a_long_log(pattern: Pattern, data_dir: Path, size: int) -> None:
    data_dir.mkdir()
    events = [f"{number}:" + "x" * (size if number == 1 else 5) for number in range(30_000 if size == 10 else 3)]
    (data_dir / "server.log").write_text("".join(as_json(event) + "\n" for event in events))
    found = pattern("logs", "--json", "-n", "20000").json
    assert [one["event"] for one in found] == events[-20_000:]


@asynccontextmanager
async def following(path: Path, place: int) -> AsyncIterator[Callable[[], list[str]]]:
    """Follow a log within the block; the lines that were shown so far."""
    shown: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(followed, path, place, lambda line: shown.append(line.decode()))
        yield lambda: shown
        nursery.cancel_scope.cancel()


async def test_a_log_is_followed_through_rotation(tmp_path: Path, autojump_clock: MockClock) -> None:
    path = tmp_path / "server.log"
    path.write_text("old\n")
    async with following(path, 4) as shown:
        with path.open("a") as log:
            log.write("one\ntw")
            log.flush()
            await trio.sleep(1)
            assert shown() == ["one"]
            log.write("o\nthr")
        await trio.sleep(1)
        path.rename(tmp_path / "server.log.1")
        await trio.sleep(1)
        path.write_text("four, with more text than the file had before\n")
        await trio.sleep(1)
        assert shown() == ["one", "two", "four, with more text than the file had before"]
        path.write_text("")
        await trio.sleep(1)
        path.write_text("five\n" + "x" * 3 * BLOCK_BYTES + "\n")
        await trio.sleep(1)
        assert [line[:5] for line in shown()[3:]] == ["five", "xxxxx"]


async def test_following_in_a_terminal(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(as_json("ready") + "\n" + as_json("half")[:10])
    async with terminal("logs", "--follow", "--data-dir", str(tmp_path)) as screen:
        first = await screen.until("ready")
        assert "half" not in first
        with log.open("a") as file:
            file.write(as_json("half")[10:] + "\n" + as_json("new") + "\n")
        assert "] half\n" in await screen.until("] new")
        await screen.type(CTRL_C)
        await screen.until("Stopped.")
        assert await screen.ended() == 1
