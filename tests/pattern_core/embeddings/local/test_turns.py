from __future__ import annotations

import pytest
import trio
import trio.testing

from pattern_core.embeddings.embedder import EmbedderUnavailable
from pattern_core.embeddings.providers.local import Turns
from pattern_core.embeddings.settings import Purpose


async def test_queries_first_and_each_kind_in_order() -> None:
    turns, order = Turns(), []

    async def take(name: str, purpose: Purpose) -> None:
        async with turns.taken(purpose):
            order.append(name)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery, turns.taken("passage"):
        asked: list[tuple[str, Purpose]] = [("p1", "passage"), ("q1", "query"), ("p2", "passage"), ("q2", "query")]
        for name, purpose in asked:
            nursery.start_soon(take, name, purpose)
            await trio.testing.wait_all_tasks_blocked()
    assert order == ["q1", "q2", "p1", "p2"]


async def test_who_is_cancelled_while_waiting_does_not_keep_the_turn() -> None:
    turns = Turns()
    async with turns.taken("query"):
        with trio.move_on_after(0.01) as scope:
            async with turns.taken("query"):
                raise AssertionError
        assert scope.cancelled_caught
    with trio.fail_after(60), pytest.raises(ValueError, match="mine"):
        async with turns.taken("passage"):
            raise ValueError("mine")
    with trio.fail_after(60):
        async with turns.taken("query"):
            pass


async def test_too_many_are_sent_away() -> None:
    turns = Turns(waiting_max=1)

    async def wait() -> None:
        async with turns.taken("passage"):
            pass

    async with trio.open_nursery() as nursery, turns.taken("passage"):
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(EmbedderUnavailable, match="busy") as caught:
            await wait()
        assert caught.value.details == {"retry_after_s": 5.0}
