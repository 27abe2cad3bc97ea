"""How many pixels an image has, from its first bytes, without decoding it; pure.

Sources: PNG (W3C, 2003) section 11.2.2 "IHDR"; GIF89a section 18 "Logical Screen Descriptor"; RFC 9649 sections 2.5 to
2.7 (WebP); JPEG (ITU-T T.81) annex B.2.
"""

from __future__ import annotations

_GIFS = (b"GIF87a", b"GIF89a")
_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8"
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # markers of JPEG's frames, whatever their coding
_BARE = frozenset({0x01, *range(0xD0, 0xD8)})  # markers without a length
_SCAN = 0xDA  # the marker behind which there are only pixels


def size_of(data: bytes) -> tuple[int, int] | None:
    """Width and height in pixels of a PNG, JPEG, GIF or WebP; None where the bytes do not tell."""
    if data.startswith(_PNG) and data[12:16] == b"IHDR" and len(data) >= 24:
        return int.from_bytes(data[16:20]), int.from_bytes(data[20:24])
    if data.startswith(_GIFS) and len(data) >= 10:
        return int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP" and len(data) >= 30:
        return _webp(data[12:16], data[20:30])
    return _jpeg(data) if data.startswith(_JPEG) else None


def _webp(kind: bytes, head: bytes) -> tuple[int, int] | None:
    """`head` is the first ten bytes of the first chunk; both sides have 14 bits, in the extended form 24."""
    match kind:
        case b"VP8 ":
            return int.from_bytes(head[6:8], "little") & 0x3FFF, int.from_bytes(head[8:10], "little") & 0x3FFF
        case b"VP8L":
            sides = int.from_bytes(head[1:5], "little")
            return (sides & 0x3FFF) + 1, (sides >> 14 & 0x3FFF) + 1
        case b"VP8X":
            return int.from_bytes(head[4:7], "little") + 1, int.from_bytes(head[7:10], "little") + 1
    return None


def _jpeg(data: bytes) -> tuple[int, int] | None:
    """The sides in the first frame's header, which stands behind any number of other segments."""
    at = len(_JPEG)
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker in _FRAMES:
            return int.from_bytes(data[at + 7 : at + 9]), int.from_bytes(data[at + 5 : at + 7])
        if marker == _SCAN:
            return None
        if marker == 0xFF:  # any number of them may stand before a marker
            at += 1
        elif marker in _BARE:
            at += 2
        else:
            at += 2 + max(2, int.from_bytes(data[at + 2 : at + 4]))
    return None
