from __future__ import annotations

import pytest
import trio
import trio.testing

from pattern_core.memory.hot import Hot, HotDocuments
from pattern_core.unit_of_work import UnitOfWork


def make(hot_max: int = 2) -> tuple[HotDocuments, list[tuple[str, bool, bool]]]:
    settled: list[tuple[str, bool, bool]] = []

    def on_settled(hot: Hot, committed: bool) -> None:
        settled.append((hot.block_id, committed, hot.holder is not None))

    return HotDocuments(hot_max, on_settled), settled


async def test_a_block_is_kept_until_its_unit_of_work_is_settled() -> None:
    documents, settled = make()
    first, second = UnitOfWork(), UnitOfWork()
    hot = await documents.hold("a", first)
    assert await documents.hold("a", first) is hot  # the same unit again, without waiting
    with trio.move_on_after(0.01) as scope:
        await documents.hold("a", second)
    assert scope.cancelled_caught
    first.settle(committed=True)
    assert settled == [("a", True, True)]
    assert (await documents.hold("a", second)).holder is second
    second.settle(committed=False)
    assert settled[1:] == [("a", False, True)]
    assert (hot.holder, hot.users, hot.is_changed) == (None, 0, False)


async def test_waiters_come_in_order_and_a_unit_may_be_settled_by_another_task() -> None:
    documents, _ = make()
    order: list[int] = []
    first = UnitOfWork()
    await documents.hold("a", first)

    async def wait(number: int) -> None:
        work = UnitOfWork()
        await documents.hold("a", work)
        order.append(number)
        work.settle(committed=True)

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(wait, number)
            await trio.testing.wait_all_tasks_blocked()
        first.settle(committed=True)
    assert order == [0, 1, 2]


async def test_the_least_recently_used_is_closed_and_none_in_use() -> None:
    documents, _ = make(hot_max=2)
    held = UnitOfWork()
    await documents.hold("held", held)
    for name in ("a", "b", "a", "c"):
        work = UnitOfWork()
        await documents.hold(name, work)
        work.settle(committed=True)
    assert documents.find("held") is not None
    assert documents.find("b") is None
    assert documents.find("c") is not None
    assert len(documents) == 2
    held.settle(committed=True)
    assert len(documents) == 2


async def test_forgetting_an_owner_closes_what_is_not_in_use() -> None:
    documents, _ = make()
    work, idle = UnitOfWork(), UnitOfWork()
    (await documents.hold("used", work)).owner = "ada"
    (await documents.hold("idle", idle)).owner = "ada"
    idle.settle(committed=True)
    documents.forget("ada")
    assert documents.find("used") is not None
    assert documents.find("idle") is None
    work.settle(committed=True)


async def test_holding_can_be_cancelled_before_it_begins() -> None:
    documents, settled = make()
    with trio.CancelScope() as scope:
        scope.cancel()
        with pytest.raises(trio.Cancelled):
            await documents.hold("a", UnitOfWork())
        hot = documents.find("a")
        assert hot is not None
        assert (hot.holder, hot.users) == (None, 0)
    assert settled == []
    await documents.hold("a", UnitOfWork())
