from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.models.providers.sse import EVENT_BYTES_MAX, EventDecoder, EventTooLong, StreamEvent


def decoded(*chunks: bytes) -> list[tuple[str, str]]:
    decoder = EventDecoder()
    events: list[StreamEvent] = []
    for chunk in chunks:
        events += decoder.feed(chunk)
    return [(event.event, event.data) for event in events + decoder.end()]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\n", [("", "a")]),
        (b"data:a\r\n\r\ndata: b\r\rdata:  c\n\n", [("", "a"), ("", "b"), ("", " c")]),
        (b"event: ping\ndata: {}\n\n", [("ping", "{}")]),
        (b"data: a\ndata: b\n\n", [("", "a\nb")]),
        (b": keep-alive\n\nid: 7\nretry: 3\n\n", []),
        (b"\xef\xbb\xbfdata: bom\n\n", [("", "bom")]),
        (b"data: no empty line", [("", "no empty line")]),
        (b"data: \xe2\x80\xa8 is no line end, nor is \xc2\x85\n\n", [("", "\u2028 is no line end, nor is \x85")]),
        (b"data: \xff\n\n", [("", "\ufffd")]),
        (b"data\n\n", [("", "")]),
        (b"", []),
    ],
)
def test_events_of_known_streams(stream: bytes, events: list[tuple[str, str]]) -> None:
    assert decoded(stream) == events
    assert decoded(*(stream[at : at + 1] for at in range(len(stream)))) == events


lines = st.sampled_from(["data: a", "data: żółw", "event: x", ": comment", "", "junk", "data", "data:😀"])


@given(st.lists(st.tuples(lines, st.sampled_from(["\n", "\r", "\r\n"]))), st.lists(st.integers(0, 200), max_size=5))
def test_any_slicing_gives_the_same_events(parts: list[tuple[str, str]], cuts: list[int]) -> None:
    stream = "".join(line + end for line, end in parts).encode()
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    assert decoded(*(stream[a:b] for a, b in itertools.pairwise(edges))) == decoded(stream)


def test_an_endless_event_is_refused() -> None:
    half = b"x" * (EVENT_BYTES_MAX // 2 + 1)
    for chunks in ([half, half], [b"data: " + half + b"\n", b"data: " + half + b"\n"]):
        decoder = EventDecoder()
        decoder.feed(chunks[0])
        with pytest.raises(EventTooLong):
            decoder.feed(chunks[1])


def test_long_events_take_linear_time() -> None:
    decoder = EventDecoder()
    for _ in range(20_000):
        assert decoder.feed(b"y" * 100) == []
    assert len(decoder.feed(b"\ndata: end\n\n")) == 1
