"""Images in messages: checked on arrival, stored once by digest, read only for the request that shows them.

A conversation in memory holds only digests. Just before a model call, `shown_to` inserts the bytes of the newest
images; older ones, and all of them if the model reads no images, are replaced by a short text.

Images without a message are deleted (`sweep`): once a day at most, in the background, a few at a time. An image becomes
unused when its agent is deleted, when a turn is rolled back, or when its queued message is cancelled. None of these
counts its other uses, since it is stored once for all; so the messages are scanned instead, in portions and
concurrently with writes. Images younger than a day are kept, and messages that arrived during the scan are checked in
the transaction that deletes. Every transaction is complete: after a cancellation or crash, the sweep starts again the
next time.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from itertools import chain, repeat
from urllib.parse import urlsplit

import trio

from pattern_core.errors import InvalidInput, NotFound
from pattern_core.events import Draft, Event, append
from pattern_core.ids import earliest_position
from pattern_core.journal import Journal
from pattern_core.limits import IMAGE_BYTES_MAX, IMAGES_SHOWN_BYTES_MAX, IMAGES_SHOWN_MAX
from pattern_core.messages import Image, Message, Part, Text
from pattern_core.models.model import ModelRequest
from pattern_db.columns import iso
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.errors import RowNotFound
from pattern_db.tables import messages as message_table
from pattern_db.tables import meta
from pattern_db.tables.messages import BlobRow

SIDE_MAX = 8_000  # pixels of width or height; Anthropic's bound too, and a refused image would stay in the conversation
URL_CHARS_MAX = 2_048

LEFT_OUT = "(An image was here. It is left out, because this model does not read images.)"
TOO_OLD = "(An earlier image was here. Only the newest ones are shown.)"

MEDIA_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")

START_AFTER_S = 30.0  # after a start, so that the request that woke the constellation comes first
CHECK_EVERY_S = 3_600.0
DAY_MS = 24 * 3_600_000
MARGIN_MS = 3_600_000  # of messages that are scanned twice, since a clock may be set back
CANDIDATES_MAX = 5_000  # images per scan, by their digests
ROWS_AT_ONCE = 5_000  # messages per read
REMOVED_AT_ONCE = 20  # deleted per transaction: an image may have megabytes
SWEPT_AT = "images_swept_at"  # key in the table `meta`

# The first bytes of each kind that all vendors take. Sources: PNG (W3C, 2003) 5.2 and 11.2.2; JFIF 3 and JPEG (ITU-T
# T.81) annex B.2; GIF89a 17 and 18; RFC 9649 (WebP) 2.4 to 2.7.
_PNG, _JPEG, _GIFS = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", (b"GIF87a", b"GIF89a")
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # markers of JPEG's frames, whatever their coding
_BARE = frozenset({0x01, *range(0xD0, 0xD8)})  # markers without a length
_SCAN = 0xDA  # the marker before the pixels


def media_type_of(data: bytes) -> str | None:
    """Return the kind of image that the first bytes show: PNG, JPEG, GIF or WebP; None for anything else."""
    if data.startswith(_PNG):
        return "image/png"
    if data.startswith(_JPEG):
        return "image/jpeg"
    if data.startswith(_GIFS):
        return "image/gif"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "image/webp"
    return None


def size_of(data: bytes) -> tuple[int, int] | None:
    """Width and height in pixels of a PNG, JPEG, GIF or WebP; None if the bytes do not contain them."""
    match media_type_of(data), data[12:16]:
        case "image/jpeg", _:
            return _jpeg(data)
        case "image/png", b"IHDR" if len(data) >= 24:
            width, height = struct.unpack(">II", data[16:24])
        case "image/gif", _ if len(data) >= 10:
            width, height = struct.unpack("<HH", data[6:10])
        case "image/webp", b"VP8 " if len(data) >= 30:
            width, height = (side & 0x3FFF for side in struct.unpack("<HH", data[26:30]))
        case "image/webp", b"VP8L" if len(data) >= 30:
            sides = int.from_bytes(data[21:25], "little")
            width, height = (sides & 0x3FFF) + 1, (sides >> 14 & 0x3FFF) + 1
        case "image/webp", b"VP8X" if len(data) >= 30:
            width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
        case _:
            return None
    return width, height


def _jpeg(data: bytes) -> tuple[int, int] | None:
    """Return width and height from the first frame's header, which follows any number of other segments."""
    at = 2  # after the marker that begins the file
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker in _FRAMES:
            return int.from_bytes(data[at + 7 : at + 9]), int.from_bytes(data[at + 5 : at + 7])
        if marker == _SCAN:
            return None
        if marker == 0xFF:  # any number of fill bytes may precede a marker
            at += 1
        elif marker in _BARE:
            at += 2
        else:
            at += 2 + max(2, int.from_bytes(data[at + 2 : at + 4]))
    return None


