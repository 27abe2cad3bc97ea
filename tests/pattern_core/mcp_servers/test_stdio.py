"""Programs that misbehave on their pipes, and their end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.errors import Unavailable
from pattern_core.mcp_servers import stdio as module
from pattern_core.mcp_servers.stdio import (
    GARBAGE_MAX,
    LINE_BYTES_MAX,
    TAIL_BYTES,
    UNIT_BYTES,
    UNITS_PER_S,
    Incoming,
    Lines,
    LineTooLong,
    McpLink,
    Pace,
    Tail,
)
from tests.pattern_core.mcp_servers.rig import is_alive, owned, program


async def test_it_finds_the_environment_that_it_was_given_and_nothing_else(tmp_path: Path) -> None:
    async with owned({"x": program(tmp_path / "log")}) as it:
        found = json.loads(str(await it.call("x__environment")))
    found.pop("LC_CTYPE", None)  # Python sets it by itself
    assert found == {"PATH": "/usr/bin:/bin", "COLOUR": "blue"}


async def test_words_between_its_messages_are_passed_over(tmp_path: Path) -> None:
    async with owned({"x": program(tmp_path / "log", "noisy")}) as it:
        assert await it.call("x__echo", text="a") == "a"


async def test_a_line_without_an_end_costs_the_connection(tmp_path: Path) -> None:
    async with owned({"x": program(tmp_path / "log")}) as it:
        assert await it.call("x__echo", text="a") == "a"
        with pytest.raises(Unavailable, match="it sent a message that is too long"):
            await it.call("x__flood")
        assert await it.call("x__echo", text="b") == "b"


async def test_nothing_that_it_started_survives_it(tmp_path: Path) -> None:
    async with owned({"x": program(tmp_path / "log")}) as it:
        child = int(str(await it.call("x__leave_child")))
        assert is_alive(child)
    assert not is_alive(child)


async def test_one_that_will_not_go_is_made_to(tmp_path: Path) -> None:
    async with owned({"x": program(tmp_path / "log", "rude")}) as it:
        child = int(str(await it.call("x__leave_child")))
        began = trio.current_time()
    assert trio.current_time() - began < 30
    assert not is_alive(child)


async def test_one_that_reads_no_more_is_left_in_time(tmp_path: Path) -> None:
    async with owned({"x": program(tmp_path / "log", "mute")}) as it:
        assert await it.call("x__echo", text="a") == "a"
        it.give("x", call_timeout_s=0.2)
        with pytest.raises(Unavailable, match="did not answer"):
            await it.call("x__echo", text="b" * 1_000_000)  # more than the pipe holds


async def test_too_much_garbage_is_no_server() -> None:
    pipe = trio.testing.MemoryReceiveStream()
    link = McpLink()
    incoming = Incoming(pipe, json.loads, link)
    pipe.put_data(b'{"a": 1}\n' + b"nonsense\n" * (GARBAGE_MAX + 1) + b'{"a": 2}\n')
    assert await incoming.receive() == {"a": 1}
    with pytest.raises(trio.EndOfChannel):
        await incoming.receive()
    assert "what is no message" in link.reason


async def test_one_that_logs_without_end_is_read_at_a_walk(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 1)
    pipe, tail = trio.testing.MemoryReceiveStream(), Tail()
    pipe.put_data(b"\n" * 3 * UNITS_PER_S + b"last")
    pipe.put_eof()
    began = trio.current_time()
    await module._listen(pipe, tail)
    assert tail.last_line == "last"
    assert trio.current_time() - began >= 2


def test_the_first_reason_counts() -> None:
    link = McpLink()
    assert not link.lost.is_set()
    link.lose("one")
    link.lose("two")
    assert (link.lost.is_set(), link.reason) == (True, "one")


def _all(lines: Lines) -> list[bytes]:
    found = []
    while (line := lines.next()) is not None:
        found.append(line)
    return found


@given(st.lists(st.binary(max_size=12)), st.integers(1, 7))
@settings(max_examples=60)
def test_the_cuts_do_not_matter(contents: list[bytes], size: int) -> None:
    whole = b"".join(content.replace(b"\n", b"") + b"\n" for content in contents)
    lines = Lines()
    for start in range(0, len(whole), size):
        lines.add(whole[start : start + size])
    assert _all(lines) == [line.strip() for line in whole.split(b"\n") if line.strip()]


def test_a_line_has_a_bound_and_many_lines_have_none() -> None:
    lines = Lines()
    for _ in range(3):
        lines.add(b"x" * (LINE_BYTES_MAX - 1) + b"\n")
    assert len(_all(lines)) == 3
    lines.add(b"x" * LINE_BYTES_MAX)
    with pytest.raises(LineTooLong):
        lines.add(b"x")


async def test_who_talks_too_much_waits(autojump_clock: trio.testing.MockClock) -> None:
    pace = Pace()
    began = trio.current_time()
    for _ in range(UNITS_PER_S):
        await pace.take(10)
    assert trio.current_time() == began
    for _ in range(2 * UNITS_PER_S):
        await pace.take(10)
    assert trio.current_time() - began == pytest.approx(2, abs=0.01)
    for _ in range(UNITS_PER_S // 5):
        await pace.take(9 * UNIT_BYTES)
    assert trio.current_time() - began > 3


def test_last_words() -> None:
    tail = Tail()
    assert tail.last_line == ""
    tail.add(b"x" * 2 * TAIL_BYTES)
    tail.add("\nlast wörds\n\n".encode())
    assert tail.last_line == "last wörds"
