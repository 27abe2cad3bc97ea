"""Open documents: a bounded number, each edited by one unit of work at a time.

A unit of work that edits a block keeps it to itself until its transaction is settled, because what it did to the open
document is not on disk before. If the transaction fails the open document is dropped, so that memory never runs ahead
of the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from pattern_core.memory.checkpoint import Pending
from pattern_core.memory.document import Document
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.tables.memory_blocks import BlockRow


@dataclass(slots=True, kw_only=True, eq=False)
class Hot:
    """One block that is open or waited for.

    `document` is None until it is loaded, `seq` the newest update in it. While `holder` has the block, `row` is the
    block as it will be once the holder's work is committed, and `author` who changes it; `is_changed` tells that the
    holder changed something.
    """

    block_id: str
    owner: str = ""
    gate: trio.Semaphore = field(default_factory=lambda: trio.Semaphore(1, max_value=1))
    users: int = 0
    holder: UnitOfWork | None = None
    document: Document | None = None
    seq: int = 0
    pending: Pending | None = None
    row: BlockRow | None = None
    author: str = ""
    is_changed: bool = False


class HotDocuments:
    """The open documents of one constellation, least recently used first.

    `on_settled(hot, committed)` is called after each unit of work that held a block, before the next one gets it.
    At most `hot_max` stay open besides those in use.
    """

    def __init__(self, hot_max: int, on_settled: Callable[[Hot, bool], None]) -> None:
        self._hot_max = hot_max
        self._on_settled = on_settled
        self._open: dict[str, Hot] = {}

    def __len__(self) -> int:
        return len(self._open)

    def find(self, block_id: str) -> Hot | None:
        """The block if it is open or waited for."""
        return self._open.get(block_id)

    def forget(self, owner: str) -> None:
        """Close the owner's blocks that are not in use."""
        for hot in [one for one in self._open.values() if one.owner == owner and one.users == 0]:
            del self._open[hot.block_id]

    async def hold(self, block_id: str, work: UnitOfWork) -> Hot:
        """Wait until nobody else has the block and keep it until `work` is settled.

        A unit of work that has it already gets it again at once.
        """
        hot = self._open.pop(block_id, None) or Hot(block_id=block_id)
        self._open[block_id] = hot  # now the most recently used
        if hot.holder is work:
            return hot
        hot.users += 1
        try:
            await hot.gate.acquire()
            hot.holder = work
        finally:
            if hot.holder is not work:
                hot.users -= 1
        work.when_settled(lambda committed: self._settled(hot, committed))
        self._evict()
        return hot

    def _settled(self, hot: Hot, committed: bool) -> None:
        self._on_settled(hot, committed)
        hot.holder, hot.row, hot.author, hot.is_changed = None, None, "", False
        hot.users -= 1
        hot.gate.release()
        self._evict()

    def _evict(self) -> None:
        surplus = len(self._open) - self._hot_max
        if surplus > 0:
            for block_id in [one.block_id for one in self._open.values() if one.users == 0][:surplus]:
                del self._open[block_id]
