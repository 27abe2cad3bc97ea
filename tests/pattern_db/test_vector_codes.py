from __future__ import annotations

import gc
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_db import template, vector_codes, vectors
from pattern_db.connection import Connection, fetch_all, open_connection
from pattern_db.enums import SearchKind
from pattern_db.migrate import migrations_of
from pattern_db.tables import embedding_indexes, embeddings
from pattern_db.tables.embedding_indexes import IndexRow
from pattern_db.vector_codes import ADDED_MAX, CodeCache, Codes
from pattern_db.vectors import Neighbour
from tests.pattern_db import vector_rows
from tests.pattern_db.conftest import NOW, make_index
from tests.pattern_db.vector_rows import VectorRow

DIMENSION = 64
ROW = VectorRow(kind=SearchKind.MESSAGE, ref="0", scope="agt_ada", vector=b"")
ROWS = 400
TABLE = "message_embeddings_2"


@pytest.fixture
def rows(db: Connection, begin_index: Callable[..., IndexRow]) -> list[bytes]:
    """Vectors of 72 numbers (no whole number of words), ids 1 to `ROWS`, by turns of two agents."""
    embedding_indexes.retire(db, 1)
    begin_index(db, dimension=72, fingerprint="wide")
    chance = random.Random(1)
    made = [vectors.packed([chance.gauss(0, 1) for _ in range(72)]) for _ in range(ROWS)]
    with db:
        for number, vector in enumerate(made):
            scope = f"agt_{number % 2}"
            vector_rows.insert(db, replace(ROW, ref=f"msg_{number}", scope=scope, vector=vector))
    return made


def active(db: Connection) -> IndexRow:
    index = embedding_indexes.active(db)
    assert index is not None
    return index


def read(db: Connection, scopes: list[str] | None = None) -> Codes:
    return vector_codes.read(db, active(db), SearchKind.MESSAGE, scopes)


def test_the_codes_are_read_as_vec0_means_them(db: Connection, rows: list[bytes]) -> None:
    assert vector_codes.is_possible()
    codes = read(db)
    assert codes.count(None) == codes.newest == ROWS
    for query in rows[:5]:
        differing = dict(
            fetch_all(
                db,
                f"SELECT rowid, distance FROM {TABLE} WHERE embedding MATCH vec_quantize_binary(?) AND k = {ROWS}",
                (query,),
            )
        )
        found = codes._differing(np.frombuffer(query, "<f4"))
        assert dict(zip(codes._ids.tolist(), found.tolist(), strict=True)) == differing
        assert len(differing) == ROWS


def test_only_the_asked_owners_are_compared(db: Connection, rows: list[bytes]) -> None:
    for codes in (read(db), read(db, ["agt_1", "agt_none"])):
        odd = ["agt_1", "agt_none"]
        assert codes.count(odd) == ROWS // 2
        assert codes.nearest(rows[0], odd, ROWS) == list(range(2, ROWS + 1, 2))
        found = codes.nearest(rows[0], odd, 7)
        assert len(found) == 7
        assert all(number % 2 == 0 for number in found)
        assert codes.nearest(rows[0], [], 5) == []
    assert read(db, ["agt_1"]).count(None) == ROWS // 2
    assert read(db, []).count(None) == 0
    assert read(db, []).newest == 0


def test_what_is_removed_is_no_candidate(db: Connection, rows: list[bytes]) -> None:
    before = read(db)
    embeddings.delete(db, SearchKind.MESSAGE, "msg_0")
    before.forget([1])
    before.forget([1])
    for codes in (read(db), before):
        assert codes.count(None) == ROWS - 1
        assert 1 not in codes.nearest(rows[0], None, ROWS)
        assert 1 not in codes.nearest(rows[0], None, 3)


def test_what_is_added_is_as_if_it_had_been_read(db: Connection, rows: list[bytes]) -> None:
    codes = read(db, ["agt_1"])
    more = fetch_all(db, "SELECT id, scope, vec_quantize_binary(vector) FROM embeddings WHERE scope = 'agt_0'")
    added = [(ROWS + row[0], row[1], row[2]) for row in more]
    size = codes.size
    codes.add(added)
    codes.add([])
    assert codes.count(None) == ROWS
    assert codes.size == 2 * size
    assert codes.count(["agt_0"]) == ROWS // 2
    assert ROWS + 1 in codes.nearest(rows[0], None, 1)


