"""What parent and child say to each other: a JSON object and bytes, both preceded by their lengths; pure.

`length of the JSON | length of the bytes | JSON | bytes`, the lengths as unsigned 32-bit integers, big endian.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping

FRAME_BYTES_MAX = 64 * 1024 * 1024
_LENGTHS = struct.Struct(">II")

Frame = tuple[dict[str, object], bytes]


class Garbled(Exception):
    """The bytes are no frames: something else wrote between them."""


def encode(head: Mapping[str, object], payload: bytes = b"") -> bytes:
    """One frame."""
    text = json.dumps(dict(head)).encode()
    return _LENGTHS.pack(len(text), len(payload)) + text + payload


class FrameReader:
    """Puts frames together from pieces of any size."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Take the next bytes; returns the frames that are whole now.

        Raises:
            Garbled: these are no frames, or one is longer than `FRAME_BYTES_MAX`.
        """
        self._buffer += data
        found = []
        while (frame := self._next()) is not None:
            found.append(frame)
        return found

    def _next(self) -> Frame | None:
        if len(self._buffer) < _LENGTHS.size:
            return None
        head_bytes, payload_bytes = _LENGTHS.unpack_from(self._buffer)
        if head_bytes + payload_bytes > FRAME_BYTES_MAX:
            raise Garbled(f"a frame of {head_bytes + payload_bytes} bytes; at most {FRAME_BYTES_MAX} are taken")
        middle = _LENGTHS.size + head_bytes
        end = middle + payload_bytes
        if len(self._buffer) < end:
            return None
        try:
            head = json.loads(self._buffer[_LENGTHS.size : middle])
        except ValueError as error:
            raise Garbled(f"a frame without JSON: {error}") from error
        if not isinstance(head, dict):
            raise Garbled("a frame whose JSON is no object")
        payload = bytes(self._buffer[middle:end])
        del self._buffer[:end]
        return head, payload
