from __future__ import annotations

from dataclasses import replace

import pytest

from pattern_db import vectors
from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import SearchKind
from pattern_db.vectors import Embedding

ROW = Embedding(
    kind=SearchKind.MESSAGE,
    ref="msg_123",
    scope="agt_ada",
    vector=vectors.packed([1, 0, 0, 0]),
    content_hash="h",
    model="m",
    created_at="2026-11-21T22:24:40.123Z",
)
QUERY = vectors.packed([1, 0, 0, 0])


def put(db: Connection, ref: str, *numbers: float, **columns: object) -> None:
    vectors.insert(db, replace(ROW, ref=ref, vector=vectors.packed(numbers), **columns))  # type: ignore[arg-type]  # columns as the test names them


def refs(found: list[vectors.Neighbour]) -> list[str]:
    return [neighbour.ref for neighbour in found]


def test_the_nearest_come_first(db: Connection) -> None:
    put(db, "msg_123", 1, 0, 0, 0)
    put(db, "msg_456", 0.9, 0.1, 0, 0)
    put(db, "msg_789", 0, 0, 0, 5)
    put(db, "blk_1", 0, 0, 1, 0, kind=SearchKind.BLOCK)
    found = vectors.nearest(db, SearchKind.MESSAGE, QUERY, ["agt_ada"], 3)
    assert refs(found) == ["msg_123", "msg_456", "msg_789"]
    assert found[0].distance < 0.01
    assert found[2].distance == pytest.approx(1)
    assert refs(vectors.nearest(db, SearchKind.BLOCK, QUERY, ["agt_ada"], 3)) == ["blk_1"]
    assert vectors.counts(db) == {
        SearchKind.MESSAGE: 3,
        SearchKind.BLOCK: 1,
        SearchKind.ARCHIVAL: 0,
        SearchKind.FILE: 0,
    }


def test_another_agents_equal_vector_does_not_take_the_place(db: Connection) -> None:
    put(db, "msg_1", 1, 0, 0, 0, scope="agt_ada")
    put(db, "msg_2", 1, 0, 0, 0, scope="agt_bob")
    assert refs(vectors.nearest(db, SearchKind.MESSAGE, QUERY, ["agt_bob"], 1)) == ["msg_2"]
    assert refs(vectors.nearest(db, SearchKind.MESSAGE, QUERY, ["agt_ada"], 9)) == ["msg_1"]
    assert len(vectors.nearest(db, SearchKind.MESSAGE, QUERY, ["agt_ada", "agt_bob", "agt_ada"], 9)) == 2
    assert vectors.nearest(db, SearchKind.MESSAGE, QUERY, [], 9) == []


def test_narrowed_before_the_limit_counts(db: Connection) -> None:
    for number in range(20):
        put(db, f"msg_{number}", 1, number / 100, 0, 0)
    among = ["msg_7", "msg_3", "msg_none"]
    assert refs(vectors.nearest(db, SearchKind.MESSAGE, QUERY, ["agt_ada"], 1, among=among)) == ["msg_3"]
    assert refs(vectors.nearest(db, SearchKind.MESSAGE, QUERY, ["agt_ada"], 9, among=among)) == ["msg_3", "msg_7"]
    assert vectors.nearest(db, SearchKind.MESSAGE, QUERY, ["agt_ada"], 9, among=[]) == []


def test_the_same_chunk_is_replaced(db: Connection) -> None:
    put(db, "blk_1", 1, 0, 0, 0, kind=SearchKind.BLOCK)
    put(db, "blk_1", 0, 1, 0, 0, kind=SearchKind.BLOCK, content_hash="h2")
    put(db, "blk_1", 0, 0, 1, 0, kind=SearchKind.BLOCK, chunk_index=1)
    found = vectors.nearest(db, SearchKind.BLOCK, vectors.packed([0, 1, 0, 0]), ["agt_ada"], 9)
    assert [(item.chunk_index, round(item.distance, 3)) for item in found] == [(0, 0.0), (1, 1.0)]
    assert vectors.is_current(db, SearchKind.BLOCK, "blk_1", "h2", "m")
    assert not vectors.is_current(db, SearchKind.BLOCK, "blk_1", "h2", "another model")
    rows = fetch_all(db, "SELECT block_id, chunk_index, content_hash, agent_id FROM memory_embeddings ORDER BY 2")
    assert rows == [("blk_1", 0, "h2", "agt_ada"), ("blk_1", 1, "h", "agt_ada")]


