from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.embeddings.local.frames import FRAME_BYTES_MAX, FrameReader, Garbled, encode

HEADS = st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.lists(st.text()), max_size=3)


@given(st.lists(st.tuples(HEADS, st.binary(max_size=40)), max_size=4), st.integers(1, 30))
def test_frames_come_out_as_they_went_in_however_they_are_cut(
    frames: list[tuple[dict[str, object], bytes]], size: int
) -> None:
    data = b"".join(encode(head, payload) for head, payload in frames)
    reader = FrameReader()
    assert [frame for at in range(0, len(data), size) for frame in reader.feed(data[at : at + size])] == frames


@pytest.mark.parametrize(
    "data",
    [
        b"Loading weights: 100%",
        struct.pack(">II", FRAME_BYTES_MAX, 1),
        struct.pack(">II", 4, 0) + b"oops",
        struct.pack(">II", 2, 0) + b"[]",
        struct.pack(">II", 1, 0) + b"\xff",
    ],
)
def test_what_is_no_frame_is_noticed(data: bytes) -> None:
    with pytest.raises(Garbled):
        FrameReader().feed(data)
