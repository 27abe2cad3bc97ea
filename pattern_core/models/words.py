"""Text from outside that may hold halves of characters (lone surrogates), which nothing can store."""

from __future__ import annotations

_HIGH_SURROGATES = ("\ud800", "\udbff")


def mended(text: str) -> str:
    """The text with surrogate pairs joined into their characters and lone halves replaced by U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


class Joiner:
    """Makes pieces of one text whole: a character whose halves came in two pieces is given out with the second."""

    def __init__(self) -> None:
        self._half = ""

    def feed(self, piece: str) -> str:
        """The part of the text that is complete now; may be empty."""
        text = self._half + piece
        self._half = text[-1] if text and _HIGH_SURROGATES[0] <= text[-1] <= _HIGH_SURROGATES[1] else ""
        return mended(text[: len(text) - len(self._half)])

    def end(self) -> str:
        """What was still held back: nothing, or U+FFFD for a half without its other."""
        rest, self._half = mended(self._half), ""
        return rest
