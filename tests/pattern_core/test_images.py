from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core import images
from pattern_core.errors import InvalidInput, NotFound
from pattern_core.images import (
    LEFT_OUT,
    SIDE_MAX,
    TOO_OLD,
    URL_CHARS_MAX,
    has_images,
    hydrated,
    image_of_bytes,
    image_of_url,
    media_type_of,
    shown_to,
    size_of,
    without_images,
)
from pattern_core.limits import IMAGE_BYTES_MAX, IMAGES_SHOWN_BYTES_MAX, IMAGES_SHOWN_MAX
from pattern_core.messages import Image, Message, Text, parts_from_json, parts_to_json, user
from pattern_core.models.model import ModelRequest
from pattern_core.models.providers.encoding import image_base64
from pattern_db import template
from pattern_db.connection import Connection, fetch_all
from pattern_db.database import Database
from pattern_db.migrate import migrations_of
from pattern_db.tables import messages
from pattern_db.tables.messages import BlobRow

START = "2026-01-01T00:00:00.000Z"
PNG = b"\x89PNG\r\n\x1a\n"
FRAME = b"\x00\x11\x08" + struct.pack(">HH", 600, 800) + bytes(12)
BEGINNINGS = [
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR",
    b"GIF89a",
    b"RIFF\x00\x00\x00\x00WEBPVP8L",
    b"RIFF\x00\x00\x00\x00WEBPVP8X",
    b"\xff\xd8\xff",
]


@pytest.fixture
def db() -> Iterator[Connection]:
    connection = template.in_memory(migrations_of("constellation"), now=START)
    yield connection
    connection.close()


def shows(*shown: Image) -> Message:
    return Message(role="user", parts=(Text(text="see"), *shown))


def kept(image: Image) -> Image:
    """The image as a conversation holds it after a restart."""
    (part,) = parts_from_json(parts_to_json((image,)))
    assert isinstance(part, Image)
    return part


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"GIF87a", "image/gif"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "image/webp"),
        (b"RIFF\x00\x00\x00\x00WAVEfmt ", None),
        (b"<svg/>", None),
        (b"", None),
    ],
)
def test_the_kind_is_in_the_first_bytes(data: bytes, kind: str | None) -> None:
    assert media_type_of(data) == kind


def test_bytes_are_checked_and_named_by_their_digest() -> None:
    image = image_of_bytes(PNG, "image/png")
    assert (image.media_type, image.data) == ("image/png", PNG)
    assert image.digest == image_of_bytes(PNG).digest != image_of_bytes(PNG + b"x").digest
    with pytest.raises(InvalidInput, match="said to be image/jpeg"):
        image_of_bytes(PNG, "image/jpeg")
    with pytest.raises(InvalidInput, match="neither PNG"):
        image_of_bytes(b"%PDF")
    with pytest.raises(InvalidInput, match="make it smaller"):
        image_of_bytes(PNG + bytes(IMAGE_BYTES_MAX))
    wide = PNG + b"\x00\x00\x00\rIHDR" + (SIDE_MAX + 1).to_bytes(4) + (1).to_bytes(4)
    with pytest.raises(InvalidInput, match="8001 by 1 pixels"):
        image_of_bytes(wide)
    largest = image_of_bytes(PNG + bytes(IMAGE_BYTES_MAX - len(PNG)))
    assert len(image_base64(largest) or "") <= 5 * 1024 * 1024


def test_addresses_are_checked() -> None:
    assert image_of_url("https://x/a.png", "image/png") == Image(media_type="image/png", url="https://x/a.png")
    for url in (
        "file:///etc/passwd",
        "https://",
        "x",
        "https://x/\na",
        "https://ż/",
        "data:image/png;base64,xx",
        "http://[x",
    ):
        with pytest.raises(InvalidInput, match="no address"):
            image_of_url(url)
    with pytest.raises(InvalidInput, match="longer than"):
        image_of_url("https://x/" + "a" * URL_CHARS_MAX)
    with pytest.raises(InvalidInput, match="media_type"):
        image_of_url("https://x/", "text/html")


def test_an_image_is_stored_once_and_read_by_its_digest(db: Connection) -> None:
    image = image_of_bytes(PNG)
    images.store(db, [image, image, image_of_url("https://x/a.png")], START)
    assert fetch_all(db, "SELECT count(*) FROM blob", ()) == [(1,)]
    assert image.digest is not None
    assert images.read(db, image.digest) == image
    messages.put_blob(db, BlobRow(digest=b"\x01" * 32, size=4, data=b"text", created_at=START))
    for digest in ("00" * 32, "no hex", "01" * 32):
        with pytest.raises(NotFound, match="no image"):
            images.read(db, digest)


def test_bytes_come_back_for_the_request_alone(db: Connection) -> None:
    image, linked = image_of_bytes(PNG), image_of_url("https://x/a.png")
    images.store(db, [image], START)
    conversation = [shows(kept(image), linked), user("and?")]
    assert has_images(conversation)
    assert not has_images(conversation[1:])
    first, second = hydrated(db, conversation)
    assert first.images == (image, linked)
    assert second is conversation[1]
    assert conversation[0].images[0].data is None
    lost = shows(kept(image_of_bytes(PNG + b"lost")))
    assert hydrated(db, [lost]) == [lost]


def test_words_stand_for_older_images(db: Connection) -> None:
    many = [image_of_bytes(PNG + bytes([number])) for number in range(IMAGES_SHOWN_MAX + 2)]
    images.store(db, many, START)
    conversation = [shows(kept(many[0]), kept(many[1])), *(shows(kept(image)) for image in many[2:])]
    first, *others = hydrated(db, conversation)
    assert first.parts == (Text(text="see"), Text(text=TOO_OLD), Text(text=TOO_OLD))
    assert [message.images for message in others] == [(image,) for image in many[2:]]


def test_the_bytes_of_one_request_are_bounded(db: Connection) -> None:
    large = [image_of_bytes(PNG + bytes([number]) + bytes(IMAGES_SHOWN_BYTES_MAX // 4)) for number in range(4)]
    images.store(db, large, START)
    first, *others = hydrated(db, [shows(kept(image)) for image in large])
    assert first.text == f"see{TOO_OLD}"
    assert [message.images for message in others] == [(image,) for image in large[1:]]


async def test_a_request_shows_what_its_model_takes(db: Connection) -> None:
    image = image_of_bytes(PNG)
    images.store(db, [image], START)
    plain = ModelRequest(model="m", system=(), messages=[user("hi")])
    request = replace(plain, messages=[shows(kept(image))])
    async with Database.in_memory(db) as database:
        assert await shown_to(database, plain, takes_images=False) is plain
        seeing = await shown_to(database, request, takes_images=True)
        assert seeing.messages[0].images == (image,)
        blind = await shown_to(database, request, takes_images=False)
        assert blind.messages[0].parts == (Text(text="see"), Text(text=LEFT_OUT))


def test_a_model_without_images_is_told() -> None:
    conversation = [shows(image_of_bytes(PNG)), user("and?")]
    told = without_images(conversation)
    assert told[0].parts == (Text(text="see"), Text(text=LEFT_OUT))
    assert told[1] is conversation[1]


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
