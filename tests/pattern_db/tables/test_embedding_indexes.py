from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from pattern_db.connection import Connection, fetch_all, open_in_memory
from pattern_db.enums import IndexState, SearchKind
from pattern_db.errors import NotFound
from pattern_db.migrate import Migrations, migrations_of
from pattern_db.tables import embedding_indexes as indexes
from pattern_db.tables.embedding_indexes import Cursor, IndexRow
from pattern_db.tables.messages import MessageRow

MESSAGE = SearchKind.MESSAGE


def test_one_is_active_and_one_is_built(db: Connection, begin_index: Callable[..., IndexRow], now: str) -> None:
    active = indexes.active(db)
    assert active is not None
    assert (active.fingerprint, active.dimension, active.suffix, active.completed_at) == ("f", 4, "", None)
    building = begin_index(db, fingerprint="g", state=IndexState.BUILDING)
    assert [index.fingerprint for index in indexes.live(db)] == ["f", "g"]
    with pytest.raises(apsw.ConstraintError):
        begin_index(db, fingerprint="h", state=IndexState.BUILDING)
    indexes.set_completed(db, building.id, now)
    indexes.set_completed(db, building.id, "2030-01-01T00:00:00.000Z")
    assert indexes.find(db, building.id).completed_at == now
    with pytest.raises(NotFound):
        indexes.find(db, 99)


def test_a_retired_one_is_taken_up_again_where_it_was(db: Connection, begin_index: Callable[..., IndexRow]) -> None:
    indexes.set_state(db, 1, IndexState.RETIRED)
    assert indexes.cursors(db, 1) == {}
    other = begin_index(db, fingerprint="g")
    assert other.suffix == "_2"
    back = begin_index(db, state=IndexState.BUILDING)
    assert (back.id, back.suffix) == (1, "")
    indexes.set_state(db, 1, IndexState.RETIRED)
    assert [index.id for index in indexes.in_state(db, IndexState.RETIRED)] == [1]
    indexes.set_empty(db, 1)
    assert indexes.in_state(db, IndexState.RETIRED) == []
    assert begin_index(db, state=IndexState.BUILDING).suffix == ""
    assert indexes.by_fingerprint(db, "f", 5) is None


def test_cursors_begin_at_the_newest_and_move(db: Connection, say: Callable[..., MessageRow]) -> None:
    for number in range(3):
        say(number, "words")
    assert indexes.newest_rows(db)[MESSAGE] == 3
    indexes.rewind(db, 1)
    start = indexes.cursors(db, 1)[MESSAGE]
    assert (start.low, start.high) == (3, 3)
    further = Cursor(kind=MESSAGE, low=1, high=3)
    indexes.move(db, 1, start, further)
    indexes.move(db, 1, start, Cursor(kind=MESSAGE, low=0, high=3))  # begun before the first move: it no longer counts
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
    indexes.note_changes(db, 1, [(MESSAGE, done.id), (SearchKind.BLOCK, "blk_1")])
    assert indexes.count_changes(db, 1) == 2
    indexes.forget_changes(db, 1, [(MESSAGE, done.id)])
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
    retired = indexes.in_state(connection, IndexState.RETIRED)
    assert [(index.model, index.dimension) for index in retired] == [("large", 8), ("small", 4)]
    assert fetch_all(connection, "SELECT ref, dimension FROM embeddings ORDER BY ref") == [("large", 8), ("small", 4)]
    assert indexes.active(connection) is None
    assert fetch_all(connection, "SELECT 1 FROM sqlite_schema WHERE sql LIKE '%USING vec0%'") == []
    connection.close()
