from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from pattern_db import vectors
from pattern_db.connection import Connection, fetch_all, open_in_memory
from pattern_db.enums import EMBEDDED, IndexState, SearchKind
from pattern_db.migrate import Migrations, migrations_of
from pattern_db.tables import embedding_indexes as indexes
from pattern_db.tables import embeddings
from pattern_db.tables.embedding_indexes import Cursor, IndexRow
from pattern_db.tables.messages import MessageRow
from tests.pattern_db import vector_rows
from tests.pattern_db.vector_rows import VectorRow

MESSAGE = SearchKind.MESSAGE


def test_one_is_active_and_one_is_built(db: Connection, begin_index: Callable[..., IndexRow], now: str) -> None:
    active = indexes.active(db)
    assert active is not None
    assert (active.fingerprint, active.dimension, active.suffix, active.completed_at) == ("f", 4, "", None)
    building = begin_index(db, fingerprint="g", state=IndexState.BUILDING)
    assert [index.fingerprint for index in indexes.live(db)] == ["f", "g"]
    with pytest.raises(apsw.ConstraintError):
        begin_index(db, fingerprint="h", state=IndexState.BUILDING)
    indexes.retire(db, active.id)
    indexes.complete(db, building.id, now)
    indexes.complete(db, building.id, "2030-01-01T00:00:00.000Z")
    taken_over = indexes.active(db)
    assert taken_over is not None
    assert (taken_over.fingerprint, taken_over.completed_at) == ("g", now)


def test_a_retired_one_is_taken_up_again_where_it_was(db: Connection, begin_index: Callable[..., IndexRow]) -> None:
    indexes.retire(db, 1)
    assert indexes.cursors(db, 1) == {}
    other = begin_index(db, fingerprint="g")
    assert other.suffix == "_2"
    back = begin_index(db, state=IndexState.BUILDING)
    assert (back.id, back.suffix) == (1, "")
    indexes.retire(db, 1)
    assert [index.id for index in indexes.kept(db)] == [other.id, 1]
    indexes.drop_tables(db, back)
    assert indexes.kept(db) == [other]
    assert begin_index(db, state=IndexState.BUILDING).suffix == ""


def test_cursors_begin_at_the_newest_and_move(db: Connection, say: Callable[..., MessageRow]) -> None:
    for number in range(3):
        say(number, "words")
    assert indexes.newest_rows(db)[MESSAGE] == 3
    indexes.rewind(db, 1)
    start = indexes.cursors(db, 1)[MESSAGE]
    assert (start.low, start.high) == (3, 3)
    further = Cursor(kind=MESSAGE, low=1, high=3)
    indexes.advance(db, 1, move=(start, further))
    # Begun before the first move: it no longer counts.
    indexes.advance(db, 1, move=(start, Cursor(kind=MESSAGE, low=0, high=3)))
    assert indexes.cursors(db, 1)[MESSAGE] == further


def test_changes_of_what_was_done_are_noted_and_nothing_else(db: Connection, say: Callable[..., MessageRow]) -> None:
    done = say(1, "words")
    indexes.rewind(db, 1)
    say(2, "new words are seen by the cursor")
    assert indexes.changes(db, 1, 9) == []
    db.execute("UPDATE messages SET is_archived = 1, content = content")
    assert indexes.changes(db, 1, 9) == []
    db.execute("UPDATE messages SET is_deleted = 1 WHERE id = ?", (done.id,))
    assert indexes.changes(db, 1, 9) == [(MESSAGE, done.id)]
    indexes.advance(db, 1, again=[(MESSAGE, done.id), (SearchKind.BLOCK, "blk_1")])
    assert len(indexes.changes(db, 1, 9)) == 2
    indexes.advance(db, 1, done=[(MESSAGE, done.id)])
    assert indexes.changes(db, 1, 9) == [(SearchKind.BLOCK, "blk_1")]


def test_vectors_of_before_the_indexes_are_kept_and_not_compared(tmp_path: Path, now: str) -> None:
    shipped = migrations_of("constellation").all
    for migration in shipped[:14]:
        (tmp_path / migration.file).write_text(migration.sql)
    connection = open_in_memory()
    Migrations(tmp_path).apply(connection, now=now)
    connection.execute("CREATE VIRTUAL TABLE message_embeddings USING vec0(embedding float[4])")
    for model, length in (("small", 4), ("large", 8)):
        connection.execute(
            "INSERT INTO embeddings (kind, ref, scope, content_hash, model, dimension, created_at, vector)"
            " VALUES ('message', ?1, 'agt_ada', 'h', ?1, ?2, ?3, zeroblob(4 * ?2))",
            (model, length, now),
        )
    (tmp_path / shipped[14].file).write_text(shipped[14].sql)
    Migrations(tmp_path).apply(connection, now=now)
    retired = indexes.kept(connection)
    assert [(index.model, index.dimension) for index in retired] == [("large", 8), ("small", 4)]
    assert fetch_all(connection, "SELECT ref, dimension FROM embeddings ORDER BY ref") == [("large", 8), ("small", 4)]
    assert indexes.active(connection) is None
    assert fetch_all(connection, "SELECT 1 FROM sqlite_schema WHERE sql LIKE '%USING vec0%'") == []
    connection.close()


def put(db: Connection, index: IndexRow, ref: str) -> None:
    vector = vectors.packed([1.0] * index.dimension)
    vector_rows.replace(db, index, VectorRow(kind=SearchKind.BLOCK, ref=ref, scope="agt_ada", vector=vector))


def test_each_index_has_tables_of_its_own_dimension(db: Connection, begin_index: Callable[..., IndexRow]) -> None:
    index = begin_index(db, dimension=384, fingerprint="g", state=IndexState.BUILDING)
    assert index.table(SearchKind.BLOCK) == "memory_embeddings_2"
    assert {each.table(kind) for each in indexes.live(db) for kind in EMBEDDED} == indexes.tables(db)
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
    db.execute("DROP TABLE memory_embeddings_2")
    embeddings.delete(db, SearchKind.BLOCK, "blk_0")
    indexes.ensure_tables(db)
    assert fetch_all(db, "SELECT block_id, agent_id FROM memory_embeddings_2 ORDER BY 1") == [
        ("blk_1", "agt_ada"),
        ("blk_2", "agt_ada"),
    ]
    db.execute("DELETE FROM memory_embeddings_2")
    indexes.rebuild_tables(db)
    assert fetch_all(db, "SELECT count(*) FROM memory_embeddings_2") == [(2,)]
