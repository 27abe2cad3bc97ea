from __future__ import annotations

from collections.abc import Callable

from pattern_db.connection import Connection
from pattern_db.enums import DamagedPart, Encoding
from pattern_db.tables import block_checkpoints, block_damage, block_segments, block_updates
from pattern_db.tables.block_segments import Segment
from pattern_db.tables.memory_blocks import BlockRow


def test_what_is_newer_is_put_aside_and_the_rest_stays(
    db: Connection, make_block: Callable[..., BlockRow], now: str
) -> None:
    block = make_block("persona", snapshot=b"born").id
    for number in range(1, 4):
        block_updates.store_update(db, block, b"u%d" % number, None, now)
        if number < 3:
            block_checkpoints.consolidate_checkpoint(db, block, b"c%d" % number, None, number, now, Encoding.ZSTD)
            block_segments.add(
                db,
                Segment(
                    block_id=block,
                    first_seq=number,
                    last_seq=number,
                    created_at=now,
                    encoding=Encoding.RAW,
                    data=b"s%d" % number,
                ),
            )
    assert block_damage.put_aside(db, block, 1, now, "rot") == 3
    found = block_damage.of_block(db, block)
    assert [(one.part, one.seq, one.data, one.encoding) for one in found] == [
        (DamagedPart.CHECKPOINT, 2, b"c2", Encoding.ZSTD),
        (DamagedPart.UPDATE, 3, b"u3", Encoding.RAW),
        (DamagedPart.SEGMENT, 2, b"s2", Encoding.RAW),
    ]
    assert {(one.found_at, one.reason) for one in found} == {(now, "rot")}
    assert [stamp.up_to_seq for stamp in block_checkpoints.list_stamps(db, block)] == [1]
    assert [segment.data for segment in block_segments.of_block(db, block)] == [b"s1"]
    assert block_updates.get_updates_since(db, block, 0) == []


def test_what_a_block_was_created_with_counts_until_there_is_a_checkpoint(
    db: Connection, make_block: Callable[..., BlockRow], now: str
) -> None:
    block = make_block("persona", snapshot=b"born").id
    assert block_damage.put_aside(db, block, 0, now, "rot") == 0
    assert block_damage.put_aside(db, block, -1, now, "rot") == 1
    assert [(one.part, one.data) for one in block_damage.of_block(db, block)] == [(DamagedPart.CREATED, b"born")]
