from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import apsw
import pytest

from pattern_db import vectors
from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import IndexState, Role, SearchKind
from pattern_db.tables import embedding_indexes, embedding_sources, embeddings, memory_blocks, messages
from pattern_db.tables.embedding_indexes import Cursor, IndexRow
from pattern_db.tables.embedding_sources import EmbeddingSource, Said
from pattern_db.tables.embeddings import Refusal
from pattern_db.tables.messages import MessageRow
from tests.pattern_db import vector_rows
from tests.pattern_db.conftest import NOW, MakeBlock, Say, make_index, make_passage
from tests.pattern_db.vector_rows import VectorRow

MESSAGE = SearchKind.MESSAGE
NOTE = EmbeddingSource(kind=SearchKind.ARCHIVAL, ref="arc_1", scope="agt_ada", text="")
SAID = EmbeddingSource(kind=MESSAGE, ref="msg_1", scope="agt_eve", text="")
VECTOR = vectors.packed([1, 0, 0, 0])
ROW = VectorRow(kind=MESSAGE, ref="msg_1", scope="agt_ada", vector=VECTOR)


@pytest.fixture
def both(db: Connection) -> tuple[IndexRow, IndexRow]:
    """The active index and one that is being built."""
    make_index(db, fingerprint="g", state=IndexState.BUILDING)
    active, building = embedding_indexes.live(db)
    return active, building


def refuse(db: Connection, index: IndexRow, source: EmbeddingSource, reasons: Mapping[str, str]) -> None:
    embeddings.replace(db, index, source, list(reasons), {}, refused=reasons, now=NOW)


def refused(db: Connection, index: IndexRow) -> int:
    return embedding_indexes.coverage(db, index).refused


def test_refusals_are_counted_by_text_and_replaced_as_a_whole(db: Connection, both: tuple[IndexRow, IndexRow]) -> None:
    index, other = both
    refuse(db, index, NOTE, {"h1": "long", "h2": "odd"})
    refuse(db, index, SAID, {"h1": "long"})
    refuse(db, other, SAID, {"h1": "other"})
    assert refused(db, index) == 2
    assert embeddings.refusals(db, index, 1) == [Refusal(SearchKind.ARCHIVAL, "arc_1", "long")]
    embeddings.replace(db, index, NOTE, [], {}, now=NOW)
    assert embeddings.refusals(db, index, 9) == [Refusal(MESSAGE, "msg_1", "long")]
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
    stored = {"h1": VECTOR, "h3": VECTOR}
    embeddings.replace(db, index, NOTE, ["h1", "h2", "h3"], stored, refused={"h2": "odd"}, now=NOW)
    assert embeddings.is_current(db, index, NOTE, ["h1", "h2", "h3"])
    for hashes in (["h1", "h3"], ["h1", "h2"], ["h3", "h2", "h1"], ["h1", "h2", "h3", "h4"], []):
        assert not embeddings.is_current(db, index, NOTE, hashes)
    assert not embeddings.is_current(db, index, replace(NOTE, scope="agt_eve"), ["h1", "h2", "h3"])
    assert not embeddings.is_current(db, other, NOTE, ["h1", "h2", "h3"])


def test_a_retired_index_is_removed_a_few_at_a_time(db: Connection) -> None:
    for number in range(6):
        vector_rows.insert(db, replace(ROW, ref=f"msg_{number}"))
    # With two pieces, the second one beyond the first three rows.
    vector_rows.insert(db, replace(ROW, ref="msg_1"), replace(ROW, ref="msg_1", content_hash="h2"))
    vector_rows.insert(db, replace(ROW, ref="blk_1", kind=SearchKind.BLOCK))
    embedding_indexes.retire(db, 1)
    other = make_index(db, fingerprint="g")
    vector_rows.replace(db, other, replace(ROW, ref="msg_1"))
    (retired,) = (index for index in embedding_indexes.kept(db) if index.id == 1)
    after: tuple[str, str] | None = ("", "")
    left = [8]
    while after is not None:
        after = embeddings.purge(db, retired, after, 3)
        left.append(fetch_all(db, "SELECT count(*) FROM embeddings WHERE index_id = 1")[0][0])
    assert left[-1] == 0
    assert all(before - now <= 3 for before, now in pairwise(left))
    assert embedding_indexes.kept(db) == [other]
    assert "message_embeddings" not in embedding_indexes.tables(db)
    assert [found.ref for found in vectors.nearest(db, MESSAGE, VECTOR, None, 9)] == ["msg_1"]
    assert embeddings.purge(db, other, ("", ""), 3) is None
    assert [found.ref for found in vectors.nearest(db, MESSAGE, VECTOR, None, 9)] == ["msg_1"]


