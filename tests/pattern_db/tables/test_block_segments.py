from __future__ import annotations

from collections.abc import Callable

from pattern_db.connection import Connection
from pattern_db.enums import Encoding
from pattern_db.tables import block_segments
from pattern_db.tables.block_segments import Segment
from pattern_db.tables.memory_blocks import BlockRow


def segment(block: str, first: int, last: int, now: str) -> Segment:
    data = b"%d-%d" % (first, last)
    return Segment(block_id=block, first_seq=first, last_seq=last, created_at=now, encoding=Encoding.RAW, data=data)


def test_segments_follow_one_another_and_a_wider_one_takes_their_place(
    db: Connection, make_block: Callable[..., BlockRow], now: str
) -> None:
    block = make_block("persona").id
    one, two, three = segment(block, 0, 3, now), segment(block, 4, 5, now), segment(block, 6, 9, now)
    for part in (one, two, three):
        block_segments.add(db, part)
    assert block_segments.of_block(db, block) == [one, two, three]
    block_segments.add(db, again := segment(block, 4, 8, now))
    assert block_segments.of_block(db, block) == [one, again]
    block_segments.add(db, whole := segment(block, 0, 9, now))
    assert block_segments.of_block(db, block) == [whole]
    db.execute("DELETE FROM memory_blocks")
    assert block_segments.of_block(db, block) == []
