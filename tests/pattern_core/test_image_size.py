from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.image_size import size_of

FRAME = b"\x00\x11\x08" + struct.pack(">HH", 600, 800) + bytes(12)
BEGINNINGS = [
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR",
    b"GIF89a",
    b"RIFF\x00\x00\x00\x00WEBPVP8L",
    b"RIFF\x00\x00\x00\x00WEBPVP8X",
    b"\xff\xd8\xff",
]


def webp(kind: bytes, head: bytes) -> bytes:
    return b"RIFF\x00\x00\x00\x00WEBP" + kind + b"\x00\x00\x00\x00" + head


@pytest.mark.parametrize(
    "data",
    [
        b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + struct.pack(">II", 800, 600),
        b"GIF89a" + struct.pack("<HH", 800, 600),
        b"GIF87a" + struct.pack("<HH", 800, 600) + b"rest",
        webp(b"VP8 ", b"\x00\x00\x00\x9d\x01\x2a" + struct.pack("<HH", 800 | 1 << 14, 600)),
        webp(b"VP8L", b"\x2f" + struct.pack("<I", 799 | 599 << 14) + bytes(5)),
        webp(b"VP8X", b"\x00\x00\x00\x00" + (799).to_bytes(3, "little") + (599).to_bytes(3, "little")),
        b"\xff\xd8\xff\xc0" + FRAME,
        # segments, a marker without a length, a table that is no frame, filling bytes, a progressive frame
        b"\xff\xd8\xff\xe0\x00\x04ab\xff\x01\xff\xc4\x00\x03x\xff\xff\xff\xc2" + FRAME,
    ],
)
def test_each_kind_tells_its_sides(data: bytes) -> None:
    assert size_of(data) == (800, 600)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x89PNG\r\n\x1a\n",
        b"GIF89a",
        webp(b"ALPH", bytes(10)),
        b"\xff\xd8",
        b"\xff\xd8\xff\xda" + FRAME,
        b"\xff\xd8\xff\xe0\x00\x00" * 50,
        b"<svg/>",
    ],
)
def test_what_does_not_tell_has_no_size(data: bytes) -> None:
    assert size_of(data) is None


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(BEGINNINGS), st.binary(max_size=60))
def test_any_bytes_are_survived(beginning: bytes, rest: bytes) -> None:
    size = size_of(beginning + rest)
    assert size is None or (size[0] >= 0 and size[1] >= 0)
