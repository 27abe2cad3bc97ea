"""Pieces of texts that a model refused, so that they have no vector; they count as done until a rebuild."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import SearchKind


@dataclass(frozen=True, slots=True)
class Refusal:
    """A text of which at least one piece has no vector, and the model's reason."""

    kind: SearchKind
    ref: str
    reason: str


def replace(
    connection: Connection, index_id: int, kind: SearchKind, ref: str, *, scope: str, reasons: Mapping[str, str]
) -> None:
    """Let `reasons`, by hash of the piece, be all refusals of `ref` in this index."""
    connection.execute(
        "DELETE FROM embedding_refusals WHERE index_id = ? AND kind = ? AND ref = ?", (index_id, kind, ref)
    )
    connection.executemany(
        "INSERT INTO embedding_refusals (index_id, kind, ref, content_hash, scope, reason) VALUES (?, ?, ?, ?, ?, ?)",
        [(index_id, kind, ref, content_hash, scope, reason) for content_hash, reason in reasons.items()],
    )


def hashes(connection: Connection, index_id: int, kind: SearchKind, ref: str) -> set[str]:
    """The hashes of the refused pieces of `ref`."""
    rows = fetch_all(
        connection,
        "SELECT content_hash FROM embedding_refusals WHERE index_id = ? AND kind = ? AND ref = ?",
        (index_id, kind, ref),
    )
    return {row[0] for row in rows}


def count(connection: Connection, index_id: int) -> int:
    """How many texts have a piece without a vector."""
    sql = "SELECT count(*) FROM (SELECT DISTINCT kind, ref FROM embedding_refusals WHERE index_id = ?)"
    return int(fetch_all(connection, sql, (index_id,))[0][0])


def some(connection: Connection, index_id: int, limit: int) -> list[Refusal]:
    """The first `limit` of them by kind and ref, each with the reason of one of its pieces."""
    rows = fetch_all(
        connection,
        "SELECT kind, ref, min(reason) FROM embedding_refusals WHERE index_id = ? GROUP BY kind, ref"
        " ORDER BY kind, ref LIMIT ?",
        (index_id, limit),
    )
    return [Refusal(SearchKind(kind), ref, reason) for kind, ref, reason in rows]


def forget(connection: Connection, kind: SearchKind, ref: str) -> None:
    """The text is gone, or has no vectors any more."""
    connection.execute("DELETE FROM embedding_refusals WHERE kind = ? AND ref = ?", (kind, ref))


def forget_scope(connection: Connection, scope: str) -> None:
    """The agent or folder is gone."""
    connection.execute("DELETE FROM embedding_refusals WHERE scope = ?", (scope,))
