"""Messages are worked on in the order in which they were accepted, and a wish to stop one is never overheard."""

from __future__ import annotations

from pathlib import Path

import trio

from pattern_core.testing.model import Paced, says
from tests.support import PATIENCE_S, Running, in_memory, rows, running


async def test_turns_start_in_the_order_of_acceptance_whoever_hears_of_it_first(tmp_path: Path) -> None:
    async with running(otherwise=says("ok"), path=tmp_path / "pattern.db") as world:
        await world.agent()
        for attempt in range(15):  # trio wakes those who wait for one commit in any order
            async with trio.open_nursery() as nursery:
                for number in range(4):
                    nursery.start_soon(world.submit, f"message {attempt}.{number}")
            while not world.constellation.is_idle:
                await trio.sleep(0.001)
        started = await world.database.read(rows, "SELECT key FROM turn ORDER BY batch_id")
        assert started == sorted(started)
        assert await world.database.read(rows, "SELECT count(*) FROM turn WHERE status = 'completed'") == [(60,)]


async def test_a_wish_to_stop_a_turn_that_is_just_being_started_is_honoured(tmp_path: Path) -> None:
    answer = Paced(answer=says("never"), gate=trio.Event())
    async with running(otherwise=answer, path=tmp_path / "pattern.db") as world:
        await world.agent()
        for attempt in range(30):
            turn_id = await world.submit(f"message {attempt}")
            for _ in range(attempt % 10):
                await trio.lowlevel.checkpoint()
            assert await world.constellation.cancel(turn_id)
            with trio.fail_after(PATIENCE_S):
                assert (await world.constellation.wait(turn_id)).status == "cancelled"


async def test_what_is_accepted_while_the_constellation_stops_is_done_at_the_next_start(tmp_path: Path) -> None:
    accepted: list[str] = []

    async def send(world: Running) -> None:
        accepted.append(await world.submit("hello"))

    async with in_memory() as database, trio.open_nursery() as outside:
        outside.cancel_scope.deadline = trio.current_time() + PATIENCE_S
        async with running(otherwise=says("ok"), database=database) as world:
            await world.agent()
            outside.start_soon(send, world)
            await trio.lowlevel.checkpoint()
        while not accepted:
            await trio.lowlevel.checkpoint()
        async with running(otherwise=says("ok"), database=database) as again:
            assert (await again.constellation.wait(accepted[0])).status == "completed"
