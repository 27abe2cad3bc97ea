"""Content of messages as clients send it: words, or a list of words and images."""

from __future__ import annotations

import base64
import binascii

from pattern_core.errors import InvalidInput
from pattern_core.images import IMAGE_BYTES_MAX, image_of_bytes, image_of_url
from pattern_core.messages import Image, Text
from pattern_server.http.bodies import ImageAsked, TextAsked


def parts_of(content: str | list[TextAsked | ImageAsked]) -> tuple[Text | Image, ...]:
    """The parts of a message's content. Words that follow each other stay apart by a line's end.

    Raises:
        InvalidInput: an image has both data and address or neither, or is not acceptable.
    """
    if isinstance(content, str):
        return (Text(text=content),)
    parts: list[Text | Image] = []
    has_words = False
    for asked in content:
        if isinstance(asked, ImageAsked):
            parts.append(_image(asked))
        elif asked.text:
            parts.append(Text(text=f"\n{asked.text}" if has_words else asked.text))
            has_words = True
    return tuple(parts)


def _image(asked: ImageAsked) -> Image:
    if (asked.data is None) == (asked.url is None):
        raise InvalidInput("an image has either `data` or a `url`; send one of the two")
    if asked.url is not None:
        return image_of_url(asked.url, asked.media_type)
    data = asked.data or ""
    if len(data) > 2 * IMAGE_BYTES_MAX:  # base64 is a third longer than what it means
        raise InvalidInput(f"an image has more than {IMAGE_BYTES_MAX} bytes; make it smaller")
    try:
        return image_of_bytes(base64.b64decode(data, validate=True), asked.media_type)
    except (binascii.Error, ValueError):
        raise InvalidInput("an image's `data` is not base64; encode its bytes so, without line ends") from None
