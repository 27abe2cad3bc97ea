"""Images in messages: checked when they come, stored once by their digest, read only for the request that shows them.

A conversation in memory holds digests alone. Just before a model is asked, `shown_to` puts the bytes of the newest
images in place; older ones, and all of them for a model that takes none, are replaced by words that say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from hashlib import blake2b
from urllib.parse import urlsplit

from pattern_core.errors import InvalidInput, NotFound
from pattern_core.image_size import size_of
from pattern_core.messages import Image, Message, Part, Text
from pattern_core.models.model import ModelRequest
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.errors import NotFound as NoSuchRow
from pattern_db.tables import blobs
from pattern_db.tables.blobs import BlobRow

IMAGES_MAX = 10  # in one message
IMAGE_BYTES_MAX = 5 * 1024 * 1024 * 3 // 4  # of one image: Anthropic takes 5 MiB of base64, the others more
SIDE_MAX = 8_000  # pixels of width or height, which is Anthropic's bound too; what it refuses stays in a conversation
URL_CHARS_MAX = 2_048
SHOWN_MAX = 20  # newest images that one request shows …
SHOWN_BYTES_MAX = 12 * 1024 * 1024  # … and their bytes together: as base64 they fit the vendors' bound on a request

LEFT_OUT = "(An image was here. It is left out, because this model takes no images.)"
TOO_OLD = "(An earlier image was here. Only the newest ones are shown.)"

MEDIA_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")

# The first bytes of each kind that all vendors take. Sources: PNG 5.2, JFIF 3, GIF89a 17, RFC 9649 (WebP) 2.4.
_PNG, _JPEG, _GIFS = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", (b"GIF87a", b"GIF89a")


def media_type_of(data: bytes) -> str | None:
    """The kind of image that the first bytes show: PNG, JPEG, GIF or WebP; None for anything else."""
    if data.startswith(_PNG):
        return "image/png"
    if data.startswith(_JPEG):
        return "image/jpeg"
    if data.startswith(_GIFS):
        return "image/gif"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "image/webp"
    return None


def image_of_bytes(data: bytes, media_type: str | None = None) -> Image:
    """The image that these bytes are, with its digest; `media_type` is what its sender says that it is.

    Raises:
        InvalidInput: it is none of the known kinds, another one than said, or larger than fits.
    """
    if len(data) > IMAGE_BYTES_MAX:
        raise InvalidInput(f"an image has {len(data)} bytes, and at most {IMAGE_BYTES_MAX} fit; make it smaller")
    found = media_type_of(data)
    if found is None:
        raise InvalidInput("an image is neither PNG, JPEG, GIF nor WebP; convert it to one of these")
    if media_type not in (None, found):
        raise InvalidInput(f"an image is said to be {media_type}, but its bytes are {found}; correct its media_type")
    size = size_of(data)
    if size is not None and max(size) > SIDE_MAX:
        raise InvalidInput(
            f"an image has {size[0]} by {size[1]} pixels, and at most {SIDE_MAX} fit on each side; make it smaller"
        )
    return Image(media_type=found, data=data, digest=blake2b(data, digest_size=blobs.DIGEST_BYTES).hexdigest())


def image_of_url(url: str, media_type: str | None = None) -> Image:
    """The image at an address, which the model's vendor fetches itself.

    Raises:
        InvalidInput: it is no address of the web, or too long.
    """
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_address = False
    if not is_address or not url.isascii() or any(char.isspace() or not char.isprintable() for char in url):
        raise InvalidInput("an image's `url` is no address that begins with https:// or http://; check it")
    if media_type not in (None, *MEDIA_TYPES):
        raise InvalidInput(f"an image's `media_type` is one of {', '.join(MEDIA_TYPES)}; correct it or leave it out")
    if len(url) > URL_CHARS_MAX:
        raise InvalidInput(f"an image's `url` is longer than {URL_CHARS_MAX} characters; send the image's data instead")
    return Image(media_type=media_type or "", url=url)


def store(connection: Connection, images: Iterable[Image], now: str) -> None:
    """Store the bytes of images within the caller's transaction; those that are stored already cost nothing."""
    for image in images:
        if image.data is not None and image.digest is not None:
            digest = bytes.fromhex(image.digest)
            blobs.put(connection, BlobRow(digest=digest, size=len(image.data), data=image.data, created_at=now))


def read(connection: Connection, digest: str) -> Image:
    """The stored image of a digest (64 hex digits), with its bytes.

    Raises:
        NotFound: there is none.
    """
    try:
        data = blobs.get(connection, bytes.fromhex(digest)).data
    except (ValueError, NoSuchRow):
        raise NotFound(f"there is no image {digest[:80]}; take the digest from a message's parts") from None
    kind = media_type_of(data)
    if kind is None:  # other content is stored by its digest too
        raise NotFound(f"there is no image {digest[:80]}; take the digest from a message's parts")
    return Image(media_type=kind, data=data, digest=digest)


def has_images(messages: Sequence[Message]) -> bool:
    """Whether any message shows one."""
    return any(message.images for message in messages)


async def shown_to(database: Database, request: ModelRequest, *, takes_images: bool) -> ModelRequest:
    """The request as a model is sent it: with the bytes of its images, or with words for them if it takes none.

    Raises:
        DatabaseError: storage refused.
    """
    if not has_images(request.messages):
        return request
    if not takes_images:
        return replace(request, messages=without_images(request.messages), estimate=None)
    return replace(request, messages=await database.read_aside(hydrated, request.messages))


def hydrated(connection: Connection, messages: Sequence[Message]) -> list[Message]:
    """The messages with the bytes of their newest images in place, for the request that is about to be sent.

    At most `SHOWN_MAX` images and `SHOWN_BYTES_MAX` bytes; words stand for the older ones, of which no byte is read.
    What is not stored any more stays without bytes, which each provider tells the model.
    """
    shown = _newest(connection, messages)
    made: list[Message] = []
    place = sum(len(message.images) for message in messages)
    for message in messages:
        parts: list[Part] = []
        for part in message.parts:
            if isinstance(part, Image):
                place -= 1
                parts.append(_read(connection, part) if place < shown else Text(text=TOO_OLD))
            else:
                parts.append(part)
        made.append(replace(message, parts=tuple(parts)) if message.images else message)
    return made


def _newest(connection: Connection, messages: Sequence[Message]) -> int:
    """How many images, counted from the newest, one request has room for."""
    newest = [image for message in reversed(messages) for image in reversed(message.images)][:SHOWN_MAX]
    stored = blobs.sizes(connection, [bytes.fromhex(image.digest) for image in newest if image.digest])
    room = SHOWN_BYTES_MAX
    for count, image in enumerate(newest):
        room -= stored.get(bytes.fromhex(image.digest or ""), 0)
        if room < 0:
            return count
    return len(newest)


def without_images(messages: Sequence[Message]) -> list[Message]:
    """The messages for a model that takes no images: words stand where they were."""
    left_out = Text(text=LEFT_OUT)
    return [
        replace(message, parts=tuple(left_out if isinstance(part, Image) else part for part in message.parts))
        if message.images
        else message
        for message in messages
    ]


def _read(connection: Connection, image: Image) -> Image:
    """The image with its bytes, if they are stored."""
    if image.data is not None or image.digest is None:
        return image
    try:
        return replace(image, data=blobs.get(connection, bytes.fromhex(image.digest)).data)
    except NoSuchRow:
        return image
