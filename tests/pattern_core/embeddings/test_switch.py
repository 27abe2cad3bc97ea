from __future__ import annotations

from dataclasses import replace

import pytest

from pattern_core.embeddings import work
from pattern_core.embeddings.embedder import EmbedderInfo
from pattern_core.errors import Conflict
from pattern_db.connection import Connection
from pattern_db.enums import IndexState
from pattern_db.tables import embedding_indexes
from tests.pattern_core.embeddings import stage

INFO = EmbedderInfo(provider="test", model="small", dimension=64, fingerprint="f")
OTHER = replace(INFO, model="large", dimension=128, fingerprint="g")
THIRD = replace(INFO, model="third", fingerprint="h")
NOW = stage.NOW


@pytest.fixture
def db() -> Connection:
    return stage.connection()


def states(db: Connection) -> dict[str, IndexState]:
    return {index.model: index.state for index in embedding_indexes.kept(db)}


def test_there_must_be_something_to_switch_from(db: Connection) -> None:
    with pytest.raises(Conflict, match="begins by itself"):
        work.start_switch(db, INFO, NOW)
    assert not work.rebuild(db)
    embedding_indexes.begin(db, INFO, IndexState.ACTIVE, NOW)
    assert states(db) == {"small": IndexState.ACTIVE}
    with pytest.raises(Conflict, match="already"):
        work.start_switch(db, INFO, NOW)
    assert not work.cancel_switch(db)
    assert work.rebuild(db)


def test_an_equal_fingerprint_of_another_length_is_another_model(db: Connection) -> None:
    index = embedding_indexes.begin(db, INFO, IndexState.ACTIVE, NOW)
    assert index.matches(INFO)
    assert not index.matches(replace(INFO, dimension=128))
    assert work.start_switch(db, replace(INFO, dimension=128), NOW).dimension == 128


def test_it_takes_over_only_when_every_text_is_done(db: Connection) -> None:
    first = embedding_indexes.begin(db, INFO, IndexState.ACTIVE, NOW)
    stage.keep(db, 1, "words")
    building = work.start_switch(db, OTHER, NOW)
    assert work.start_switch(db, OTHER, NOW) == building
    assert not work.complete(db, building, NOW)
    assert states(db) == {"small": IndexState.ACTIVE, "large": IndexState.BUILDING}
    stage.keep(db, 2, "more words")
    db.execute("DELETE FROM archival_entries")
    for kind, cursor in embedding_indexes.cursors(db, building.id).items():
        embedding_indexes.advance(db, building.id, move=(cursor, replace(cursor, low=0, kind=kind)))
    assert not work.complete(db, building, NOW)  # the removal of a text was noted, and is not worked off
    db.execute("DELETE FROM embedding_changes")
    assert work.complete(db, building, NOW)
    assert states(db) == {"small": IndexState.RETIRED, "large": IndexState.ACTIVE}
    assert not work.complete(db, first, NOW)


def test_a_third_model_takes_the_place_of_the_second(db: Connection) -> None:
    embedding_indexes.begin(db, INFO, IndexState.ACTIVE, NOW)
    work.start_switch(db, OTHER, NOW)
    work.start_switch(db, THIRD, NOW)
    assert states(db) == {
        "small": IndexState.ACTIVE,
        "third": IndexState.BUILDING,
        "large": IndexState.RETIRED,
    }
    assert work.cancel_switch(db)
    assert states(db)["third"] is IndexState.RETIRED
