"""Images in messages: checked when they come, stored once by their digest, read only for the request that shows them.

A conversation in memory holds digests alone. Just before a model is asked, `shown_to` puts the bytes of the newest
images in place; older ones, and all of them for a model that takes none, are replaced by words that say so.

Images that no message shows any more are removed (`ImageSweep`): once a day at most, in the background, a few at a
time. An image becomes unused when its agent is deleted, when a turn is rolled back, or when the message that brought it
is cancelled in the line. None of these counts who else shows it, since it is stored once for all; so the messages are
looked through instead, piece by piece and beside the writes. What is younger than a day is left alone, and whatever was
said while this looked is looked at again in the transaction that removes. Every transaction is whole by itself:
cancelled or killed, the sweep begins again the next time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import count
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
from pattern_db.errors import NotFound as NoSuchRow
from pattern_db.tables import messages as message_table
from pattern_db.tables import meta
from pattern_db.tables.messages import BlobRow

SIDE_MAX = 8_000  # pixels of width or height, which is Anthropic's bound too; what it refuses stays in a conversation
URL_CHARS_MAX = 2_048

LEFT_OUT = "(An image was here. It is left out, because this model takes no images.)"
TOO_OLD = "(An earlier image was here. Only the newest ones are shown.)"

MEDIA_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")

START_AFTER_S = 30.0  # what woke a constellation comes first
CHECK_EVERY_S = 3_600.0
DAY_MS = 24 * 3_600_000
MARGIN_MS = 3_600_000  # of the messages that are looked at twice: a clock may be set back in between
CANDIDATES_MAX = 5_000  # images that are looked for at once, by their digests
ROWS_AT_ONCE = 5_000  # messages that one read looks through
REMOVED_AT_ONCE = 20  # in one transaction: an image may have megabytes
SWEPT_AT = "images_swept_at"  # in the table of what a file knows about itself

# The first bytes of each kind that all vendors take. Sources: PNG (W3C, 2003) 5.2 and 11.2.2; JFIF 3 and JPEG (ITU-T
# T.81) annex B.2; GIF89a 17 and 18; RFC 9649 (WebP) 2.4 to 2.7.
_PNG, _JPEG, _GIFS = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", (b"GIF87a", b"GIF89a")
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # markers of JPEG's frames, whatever their coding
_BARE = frozenset({0x01, *range(0xD0, 0xD8)})  # markers without a length
_SCAN = 0xDA  # the marker behind which there are only pixels


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
    """Return the sides in the first frame's header, which stands behind any number of other segments."""
    at = 2  # behind the marker that begins the file
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


def image_of_bytes(data: bytes, media_type: str | None = None) -> Image:
    """Return the image that these bytes are, with its digest; `media_type` is what its sender says that it is.

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
    return Image(media_type=found, data=data, digest=blake2b(data, digest_size=message_table.DIGEST_BYTES).hexdigest())


def image_of_url(url: str, media_type: str | None = None) -> Image:
    """Return the image at an address, which the model's vendor fetches itself.

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
            message_table.put_blob(
                connection, BlobRow(digest=digest, size=len(image.data), data=image.data, created_at=now)
            )


def read(connection: Connection, digest: str) -> Image:
    """Return the stored image of a digest (64 hex digits), with its bytes.

    Raises:
        NotFound: there is none.
    """
    try:
        data = message_table.get_blob(connection, bytes.fromhex(digest)).data
    except (ValueError, NoSuchRow):
        raise NotFound(f"there is no image {digest[:80]}; take the digest from a message's parts") from None
    kind = media_type_of(data)
    if kind is None:  # other content is stored by its digest too
        raise NotFound(f"there is no image {digest[:80]}; take the digest from a message's parts")
    return Image(media_type=kind, data=data, digest=digest)


def has_images(messages: Sequence[Message]) -> bool:
    """Return whether any message shows one."""
    return any(message.images for message in messages)


async def shown_to(database: Database, request: ModelRequest, *, takes_images: bool) -> ModelRequest:
    """Return the request as a model is sent it: with the bytes of its images, or with words for them if it takes none.

    Raises:
        DatabaseError: storage refused.
    """
    if not has_images(request.messages):
        return request
    if not takes_images:
        return replace(request, messages=without_images(request.messages), estimate=None)
    return replace(request, messages=await database.read_aside(hydrated, request.messages))