def test_delete_by_ref_chunk_and_scope(db: Connection) -> None:
    put(db, "blk_1", 1, 0, 0, 0, kind=SearchKind.BLOCK)
    put(db, "blk_1", 1, 0, 0, 0, kind=SearchKind.BLOCK, chunk_index=1)
    assert vectors.delete(db, SearchKind.BLOCK, "blk_1", chunk_index=1) == 1
    assert vectors.delete(db, SearchKind.BLOCK, "blk_1") == 1
    assert vectors.delete(db, SearchKind.BLOCK, "blk_1") == 0
    put(db, "msg_1", 1, 0, 0, 0)
    put(db, "arc_1", 1, 0, 0, 0, kind=SearchKind.ARCHIVAL)
    put(db, "msg_2", 1, 0, 0, 0, scope="agt_bob")
    assert vectors.delete_scope(db, "agt_ada") == 2
    assert refs(vectors.nearest(db, SearchKind.MESSAGE, QUERY, ["agt_ada", "agt_bob"], 9)) == ["msg_2"]


def test_passages_are_found_by_their_folder(db: Connection) -> None:
    put(db, "psg_1", 1, 0, 0, 0, kind=SearchKind.FILE, scope="fld_1", parent="fil_1")
    assert refs(vectors.nearest(db, SearchKind.FILE, QUERY, ["fld_1"], 9)) == ["psg_1"]
    rows = fetch_all(db, "SELECT passage_id, file_id, folder_id FROM file_passage_embeddings")
    assert rows == [("psg_1", "fil_1", "fld_1")]


def test_the_derived_tables_can_be_lost(db: Connection) -> None:
    put(db, "msg_1", 1, 0, 0, 0)
    before = vectors.nearest(db, SearchKind.MESSAGE, QUERY, ["agt_ada"], 9)
    db.execute("DROP TABLE message_embeddings")
    vectors.ensure(db, 4)
    assert vectors.nearest(db, SearchKind.MESSAGE, QUERY, ["agt_ada"], 9) == before
    db.execute("DELETE FROM message_embeddings")
    assert vectors.rebuild(db, [SearchKind.MESSAGE]) == 1
    assert vectors.nearest(db, SearchKind.MESSAGE, QUERY, ["agt_ada"], 9) == before


def test_many_vectors_get_larger_chunks(db: Connection) -> None:
    with db:
        for number in range(vectors.LARGE_FROM_ROWS):
            put(db, f"msg_{number}", 1, number, 0, 0)
    vectors.rebuild(db)
    definitions = dict(fetch_all(db, "SELECT name, sql FROM sqlite_schema WHERE name LIKE '%embeddings'"))
    assert "chunk_size=256" in definitions["message_embeddings"]
    assert "chunk_size=16" in definitions["memory_embeddings"]
    assert refs(vectors.nearest(db, SearchKind.MESSAGE, QUERY, ["agt_ada"], 1)) == ["msg_0"]


def test_another_dimension_begins_anew_and_forgets_nothing(db: Connection) -> None:
    put(db, "msg_1", 1, 0, 0, 0)
    vectors.ensure(db, 2)
    assert vectors.dimension_of(db) == 2
    assert vectors.nearest(db, SearchKind.MESSAGE, vectors.packed([1, 0]), ["agt_ada"], 9) == []
    with pytest.raises(ValueError, match="4 numbers"):
        vectors.nearest(db, SearchKind.MESSAGE, QUERY, ["agt_ada"], 9)
    with pytest.raises(ValueError, match="4 numbers"):
        vectors.insert(db, ROW)
    vectors.ensure(db, 4)
    assert refs(vectors.nearest(db, SearchKind.MESSAGE, QUERY, ["agt_ada"], 9)) == ["msg_1"]


def test_nothing_works_before_a_dimension_is_configured(db: Connection) -> None:
    db.execute("DELETE FROM meta WHERE key = 'embedding_dimension'")
    for act in (lambda: vectors.insert(db, ROW), lambda: vectors.rebuild(db)):
        with pytest.raises(ValueError, match="configured"):
            act()
