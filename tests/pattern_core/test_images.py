from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TypeVar, cast

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core import images
from pattern_core.errors import InvalidInput, NotFound
from pattern_core.events import Event
from pattern_core.images import (
    DAY_MS,
    LEFT_OUT,
    SIDE_MAX,
    TOO_OLD,
    URL_CHARS_MAX,
    hydrated,
    image_of_bytes,
    image_of_url,
    media_type_of,
    shown_to,
    size_of,
    sweep,
)
from pattern_core.limits import IMAGE_BYTES_MAX, IMAGES_SHOWN_BYTES_MAX, IMAGES_SHOWN_MAX
from pattern_core.messages import Image, Message, Text, parts_from_json, parts_to_json, user
from pattern_core.models.model import ModelRequest
from pattern_core.models.providers.encoding import image_base64
from pattern_core.testing import StoppedClock
from pattern_core.testing.model import Paced, says
from pattern_core.turns.admission import IncomingMessage
from pattern_db.connection import Connection, fetch_all
from pattern_db.database import Database
from pattern_db.tables import messages
from pattern_db.tables.messages import BlobRow, MessageRow
from tests.support import START, USER, Running, acting, empty_constellation

T = TypeVar("T")
PNG = b"\x89PNG\r\n\x1a\n"
FRAME = b"\x00\x11\x08" + struct.pack(">HH", 600, 800) + bytes(12)


@pytest.fixture
def db() -> Iterator[Connection]:
    with closing(empty_constellation()) as connection:
        yield connection


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
    with pytest.raises(InvalidInput, match="declared as image/jpeg"):
        image_of_bytes(PNG, "image/jpeg")
    with pytest.raises(InvalidInput, match="not PNG"):
        image_of_bytes(b"%PDF")
    with pytest.raises(InvalidInput, match="send a smaller one"):
        image_of_bytes(PNG + bytes(IMAGE_BYTES_MAX))
    wide = PNG + b"\x00\x00\x00\rIHDR" + (SIDE_MAX + 1).to_bytes(4) + (1).to_bytes(4)
    with pytest.raises(InvalidInput, match="8001 by 1 pixels"):
        image_of_bytes(wide)
    largest = image_of_bytes(PNG + bytes(IMAGE_BYTES_MAX - len(PNG)))
    assert len(image_base64(largest) or "") <= 5 * 1024 * 1024


def test_addresses_are_checked() -> None:
    assert image_of_url("https://x/a.png", "image/png") == Image(media_type="image/png", url="https://x/a.png")
    for url in ("file:///etc/passwd", "https://", "x", "https://x/\na", "https://ż/", "data:image/png,x", "http://[x"):
        with pytest.raises(InvalidInput, match="does not begin with"):
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
    first, second = hydrated(db, conversation)
    assert first.images == (image, linked)
    assert second is conversation[1]
    assert conversation[0].images[0].data is None
    lost = shows(kept(image_of_bytes(PNG + b"lost")))
    assert hydrated(db, [lost]) == [lost]


@pytest.mark.parametrize(
    ("bytes_each", "count", "older"), [(1, IMAGES_SHOWN_MAX + 2, 2), (IMAGES_SHOWN_BYTES_MAX // 4, 4, 1)]
)
def test_words_stand_for_older_images(db: Connection, bytes_each: int, count: int, older: int) -> None:
    many = [image_of_bytes(PNG + bytes([number]) * bytes_each) for number in range(count)]
    images.store(db, many, START)
    first, *others = hydrated(db, [shows(*map(kept, many[:2])), *(shows(kept(image)) for image in many[2:])])
    assert first.parts[1:] == (*[Text(text=TOO_OLD)] * older, *many[older:2])
    assert [message.images for message in others] == [(image,) for image in many[2:]]


async def test_a_request_shows_what_its_model_takes(db: Connection) -> None:
    image = image_of_bytes(PNG)
    images.store(db, [image], START)
    request = ModelRequest(model="m", system=(), messages=[shows(kept(image)), user("and?")], estimate=9)
    async with Database.in_memory(db) as database:
        seeing = await shown_to(database, request, takes_images=True)
        assert (seeing.messages[0].images, seeing.estimate) == ((image,), 9)
        blind = await shown_to(database, request, takes_images=False)
        assert blind.messages[0].parts == (Text(text="see"), Text(text=LEFT_OUT))
        assert (blind.messages[1], blind.estimate) == (request.messages[1], None)


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
        # segments, markers without a length, a table that is no frame, filling bytes, a progressive frame
        b"\xff\xd8\xff\xe0\x00\x04ab\xff\x01\xff\xd0\xff\xd7\xff\xc4\x00\x03x\xff\xff\xff\xc2" + FRAME,
    ],
)
def test_each_kind_has_its_size(data: bytes) -> None:
    assert size_of(data) == (800, 600)


def test_what_does_not_say_has_no_size() -> None:
    jpegs = (b"", b"\xff\xc0" + FRAME[:6], b"\xff\xda" + FRAME, b"\xff\xe0\x00\x00" * 50)
    for data in (b"", PNG, b"GIF89a", webp(b"ALPH", bytes(10)), *(b"\xff\xd8" + jpeg for jpeg in jpegs)):
        assert size_of(data) is None, data


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([PNG + b"\x00\x00\x00\rIHDR", b"GIF89a", webp(b"VP8L", b""), webp(b"VP8X", b""), b"\xff\xd8\xff"]),
    st.binary(max_size=60),
)
def test_any_bytes_are_survived(beginning: bytes, rest: bytes) -> None:
    size = size_of(beginning + rest)
    assert size is None or min(size) >= 0


def picture(number: int) -> Image:
    return image_of_bytes(PNG + bytes([number]) * 100)


