from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import pytest

from pattern_db import vectors
from pattern_db.connection import Connection, fetch_all, transaction
from pattern_db.enums import IndexState, SearchKind
from pattern_db.tables import embedding_indexes, embeddings
from pattern_db.vectors import SqlCondition
from tests.pattern_db import vector_rows
from tests.pattern_db.conftest import Say, make_index
from tests.pattern_db.vector_rows import VectorRow

QUERY = vectors.packed([1, 0, 0, 0])
ROW = VectorRow(kind=SearchKind.MESSAGE, ref="msg_123", scope="agt_ada", vector=QUERY)


def row(ref: str, *numbers: float, **columns: object) -> VectorRow:
    return replace(ROW, ref=ref, vector=vectors.packed(numbers), **columns)  # type: ignore[arg-type]  # columns as the test names them


def put(db: Connection, ref: str, *numbers: float, **columns: object) -> None:
    vector_rows.insert(db, row(ref, *numbers, **columns))


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


def test_the_farthest_of_some_texts_says_what_has_nothing_to_do_with_a_query(db: Connection) -> None:
    assert vectors.farthest(db, QUERY, 24) == 0.0
    angles = [math.pi * number / 48 for number in range(48)]
    for number, angle in enumerate(angles):
        put(db, f"msg_{number}", math.cos(angle), math.sin(angle), 0, 0)
    looked_at = [math.cos(angles[47 * number // 24]) for number in range(24)]
    assert vectors.farthest(db, QUERY, 24) == pytest.approx(min(looked_at))
    assert vectors.farthest(db, vectors.packed([1, 0]), 24) == 0.0
    embeddings.delete_scope(db, "agt_ada")
    put(db, "msg_1", -1, 0, 0, 0)
    assert vectors.farthest(db, QUERY, 24) == pytest.approx(-1 / 24)


def test_messages_are_compared_by_their_row(db: Connection, say: Say) -> None:
    for number in (1, 2, 3):
        say(number, "words")
    [(one, first), (_, second), (three, third)] = fetch_all(db, "SELECT id, row FROM messages ORDER BY row")
    put(db, one, 0, 1, 0, 0)
    put(db, three, 1, 0, 0, 0)
    found = vectors.of_messages(db, QUERY, [first, second, third])
    cosines = {row: cosine for row, (cosine, _codes) in found.items()}
    assert cosines == {first: pytest.approx(0), third: pytest.approx(1)}
    db.execute("UPDATE embeddings SET codes = x'0102' WHERE ref = ?", (one,))
    assert [codes for _cosine, codes in vectors.of_messages(db, QUERY, [first, third]).values()] == [b"\1\2", b""]
    assert vectors.of_messages(db, vectors.packed([1, 0]), [first, third]) == {}


def test_words_are_alike_by_their_codes() -> None:
    same, near, far = (bits.to_bytes(8, "little") for bits in (0b1111, 0b1110, 2**64 - 16))
    codes = {1: far + near, 2: same, 3: b"", 4: far}
    found = vectors.alike(codes, same, 64, {1: (0, 0), 2: (1, 9), 3: (2, 2), 4: (9, 2)}, (0.9, 0.5))
    assert set(found) == {1, 2, 4}
    assert found[1] == pytest.approx(2 * math.cos(math.pi / 64))
    assert found[2] == pytest.approx(2.0)
    assert found[4] == pytest.approx(-1.0 + 0.5), "what stands after it counts half"
    both = vectors.alike(codes, same + far, 64, {2: (0, 1)}, (0.9, 0.5))
    assert both == {2: pytest.approx((1 - 1 + 1 + 0.5) / 2)}, "of each word of the query the nearest"
    assert (
        vectors.alike(codes, b"", 64, {1: (0,)}, (1.0,)) == vectors.alike({3: b""}, same, 64, {3: (0,)}, (1.0,)) == {}
    )


def test_another_agents_equal_vector_does_not_take_the_place(db: Connection) -> None:
    put(db, "msg_1", 1, 0, 0, 0, scope="agt_ada")
    put(db, "msg_2", 1, 0, 0, 0, scope="agt_bob")
    assert refs(vectors.nearest(db, SearchKind.MESSAGE, QUERY, ["agt_bob"], 1)) == ["msg_2"]
    assert refs(vectors.nearest(db, SearchKind.MESSAGE, QUERY, ["agt_ada"], 9)) == ["msg_1"]
    assert len(vectors.nearest(db, SearchKind.MESSAGE, QUERY, ["agt_ada", "agt_bob", "agt_ada"], 9)) == 2
    assert vectors.nearest(db, SearchKind.MESSAGE, QUERY, [], 9) == []


def test_the_pieces_of_a_text_are_replaced(db: Connection) -> None:
    put(db, "blk_1", 1, 0, 0, 0, kind=SearchKind.BLOCK)
    vector_rows.insert(
        db,
        row("blk_1", 0, 1, 0, 0, kind=SearchKind.BLOCK, content_hash="h2"),
        row("blk_1", 0, 0, 1, 0, kind=SearchKind.BLOCK, content_hash="h3"),
    )
    found = vectors.nearest(db, SearchKind.BLOCK, vectors.packed([0, 1, 0, 0]), ["agt_ada"], 9)
    assert [(item.ref, round(item.distance, 3)) for item in found] == [("blk_1", 0.0), ("blk_1", 1.0)]
    rows = fetch_all(db, "SELECT block_id, chunk_index, content_hash, agent_id FROM memory_embeddings ORDER BY 2")
    assert rows == [("blk_1", 0, "h2", "agt_ada"), ("blk_1", 1, "h3", "agt_ada")]


def test_delete_by_ref_and_scope(db: Connection) -> None:
    put(db, "blk_1", 1, 0, 0, 0, kind=SearchKind.BLOCK)
    embeddings.delete(db, SearchKind.BLOCK, "blk_1")
    embeddings.delete(db, SearchKind.BLOCK, "blk_1")
    assert vector_rows.count(db, SearchKind.BLOCK) == 0
    put(db, "msg_1", 1, 0, 0, 0)
    put(db, "arc_1", 1, 0, 0, 0, kind=SearchKind.ARCHIVAL)
    put(db, "msg_2", 1, 0, 0, 0, scope="agt_bob")
    embeddings.delete_scope(db, "agt_ada")
    assert refs(vectors.nearest(db, SearchKind.MESSAGE, QUERY, ["agt_ada", "agt_bob"], 9)) == ["msg_2"]
    assert vector_rows.count(db, SearchKind.ARCHIVAL) == 0


def test_passages_are_found_by_their_folder(db: Connection) -> None:
    put(db, "psg_1", 1, 0, 0, 0, kind=SearchKind.FILE, scope="fld_1", parent="fil_1")
    assert refs(vectors.nearest(db, SearchKind.FILE, QUERY, ["fld_1"], 9)) == ["psg_1"]
    rows = fetch_all(db, "SELECT passage_id, file_id, folder_id FROM file_passage_embeddings")
    assert rows == [("psg_1", "fil_1", "fld_1")]


def test_a_condition_holds_before_the_limit_counts(db: Connection) -> None:
    for number in range(20):
        put(db, f"msg_{number}", 1, number / 100, 0, 0)
    odd = SqlCondition(sql="CAST(substr(e.ref, 5) AS INTEGER) % 2 = :rest", values={"rest": 1})
    found = vectors.nearest(db, SearchKind.MESSAGE, QUERY, ["agt_ada"], 3, condition=odd)
    assert refs(found) == ["msg_1", "msg_3", "msg_5"]


def test_a_vector_of_another_length_gets_nowhere(db: Connection) -> None:
    with pytest.raises(ValueError, match="2 numbers"):
        vector_rows.insert(db, replace(ROW, vector=vectors.packed([1, 0])))
    put(db, "msg_1", 1, 0, 0, 0)
    assert vectors.nearest(db, SearchKind.MESSAGE, vectors.packed([1, 0]), ["agt_ada"], 9) == []
    embeddings.delete(db, SearchKind.MESSAGE, "msg_1")
    assert vector_rows.count(db, SearchKind.MESSAGE) == 0


def test_without_an_index_nothing_is_found(db: Connection) -> None:
    embedding_indexes.retire(db, 1)
    assert vectors.nearest(db, SearchKind.MESSAGE, QUERY, None, 9) == []


def test_a_text_that_was_said_often_costs_no_more_than_one_that_was_said_once(db: Connection) -> None:
    index, steps = embedding_indexes.kept(db)[0], Counter[int]()

    def counted(said: int) -> bool:
        steps[said] += 1
        return False

    for said in range(1, 401):
        vector_rows.replace(db, index, replace(ROW, ref=f"msg_{said}", vector=QUERY))
        db.set_progress_handler(partial(counted, said), 1)
        assert embeddings.by_hash(db, index, ["h"]) == {"h": QUERY}
        db.set_progress_handler(None)
    assert steps[400] < 1.5 * steps[1]


def test_two_indexes_stand_side_by_side(db: Connection) -> None:
    put(db, "msg_1", 1, 0, 0, 0)
    other = make_index(db, dimension=2, fingerprint="g", state=IndexState.BUILDING)
    short = replace(ROW, ref="msg_1", vector=vectors.packed([0, 1]))
    vector_rows.replace(db, other, short)
    assert refs(vectors.nearest(db, SearchKind.MESSAGE, QUERY, None, 9)) == ["msg_1"]
    with pytest.raises(ValueError, match="4 numbers"), transaction(db):
        vector_rows.replace(db, other, replace(ROW, ref="msg_1"))
    assert refs(vectors.nearest(db, SearchKind.MESSAGE, QUERY, None, 9)) == ["msg_1"]
    assert embeddings.by_hash(db, other, ["h", "x"]) == {"h": short.vector}
    vector_rows.replace(db, other, replace(short, content_hash="h2"))
    assert vectors.nearest(db, SearchKind.MESSAGE, QUERY, None, 9) == [], "the text has changed"
    embeddings.delete(db, SearchKind.MESSAGE, "msg_1")
    assert vector_rows.count(db, SearchKind.MESSAGE) == 0
    assert fetch_all(db, "SELECT count(*) FROM message_embeddings_2") == [(0,)]


MANY = 3_000


@pytest.fixture(params=[64, 72], ids=["whole words", "bytes"])
def many(request: pytest.FixtureRequest, db: Connection) -> list[list[float]]:
    """An index with `MANY` messages of three agents; the numbers of their vectors, in order."""
    embedding_indexes.retire(db, 1)
    index = make_index(db, dimension=request.param, fingerprint="wide")
    chance = random.Random(4)
    # As with real texts, a few dozen topics in many mixtures, and not noise in all directions alike.
    topics = [[chance.gauss(0, 1) for _ in range(request.param)] for _ in range(30)]
    numbers = []
    for _ in range(MANY):
        mixed = [(chance.random(), topic) for topic in chance.sample(topics, 4)]
        numbers.append([sum(share * topic[n] for share, topic in mixed) for n in range(request.param)])
    with db:
        for place, values in enumerate(numbers):
            row = replace(ROW, ref=f"msg_{place}", scope=f"agt_{place % 3}", vector=vectors.packed(values))
            vector_rows.replace(db, index, row)
    return numbers


def codes_of(db: Connection, scopes: list[str] | None = None) -> vectors.Codes:
    index = embedding_indexes.active(db)
    assert index is not None
    codes = vectors.read_codes(db, index, SearchKind.MESSAGE, scopes)
    assert codes is not None
    return codes


def test_the_codes_are_read_as_vec0_means_them(db: Connection, many: list[list[float]]) -> None:
    codes, query = codes_of(db), vectors.packed(many[0])
    sql = "SELECT rowid, distance FROM message_embeddings_2 WHERE embedding MATCH vec_quantize_binary(?) AND k = 200"
    nearest = dict(fetch_all(db, sql, (query,)))
    own = codes.words[codes.ids.tolist().index(min(nearest, key=nearest.__getitem__))]
    differing = dict(zip(codes.ids.tolist(), codes.differing(own).tolist(), strict=True))
    assert len(differing) == MANY
    assert {number: differing[number] for number in nearest} == nearest


def test_the_codes_of_some_owners_are_read_alone(db: Connection, many: list[list[float]]) -> None:
    codes, query = codes_of(db, ["agt_1", "agt_none"]), vectors.packed(many[0])
    assert sorted(codes.nearest(query, MANY)) == list(range(2, MANY + 1, 3))
    assert len(codes.nearest(query, 7)) == 7
    assert codes_of(db, []).nearest(query, 7) == []


def exact(numbers: list[list[float]], query: list[float], places: Iterable[int]) -> list[str]:
    def nearness(place: int) -> float:
        values = numbers[place]
        return sum(a * b for a, b in zip(values, query, strict=True)) / math.hypot(*values)

    return [f"msg_{place}" for place in sorted(places, key=nearness, reverse=True)]


def test_of_many_the_same_are_found_as_by_comparing_all(db: Connection, many: list[list[float]]) -> None:
    found = wanted = 0
    for place in range(5):
        query = [value + 0.1 for value in many[place]]
        got = refs(vectors.nearest(db, SearchKind.MESSAGE, vectors.packed(query), None, 50))
        best = exact(many, query, range(MANY))[:50]
        assert got[0] == best[0]
        found += len(set(got) & set(best))
        wanted += 50
    assert found >= 0.99 * wanted


def test_of_many_only_what_the_filters_allow(db: Connection, many: list[list[float]]) -> None:
    query = many[1]
    asked = vectors.packed(query)
    two = refs(vectors.nearest(db, SearchKind.MESSAGE, asked, ["agt_1", "agt_2"], 20))
    assert two[0] == "msg_1"
    assert {int(ref.removeprefix("msg_")) % 3 for ref in two} == {1, 2}
    rare = SqlCondition(sql="e.ref IN (:a, :b)", values={"a": "msg_9", "b": "msg_2999"})
    got = vectors.nearest(db, SearchKind.MESSAGE, asked, None, 20, condition=rare)
    assert refs(got) == exact(many, query, [9, 2999])


def test_of_many_the_removed_are_gone_at_once(db: Connection, many: list[list[float]]) -> None:
    query = vectors.packed(many[7])
    assert refs(vectors.nearest(db, SearchKind.MESSAGE, query, None, 1)) == ["msg_7"]
    embeddings.delete(db, SearchKind.MESSAGE, "msg_7")
    assert "msg_7" not in refs(vectors.nearest(db, SearchKind.MESSAGE, query, None, 50))
    vector_rows.insert(db, replace(ROW, ref="msg_new", vector=query))
    assert refs(vectors.nearest(db, SearchKind.MESSAGE, query, None, 1)) == ["msg_new"]


def test_lost_derived_tables_cost_time_and_no_result(db: Connection, many: list[list[float]]) -> None:
    query = vectors.packed(many[7])
    before = vectors.nearest(db, SearchKind.MESSAGE, query, None, 1)
    db.execute("DROP TABLE message_embeddings_2")
    assert vectors.nearest(db, SearchKind.MESSAGE, query, None, 1) == before
    embeddings.delete(db, SearchKind.MESSAGE, "msg_8")
    for restore in (embedding_indexes.ensure_tables, embedding_indexes.rebuild_tables):
        restore(db)
        assert vectors.nearest(db, SearchKind.MESSAGE, query, None, 1) == before
        assert fetch_all(db, "SELECT agent_id, count(*) FROM message_embeddings_2 GROUP BY 1") == [
            ("agt_0", MANY // 3),
            ("agt_1", MANY // 3),
            ("agt_2", MANY // 3 - 1),
        ]