def test_one_is_active_and_one_is_built(db: Connection) -> None:
    active = embedding_indexes.active(db)
    assert active is not None
    assert (active.fingerprint, active.dimension, active.suffix, active.completed_at) == ("f", 4, "", None)
    building = make_index(db, fingerprint="g", state=IndexState.BUILDING)
    assert [index.fingerprint for index in embedding_indexes.live(db)] == ["f", "g"]
    with pytest.raises(apsw.ConstraintError):
        make_index(db, fingerprint="h", state=IndexState.BUILDING)
    embedding_indexes.retire(db, active.id)
    embedding_indexes.complete(db, building.id, NOW)
    embedding_indexes.complete(db, building.id, "2030-01-01T00:00:00.000Z")
    taken_over = embedding_indexes.active(db)
    assert taken_over is not None
    assert (taken_over.fingerprint, taken_over.completed_at) == ("g", NOW)


def test_a_retired_one_is_taken_up_again_where_it_was(db: Connection) -> None:
    embedding_indexes.retire(db, 1)
    assert embedding_indexes.cursors(db, 1) == {}
    other = make_index(db, fingerprint="g")
    assert other.suffix == "_2"
    back = make_index(db, state=IndexState.BUILDING)
    assert (back.id, back.suffix) == (1, "")
    embedding_indexes.retire(db, 1)
    assert [index.id for index in embedding_indexes.kept(db)] == [other.id, 1]
    embedding_indexes.drop_tables(db, back)
    assert embedding_indexes.kept(db) == [other]
    assert make_index(db, state=IndexState.BUILDING).suffix == ""


def test_cursors_begin_at_the_newest_and_move(db: Connection, say: Say) -> None:
    for number in range(3):
        say(number, "words")
    assert embedding_indexes.newest_rows(db)[MESSAGE] == 3
    embedding_indexes.rewind(db, 1)
    start = embedding_indexes.cursors(db, 1)[MESSAGE]
    assert (start.low, start.high) == (3, 3)
    further = Cursor(kind=MESSAGE, low=1, high=3)
    embedding_indexes.advance(db, 1, move=(start, further))
    # Begun before the first move: it no longer counts.
    embedding_indexes.advance(db, 1, move=(start, Cursor(kind=MESSAGE, low=0, high=3)))
    assert embedding_indexes.cursors(db, 1)[MESSAGE] == further


def test_changes_of_what_was_done_are_noted_and_nothing_else(db: Connection, say: Say) -> None:
    done = say(1, "words")
    embedding_indexes.rewind(db, 1)
    say(2, "new words are seen by the cursor")
    assert embedding_indexes.changes(db, 1, 9) == []
    db.execute("UPDATE messages SET is_archived = 1, content = content")
    assert embedding_indexes.changes(db, 1, 9) == []
    db.execute("UPDATE messages SET is_deleted = 1 WHERE id = ?", (done.id,))
    assert embedding_indexes.changes(db, 1, 9) == [(MESSAGE, done.id)]
    embedding_indexes.advance(db, 1, again=[(MESSAGE, done.id), (SearchKind.BLOCK, "blk_1")])
    assert len(embedding_indexes.changes(db, 1, 9)) == 2
    embedding_indexes.advance(db, 1, done=[(MESSAGE, done.id)])
    assert embedding_indexes.changes(db, 1, 9) == [(SearchKind.BLOCK, "blk_1")]


