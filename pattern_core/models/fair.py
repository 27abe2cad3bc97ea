"""A queue that serves flows in turn, so that one constellation's hundred calls do not hold up another's one; pure."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """First in, first out within a flow; one of each flow in turn. Its owner bounds its length."""

    def __init__(self) -> None:
        self._flows: OrderedDict[str, deque[T]] = OrderedDict()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        return (item for items in self._flows.values() for item in items)

    @property
    def flows(self) -> int:
        """How many flows wait."""
        return len(self._flows)

    def push(self, flow: str, item: T) -> None:
        """Add an item at the end of its flow; a new flow comes after all that are waiting."""
        self._flows.setdefault(flow, deque()).append(item)
        self._length += 1

    def peek(self) -> T | None:
        """The item whose turn it is; None if there is none."""
        flow = next(iter(self._flows), None)
        return None if flow is None else self._flows[flow][0]

    def pop(self) -> T:
        """Take the item whose turn it is; its flow goes to the end of the row.

        Raises:
            IndexError: the queue is empty.
        """
        flow = next(iter(self._flows), None)
        if flow is None:
            raise IndexError("the queue is empty")
        item = self._flows[flow].popleft()
        self._length -= 1
        if self._flows[flow]:
            self._flows.move_to_end(flow)
        else:
            del self._flows[flow]
        return item

    def remove(self, flow: str, item: T) -> None:
        """Take an item out before its turn; nothing happens if it is not there."""
        items = self._flows.get(flow)
        if items is None or item not in items:
            return
        items.remove(item)
        self._length -= 1
        if not items:
            del self._flows[flow]
