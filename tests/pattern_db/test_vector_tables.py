from __future__ import annotations

from collections.abc import Callable

from pattern_db import vector_tables, vectors
from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import IndexState, SearchKind
from pattern_db.tables.embedding_indexes import IndexRow
from pattern_db.vectors import Embedding


def put(db: Connection, index: IndexRow, ref: str) -> None:
    row = Embedding(
        kind=SearchKind.BLOCK,
        ref=ref,
        scope="agt_ada",
        vector=vectors.packed([1.0] * index.dimension),
        content_hash="h",
        created_at="2026-11-21T22:24:40.123Z",
    )
    vectors.replace(db, index, SearchKind.BLOCK, ref, [row])


def test_each_index_has_tables_of_its_own_dimension(db: Connection, begin_index: Callable[..., IndexRow]) -> None:
    index = begin_index(db, dimension=384, fingerprint="g", state=IndexState.BUILDING)
    assert vector_tables.name(index, SearchKind.BLOCK) == "memory_embeddings_2"
    assert set(vector_tables.TABLES.values()) <= vector_tables.existing(db)
    definitions = dict(fetch_all(db, "SELECT name, sql FROM sqlite_schema WHERE sql LIKE '%USING vec0%'"))
    assert "bit[384]" in definitions["memory_embeddings_2"]
    assert "float[4]" in definitions["memory_embeddings"]  # too short for bits


def test_the_first_vector_is_cheap(db: Connection, begin_index: Callable[..., IndexRow]) -> None:
    index = begin_index(db, dimension=384, fingerprint="g", state=IndexState.BUILDING)
    (before,) = fetch_all(db, "PRAGMA page_count")
    put(db, index, "blk_1")
    (after,) = fetch_all(db, "PRAGMA page_count")
    assert (after[0] - before[0]) * 2_048 < 20_000


def test_lost_tables_are_made_again_from_the_vectors(db: Connection, begin_index: Callable[..., IndexRow]) -> None:
    index = begin_index(db, dimension=384, fingerprint="g", state=IndexState.BUILDING)
    for number in range(3):
        put(db, index, f"blk_{number}")
    vector_tables.drop(db, index)
    vector_tables.drop(db, index)
    vectors.delete(db, SearchKind.BLOCK, "blk_0")
    vector_tables.ensure(db)
    assert fetch_all(db, "SELECT block_id, agent_id FROM memory_embeddings_2 ORDER BY 1") == [
        ("blk_1", "agt_ada"),
        ("blk_2", "agt_ada"),
    ]
    db.execute("DELETE FROM memory_embeddings_2")
    assert vector_tables.rebuild(db) == 2
