"""An image as the vendors' formats want it; pure."""

from __future__ import annotations

from base64 import b64encode

from pattern_core.messages import Image

LOST = "(There was an image here; it is not at hand any more.)"


def base64_of(image: Image) -> str | None:
    """The image's bytes as base64, None where they are not at hand."""
    return None if image.data is None else b64encode(image.data).decode("ascii")


def url_of(image: Image) -> str | None:
    """An address that holds the image: a `data:` one of its bytes, else its own; None where there is neither."""
    data = base64_of(image)
    return image.url if data is None else f"data:{image.media_type};base64,{data}"
