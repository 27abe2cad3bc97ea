from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.shell.output import Output, readable


def test_little_is_kept_whole() -> None:
    output = Output(head_bytes=4, tail_bytes=4)
    for piece in (b"ab", b"cd", b"ef", b"gh"):
        output.add(piece)
    assert (output.text(), output.total, output.left_out) == ("abcdefgh", 8, 0)


def test_much_keeps_its_beginning_and_end() -> None:
    output = Output(head_bytes=4, tail_bytes=4)
    output.add(b"0123456789abcdef")
    assert (output.text(), output.left_out) == ("0123\n[… 8 bytes left out …]\ncdef", 8)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=9), max_size=30))
def test_memory_is_bounded_and_the_ends_are_right(pieces: list[bytes]) -> None:
    output = Output(head_bytes=5, tail_bytes=7)
    for piece in pieces:
        output.add(piece)
    whole = b"".join(pieces)
    assert len(output._head) <= 5
    assert len(output._tail) <= 2 * 7 + 9
    assert output.left_out == max(0, len(whole) - 12)
    assert output.text().startswith(readable(whole[:5])) or len(whole) <= 12
    if output.left_out:
        assert output.text().endswith(readable(whole[-7:]))


def test_reading_goes_on_where_it_was() -> None:
    output = Output(head_bytes=4, tail_bytes=4)
    output.add(b"01234567")
    assert output.since(0) == ("01234567", 0)
    assert output.since(6) == ("67", 0)
    output.add(b"89abcdef")
    assert output.since(13) == ("def", 0)
    assert output.since(8) == ("cdef", 4)  # 8 to 11 are lost
    assert output.since(99) == ("", 0)


def test_terminals_commands_are_taken_out() -> None:
    data = b"\x1b[31mred\x1b[0m\x1b]0;title\x07 \xff\x00\r\nline\rover\x1b(B"
    assert readable(data).startswith("red �\nline\nover")
    assert "\x1b" not in readable(data)
