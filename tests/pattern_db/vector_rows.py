"""Vectors to put into an index, without texts that they are of."""

from __future__ import annotations

from dataclasses import dataclass

from pattern_db import vectors
from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import SearchKind
from pattern_db.tables import embedding_indexes, embeddings
from pattern_db.tables.embedding_indexes import IndexRow
from pattern_db.tables.embedding_sources import EmbeddingSource


@dataclass(frozen=True, kw_only=True)
class VectorRow:
    """The vector of one piece of a text, and its owner."""

    kind: SearchKind
    ref: str
    scope: str
    vector: bytes = vectors.packed([1, 0, 0, 0])
    content_hash: str = "h"
    parent: str | None = None
    created_at: str = "2026-11-21T22:24:40.123Z"


def insert(connection: Connection, *pieces: VectorRow) -> None:
    """Let these be all vectors of a text in the active index."""
    index = embedding_indexes.active(connection)
    assert index is not None
    replace(connection, index, *pieces)


def replace(connection: Connection, index: IndexRow, *pieces: VectorRow) -> None:
    """Let these be all vectors of a text in an index."""
    row = pieces[0]
    source = EmbeddingSource(kind=row.kind, ref=row.ref, scope=row.scope, parent=row.parent, text="")
    known = {piece.content_hash: piece.vector for piece in pieces}
    embeddings.replace(connection, index, source, list(known), known, now=row.created_at)


def count(connection: Connection, kind: SearchKind) -> int:
    """Return how many vectors of a kind there are."""
    return int(fetch_all(connection, "SELECT count(*) FROM embeddings WHERE kind = ?", (kind,))[0][0])
