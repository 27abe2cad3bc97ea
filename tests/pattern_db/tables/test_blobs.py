from __future__ import annotations

import pytest

from pattern_db.connection import Connection
from pattern_db.errors import NotFound
from pattern_db.tables import blobs
from pattern_db.tables.blobs import BlobRow


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
