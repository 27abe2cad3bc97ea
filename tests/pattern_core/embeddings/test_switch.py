from __future__ import annotations

from dataclasses import replace

import pytest

from pattern_core.embeddings import switch
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
    found = [*embedding_indexes.live(db), *embedding_indexes.in_state(db, IndexState.RETIRED)]
    return {index.model: index.state for index in found}


def test_there_must_be_something_to_switch_from(db: Connection) -> None:
    with pytest.raises(Conflict, match="begins by itself"):
        switch.start(db, INFO, NOW)
    assert not switch.rebuild(db)
    switch.begin_first(db, INFO, NOW)
    assert states(db) == {"small": IndexState.ACTIVE}
    with pytest.raises(Conflict, match="already"):
        switch.start(db, INFO, NOW)
    assert not switch.cancel(db)
    assert switch.rebuild(db)


def test_an_equal_fingerprint_of_another_length_is_another_model(db: Connection) -> None:
    index = switch.begin_first(db, INFO, NOW)
    assert switch.matches(index, INFO)
    assert not switch.matches(index, replace(INFO, dimension=128))
    assert switch.start(db, replace(INFO, dimension=128), NOW).dimension == 128


def test_it_takes_over_only_when_every_text_is_done(db: Connection) -> None:
    switch.begin_first(db, INFO, NOW)
    stage.keep(db, 1, "words")
    building = switch.start(db, OTHER, NOW)
    assert switch.start(db, OTHER, NOW) == building
    assert not switch.complete(db, building.id, NOW)
    assert states(db) == {"small": IndexState.ACTIVE, "large": IndexState.BUILDING}
    stage.keep(db, 2, "more words")
    db.execute("DELETE FROM archival_entries")
    for kind, cursor in embedding_indexes.cursors(db, building.id).items():
        embedding_indexes.move(db, building.id, cursor, replace(cursor, low=0, kind=kind))
    assert not switch.complete(db, building.id, NOW)  # the removal of a text was noted, and is not worked off
    db.execute("DELETE FROM embedding_changes")
    assert switch.complete(db, building.id, NOW)
    assert states(db) == {"small": IndexState.RETIRED, "large": IndexState.ACTIVE}
    assert not switch.complete(db, 1, NOW)


def test_a_third_model_takes_the_place_of_the_second(db: Connection) -> None:
    switch.begin_first(db, INFO, NOW)
    switch.start(db, OTHER, NOW)
    switch.start(db, THIRD, NOW)
    assert states(db) == {
        "small": IndexState.ACTIVE,
        "third": IndexState.BUILDING,
        "large": IndexState.RETIRED,
    }
    assert switch.cancel(db)
    assert states(db)["third"] is IndexState.RETIRED