def vector(number: int) -> bytes:
    chance = random.Random(number)
    return vectors.packed([chance.gauss(0, 1) for _ in range(DIMENSION)])


def put(connection: Connection, number: int, *, ref: int | None = None, scope: str = "agt_ada") -> None:
    row = replace(ROW, ref=str(number if ref is None else ref), scope=scope, vector=vector(number))
    vector_rows.insert(connection, row)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A file with an active index and 50 vectors."""
    path = tmp_path / "pattern.db"
    template.create(path, migrations_of("constellation"), now=NOW)
    connection = open_connection(path)
    make_index(connection, dimension=DIMENSION)
    for number in range(50):
        put(connection, number, scope="agt_ada" if number % 3 else "agt_bob")
    connection.close()
    return path


@pytest.fixture
def writer(place: Path) -> Iterator[Connection]:
    connection = open_connection(place)
    yield connection
    connection.close()


@pytest.fixture
def reader(place: Path) -> Iterator[Connection]:
    connection = open_connection(place, readonly=True)
    yield connection
    connection.close()


def codes_of(cache: CodeCache, connection: Connection) -> Codes:
    codes = cache.codes(connection, active(connection), SearchKind.MESSAGE, None)
    assert codes is not None
    return codes


def test_it_is_read_once_and_follows_what_others_add(writer: Connection, reader: Connection) -> None:
    cache = CodeCache()
    codes = codes_of(cache, reader)
    assert codes_of(cache, reader) is codes
    put(writer, 50)
    put(writer, 1, ref=7)
    assert codes_of(cache, reader) is codes
    # The one that was replaced is told apart when it is looked at: see `vectors.nearest`.
    assert codes.count(None) == 52
    assert codes.newest == fetch_all(reader, "SELECT max(id) FROM embeddings")[0][0]


def test_an_id_is_never_given_twice(writer: Connection, reader: Connection) -> None:
    cache = CodeCache()
    newest = codes_of(cache, reader).newest
    embeddings.delete(writer, SearchKind.MESSAGE, "49")
    put(writer, 60)
    assert codes_of(cache, reader).newest > newest


def test_what_may_be_taken_back_is_not_kept(writer: Connection) -> None:
    cache = CodeCache()
    assert codes_of(cache, writer).count(None) == 50
    writer.execute("BEGIN IMMEDIATE")
    put(writer, 50)
    assert codes_of(cache, writer).count(None) == 51
    writer.execute("ROLLBACK")
    assert codes_of(cache, writer).count(None) == 50
    put(writer, 51)
    assert codes_of(cache, writer).count(None) == 51


def test_another_index_has_codes_of_its_own(
    writer: Connection, reader: Connection, begin_index: Callable[..., IndexRow]
) -> None:
    cache = CodeCache()
    codes_of(cache, reader)
    embedding_indexes.retire(writer, 1)
    index = begin_index(writer, dimension=DIMENSION, fingerprint="g")
    vector_rows.replace(writer, index, replace(ROW, ref="1", vector=vector(1)))
    assert codes_of(cache, reader).count(None) == 1


def test_after_many_additions_it_is_read_anew(writer: Connection, reader: Connection) -> None:
    cache = CodeCache()
    codes = codes_of(cache, reader)
    writer.execute("UPDATE sqlite_sequence SET seq = seq + ? WHERE name = 'embeddings'", (ADDED_MAX,))
    put(writer, 50)
    assert codes_of(cache, reader) is not codes
    assert codes_of(cache, reader).count(None) == 51


def test_lost_tables_and_dropped_codes(writer: Connection) -> None:
    cache = CodeCache()
    index = active(writer)
    codes = codes_of(cache, writer)
    assert codes_of(cache, writer) is codes
    cache.drop(writer, index, SearchKind.MESSAGE)
    assert codes_of(cache, writer) is not codes
    cache.drop(writer, index, SearchKind.MESSAGE)
    writer.execute(f"DROP TABLE {index.table(SearchKind.MESSAGE)}")
    assert cache.codes(writer, index, SearchKind.MESSAGE, None) is None


def test_it_goes_with_its_connection(place: Path) -> None:
    cache = CodeCache()
    connection = open_connection(place)
    codes_of(cache, connection)
    assert cache.size > 50 * DIMENSION // 8
    connection.close()
    del connection
    gc.collect()
    assert cache.size == 0


def test_all_together_stay_within_the_bound(place: Path) -> None:
    connections = [open_connection(place, readonly=True) for _ in range(7)]
    each = codes_of(CodeCache(), connections[0]).size
    cache = CodeCache(bytes_max=6 * each)
    first = [codes_of(cache, connection) for connection in connections]
    assert cache.size == 6 * each
    assert codes_of(cache, connections[1]) is first[1]
    assert codes_of(cache, connections[0]) is not first[0]  # in the place of the one not used for longest
    assert codes_of(cache, connections[1]) is first[1]
    assert codes_of(cache, connections[2]) is not first[2]
    assert cache.size == 6 * each
    for connection in connections:
        connection.close()


def test_what_is_too_large_is_read_every_time_and_no_more_than_is_asked(reader: Connection) -> None:
    cache = CodeCache(bytes_max=100)
    codes = cache.codes(reader, active(reader), SearchKind.MESSAGE, ["agt_bob"])
    assert codes is not None
    assert codes.count(None) == 17
    assert cache.size == 0


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 60)),
        st.tuples(st.just("replace"), st.integers(0, 49)),
        st.tuples(st.just("delete"), st.integers(0, 60)),
        st.tuples(st.just("scope"), st.integers(0, 1)),
        st.tuples(st.just("switch"), st.just(0)),
        st.tuples(st.just("look"), st.integers(0, 60)),
    ),
    max_size=12,
)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with more vectors than are compared one by one, of two agents."""
    path = tmp_path_factory.mktemp("many") / "pattern.db"
    template.create(path, migrations_of("constellation"), now=NOW)
    connection = open_connection(path)
    make_index(connection, dimension=DIMENSION)
    with connection:
        for number in range(vectors.EXACT_ROWS_MAX + 200):
            put(connection, number, scope="agt_ada" if number % 50 else "agt_bob")
    connection.close()
    return path


