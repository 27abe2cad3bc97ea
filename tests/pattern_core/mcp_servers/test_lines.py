"""Lines from pieces, however the bytes are cut."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.mcp_servers.lines import (
    LINE_BYTES_MAX,
    TAIL_BYTES,
    UNIT_BYTES,
    UNITS_PER_S,
    Lines,
    LineTooLong,
    Pace,
    Tail,
)


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