def image_of_bytes(data: bytes, media_type: str | None = None) -> Image:
    """Return the image of these bytes with its digest; `media_type` is what its sender declared.

    Raises:
        InvalidInput: its kind is unknown or not the declared one, or it is too large.
    """
    if len(data) > IMAGE_BYTES_MAX:
        raise InvalidInput(
            f"the image has {len(data)} bytes, more than the limit of {IMAGE_BYTES_MAX}; send a smaller one"
        )
    found = media_type_of(data)
    if found is None:
        raise InvalidInput("the image is not PNG, JPEG, GIF or WebP; convert it to one of these")
    if media_type not in (None, found):
        raise InvalidInput(f"the image is declared as {media_type}, but its bytes are {found}; correct its media_type")
    size = size_of(data)
    if size is not None and max(size) > SIDE_MAX:
        raise InvalidInput(
            f"the image has {size[0]} by {size[1]} pixels, more than {SIDE_MAX} on a side; send a smaller one"
        )
    return Image(media_type=found, data=data, digest=blake2b(data, digest_size=message_table.DIGEST_BYTES).hexdigest())


def image_of_url(url: str, media_type: str | None = None) -> Image:
    """Return the image at a URL, which the model's vendor fetches itself.

    Raises:
        InvalidInput: it is not an http(s) URL, or too long.
    """
    is_address = False
    with suppress(ValueError):
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
    if not is_address or not url.isascii() or any(char.isspace() or not char.isprintable() for char in url):
        raise InvalidInput("an image's `url` does not begin with https:// or http://; check it")
    if media_type not in (None, *MEDIA_TYPES):
        raise InvalidInput(
            f"an image's `media_type` must be one of {', '.join(MEDIA_TYPES)}; correct it or leave it out"
        )
    if len(url) > URL_CHARS_MAX:
        raise InvalidInput(f"an image's `url` is longer than {URL_CHARS_MAX} characters; send the image's data instead")
    return Image(media_type=media_type or "", url=url)


def store(connection: Connection, images: Iterable[Image], now: str) -> None:
    """Store the bytes of images within the caller's transaction; stored ones are skipped."""
    for image in images:
        if image.data is not None and image.digest is not None:
            digest = bytes.fromhex(image.digest)
            message_table.put_blob(
                connection, BlobRow(digest=digest, size=len(image.data), data=image.data, created_at=now)
            )


def read(connection: Connection, digest: str) -> Image:
    """Return the stored image of a digest (64 hex digits), with its bytes.

    Raises:
        NotFound: there is none.
    """
    with suppress(ValueError, RowNotFound):
        data = message_table.get_blob(connection, bytes.fromhex(digest)).data
        if kind := media_type_of(data):  # the table holds other content by digest, too
            return Image(media_type=kind, data=data, digest=digest)
    raise NotFound(f"there is no image {digest[:80]}; use the digest from a message's parts")


async def shown_to(database: Database, request: ModelRequest, *, takes_images: bool) -> ModelRequest:
    """Return the request as it is sent to a model: with the bytes of its images, or texts if it reads none.

    Raises:
        DatabaseError: storage refused.
    """
    if not takes_images:
        without = _with_images(request.messages, lambda _image: Text(text=LEFT_OUT))
        return replace(request, messages=without, estimate=None)
    return replace(request, messages=await database.read_aside(hydrated, request.messages))


