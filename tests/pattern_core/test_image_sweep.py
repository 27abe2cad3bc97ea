"""Images go when nothing shows them any more, and never before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from pattern_core import images
from pattern_core.agents import AgentSpec
from pattern_core.errors import NotFound
from pattern_core.events import Event
from pattern_core.images import DAY_MS, ImageSweep, Swept, image_of_bytes
from pattern_core.messages import Image, Text
from pattern_core.testing.clock import StoppedClock
from pattern_core.testing.model import Paced, says
from pattern_core.turns.admission import IncomingMessage
from pattern_db.connection import Connection
from pattern_db.tables import messages
from pattern_db.tables.messages import MessageRow
from tests.support import USER, Running, running

PNG = b"\x89PNG\r\n\x1a\n"


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

    def look(connection: Connection) -> list[bool]:
        found = []
        for image in shown:
            try:
                images.read(connection, image.digest or "")
                found.append(True)
            except NotFound:
                found.append(False)
        return found

    return await world.database.read(look)


def later(world: Running, ms: int) -> None:
    assert isinstance(world.clock, StoppedClock)
    world.clock.advance(ms)


async def test_what_a_deleted_agent_alone_was_shown_is_removed_after_a_day() -> None:
    async with running(otherwise=says("I see.")) as world:
        await world.agent("ada")
        await world.agent("bob")
        shared, own = picture(1), picture(2)
        await show(world, shared, "ada")
        await show(world, shared, "bob")
        await show(world, own, "ada")
        await world.constellation.delete_agent("ada")
        assert await world.constellation.image_sweep.sweep() == Swept()  # it came only today
        later(world, DAY_MS + 1)
        assert await world.constellation.image_sweep.sweep() == Swept(1, len(own.data or b""))
        assert await left(world, shared, own) == [True, False]
        (event,) = [event for event in await world.events() if event.name == "images.removed"]
        assert event.data == {"images": 1, "bytes": len(own.data or b"")}
        assert await world.constellation.image_sweep.sweep() == Swept()


async def test_archived_and_waiting_messages_keep_their_images_and_forgotten_ones_do_not() -> None:
    gate = trio.Event()
    async with running([says("I see."), Paced(answer=says("Later."), gate=gate)]) as world:
        ada = await world.agent("ada")
        archived, running_now, waiting, cancelled = (picture(number) for number in range(4))
        await show(world, archived)
        row = (await world.constellation.messages("ada", limit=9))[-1]
        await world.database.write(messages.archive, ada.id, [row.position])
        turn = (await world.constellation.submit(showing(running_now))).turn_id
        await trio.testing.wait_all_tasks_blocked()
        await world.constellation.submit(showing(waiting))
        gone = await world.constellation.submit(showing(cancelled))
        await world.constellation.cancel(gone.turn_id, reason="changed my mind")
        later(world, DAY_MS + 1)
        assert (await world.constellation.image_sweep.sweep()).images == 1
        assert await left(world, archived, running_now, waiting, cancelled) == [True, True, True, False]
        await world.database.write(messages.tombstone, [row.id])
        later(world, DAY_MS)
        assert (await world.constellation.image_sweep.sweep()).images == 1
        assert await left(world, archived, running_now, waiting) == [False, True, True]
        await world.constellation.cancel(turn, reason="over")


async def test_an_image_that_is_shown_again_meanwhile_stays() -> None:
    async with running(otherwise=says("I see.")) as world:
        await world.agent("ada")
        await world.agent("bob")
        image = picture(1)
        await show(world, image, "ada")
        await world.constellation.delete_agent("ada")
        later(world, DAY_MS + 1)

        async def shown_first(fn: Callable[[Connection], tuple[Swept, list[Event]]]) -> Swept:
            # The messages were looked through; now one comes that takes the row of one that went.
            await show(world, image, "bob")
            return (await world.database.write(fn))[0]

        sweep = ImageSweep(database=world.database, clock=world.clock, commit=shown_first)
        assert await sweep.sweep() == Swept()
        assert await left(world, image) == [True]


async def test_it_looks_at_all_images_and_messages_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CANDIDATES_MAX", "ROWS_AT_ONCE", "REMOVED_AT_ONCE"):
        monkeypatch.setattr(images, name, 2)
    async with running(otherwise=says("I see.")) as world:
        await world.agent("ada")
        ada = await world.constellation.roster.get("ada")
        kept, lost = [picture(number) for number in range(5)], [picture(number) for number in range(5, 10)]

        def store(connection: Connection) -> None:
            images.store(connection, [*lost, *kept], "2026-01-01T00:00:00.000Z")
            for number, image in enumerate(kept):
                parts = [{"type": "text", "text": "x"}, {"type": "image", "media_type": "", "digest": image.digest}]
                for place in (number, number + 50):
                    row = MessageRow(
                        id=f"msg_{place}",
                        agent_id=ada.id,
                        position=f"{place:019d}",
                        role="user",  # type: ignore[arg-type]  # the column's word
                        created_at="2026-01-01T00:00:00.000Z",
                        content="x",
                        parts=parts,
                    )
                    messages.append(connection, [row])

        await world.database.write(store)
        later(world, DAY_MS + 1)
        assert (await world.constellation.image_sweep.sweep()).images == 5
        assert await left(world, *kept, *lost) == [True] * 5 + [False] * 5


async def test_it_runs_by_itself_once_a_day(autojump_clock: object) -> None:
    async with running(otherwise=says("I see.")) as world:
        await world.constellation.roster.create(
            AgentSpec(name="ada", model_provider="scripted", model_name="script-1", system_prompt=""), author=USER
        )
        image, another = picture(1), picture(2)
        await show(world, image)
        await show(world, another)
        await world.constellation.delete_agent("ada")
        later(world, DAY_MS + 1)
        await trio.sleep(images.START_AFTER_S + images.CHECK_EVERY_S + 1)
        assert await left(world, image, another) == [False, False]
        await world.database.write(images.store, [image], "2026-01-01T00:00:00.000Z")
        await trio.sleep(images.CHECK_EVERY_S + 1)
        assert await left(world, image) == [True]  # not twice on one day
        later(world, DAY_MS)
        await trio.sleep(images.CHECK_EVERY_S + 1)
        assert await left(world, image) == [False]
