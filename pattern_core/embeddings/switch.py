"""Going over to another model while search goes on: the acts, as functions of a connection.

Vectors of two models cannot be compared, so a new model needs every text embedded anew. Until that is done the old
index stays active and search answers from it, as long as questions can still be embedded by its model (see `shelf`);
else words alone answer, and say so. Then one transaction swaps the two, and the old vectors are removed a few at a
time.

That a model is configured which is not the active index's never starts this by itself: a typing error in a
configuration must not set the machine to work for hours. Only the very first index begins without being asked.
"""

from __future__ import annotations

from pattern_core.embeddings import work
from pattern_core.embeddings.embedder import EmbedderInfo
from pattern_core.embeddings.shelf import is_comparable
from pattern_core.errors import Conflict
from pattern_db import vector_tables
from pattern_db.connection import Connection
from pattern_db.enums import IndexState
from pattern_db.tables import embedding_indexes as indexes
from pattern_db.tables.embedding_indexes import IndexRow, NewIndex


def matches(index: IndexRow, info: EmbedderInfo) -> bool:
    """Whether the embedder makes vectors that can be compared with those of the index."""
    return is_comparable(made_by(index), info)


def made_by(index: IndexRow) -> EmbedderInfo:
    """The model of the index, as it told itself then."""
    return EmbedderInfo(
        provider=index.provider, model=index.model, dimension=index.dimension, fingerprint=index.fingerprint
    )


def begin_first(connection: Connection, info: EmbedderInfo, now: str) -> IndexRow:
    """Begin the first index. Nothing is there to be kept, so it is active at once and grows while it answers."""
    return _begin(connection, info, IndexState.ACTIVE, now)


def start(connection: Connection, info: EmbedderInfo, now: str) -> IndexRow:
    """Begin an index for another model beside the active one, or go on with it; one for a third model is given up.

    If the active index is of this model and another one's is being built, that one is given up: back to the old model.

    Raises:
        Conflict: the active index is of this model already, or there is none to switch from.
    """
    found = {index.state: index for index in indexes.live(connection)}
    active, building = found.get(IndexState.ACTIVE), found.get(IndexState.BUILDING)
    if active is None:
        raise Conflict("no text was embedded yet, so there is nothing to switch: it begins by itself")
    if matches(active, info):
        if building is not None and cancel(connection):
            return active
        raise Conflict(
            f"the vectors are {info.model}'s already;"
            " to have every text looked at again, use `pattern embeddings rebuild`"
        )
    if building is not None and matches(building, info):
        return building
    cancel(connection)
    return _begin(connection, info, IndexState.BUILDING, now)


def cancel(connection: Connection) -> bool:
    """Give up the index that is being built; False if there is none. Its vectors are removed later."""
    building = indexes.in_state(connection, IndexState.BUILDING)
    for index in building:
        indexes.set_state(connection, index.id, IndexState.RETIRED)
    return bool(building)


def complete(connection: Connection, index_id: int, now: str) -> bool:
    """If every text has its vectors at this moment, note it, and let an index that was built take over.

    Within one transaction nothing can come in between: the other index answers up to here, and this one from here on.
    """
    index = indexes.find(connection, index_id)
    if index.state is IndexState.RETIRED or not work.is_covered(connection, index):
        return False
    if index.state is IndexState.BUILDING:
        for old in indexes.in_state(connection, IndexState.ACTIVE):
            indexes.set_state(connection, old.id, IndexState.RETIRED)
        indexes.set_state(connection, index.id, IndexState.ACTIVE)
    indexes.set_completed(connection, index.id, now)
    return True


def rebuild(connection: Connection) -> bool:
    """Have every text looked at again; only what is not up to date is embedded. False if there is no index."""
    found = indexes.live(connection)
    for index in found:
        indexes.rewind(connection, index.id)
    return bool(found)


def _begin(connection: Connection, info: EmbedderInfo, state: IndexState, now: str) -> IndexRow:
    new = NewIndex(
        fingerprint=info.fingerprint,
        provider=info.provider,
        model=info.model,
        dimension=info.dimension,
        created_at=now,
    )
    index = indexes.begin(connection, new, state)
    vector_tables.ensure(connection)
    return index