def hydrated(connection: Connection, messages: Sequence[Message]) -> list[Message]:
    """Return the messages with the bytes of their newest images, for the next request.

    At most `IMAGES_SHOWN_MAX` images and `IMAGES_SHOWN_BYTES_MAX` bytes; texts replace the older ones, which are not
    read. Images that are no longer stored stay without bytes, which each provider reports to the model.
    """
    images = [image for message in messages for image in message.images]
    shown: list[Part] = []
    room = IMAGES_SHOWN_BYTES_MAX
    for image in reversed(images[-IMAGES_SHOWN_MAX:]):
        full = _read(connection, image)
        room -= len(full.data or b"")
        if room < 0:
            break
        shown.append(full)
    parts = chain(repeat(Text(text=TOO_OLD), len(images) - len(shown)), reversed(shown))
    return _with_images(messages, lambda _image: next(parts))


def _with_images(messages: Sequence[Message], put: Callable[[Image], Part]) -> list[Message]:
    """Return the messages with the result of `put` for each image, from the oldest to the newest."""
    return [
        replace(message, parts=tuple(put(part) if isinstance(part, Image) else part for part in message.parts))
        if message.images
        else message
        for message in messages
    ]


def _read(connection: Connection, image: Image) -> Image:
    """Return the image with its bytes, if they are stored."""
    if image.data is None and image.digest is not None:
        with suppress(RowNotFound):
            return replace(image, data=message_table.get_blob(connection, bytes.fromhex(image.digest)).data)
    return image


async def sweep_daily(journal: Journal) -> None:
    """Sweep once a day until cancelled.

    Raises:
        StorageFailed: the disk failed; reopen the file.
    """
    await trio.sleep(START_AFTER_S)
    while True:
        swept_at = await journal.database.read(meta.get, SWEPT_AT)
        if swept_at is None or swept_at <= iso(journal.clock.now_ms() - DAY_MS):
            await sweep(journal)
        await trio.sleep(CHECK_EVERY_S)


async def sweep(journal: Journal) -> None:
    """Delete the images that are unused now. If none is older than a day, this is one read of an index."""
    now_ms = journal.clock.now_ms()
    border, since = iso(now_ms - DAY_MS), earliest_position(now_ms - MARGIN_MS)
    after = ("", b"")
    while found := await journal.database.read_aside(
        message_table.blobs_older_than, border, CANDIDATES_MAX, after=after
    ):
        unused = await _unused(journal.database, [digest for _, digest, head in found if media_type_of(head)])
        for begin in range(0, len(unused), REMOVED_AT_ONCE):
            batch = unused[begin : begin + REMOVED_AT_ONCE]
            await journal.commit(partial(_remove, digests=batch, since=since, now=journal.now()))
        after = found[-1][:2]
    if after[0]:  # a constellation without images writes nothing
        await journal.database.write(meta.put, SWEPT_AT, iso(now_ms))


async def _unused(database: Database, candidates: Sequence[bytes]) -> list[bytes]:
    """Return those without a message, as far as can be found without blocking other work."""
    left = {digest.hex() for digest in candidates}
    newest = await database.read_aside(message_table.newest_message_row) if left else 0
    for row in range(0, newest, ROWS_AT_ONCE):
        left -= await database.read_aside(message_table.blobs_shown_between, row, row + ROWS_AT_ONCE)
        if not left:
            break
    return [digest for digest in candidates if digest.hex() in left]


def _remove(connection: Connection, *, digests: Sequence[bytes], since: str, now: str) -> tuple[None, list[Event]]:
    images, size = message_table.remove_unused_blobs(connection, digests, since=since)
    removed = [Draft("images.removed", {"images": images, "bytes": size})] if images else []
    return None, append(connection, None, removed, created_at=now)
