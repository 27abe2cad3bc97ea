from __future__ import annotations

import pytest

from pattern_db.connection import Connection
from pattern_db.errors import Conflict
from pattern_db.tables import meta


def test_put_replaces(db: Connection) -> None:
    assert meta.get(db, "colour") is None
    meta.put(db, "colour", "red")
    meta.put(db, "colour", "blue")
    assert meta.get(db, "colour") == "blue"


def test_a_file_is_named_once(db: Connection, now: str) -> None:
    meta.initialise(db, "cst_1", now)
    meta.initialise(db, "cst_1", "2027-01-01T00:00:00.000Z")
    assert (meta.get(db, meta.CONSTELLATION_ID), meta.get(db, meta.CREATED_AT)) == ("cst_1", now)
    with pytest.raises(Conflict, match="cst_1"):
        meta.initialise(db, "cst_2", now)
    meta.adopt(db, "cst_2")
    meta.initialise(db, "cst_2", now)


def test_epochs_rise(db: Connection) -> None:
    assert meta.get(db, meta.EPOCH) == "0"
    assert [meta.next_epoch(db) for _ in range(12)] == list(range(1, 13))
    assert meta.get(db, meta.EPOCH) == "12"
