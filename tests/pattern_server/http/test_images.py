from __future__ import annotations

import base64

import pytest

from pattern_core.errors import InvalidInput
from pattern_core.images import IMAGE_BYTES_MAX, image_of_bytes, image_of_url
from pattern_core.messages import Text
from pattern_server.http.bodies import ImageAsked, TextAsked
from pattern_server.http.images import parts_of

PNG = b"\x89PNG\r\n\x1a\n"
DATA = base64.b64encode(PNG).decode()


def image(**fields: str) -> ImageAsked:
    return ImageAsked.model_validate({"type": "image", **fields})


def words(text: str) -> TextAsked:
    return TextAsked(type="text", text=text)


def test_words_and_images_in_order() -> None:
    assert parts_of("hello") == (Text(text="hello"),)
    parts = parts_of(
        [words("a"), image(data=DATA, media_type="image/png"), words(""), words("b"), image(url="https://x/")]
    )
    assert parts == (Text(text="a"), image_of_bytes(PNG), Text(text="\nb"), image_of_url("https://x/"))
    assert parts_of([]) == ()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "send one of the two"),
        ({"data": DATA, "url": "https://x/"}, "send one of the two"),
        ({"data": "%%%"}, "not base64"),
        ({"data": f"{DATA}\n"}, "not base64"),
        ({"data": "ż"}, "not base64"),
        ({"data": "A" * (2 * IMAGE_BYTES_MAX + 1)}, "make it smaller"),
        ({"data": base64.b64encode(b"%PDF").decode()}, "neither PNG"),
        ({"url": "ftp://x"}, "no address"),
    ],
)
def test_what_is_no_image_is_refused(fields: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        parts_of([image(**fields)])
