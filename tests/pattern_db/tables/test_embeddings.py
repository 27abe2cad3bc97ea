from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise

import pytest

from pattern_db import vectors
from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import IndexState, SearchKind
from pattern_db.tables import embedding_indexes, embeddings
from pattern_db.tables.embedding_indexes import EmbedderInfo, IndexRow
from pattern_db.tables.embedding_sources import EmbeddingSource
from pattern_db.tables.embeddings import Refusal
from tests.pattern_db import vector_rows
from tests.pattern_db.conftest import NOW
from tests.pattern_db.vector_rows import VectorRow

NOTE = EmbeddingSource(kind=SearchKind.ARCHIVAL, ref="arc_1", scope="agt_ada", text="")
MESSAGE = EmbeddingSource(kind=SearchKind.MESSAGE, ref="msg_1", scope="agt_eve", text="")
VECTOR = vectors.packed([1, 0, 0, 0])
ROW = VectorRow(kind=SearchKind.MESSAGE, ref="msg_1", scope="agt_ada", vector=VECTOR)


@pytest.fixture
def both(db: Connection, begin_index: Callable[..., IndexRow]) -> tuple[IndexRow, IndexRow]:
    """The active index and one that is being built."""
    begin_index(db, fingerprint="g", state=IndexState.BUILDING)
    active, building = embedding_indexes.live(db)
    return active, building


def refuse(db: Connection, index: IndexRow, source: EmbeddingSource, reasons: Mapping[str, str]) -> None:
    embeddings.replace(db, index, source, list(reasons), {}, refused=reasons, now=NOW)


def refused(db: Connection, index: IndexRow) -> int:
    return embedding_indexes.coverage(db, index).refused


def test_refusals_are_counted_by_text_and_replaced_as_a_whole(db: Connection, both: tuple[IndexRow, IndexRow]) -> None:
    index, other = both
    refuse(db, index, NOTE, {"h1": "long", "h2": "odd"})
    refuse(db, index, MESSAGE, {"h1": "long"})
    refuse(db, other, MESSAGE, {"h1": "other"})
    assert refused(db, index) == 2
    assert embeddings.refusals(db, index, 1) == [Refusal(SearchKind.ARCHIVAL, "arc_1", "long")]
    embeddings.replace(db, index, NOTE, [], {}, now=NOW)
    assert embeddings.refusals(db, index, 9) == [Refusal(SearchKind.MESSAGE, "msg_1", "long")]
    embeddings.delete_scope(db, "agt_ada")
    assert refused(db, index) == 1
    embeddings.delete_scope(db, "agt_eve")
    assert refused(db, index) == refused(db, other) == 0


def test_a_rebuild_and_the_end_of_an_index_forget_them(db: Connection, both: tuple[IndexRow, IndexRow]) -> None:
    index, other = both
    for each in both:
        refuse(db, each, NOTE, {"h1": "long"})
    embedding_indexes.rewind(db, index.id)
    assert [refused(db, each) for each in both] == [0, 1]
    embedding_indexes.retire(db, other.id)
    assert refused(db, other) == 0
    refuse(db, index, NOTE, {"h1": "long"})
    embeddings.delete(db, SearchKind.ARCHIVAL, "arc_1")
    assert refused(db, index) == 0


def test_a_text_is_current_with_vectors_or_refusals_of_all_its_pieces(
    db: Connection, both: tuple[IndexRow, IndexRow]
) -> None:
    index, other = both
    assert embeddings.is_current(db, index, NOTE, [])
    embeddings.replace(
        db, index, NOTE, ["h1", "h2", "h3"], {"h1": VECTOR, "h3": VECTOR}, refused={"h2": "odd"}, now=NOW
    )
    assert embeddings.is_current(db, index, NOTE, ["h1", "h2", "h3"])
    for hashes in (["h1", "h3"], ["h1", "h2"], ["h3", "h2", "h1"], ["h1", "h2", "h3", "h4"], []):
        assert not embeddings.is_current(db, index, NOTE, hashes)
    elsewhere = EmbeddingSource(kind=NOTE.kind, ref=NOTE.ref, scope="agt_eve", text="")
    assert not embeddings.is_current(db, index, elsewhere, ["h1", "h2", "h3"])
    assert not embeddings.is_current(db, other, NOTE, ["h1", "h2", "h3"])


def test_a_retired_index_is_removed_a_few_at_a_time(db: Connection) -> None:
    for number in range(6):
        vector_rows.insert(db, replace(ROW, ref=f"msg_{number}"))
    vector_rows.insert(db, replace(ROW, ref="msg_6"), replace(ROW, ref="msg_6", content_hash="h2"))
    vector_rows.insert(db, replace(ROW, ref="blk_1", kind=SearchKind.BLOCK))
    embedding_indexes.retire(db, 1)
    info = EmbedderInfo(fingerprint="g", provider="test", model="m", dimension=4)
    other = embedding_indexes.begin(db, info, IndexState.ACTIVE, NOW)
    vector_rows.replace(db, other, replace(ROW, ref="msg_1"))
    (retired,) = (index for index in embedding_indexes.kept(db) if index.id == 1)
    after: tuple[str, str] | None = ("", "")
    left = [9]
    while after is not None:
        after = embeddings.purge(db, retired, after, 3)
        left.append(fetch_all(db, "SELECT count(*) FROM embeddings WHERE index_id = 1")[0][0])
    assert left[-1] == 0
    assert all(before - now <= 3 for before, now in pairwise(left))
    assert embedding_indexes.kept(db) == [other]
    assert "message_embeddings" not in embedding_indexes.tables(db)
    assert [found.ref for found in vectors.nearest(db, SearchKind.MESSAGE, VECTOR, None, 9)] == ["msg_1"]
    assert embeddings.purge(db, other, ("", ""), 3) is None
    assert [found.ref for found in vectors.nearest(db, SearchKind.MESSAGE, VECTOR, None, 9)] == ["msg_1"]


def test_vectors_are_found_by_what_they_are_of(db: Connection, both: tuple[IndexRow, IndexRow]) -> None:
    index, other = both
    vector_rows.replace(db, index, ROW)
    assert embeddings.by_hash(db, index, ["h", "x"]) == {"h": VECTOR}
    assert embeddings.by_hash(db, other, ["h", "x"]) == {}
