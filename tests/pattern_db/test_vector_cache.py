from __future__ import annotations

import gc
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_db import template, vector_scan, vector_tables, vectors
from pattern_db.connection import Connection, fetch_all, open_connection
from pattern_db.enums import IndexState, SearchKind
from pattern_db.migrate import migrations_of
from pattern_db.tables import embedding_indexes
from pattern_db.tables.embedding_indexes import IndexRow
from pattern_db.vector_cache import ADDED_MAX, VectorCache
from pattern_db.vectors import Embedding, Neighbour
from tests.pattern_db.conftest import NOW, make_index

DIMENSION = 64
ROW = Embedding(kind=SearchKind.MESSAGE, ref="0", scope="agt_ada", vector=b"", content_hash="h", created_at=NOW)


def vector(number: int) -> bytes:
    chance = random.Random(number)
    return vectors.packed([chance.gauss(0, 1) for _ in range(DIMENSION)])


def put(connection: Connection, number: int, *, ref: int | None = None, scope: str = "agt_ada") -> None:
    row = replace(ROW, ref=str(number if ref is None else ref), scope=scope, vector=vector(number))
    vectors.insert(connection, row)


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


def codes_of(cache: VectorCache, connection: Connection) -> vector_scan.Codes:
    index = embedding_indexes.active(connection)
    assert index is not None
    codes = cache.codes(connection, index, SearchKind.MESSAGE, None)
    assert codes is not None
    return codes


def test_it_is_read_once_and_follows_what_others_add(writer: Connection, reader: Connection) -> None:
    cache = VectorCache()
    codes = codes_of(cache, reader)
    assert codes_of(cache, reader) is codes
    put(writer, 50)
    put(writer, 1, ref=7)
    assert codes_of(cache, reader) is codes
    # The one that was replaced is told apart when it is looked at: see `vectors.nearest`.
    assert len(codes) == 52
    assert codes.newest == fetch_all(reader, "SELECT max(id) FROM embeddings")[0][0]


def test_an_id_is_never_given_twice(writer: Connection, reader: Connection) -> None:
    cache = VectorCache()
    newest = codes_of(cache, reader).newest
    vectors.delete(writer, SearchKind.MESSAGE, "49")
    put(writer, 60)
    assert codes_of(cache, reader).newest > newest


def test_what_may_be_taken_back_is_not_kept(writer: Connection) -> None:
    cache = VectorCache()
    assert len(codes_of(cache, writer)) == 50
    writer.execute("BEGIN IMMEDIATE")
    put(writer, 50)
    assert len(codes_of(cache, writer)) == 51
    writer.execute("ROLLBACK")
    assert len(codes_of(cache, writer)) == 50
    put(writer, 51)
    assert len(codes_of(cache, writer)) == 51


def test_another_index_has_codes_of_its_own(
    writer: Connection, reader: Connection, begin_index: Callable[..., IndexRow]
) -> None:
    cache = VectorCache()
    codes_of(cache, reader)
    embedding_indexes.set_state(writer, 1, IndexState.RETIRED)
    index = begin_index(writer, dimension=DIMENSION, fingerprint="g")
    vectors.replace(writer, index, SearchKind.MESSAGE, "1", [replace(ROW, ref="1", vector=vector(1))])
    assert len(codes_of(cache, reader)) == 1


def test_after_many_additions_it_is_read_anew(writer: Connection, reader: Connection) -> None:
    cache = VectorCache()
    codes = codes_of(cache, reader)
    writer.execute("UPDATE sqlite_sequence SET seq = seq + ? WHERE name = 'embeddings'", (ADDED_MAX,))
    put(writer, 50)
    assert codes_of(cache, reader) is not codes
    assert len(codes_of(cache, reader)) == 51


def test_lost_tables_and_dropped_codes(writer: Connection) -> None:
    cache = VectorCache()
    index = embedding_indexes.active(writer)
    assert index is not None
    codes = codes_of(cache, writer)
    assert cache.holds(writer, index, SearchKind.MESSAGE)
    cache.drop(writer, index, SearchKind.MESSAGE)
    assert not cache.holds(writer, index, SearchKind.MESSAGE)
    assert codes_of(cache, writer) is not codes
    cache.drop(writer, index, SearchKind.MESSAGE)
    vector_tables.drop(writer, index)
    assert cache.codes(writer, index, SearchKind.MESSAGE, None) is None


def test_it_goes_with_its_connection(place: Path) -> None:
    cache = VectorCache()
    connection = open_connection(place)
    codes_of(cache, connection)
    assert cache.size > 50 * DIMENSION // 8
    connection.close()
    del connection
    gc.collect()
    assert cache.size == 0


def test_all_together_stay_within_the_bound(place: Path) -> None:
    connections = [open_connection(place, readonly=True) for _ in range(7)]
    each = codes_of(VectorCache(), connections[0]).size
    cache = VectorCache(bytes_max=6 * each)
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
    cache = VectorCache(bytes_max=100)
    index = embedding_indexes.active(reader)
    assert index is not None
    codes = cache.codes(reader, index, SearchKind.MESSAGE, ["agt_bob"])
    assert codes is not None
    assert len(codes) == 17
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
            vectors.delete(writer, SearchKind.MESSAGE, neighbour.ref)
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
            vectors.delete(connection, SearchKind.MESSAGE, str(one))
    elif step == "scope":
        vectors.delete_scope(connection, ("agt_bob", "agt_eve")[number])
    elif step == "switch":
        for old in embedding_indexes.in_state(connection, IndexState.ACTIVE):
            embedding_indexes.set_state(connection, old.id, IndexState.RETIRED)
        make_index(connection, dimension=DIMENSION, fingerprint=f"g{new}")
        for other in range(12):
            put(connection, new + other)
