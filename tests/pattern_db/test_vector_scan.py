from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from pattern_db import vector_scan, vectors
from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import IndexState, SearchKind
from pattern_db.tables import embedding_indexes
from pattern_db.tables.embedding_indexes import IndexRow
from pattern_db.vectors import Embedding

ROWS = 400
TABLE = "message_embeddings_2"


@pytest.fixture
def rows(db: Connection, begin_index: Callable[..., IndexRow]) -> list[bytes]:
    """Vectors of 72 numbers (no whole number of words), ids 1 to `ROWS`, by turns of two agents."""
    embedding_indexes.set_state(db, 1, IndexState.RETIRED)
    begin_index(db, dimension=72, fingerprint="wide")
    chance = random.Random(1)
    made = [vectors.packed([chance.gauss(0, 1) for _ in range(72)]) for _ in range(ROWS)]
    with db:
        for number, vector in enumerate(made):
            row = Embedding(
                kind=SearchKind.MESSAGE,
                ref=f"msg_{number}",
                scope=f"agt_{number % 2}",
                vector=vector,
                content_hash="h",
                created_at="2026-11-21T22:24:40.123Z",
            )
            vectors.insert(db, replace(row, ref=f"msg_{number}"))
    return made


def read(db: Connection, scopes: list[str] | None = None) -> vector_scan.Codes:
    return vector_scan.read(db, TABLE, 72, scopes)


def test_the_codes_are_read_as_vec0_means_them(db: Connection, rows: list[bytes]) -> None:
    codes = read(db)
    assert len(codes) == ROWS
    assert codes.newest == ROWS
    for query in rows[:5]:
        differing = dict(
            fetch_all(
                db,
                f"SELECT rowid, distance FROM {TABLE} WHERE embedding MATCH vec_quantize_binary(?) AND k = {ROWS}",
                (query,),
            )
        )
        found = codes.compare(query, None)
        assert len(found) == ROWS == len(differing)
        assert dict(zip(found._ids.tolist(), found._differing.tolist(), strict=True)) == differing


def test_only_the_asked_owners_are_compared(db: Connection, rows: list[bytes]) -> None:
    for codes in (read(db), read(db, ["agt_1", "agt_none"])):
        odd = codes.compare(rows[0], ["agt_1", "agt_none"])
        assert len(odd) == codes.count(["agt_1", "agt_none"]) == ROWS // 2
        assert odd.best(ROWS) == list(range(2, ROWS + 1, 2))
        assert all(number % 2 == 0 for number in odd.best(7))
        assert codes.compare(rows[0], []).best(5) == []
    assert len(read(db, ["agt_1"])) == ROWS // 2
    assert len(read(db, [])) == 0
    assert read(db, []).newest == 0


def test_the_vector_itself_is_always_among_the_best(db: Connection, rows: list[bytes]) -> None:
    codes = read(db)
    for number, query in enumerate(rows[:20]):
        found = codes.compare(query, None).best(3)
        assert number + 1 in found
        assert len(found) == 3
        assert found == sorted(found)


def test_what_is_removed_is_no_candidate(db: Connection, rows: list[bytes]) -> None:
    before = read(db)
    vectors.delete(db, SearchKind.MESSAGE, "msg_0")
    before.forget([1])
    before.forget([1])
    for codes in (read(db), before):
        assert len(codes) == codes.count(None) == ROWS - 1
        assert 1 not in codes.compare(rows[0], None).best(ROWS)
        assert 1 not in codes.compare(rows[0], None).best(3)


def test_what_is_added_is_as_if_it_had_been_read(db: Connection, rows: list[bytes]) -> None:
    codes = read(db, ["agt_1"])
    more = fetch_all(db, "SELECT id, scope, vec_quantize_binary(vector) FROM embeddings WHERE scope = 'agt_0'")
    added = [(ROWS + row[0], row[1], row[2]) for row in more]
    size = codes.size
    codes.add(added)
    codes.add([])
    assert len(codes) == ROWS
    assert codes.size == 2 * size
    assert codes.count(["agt_0"]) == ROWS // 2
    assert ROWS + 1 in codes.compare(rows[0], None).best(1)


def test_how_many_bytes_it_will_be_is_told_before(db: Connection, rows: list[bytes]) -> None:
    told = vector_scan.size_of(db, TABLE, 72)
    assert read(db).size <= told <= 2 * read(db).size