@pytest.mark.parametrize(
    ("dimension", "has_bits"), [(8, False), (56, False), (64, True), (65, False), (72, True), (384, True)]
)
def test_a_bit_per_number_needs_long_vectors(both: tuple[IndexRow, IndexRow], dimension: int, has_bits: bool) -> None:
    assert replace(both[0], dimension=dimension).has_bits is has_bits


def test_each_index_has_tables_of_its_own_dimension(db: Connection) -> None:
    index = make_index(db, dimension=384, fingerprint="g", state=IndexState.BUILDING)
    assert index.table(SearchKind.BLOCK) == "memory_embeddings_2"
    tables = {each.table(kind) for each in embedding_indexes.live(db) for kind in SearchKind}
    assert tables == embedding_indexes.tables(db)
    definitions = dict(fetch_all(db, "SELECT name, sql FROM sqlite_schema WHERE sql LIKE '%USING vec0%'"))
    assert "bit[384]" in definitions["memory_embeddings_2"]
    assert "float[4]" in definitions["memory_embeddings"]  # too short for bits
    [(before,)] = fetch_all(db, "PRAGMA page_count")
    vector_rows.replace(db, index, replace(ROW, vector=vectors.packed([1.0] * 384)))
    [(after,)] = fetch_all(db, "PRAGMA page_count")
    assert (after - before) * 2_048 < 20_000, "the first vector is cheap"


def before(db: Connection, message: MessageRow) -> Said | None:
    source = embedding_sources.get(db, MESSAGE, message.id)
    assert source is not None
    return source.previous


def test_a_message_and_what_was_said_before_it(db: Connection, say: Say) -> None:
    first = say(1, "one", source_metadata={"name": "Ruth"}, session_id="s")
    other = say(2, "elsewhere", session_id="t")
    say(3, "a result", role=Role.TOOL, session_id="s")
    second = say(4, "two", session_id="s")
    stranger = say(5, "bob's", agent="bob", session_id="s")
    third = say(6, "three", session_id="s")
    assert before(db, first) is before(db, other) is before(db, stranger) is None
    assert before(db, second) == Said(text="one", speaker="Ruth")
    assert embedding_sources.successor(db, first.id) == second.id
    assert before(db, third) == Said(text="two", speaker=None)
    assert embedding_sources.successor(db, third.id) is None
    messages.tombstone(db, [first.id])
    assert before(db, second) is None
    assert embedding_sources.successor(db, first.id) == second.id
    assert embedding_sources.successor(db, "msg_none") is None


def test_only_a_few_messages_before_are_looked_at(db: Connection, say: Say) -> None:
    say(1, "one")
    for number in range(embedding_sources.LOOKBACK):
        say(2 + number, "a result", role=Role.TOOL)
    assert before(db, say(50, "two")) is None


def test_what_has_no_words_of_its_own_is_none(db: Connection, say: Say) -> None:
    for row in (say(1, None), say(2, "a result", role=Role.TOOL)):
        assert embedding_sources.get(db, MESSAGE, row.id) is None
    for kind in SearchKind:
        assert embedding_sources.get(db, kind, "none") is None


def test_blocks_and_passages_have_titles(db: Connection, make_block: MakeBlock) -> None:
    block = make_block("notes", content_preview="words")
    found = embedding_sources.get(db, SearchKind.BLOCK, block.id)
    assert found is not None
    assert (found.title, found.text, found.scope) == ("notes", "words", "agt_ada")
    memory_blocks.deactivate(db, block.id, NOW)
    assert embedding_sources.get(db, SearchKind.BLOCK, block.id) is None
    make_passage(db, "1", "words", heading="Top")
    passage = embedding_sources.get(db, SearchKind.FILE, "psg_1")
    assert passage is not None
    assert (passage.title, passage.scope, passage.parent) == ("notes.md: Top", "fld_1", "file_1")


def test_rows_upwards_and_downwards(db: Connection, say: Say) -> None:
    ids = [say(number, "words").id for number in range(4)]
    assert embedding_sources.newer(db, MESSAGE, 2, 9) == [(3, ids[2]), (4, ids[3])]
    assert embedding_sources.older(db, MESSAGE, 3, 2) == [(3, ids[2]), (2, ids[1])]