@given(steps=STEPS)
@settings(max_examples=20, deadline=None)
def test_whatever_happened_the_search_finds_the_same_as_one_that_just_began(
    many: Path, steps: list[tuple[str, int]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(shutil.copy(many, folder))
        writer, reader = open_connection(path), open_connection(path, readonly=True)
        look(reader, 0)
        for count, (step, number) in enumerate(steps):
            take(writer, step, number, 10_000 + 100 * count)
            fresh = open_connection(path, readonly=True)
            assert look(reader, number) == look(fresh, number)
            fresh.close()
        for query in (0, 10_000):
            assert look(reader, query) == look(writer, query)
        reader.close()
        writer.close()


def test_what_was_removed_takes_no_others_place(many: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(many, tmp_path))
    writer, reader = open_connection(path), open_connection(path, readonly=True)
    for _round in range(15):
        fresh = open_connection(path, readonly=True)
        found = vectors.nearest(reader, SearchKind.MESSAGE, vector(0), None, 10)
        assert found == vectors.nearest(fresh, SearchKind.MESSAGE, vector(0), None, 10)
        for neighbour in found:
            embeddings.delete(writer, SearchKind.MESSAGE, neighbour.ref)
        fresh.close()
    reader.close()
    writer.close()


def look(connection: Connection, number: int) -> list[list[Neighbour]]:
    """What is nearest to a vector, of everybody's and of one agent's."""
    scopes: list[list[str] | None] = [None, ["agt_ada"], ["agt_bob"]]
    return [vectors.nearest(connection, SearchKind.MESSAGE, vector(number), some, 4) for some in scopes]


def take(connection: Connection, step: str, number: int, new: int) -> None:
    """Do one step; `new` is the first of a hundred numbers that are free."""
    if step == "put":
        put(connection, new)
    elif step == "replace":
        put(connection, new, ref=number)
    elif step == "delete":
        for one in range(number, number + 40):
            embeddings.delete(connection, SearchKind.MESSAGE, str(one))
    elif step == "scope":
        embeddings.delete_scope(connection, ("agt_bob", "agt_eve")[number])
    elif step == "switch":
        for old in embedding_indexes.live(connection):
            embedding_indexes.retire(connection, old.id)
        make_index(connection, dimension=DIMENSION, fingerprint=f"g{new}")
        for other in range(12):
            put(connection, new + other)
