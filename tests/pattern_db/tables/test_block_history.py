from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import apsw
import pytest

from pattern_db.connection import Connection
from pattern_db.enums import HistoryKind
from pattern_db.tables import block_checkpoints, block_history, block_updates
from pattern_db.tables.block_history import HistoryRow
from pattern_db.tables.memory_blocks import BlockRow


def test_lines_are_newest_first_and_outlive_their_updates(
    db: Connection, make_block: Callable[..., BlockRow], now: str
) -> None:
    block = make_block("persona").id
    rows = [
        HistoryRow(
            block_id=block,
            seq=block_updates.store_update(db, block, b"x", None, now),
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
    block_checkpoints.consolidate_checkpoint(db, block, b"s", None, 3, now)
    assert block_history.recent(db, block, 2) == [
        replace(rows[2], stack="agent:agt_ada"),
        replace(rows[1], stack="agent:agt_ada"),
    ]
    assert [row.seq for row in block_history.recent(db, block, 9, before=3)] == [2, 1]
    assert [row.seq for row in block_history.between(db, block, 0, 3, limit=2)] == [2, 3]


def test_no_line_for_a_missing_block(db: Connection, now: str) -> None:
    with pytest.raises(apsw.ConstraintError):
        block_history.append(db, HistoryRow(block_id="blk_none", frontiers=[], changed_by="user", timestamp=now))


def line(block: str, seq: int, now: str, **columns: object) -> HistoryRow:
    return HistoryRow(block_id=block, seq=seq, frontiers=None, changed_by="user:1", timestamp=now, **columns)  # type: ignore[arg-type]  # columns as the test names them


def test_an_undo_marks_what_it_takes_back_and_a_redo_unmarks_it(
    db: Connection, make_block: Callable[..., BlockRow], now: str
) -> None:
    block = make_block("persona").id

    def undone() -> list[int | None]:
        return [row.seq for row in block_history.between(db, block, 0, 9, limit=9) if row.is_undone]

    block_history.append(db, line(block, 1, now))
    block_history.append(db, line(block, 2, now, kind=HistoryKind.UNDO, reverts=1))
    assert undone() == [1]
    block_history.append(db, line(block, 3, now, kind=HistoryKind.REDO, reverts=2))
    assert undone() == [2]
    with pytest.raises(apsw.ConstraintError):
        block_history.append(db, line(block, 3, now))


def test_changes_come_in_either_order_and_versions_one_by_one(
    db: Connection, make_block: Callable[..., BlockRow], now: str
) -> None:
    block = make_block("persona").id
    for seq, change in ((1, b"a"), (2, None), (3, b"c")):
        block_history.append(db, line(block, seq, now, change=change))
    assert list(block_history.changes(db, block, 0, 2)) == [(1, b"a"), (2, None)]
    assert list(block_history.changes(db, block, 1, 3, newest_first=True)) == [(3, b"c"), (2, None)]
    found = block_history.get(db, block, 3)
    assert found is not None
    assert (found.change, found.stack) == (b"c", "user:1")
    assert block_history.get(db, block, 4) is None