def showing(image: Image, agent: str = "ada", **more: object) -> IncomingMessage:
    parts = (Text(text="look"), image)
    return IncomingMessage(agent_id=agent, content="look", sender=USER, parts=parts, **more)  # type: ignore[arg-type]  # a policy


async def show(world: Running, image: Image, agent: str = "ada") -> None:
    ticket = await world.constellation.submit(showing(image, agent))
    with trio.fail_after(60):
        await world.constellation.wait(ticket.turn_id)


async def left(world: Running, *shown: Image) -> list[bool]:
    """Which of the images are still stored."""
    rows = await world.database.read(fetch_all, "SELECT lower(hex(digest)) FROM blob", ())
    return [(image.digest,) in rows for image in shown]


def later(world: Running, ms: int) -> None:
    cast("StoppedClock", world.clock).advance(ms)


async def test_what_a_deleted_agent_alone_was_shown_is_removed_after_a_day() -> None:
    async with acting(otherwise=says("I see.")) as world:
        await world.agent("bob")
        shared, own = picture(1), picture(2)
        await show(world, shared, "ada")
        await show(world, shared, "bob")
        await show(world, own, "ada")
        await world.constellation.delete_agent("ada")
        await sweep(world.constellation._journal)
        assert await left(world, shared, own) == [True, True]  # it came only today
        later(world, DAY_MS + 1)
        for _ in range(2):
            await sweep(world.constellation._journal)
            assert await left(world, shared, own) == [True, False]
        (event,) = [event for event in await world.events() if event.name == "images.removed"]
        assert event.data == {"images": 1, "bytes": len(own.data or b"")}


async def test_archived_and_waiting_messages_keep_their_images_and_forgotten_ones_do_not() -> None:
    held = Paced(answer=says("Later."), gate=trio.Event())
    async with acting([says("I see."), held]) as world:
        archived, running_now, waiting, cancelled = (picture(number) for number in range(4))
        await show(world, archived)
        row = (await world.constellation.messages("ada", limit=9))[-1]
        await world.database.write(messages.archive, row.agent_id, [row.position])
        turn = (await world.constellation.submit(showing(running_now))).turn_id
        await trio.testing.wait_all_tasks_blocked()
        await world.constellation.submit(showing(waiting))
        gone = await world.constellation.submit(showing(cancelled))
        await world.constellation.cancel(gone.turn_id, reason="changed my mind")
        later(world, DAY_MS + 1)
        await sweep(world.constellation._journal)
        assert await left(world, archived, running_now, waiting, cancelled) == [True, True, True, False]
        await world.database.write(messages.tombstone, [row.id])
        later(world, DAY_MS)
        await sweep(world.constellation._journal)
        assert await left(world, archived, running_now, waiting) == [False, True, True]
        await world.constellation.cancel(turn, reason="over")


async def test_an_image_that_is_shown_again_meanwhile_stays() -> None:
    async with acting(otherwise=says("I see.")) as world:
        await world.agent("bob")
        image = picture(1)
        await show(world, image, "ada")
        await world.constellation.delete_agent("ada")
        later(world, DAY_MS + 1)

        journal = world.constellation._journal
        commit = journal.commit

        async def shown_first(fn: Callable[[Connection], tuple[T, list[Event]]]) -> T:
            # The messages were looked through; now one comes that takes the row of one that went.
            journal.commit = commit  # type: ignore[method-assign]  # for this once
            await show(world, image, "bob")
            return await commit(fn)

        journal.commit = shown_first  # type: ignore[method-assign]  # of the sweep
        await sweep(journal)
        assert await left(world, image) == [True]


async def test_it_looks_at_all_images_and_messages_in_pieces(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    for name in ("CANDIDATES_MAX", "ROWS_AT_ONCE", "REMOVED_AT_ONCE"):
        monkeypatch.setattr(images, name, 2)
    async with acting(otherwise=says("I see.")) as world:
        ada = await world.constellation.roster.get("ada")
        kept, lost = [picture(number) for number in range(5)], [picture(number) for number in range(5, 10)]

        def store(connection: Connection) -> None:
            images.store(connection, [*lost, *kept], START)
            for number, image in enumerate(kept):
                parts = [{"type": "text", "text": "x"}, {"type": "image", "media_type": "", "digest": image.digest}]
                for place in (number, number + 50):
                    row = MessageRow(
                        id=f"msg_{place}",
                        agent_id=ada.id,
                        position=f"{place:019d}",
                        role="user",  # type: ignore[arg-type]  # the column's word
                        created_at=START,
                        content="x",
                        parts=parts,
                    )
                    messages.append(connection, [row])

        await world.database.write(store)
        later(world, DAY_MS + 1)
        with trio.move_on_after(images.START_AFTER_S + 1):
            await images.sweep_daily(world.constellation._journal)
        assert await left(world, *kept, *lost) == [True] * 5 + [False] * 5


async def test_it_runs_by_itself_once_a_day(autojump_clock: object) -> None:
    async with acting(otherwise=says("I see.")) as world:
        image, another = picture(1), picture(2)
        await show(world, image)
        await show(world, another)
        await world.constellation.delete_agent("ada")
        later(world, DAY_MS + 1)
        await trio.sleep(images.START_AFTER_S + images.CHECK_EVERY_S + 1)
        assert await left(world, image, another) == [False, False]
        await world.database.write(images.store, [image], START)
        await trio.sleep(images.CHECK_EVERY_S + 1)
        assert await left(world, image) == [True]  # not twice on one day
        later(world, DAY_MS)
        await trio.sleep(images.CHECK_EVERY_S + 1)
        assert await left(world, image) == [False]
