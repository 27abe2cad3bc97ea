from __future__ import annotations

import pytest

from pattern_db.connection import Connection
from pattern_db.enums import IndexState, SearchKind
from pattern_db.tables import embedding_indexes, embedding_refusals
from pattern_db.tables.embedding_indexes import NewIndex
from pattern_db.tables.embedding_refusals import Refusal
from tests.pattern_core.embeddings import stage

NOTE, MESSAGE = SearchKind.ARCHIVAL, SearchKind.MESSAGE


@pytest.fixture
def db() -> Connection:
    return stage.connection()


def begun(db: Connection, state: IndexState, fingerprint: str) -> int:
    new = NewIndex(fingerprint=fingerprint, provider="p", model="m", dimension=4, created_at=stage.NOW)
    return embedding_indexes.begin(db, new, state).id


def test_they_are_counted_by_text_and_replaced_as_a_whole(db: Connection) -> None:
    index, other = begun(db, IndexState.ACTIVE, "f"), begun(db, IndexState.BUILDING, "g")
    embedding_refusals.replace(db, index, NOTE, "arc_1", scope="agt_ada", reasons={"h1": "long", "h2": "odd"})
    embedding_refusals.replace(db, index, MESSAGE, "msg_1", scope="agt_eve", reasons={"h1": "long"})
    embedding_refusals.replace(db, other, MESSAGE, "msg_1", scope="agt_eve", reasons={"h1": "other"})
    assert embedding_refusals.count(db, index) == 2
    assert embedding_refusals.hashes(db, index, NOTE, "arc_1") == {"h1", "h2"}
    assert embedding_refusals.some(db, index, 1) == [Refusal(NOTE, "arc_1", "long")]
    embedding_refusals.replace(db, index, NOTE, "arc_1", scope="agt_ada", reasons={})
    assert embedding_refusals.some(db, index, 9) == [Refusal(MESSAGE, "msg_1", "long")]
    embedding_refusals.forget_scope(db, "agt_ada")
    assert embedding_refusals.count(db, index) == 1
    embedding_refusals.forget_scope(db, "agt_eve")
    assert embedding_refusals.count(db, index) == embedding_refusals.count(db, other) == 0


def test_a_rebuild_and_the_end_of_an_index_forget_them(db: Connection) -> None:
    index, other = begun(db, IndexState.ACTIVE, "f"), begun(db, IndexState.BUILDING, "g")
    for each in (index, other):
        embedding_refusals.replace(db, each, NOTE, "arc_1", scope="agt_ada", reasons={"h1": "long"})
    embedding_indexes.rewind(db, index)
    assert [embedding_refusals.count(db, each) for each in (index, other)] == [0, 1]
    embedding_indexes.set_state(db, other, IndexState.RETIRED)
    assert embedding_refusals.count(db, other) == 0
    embedding_refusals.replace(db, index, NOTE, "arc_1", scope="agt_ada", reasons={"h1": "long"})
    embedding_refusals.forget(db, NOTE, "arc_1")
    assert embedding_refusals.count(db, index) == 0