def hydrated(connection: Connection, messages: Sequence[Message]) -> list[Message]:
    """Return the messages with the bytes of their newest images in place, for the request that is about to be sent.

    At most `IMAGES_SHOWN_MAX` images and `IMAGES_SHOWN_BYTES_MAX` bytes; words stand for the older ones, of which no
    byte is read. What is not stored any more stays without bytes, which each provider tells the model.
    """
    shown = _newest(connection, messages)
    places = count(sum(len(message.images) for message in messages) - 1, -1)  # of the next image, from the newest

    def put(image: Image) -> Part:
        return _read(connection, image) if next(places) < shown else Text(text=TOO_OLD)

    return _with_images(messages, put)


def _newest(connection: Connection, messages: Sequence[Message]) -> int:
    """Return how many images, counted from the newest, one request has room for."""
    newest = [image for message in reversed(messages) for image in reversed(message.images)][:IMAGES_SHOWN_MAX]
    stored = message_table.blob_sizes(connection, [bytes.fromhex(image.digest) for image in newest if image.digest])
    room = IMAGES_SHOWN_BYTES_MAX
    for newer, image in enumerate(newest):
        room -= stored.get(bytes.fromhex(image.digest or ""), 0)
        if room < 0:
            return newer
    return len(newest)


def without_images(messages: Sequence[Message]) -> list[Message]:
    """Return the messages for a model that takes no images: words stand where they were."""
    return _with_images(messages, lambda _image: Text(text=LEFT_OUT))


def _with_images(messages: Sequence[Message], put: Callable[[Image], Part]) -> list[Message]:
    """Return the messages with what `put` gives for each image, from the oldest to the newest."""
    return [
        replace(message, parts=tuple(put(part) if isinstance(part, Image) else part for part in message.parts))
        if message.images
        else message
        for message in messages
    ]


def _read(connection: Connection, image: Image) -> Image:
    """Return the image with its bytes, if they are stored."""
    if image.data is not None or image.digest is None:
        return image
    try:
        return replace(image, data=message_table.get_blob(connection, bytes.fromhex(image.digest)).data)
    except NoSuchRow:
        return image


@dataclass(frozen=True, slots=True)
class Swept:
    """How many images were removed, and their bytes."""

    images: int = 0
    bytes: int = 0


class ImageSweep:
    """The sweep of one constellation."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._database = journal.database

    async def run(self) -> None:
        """Sweep when a day has gone by since the last time, until cancelled.

        Raises:
            StorageFailed: the disk failed; reopen the file.
        """
        await trio.sleep(START_AFTER_S)
        while True:
            swept_at = await self._database.read(meta.get, SWEPT_AT)
            if swept_at is None or swept_at <= iso(self._journal.clock.now_ms() - DAY_MS):
                await self.sweep()
            await trio.sleep(CHECK_EVERY_S)

    async def sweep(self) -> Swept:
        """Remove what is unused now. Where no image is older than a day it is one look into an index."""
        now_ms = self._journal.clock.now_ms()
        border, since = iso(now_ms - DAY_MS), earliest_position(now_ms - MARGIN_MS)
        images, size, place = 0, 0, ("", b"")
        while True:
            found = await self._database.read_aside(message_table.blobs_older_than, border, CANDIDATES_MAX, after=place)
            unused = await self._unused([digest for _, digest, head in found if media_type_of(head) is not None])
            for begin in range(0, len(unused), REMOVED_AT_ONCE):
                batch = unused[begin : begin + REMOVED_AT_ONCE]
                swept = await self._journal.commit(
                    partial(_remove, digests=batch, since=since, now=self._journal.now())
                )
                images, size = images + swept.images, size + swept.bytes
            if len(found) < CANDIDATES_MAX:
                break
            place = found[-1][:2]
        if found or place[0]:  # who keeps no images writes nothing
            await self._database.write(meta.put, SWEPT_AT, iso(now_ms))
        return Swept(images, size)

    async def _unused(self, candidates: Sequence[bytes]) -> list[bytes]:
        """Return those that no message shows, as far as can be seen without stopping other work."""
        left = {digest.hex() for digest in candidates}
        newest = await self._database.read_aside(message_table.newest_message_row) if left else 0
        for row in range(0, newest, ROWS_AT_ONCE):
            left -= await self._database.read_aside(message_table.blobs_shown_between, row, row + ROWS_AT_ONCE)
            if not left:
                break
        return [digest for digest in candidates if digest.hex() in left]


def _remove(connection: Connection, *, digests: Sequence[bytes], since: str, now: str) -> tuple[Swept, list[Event]]:
    swept = Swept(*message_table.remove_unused_blobs(connection, digests, since=since))
    if not swept.images:
        return swept, []
    removed = Draft("images.removed", {"images": swept.images, "bytes": swept.bytes})
    return swept, append(connection, None, [removed], created_at=now)
