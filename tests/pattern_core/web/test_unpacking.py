from __future__ import annotations

import gzip
import zlib

import pytest

from pattern_core.errors import InvalidInput
from pattern_core.web.unpacking import unpacker_of

TEXT = b"Ruth likes tea. " * 500


def bare(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("", TEXT),
        ("Identity", TEXT),
        pytest.param("gzip", gzip.compress(TEXT), id="gzip"),
        pytest.param("x-gzip", gzip.compress(TEXT), id="x-gzip"),
        ("deflate", zlib.compress(TEXT)),
        ("deflate", bare(TEXT)),
    ],
)
@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_bodies_in_pieces(encoding: str, packed: bytes, size: int) -> None:
    unpacker = unpacker_of(encoding)
    pieces = [packed[at : at + size] for at in range(0, len(packed), size)]
    assert b"".join(unpacker.feed(piece, 1_000_000) for piece in pieces) == TEXT


def test_a_bomb_gives_what_there_is_room_for() -> None:
    bomb = gzip.compress(bytes(50_000_000))
    assert len(bomb) < 50_000
    unpacker = unpacker_of("gzip")
    assert len(unpacker.feed(bomb, 1_000)) == 1_000
    assert unpacker.feed(b"more", 0) == b""


def test_what_is_damaged_or_unknown_is_said() -> None:
    with pytest.raises(InvalidInput, match="damaged"):
        unpacker_of("gzip").feed(b"no gzip at all", 100)
    for name in ("br", "gzip, gzip", "zstd"):
        with pytest.raises(InvalidInput, match="not asked for"):
            unpacker_of(name)
