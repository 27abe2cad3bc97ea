from __future__ import annotations

from collections.abc import Callable

import apsw
import pytest

from pattern_db.connection import Connection
from pattern_db.tables import block_history, memory_blocks
from pattern_db.tables.block_history import HistoryRow
from pattern_db.tables.memory_blocks import BlockRow


def test_lines_are_newest_first_and_outlive_their_updates(
    db: Connection, make_block: Callable[..., BlockRow], now: str
) -> None:
    block = make_block("persona").id
    rows = [
        HistoryRow(
            block_id=block,
            seq=memory_blocks.store_update(db, block, b"x", None, now),
            frontiers=[{"peer": "1", "counter": number}],
            change_summary=f"change {number}",
            changed_by="agent:agt_ada",
            cause={"message": "msg_1"},
            timestamp=now,
        )
        for number in range(3)
    ]
    for row in rows:
        block_history.append(db, row)
    memory_blocks.consolidate_checkpoint(db, block, b"s", None, 3, now)
    assert block_history.recent(db, block, 2) == [rows[2], rows[1]]


def test_no_line_for_a_missing_block(db: Connection, now: str) -> None:
    with pytest.raises(apsw.ConstraintError):
        block_history.append(db, HistoryRow(block_id="blk_none", frontiers=[], changed_by="user", timestamp=now))
