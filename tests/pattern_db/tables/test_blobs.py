from __future__ import annotations

from collections.abc import Callable

import pytest

from pattern_db.connection import Connection, fetch_all
from pattern_db.errors import NotFound
from pattern_db.tables import blobs, messages
from pattern_db.tables.blobs import BlobRow
from pattern_db.tables.messages import MessageRow


def test_content_is_stored_once_under_its_digest(db: Connection, now: str) -> None:
    row = BlobRow(digest=b"\x01" * 32, size=3, data=b"abc", created_at=now)
    assert blobs.put(db, row)
    assert not blobs.put(db, BlobRow(digest=row.digest, size=3, data=b"xyz", created_at="2030-01-01T00:00:00.000Z"))
    assert blobs.get(db, row.digest) == row


def test_sizes_are_those_of_what_is_there(db: Connection, now: str) -> None:
    blobs.put(db, BlobRow(digest=b"\x01" * 32, size=9, data=b"abc", created_at=now, encoding="zstd"))
    assert blobs.sizes(db, [b"\x01" * 32, b"\x02" * 32]) == {b"\x01" * 32: 9}
    assert blobs.sizes(db, []) == {}


def test_what_is_not_there(db: Connection) -> None:
    with pytest.raises(NotFound, match="0202"):
        blobs.get(db, b"\x02" * 32)


def test_old_ones_by_age_without_their_bytes(db: Connection, now: str) -> None:
    for number, day in enumerate(("01", "02", "02", "03")):
        created_at = f"2026-01-{day}T00:00:00.000Z"
        blobs.put(db, BlobRow(digest=bytes([number]) * 32, size=40, data=b"x" * 40, created_at=created_at))
    blobs.put(db, BlobRow(digest=b"\x09" * 32, size=9, data=b"abc", created_at="2026-01-01", encoding="zstd"))
    border = "2026-01-03T00:00:00.000Z"
    found = blobs.older_than(db, border, 2)
    assert [(digest[0], head) for _, digest, head in found] == [(0, b"x" * 16), (1, b"x" * 16)]
    assert [digest[0] for _, digest, _ in blobs.older_than(db, border, 9, after=found[-1][:2])] == [2]
    plan = fetch_all(db, "EXPLAIN QUERY PLAN SELECT digest FROM blob WHERE created_at < '' ORDER BY created_at, digest")
    assert "COVERING INDEX blob_created" in str(plan)


def test_what_messages_show_is_found_by_rows_and_is_not_removed(db: Connection, say: Callable[..., MessageRow]) -> None:
    digests = [bytes([number]) * 32 for number in range(4)]
    for number, digest in enumerate(digests):
        blobs.put(db, BlobRow(digest=digest, size=3, data=b"abc", created_at="2026-01-01T00:00:00.000Z"))
        if number < 3:
            say(number, "see", parts=[{"type": "image", "media_type": "", "digest": digest.hex()}])
    say(7, "a call", parts=[{"type": "tool_call", "call_id": "c", "tool": "t", "arguments": {"digest": "x"}}])
    messages.tombstone(db, ["msg_" + f"{2:019d}"])
    assert blobs.newest_message_row(db) == 4
    assert blobs.shown_between(db, 0, 9) == {digest.hex() for digest in digests[:2]}
    assert blobs.shown_between(db, 1, 2) == {digests[1].hex()}
    assert blobs.remove_unused(db, digests, since=f"{1:019d}") == (3, 9)  # who asks has seen what is older
    assert blobs.sizes(db, digests) == {digests[1]: 3}
