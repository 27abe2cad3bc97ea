from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.models.fair import FairQueue


def test_flows_take_turns_and_keep_their_order() -> None:
    queue: FairQueue[str] = FairQueue()
    for item in ("a1", "a2", "a3", "b1", "c1", "c2"):
        queue.push(item[0], item)
    assert (len(queue), queue.flows, queue.peek()) == (6, 3, "a1")
    assert [queue.pop() for _ in range(6)] == ["a1", "b1", "c1", "a2", "c2", "a3"]
    assert (len(queue), queue.peek()) == (0, None)
    with pytest.raises(IndexError):
        queue.pop()


def test_an_item_can_leave_before_its_turn() -> None:
    queue: FairQueue[str] = FairQueue()
    for item in ("a1", "a2", "b1"):
        queue.push(item[0], item)
    queue.remove("a", "a1")
    queue.remove("b", "b1")
    queue.remove("b", "b1")
    queue.remove("z", "z1")
    assert (len(queue), queue.flows, queue.pop()) == (1, 1, "a2")


@settings(max_examples=60)
@given(pushed=st.lists(st.tuples(st.sampled_from("abc"), st.integers()), max_size=40))
def test_nobody_waits_for_more_than_one_of_each_other_flow(pushed: list[tuple[str, int]]) -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue()
    for item in pushed:
        queue.push(item[0], item)
    popped = [queue.pop() for _ in pushed]
    by_flow: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for item in pushed:
        by_flow[item[0]].append(item)
    for flow, items in by_flow.items():
        assert [item for item in popped if item[0] == flow] == items
        places = [place for place, item in enumerate(popped) if item[0] == flow]
        assert all(place < (rank + 1) * len(by_flow) for rank, place in enumerate(places))
