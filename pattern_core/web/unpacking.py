"""Bodies that were compressed on their way, unpacked up to a bound: a small answer may hold gigabytes.

Source: RFC 9110, 8.4.1 (gzip, deflate); some servers send deflate without its zlib frame.
"""

from __future__ import annotations

import zlib
from typing import Protocol

from pattern_core.errors import InvalidInput

ACCEPTED = "gzip, deflate"
_GZIP = 16 + zlib.MAX_WBITS


class Unpacker(Protocol):
    """Takes a body in pieces."""

    def feed(self, piece: bytes, room: int) -> bytes:
        """What the next piece holds, at most `room` bytes of it; the rest is lost.

        Raises:
            InvalidInput: the body is damaged.
        """
        ...


class Plain:
    """A body as it is."""

    def feed(self, piece: bytes, room: int) -> bytes:
        """The piece, cut to `room` bytes."""
        return piece[:room]


class Packed:
    """A body packed by gzip or deflate."""

    def __init__(self, *, is_gzip: bool) -> None:
        self._is_gzip = is_gzip
        self._unpacking = zlib.decompressobj(_GZIP) if is_gzip else None

    def feed(self, piece: bytes, room: int) -> bytes:
        """What the next piece holds, at most `room` bytes of it.

        Raises:
            InvalidInput: it is not what it says.
        """
        if room <= 0 or not piece:
            return b""
        try:
            if self._unpacking is None:
                # The first byte tells a zlib frame from a bare stream: its method is 8.
                self._unpacking = zlib.decompressobj(zlib.MAX_WBITS if piece[0] & 15 == 8 else -zlib.MAX_WBITS)
            return self._unpacking.decompress(piece, room)
        except zlib.error as error:
            raise InvalidInput(f"the page came compressed and damaged ({error}); try again later") from None


def unpacker_of(encoding: str) -> Unpacker:
    """What reads a body of this `Content-Encoding`.

    Raises:
        InvalidInput: it is none that was asked for.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return Plain()
    if name in ("gzip", "x-gzip"):
        return Packed(is_gzip=True)
    if name == "deflate":
        return Packed(is_gzip=False)
    raise InvalidInput(f"the page is compressed in a way that was not asked for ({name[:40]}), so it cannot be read")
